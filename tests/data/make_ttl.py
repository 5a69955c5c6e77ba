"""A golden log of states with a time-to-live: ``python -m tests.data.make_ttl``.

It contains each kind of stamp, some in large maps and lists, and some older than the state's time-to-live.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any

import pytest

from pillarbox._state.chunks.head import FORMAT, LogIdentity
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.log import large_collections, limits
from pillarbox._state.log.state_log import StateLog
from pillarbox._state.ttl import StateTtlConfig
from tests.data.make_checkpoint import HERE, save

__all__ = ["END", "PATH", "Timed", "expected"]

PATH = HERE / f"ttl-format-{FORMAT}.zip"
EPOCHS = 24
KEYS = 9
END = EPOCHS * 1000
# The states have a time-to-live from this epoch on.
TIMED_FROM = 4


class Timed:
    def __init__(self, store: MemoryChunkStore, ttl: Any) -> None:
        self.store = store
        self.backend = KeyedStateBackend("timed")

        def declare(descriptor: Any) -> Any:
            if ttl is not None:
                descriptor.enable_time_to_live(StateTtlConfig(ttl))
            return self.backend.get_state(descriptor)

        self.value = declare(ValueStateDescriptor("value"))
        self.elements = declare(ListStateDescriptor("elements"))
        self.entries = declare(MapStateDescriptor("entries"))
        self.sum = declare(ReducingStateDescriptor("sum", lambda value, other: value + other))
        self.backend.seal()
        self.log = StateLog(LogIdentity("timed", 0, 1, 128), self.backend)
        self.log.sync(store)

    def epoch(self, number: int) -> None:
        self.backend.now = number * 1000
        for key in keys_of(number):
            self.backend.set_current_key(key)
            self.value.update((number, key))
            self.elements.add(number)
            self.entries.put(number % 7, key)
            self.sum.add(number)
        self.log.commit(self.store, {})

    def view(self, now: int) -> dict[int, Any]:
        self.backend.now = now
        seen = {}
        for key in range(KEYS):
            self.backend.set_current_key(key)
            seen[key] = self.value.value(), list(self.elements), dict(self.entries.items()), self.sum.get()
        return seen


def keys_of(number: int) -> list[int]:
    return sorted({0 if number < 20 else 1, number * 5 % KEYS, number * number % KEYS})


def expected(ttl: int, now: int) -> dict[int, Any]:
    came: dict[int, list[int]] = defaultdict(list)
    for number in range(EPOCHS):
        for key in keys_of(number):
            came[key].append(number)

    def alive(number: int) -> bool:
        # What was there before counts from the first epoch on in which it had a time-to-live.
        return max(number, TIMED_FROM) * 1000 + ttl > now

    seen = {}
    for key in range(KEYS):
        last = came[key][-1]
        entries: dict[int, int] = {}
        for number in came[key]:
            entries[number % 7] = number
        seen[key] = (
            (last, key) if alive(last) else None,
            [number for number in came[key] if alive(number)],
            {name: key for name, number in entries.items() if alive(number)},
            sum(came[key]) if alive(last) else None,
        )
    return seen


def make() -> MemoryChunkStore:
    store = MemoryChunkStore()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_collections, "_LARGE", 60)
        patch.setattr(limits, "CHUNK_ROWS", 8)
        patch.setattr(limits, "SLACK_BYTES", 500)
        patch.setattr(limits, "SPARE_CHUNKS", 4)
        timed = Timed(store, None)
        for number in range(EPOCHS):
            if number in (TIMED_FROM, 15):
                timed = Timed(store, 10_000_000)
            timed.epoch(number)
    return store


if __name__ == "__main__":
    save({("timed", 0): make()}, PATH)
    print(f"{PATH}: {PATH.stat().st_size} bytes", file=sys.stderr)
