"""The ledger of a log, which describes the entries' content without separate key objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from pillarbox._state.chunks.head import LogIdentity
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.descriptors import MapStateDescriptor, ReducingStateDescriptor, ValueStateDescriptor
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.keys.addresses import namespace_address
from pillarbox._state.log.state_log import StateLog, Sync


@dataclass(frozen=True)
class Key:
    number: int


class Task:
    def __init__(self, store: MemoryChunkStore) -> None:
        self.store = store
        self.backend = KeyedStateBackend("op")
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


@pytest.fixture(autouse=True)
def _only_what_a_test_makes() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def keys_alive() -> int:
    gc.collect()
    return sum(isinstance(tracked, Key) for tracked in gc.get_objects())


def test_there_is_one_key_object_for_each_row():
    count = 1000
    task = Task(MemoryChunkStore())
    for epoch in range(5):
        task.write(epoch, count - epoch)
    assert len(task.log.contents.ledger.chunks) >= 2
    assert keys_alive() <= count + 10
    again = Task(task.store)
    del task
    assert again.found is Sync.LOADED
    # A start's outdated entries are released with the next epochs, one chunk per epoch.
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


@pytest.mark.parametrize("shared", [False, True])
def test_rows_of_namespaces_have_one_key_object_each(shared):
    store = MemoryChunkStore()

    def written(values: list[int]) -> Any:
        backend = KeyedStateBackend("op")
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
                backend.namespaces.enter(namespace_address(Key(number), 7))
                windows.update(value)
            if shared:
                window = windows.get_window(7) or windows.open_window(7)
                windows.fold([value] * 500, [*map(Key, range(500))], [window] * 500, None)
            log.commit(store, {})
        return backend, log

    # A start keeps its entries, and each later epoch releases one chunk's.
    for values in [1, 2, 3], [4, 5, 6]:
        entries = written(values)
        assert keys_alive() <= 500 + 10
        del entries
