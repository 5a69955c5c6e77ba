"""Hashes of rarer key types. Equal keys have equal hashes, for any unit, fold, or Python version."""

from __future__ import annotations

import datetime as dt
import enum
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest

from pillarbox import CheckpointMismatchError
from pillarbox._errors import KeyTypeError
from pillarbox._state.chunks.head import LogIdentity
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.descriptors import ValueStateDescriptor
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.heap.key_rows import KeyOwner
from pillarbox._state.keys.key_groups import stable_hash, subtask_of_key
from pillarbox._state.log.state_log import StateLog

BERLIN = ZoneInfo("Europe/Berlin")
TWICE = dt.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN)


def test_flags_are_known_by_their_values():
    """Composite members have no name before Python 3.11."""
    flag: Any = enum.Flag
    access, other = (flag("Access", {first: 1, second: 2}) for first, second in (("READ", "WRITE"), ("R", "W")))
    hashes = [stable_hash(access(value)) for value in range(4)]
    assert len(set(hashes)) == 4
    assert hashes == [stable_hash(other(value)) for value in range(4)]
    assert stable_hash(flag("Other", {"READ": 1})(1)) != hashes[1]


@pytest.mark.parametrize(
    "equal",
    [
        (TWICE, TWICE.replace(fold=1)),
        (dt.time(2, 30, tzinfo=BERLIN), dt.time(2, 30, fold=1, tzinfo=BERLIN)),
        (np.longdouble(1), 1, np.float64(1)),
        (np.datetime64("2024-01-01"), np.datetime64("2024-01-01T00", "h"), np.datetime64("2024-01-01T00", "ns")),
        (np.datetime64("2024-01"), np.datetime64("2024-01-01T00:00", "m"), np.datetime64("2024")),
        (np.datetime64("2024-01-01T00", "us"), dt.datetime(2024, 1, 1)),
        (np.datetime64("1970-01-01T00:00:01.000000001", "ns"), np.datetime64("1970-01-01T00:00:01.000000001", "ps")),
        (np.timedelta64(1, "h"), np.timedelta64(60, "m"), dt.timedelta(hours=1)),
        (np.datetime64("1969-12-31T23:59:59.5", "ms"), np.datetime64("1969-12-31T23:59:59.5", "us")),
    ],
)
def test_equal_keys_share_a_hash(equal):
    assert all(key == equal[0] for key in equal)
    assert len({stable_hash(key) for key in equal}) == 1


def test_text_of_numpy_with_surrogates_has_the_hash_of_its_text():
    assert stable_hash(np.str_("a\udc80")) == stable_hash("a\udc80")


@pytest.mark.parametrize("key", [np.datetime64("NaT"), np.timedelta64("NaT"), pd.NaT, np.longdouble("nan")])
def test_keys_unequal_to_themselves_are_refused(key):
    with pytest.raises(KeyTypeError, match="cannot key by Na"):
        stable_hash(key)


Suit: Any = enum.Enum("Suit", {"HEARTS": 1}, module=__name__)


@pytest.mark.parametrize("make", [lambda suit: suit, lambda suit: ("a", suit), lambda suit: ("a", (suit,))])
def test_owners_of_restored_keys_are_checked_whose_hash_may_change(make, monkeypatch):
    right = subtask_of_key(make(Suit(1)), 128, 4)

    def task(store: MemoryChunkStore) -> tuple[KeyedStateBackend, Any, StateLog]:
        backend = KeyedStateBackend("op", KeyOwner(right, 4, 128))
        value = backend.get_state(ValueStateDescriptor("v"))
        backend.seal()
        log = StateLog(LogIdentity("op", right, 4, 128), backend, own_state=False)
        log.sync(store)
        return backend, value, log

    store = MemoryChunkStore()
    backend, value, log = task(store)
    backend.set_current_key(make(Suit(1)))
    value.update(1)
    log.commit(store, {})
    for name in map("OTHER_{}".format, range(100)):
        monkeypatch.setattr(f"{__name__}.Suit", enum.Enum("Suit", {name: 1}, module=__name__))
        other = subtask_of_key(make(Suit(1)), 128, 4)
        if other != right:
            break
    with pytest.raises(CheckpointMismatchError, match=f"belongs to subtask {other} now"):
        task(store)
