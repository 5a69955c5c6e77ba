"""Keys of a different type than the checkpoint's are refused if the checkpoint's type is known."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from pillarbox import (
    AggregateFunction,
    AggregatingStateDescriptor,
    CheckpointMismatchError,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    Types,
    ValueStateDescriptor,
)
from pillarbox._state.chunks.head import LogIdentity
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.heap.key_rows import KeyOwner
from pillarbox._state.keys.key_note import KeyNote
from pillarbox._state.log.state_log import StateLog

V = TypeVar("V")
WORDS = KeyNote(columns=["word"], types=["string"])
LENGTHS = KeyNote(function="lengths", code="x")


class Task:
    def __init__(self, store: MemoryChunkStore, key: KeyNote, subtask: int = 0) -> None:
        self.store = store
        self.backend = KeyedStateBackend("op", KeyOwner(0, 1, 128))
        self.value: Any = self.backend.get_state(ValueStateDescriptor("v"))
        self.map: Any = self.backend.get_state(MapStateDescriptor("m"))
        self.backend.seal()
        self.log = StateLog(LogIdentity("op", subtask, 2, 128, key=key), self.backend, own_state=False)
        self.log.sync(store)

    def write(self, *keys: Any) -> MemoryChunkStore:
        for key in keys:
            self.backend.set_current_key(key)
            self.value.update(1)
        self.log.commit(self.store, {})
        return self.store


def test_keys_of_another_type_are_refused_with_the_first_of_them():
    store = Task(MemoryChunkStore(), WORDS).write("ann", None)
    store = Task(store, LENGTHS).write("bob")  # a function that gives text, too
    with pytest.raises(CheckpointMismatchError, match=r"operator 'op': the key 3 \(int\) is none .* \(str\): old"):
        Task(store, LENGTHS).write("cid", 3)


def test_keys_of_a_type_that_is_not_known_are_let_in():
    for types in (["struct<a:int>"], ["int", "int"]):
        store = Task(MemoryChunkStore(), KeyNote(columns=["a"], types=types)).write("ann")
        assert Task(store, LENGTHS).write(3) is store


def test_a_program_is_warned_once_of_another_key(caplog):
    store = MemoryChunkStore()
    Task(store, WORDS).write("ann")
    other = MemoryChunkStore()
    Task(other, WORDS, 1).write("ann")
    with caplog.at_level("WARNING", "pillarbox"):
        Task(store, LENGTHS)
        Task(other, LENGTHS, 1)
    assert len(caplog.messages) == 1 and "they mix with those in the checkpoint" in caplog.text


def test_a_map_state_has_a_length():
    task = Task(MemoryChunkStore(), WORDS)
    task.backend.set_current_key("ann")
    assert len(task.map) == 0
    task.map.put_all({1: 2, 3: 4})
    assert len(task.map) == len(list(task.map)) == 2


class Mean(AggregateFunction[int, "tuple[int, int]", float]):
    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]


def test_a_type_in_brackets_is_declared():
    assert ValueStateDescriptor[float]("x").declared_types == (float,)
    assert ListStateDescriptor[str]("x").declared_types == (str,)
    assert MapStateDescriptor[str, list[int]]("x").declared_types == (str, list[int])
    assert ReducingStateDescriptor[int]("x", max).declared_types == (int,)
    mean = AggregatingStateDescriptor[int, tuple[int, int], float]("x", Mean())
    assert mean.declared_types == (tuple[int, int],)
    assert ValueStateDescriptor[float]("x", Types.FLOAT()).declared_types == (Types.FLOAT(),)
    assert ValueStateDescriptor[Any]("x").declared_types == ValueStateDescriptor("x").declared_types == (None,)
    assert ValueStateDescriptor[V]("x").declared_types == (None,)  # type: ignore[valid-type]
