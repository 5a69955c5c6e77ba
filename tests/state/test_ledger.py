"""The ledger of a log: what its entries hold, and that they keep no key objects of their own."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from pillarbox._state import (
    HeapKeyedStateBackend,
    LogIdentity,
    MapStateDescriptor,
    MemoryChunkStore,
    ReducingStateDescriptor,
    StateLog,
    Sync,
    ValueStateDescriptor,
)
from pillarbox._state.ledger import ChunkOnFile, Ledger, addresses_of


@dataclass(frozen=True)
class Key:
    number: int


class Task:
    def __init__(self, store: MemoryChunkStore) -> None:
        self.store = store
        self.backend = HeapKeyedStateBackend("op")
        self.value: Any = self.backend.get_state(ValueStateDescriptor("v"))
        self.map: Any = self.backend.get_state(MapStateDescriptor("m"))
        self.backend.seal()
        self.log = StateLog(LogIdentity("op", 0, 1, 128), self.backend, own_state=False)
        self.found = self.log.sync(store)

    def commit(self) -> None:
        self.log.commit(self.store, {})

    def write(self, value: int, count: int) -> None:
        for number in range(count):
            self.backend.set_current_key(Key(number))
            self.value.update(value)
        self.commit()


def keys_alive() -> int:
    gc.collect()
    return sum(isinstance(each, Key) for each in gc.get_objects())


def test_there_is_one_key_object_for_each_row():
    """Each epoch brings key objects of its own, which go with it: the log's entries share that of the row."""
    count = 1000
    task = Task(MemoryChunkStore())
    for epoch in range(5):
        task.write(epoch, count)
    assert len(task.log.contents.ledger.chunks) >= 2
    assert keys_alive() <= count + 10
    again = Task(task.store)
    del task
    assert again.found is Sync.LOADED
    # What a start has read of entries that were out of date goes with the next epochs, a chunk with each.
    loaded = len(again.log.contents.ledger.chunks)
    assert keys_alive() > count + 10
    for epoch in range(loaded):
        again.write(epoch, 10)
    assert keys_alive() <= count + 10
    again.write(9, count)
    assert keys_alive() <= count + 10
    for number in range(count // 2):
        again.backend.set_current_key(Key(number))
        again.value.clear()
    again.commit()
    assert keys_alive() <= count // 2 + 10


def test_a_task_that_catches_up_keeps_its_key_objects():
    count = 1000
    task = Task(MemoryChunkStore())
    task.write(0, count)
    other = Task(task.store)
    for epoch in range(3):
        task.write(epoch, count + 200)
    assert other.log.sync(task.store) is Sync.CAUGHT_UP
    assert [row[1] for row in other.backend.rows.values()] == [2] * (count + 200)
    del task
    assert keys_alive() <= count + 200 + 10


@pytest.mark.parametrize("shared", [False, True])
def test_rows_of_namespaces_have_one_key_object_each(shared):
    store = MemoryChunkStore()

    def written(values: list[int]) -> Any:
        backend = HeapKeyedStateBackend("op")
        if shared:
            backend.share_namespaces()
            windows: Any = backend.get_state(ReducingStateDescriptor("v", max), namespaced=True)
        else:
            windows = backend.get_state(ValueStateDescriptor("v"), namespaced=True)
        backend.seal()
        log = StateLog(LogIdentity("op", 0, 1, 128), backend, own_state=False)
        log.sync(store)
        for value in values:
            for number in range(0 if shared else 500):
                backend.set_current(Key(number), 7)
                windows.update(value)
            if shared:
                window = windows.find(7) or windows.begin(7)
                windows.fold([value] * 500, [*map(Key, range(500))], [window] * 500, None)
            log.commit(store, {})
        return backend, log

    # (A start lets what it has read be, and each epoch after it lets go of one chunk's.)
    for values in [1, 2, 3], [4, 5, 6]:
        kept = written(values)
        assert keys_alive() <= 500 + 10
        del kept


def test_owners_of_entries_in_many_groups_of_elements_are_found_in_a_few_steps():
    looks = 0

    class Names(list[Any]):
        def __len__(self) -> int:
            nonlocal looks
            looks += 1
            return super().__len__()

    groups: list[Any] = [((f"k{n}",), 2, Names(["x", "y"] if n % 3 else [])) for n in range(3000)]
    rows: list[Any] = ["a", ("b", 1), None]
    chunk = ChunkOnFile(1, 100, addresses_of(rows), groups, 3 + 4000, None)
    every = list(chunk.owners(0))
    ledger = Ledger()
    ledger.add(chunk, 1000, len(every), 1000.0)
    entries = 100 + np.random.default_rng(1).permutation(len(every))
    found = list(ledger.owners_of(entries))
    assert [entry for entry, _ in found] == list(range(100, 100 + len(every)))
    assert [tuple(owner) for _, owner in found] == every
    assert looks < 3 * len(groups)


def test_a_task_that_missed_epochs_with_many_large_maps_catches_up():
    task = Task(MemoryChunkStore())
    for number in range(5):
        task.backend.set_current_key(Key(number))
        task.map.put_all({name: bytes(100) for name in range(500)})
    task.commit()
    other = Task(task.store)
    for epoch in range(5):
        for number in range(5):
            task.backend.set_current_key(Key(number))
            task.map.put(epoch, "new")
            task.map.remove(400 + epoch)
        task.commit()
    assert other.log.sync(task.store) is Sync.CAUGHT_UP
    for number in range(5):
        task.backend.set_current_key(Key(number))
        other.backend.set_current_key(Key(number))
        assert list(other.map.items()) == list(task.map.items())
        assert len(list(other.map.items())) == 495
