"""Hashes of keys of rarer types: equal ones share one, whatever their unit, their fold, or the version of Python."""

from __future__ import annotations

import datetime as dt
import enum
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest

from pillarbox import CheckpointMismatchError
from pillarbox._errors import KeyTypeError
from pillarbox._state import (
    HeapKeyedStateBackend,
    KeyOwner,
    LogIdentity,
    MemoryChunkStore,
    StateLog,
    ValueStateDescriptor,
)
from pillarbox._state.key_groups import key_group, stable_hash, subtask_of

BERLIN = ZoneInfo("Europe/Berlin")
TWICE = dt.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN)


class Access(enum.Flag):
    READ = 1
    WRITE = 2


@pytest.mark.parametrize("access", [Access.READ, Access.READ | Access.WRITE, Access(0)])
def test_flags_are_known_by_their_value(access, monkeypatch):
    """Composite members have no name before Python 3.11."""
    found = stable_hash(access)
    monkeypatch.setattr(Access, "name", property(lambda _: None))
    assert stable_hash(access) == found
    assert len({stable_hash(Access(value)) for value in range(4)}) == 4


@pytest.mark.parametrize(
    "equal",
    [
        (TWICE, TWICE.replace(fold=1)),
        (dt.time(2, 30, tzinfo=BERLIN), dt.time(2, 30, fold=1, tzinfo=BERLIN)),
        (np.longdouble(1), 1, np.float64(1)),
        (np.datetime64("2024-01-01"), np.datetime64("2024-01-01T00", "h"), np.datetime64("2024-01-01T00", "ns")),
        (np.datetime64("2024-01"), np.datetime64("2024-01-01T00:00", "m"), dt.datetime(2024, 1, 1)),
        (np.datetime64("2024-01-01T00:00:00.000000001", "ns"), np.datetime64("2024-01-01T00:00:00.000000001000", "ps")),
        (np.timedelta64(1, "h"), np.timedelta64(60, "m"), dt.timedelta(hours=1)),
        (np.datetime64("1969-12-31T23:59:59.5", "ms"), np.datetime64("1969-12-31T23:59:59.5", "us")),
    ],
)
def test_equal_keys_share_a_hash(equal):
    assert all(each == equal[0] for each in equal)
    assert len({stable_hash(each) for each in equal}) == 1


def test_text_of_numpy_with_surrogates_has_the_hash_of_its_text():
    assert stable_hash(np.str_("a\udc80")) == stable_hash("a\udc80")


@pytest.mark.parametrize("key", [np.datetime64("NaT"), np.timedelta64("NaT"), pd.NaT, np.longdouble("nan")])
def test_what_does_not_equal_itself_is_no_key(key):
    with pytest.raises(KeyTypeError, match="cannot key by Na"):
        stable_hash(key)


class Suit(enum.Enum):
    HEARTS = 1
    SPADES = 2


@dataclass(frozen=True)
class Card:
    suit: Suit


@pytest.mark.parametrize("make", [lambda suit: suit, lambda suit: ("a", suit), lambda suit: ("a", (suit,))])
def test_owners_of_restored_keys_are_checked_whose_hash_may_change(make, monkeypatch):
    """The name of an enum's member is in its hash: of a member with another name the rows are another subtask's."""
    key: Any = make(Suit.HEARTS)
    monkeypatch.setattr(Suit, "__qualname__", "Renamed")
    names = {}
    for name in map("Suit{}".format, range(100)):
        monkeypatch.setattr(Suit, "__qualname__", name)
        names[subtask_of(key_group(key, 128), 128, 4)] = name
    monkeypatch.setattr(Suit, "__qualname__", names[0])

    def task(store: MemoryChunkStore) -> tuple[HeapKeyedStateBackend, Any, StateLog]:
        backend = HeapKeyedStateBackend("op", KeyOwner(0, 4, 128))
        value = backend.get_state(ValueStateDescriptor("v"))
        backend.seal()
        return backend, value, StateLog(LogIdentity("op", 0, 4, 128), backend, own_state=False)

    store = MemoryChunkStore()
    backend, value, log = task(store)
    log.sync(store)
    backend.set_current_key(key)
    value.update(1)
    monkeypatch.setattr(Suit, "__qualname__", "Suit")
    log.commit(store, {})
    monkeypatch.setattr(Suit, "__qualname__", names[3])
    with pytest.raises(CheckpointMismatchError, match="belongs to subtask 3 now"):
        task(store)[2].sync(store)
