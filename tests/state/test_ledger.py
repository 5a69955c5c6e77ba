"""The ledger of a log: what its entries hold, and that outdated ones keep no key alive."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import numpy as np

from pillarbox._state import (
    HeapKeyedStateBackend,
    LogIdentity,
    MapStateDescriptor,
    MemoryChunkStore,
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


def test_outdated_entries_keep_no_key_alive():
    """Each epoch brings key objects of its own: those of a row's older entries go when the row is written anew."""
    count = 1000
    task = Task(MemoryChunkStore())
    for epoch in range(5):
        task.write(epoch, count)
    assert len(task.log.contents.ledger.chunks) >= 2
    assert keys_alive() <= 2 * count + 10
    again = Task(task.store)
    del task
    assert again.found is Sync.LOADED
    assert keys_alive() <= count + 10
    again.write(9, count)
    assert keys_alive() <= 2 * count + 10


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
