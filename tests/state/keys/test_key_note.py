from __future__ import annotations

import operator
import subprocess
import sys
from functools import partial

import pytest

from pillarbox import CheckpointMismatchError, KeySelector
from pillarbox._datastream.streams.data_stream import _one_key
from pillarbox._operators.frame.keying import Keying
from pillarbox._state.chunks.head import META, LogIdentity, read_head, write_head
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.keys.key_note import KeyNote, function_note, key_change
from pillarbox._state.log.state_log import StateLog

SURELY, MAYBE, NO = "surely", "maybe", "no"


def verdict(then, now):
    change = key_change(then, now)
    return NO if change is None else SURELY if change[0] else MAYBE


def by(name):
    return lambda row: getattr(row, name)


def first(row):
    return row[0]


def first_too(row):
    return row[0]


def second(row):
    return row[1]


class First(KeySelector):
    def get_key(self, value):
        return value[0]


class Second(KeySelector):
    def get_key(self, value):
        return value[1]


class Called:
    def __call__(self, row):
        return row[0]


def columns(*names, types=None):
    return KeyNote(columns=list(names)) if types is None else KeyNote(columns=list(names), types=types)


def typed(kind):
    return {**function_note(first), "types": [kind]}


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        (None, columns("card"), NO),
        (columns("card"), None, NO),
        (columns("card"), columns("card"), NO),
        (columns("card"), columns("shop"), SURELY),
        (columns("a", "b"), columns("b", "a"), SURELY),
        (columns("a"), columns("a", "b"), SURELY),
        (columns("card"), function_note(first), MAYBE),
        (function_note(first), columns("card"), MAYBE),
        (columns("id", types=["string"]), columns("id", types=["bigint"]), SURELY),
        (columns("id", types=["int"]), columns("id", types=["bigint"]), NO),
        (columns("id", types=["int"]), columns("id", types=["decimal(10,2)"]), NO),
        (columns("id", types=["varchar(9)"]), columns("id", types=["string"]), NO),
        (columns("id", types=["date"]), columns("id", types=["timestamp"]), SURELY),
        (columns("id", types=["struct<a:int>"]), columns("id", types=["string"]), NO),
        (columns("id", types=["string"]), columns("id"), NO),
        (columns("card", types=["string"]), typed("bigint"), SURELY),
        (typed("string"), typed("bigint"), SURELY),
        (typed("string"), typed("string"), NO),
        (function_note(first), function_note(first), NO),
        (function_note(first), function_note(first_too), NO),
        (function_note(first), function_note(second), MAYBE),
        (function_note(by("card")), function_note(by("card")), NO),
        (function_note(by("card")), function_note(by("shop")), MAYBE),
        (function_note(partial(getattr, "card")), function_note(partial(getattr, "card")), NO),
        (function_note(partial(operator.add, 1)), function_note(operator.itemgetter(0)), MAYBE),
        (function_note(operator.itemgetter(0)), function_note(operator.itemgetter(0)), NO),
        (function_note(operator.itemgetter(0)), function_note(operator.itemgetter(1)), MAYBE),
        (function_note(Called()), function_note(Called()), NO),
        (Keying(First(), "op").note(), Keying(First(), "op").note(), NO),
        (Keying(First(), "op").note(), Keying(Second(), "op").note(), MAYBE),
        (Keying(["a", "b"], "op").note(), columns("a", "b"), NO),
        (function_note(_one_key), function_note(_one_key), NO),
        (function_note(_one_key), function_note(first), SURELY),
        (columns("card"), function_note(_one_key), SURELY),
        # Compiled by another Python, a function has other code: its name speaks for it.
        ({"function": "m.f", "code": "3.10:aa"}, {"function": "m.f", "code": "3.12:bb"}, NO),
        ({"function": "m.f", "code": "3.10:aa"}, {"function": "m.g", "code": "3.12:bb"}, MAYBE),
        ({"function": "m.f", "code": "3.10:aa"}, {"function": "m.f", "code": "3.10:bb"}, MAYBE),
    ],
)
def test_changes(then, now, expected):
    assert verdict(then, now) == expected


def test_window_all_is_named_in_messages():
    change = key_change(function_note(_one_key), columns("card"))
    assert change == (True, "the key was the same for all records (window_all), and is the column card")


def test_the_note_of_a_function_is_the_same_in_every_process():
    text = 'lambda row: row.a if row.b in {"x", "y", "z"} else (row.c, 1.5)'
    program = f"from pillarbox._state.keys.key_note import function_note; print(function_note({text})['code'])"
    results = {function_note(eval(text))["code"]}
    for seed in ("1", "2"):
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        results.add(done.stdout.strip())
    assert len(results) == 1


# -- at the state --


def log(store, key):
    backend = KeyedStateBackend("op")
    state_log = StateLog(LogIdentity("op", 0, 1, 128, (), key), backend)
    backend.seal()
    state_log.sync(store)
    return state_log


def written(key):
    store = MemoryChunkStore()
    log(store, key).commit(store, {})
    return store


def test_another_key_is_refused_where_the_state_is():
    store = written(columns("card", types=["string"]))
    with pytest.raises(CheckpointMismatchError) as caught:
        log(store, columns("shop", types=["string"]))
    assert str(caught.value) == (
        "operator 'op': the key was the column card STRING, and is the column shop STRING: old and new keys would mix"
        " in one state; key by what the checkpoint was written with, or start from a new one"
    )
    log(store, columns("card", types=["string"]))


def test_a_key_that_may_be_another_is_warned_of(caplog):
    log(written(function_note(first)), function_note(first_too))
    assert not caplog.records
    log(written(function_note(first)), function_note(second))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"the key was made by {__name__}.first, and is made by {__name__}.second: if it" in record.message
    assert record.message.endswith(" (operator 'op')")


def test_a_log_of_before_has_no_note():
    store = written(columns("card"))
    head = read_head(store.chunks[META], LogIdentity("op", 0, 1, 128))
    head.key = None
    store.chunks[META] = write_head(head)
    assert log(store, columns("shop")).version == 1
