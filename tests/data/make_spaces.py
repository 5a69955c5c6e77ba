"""A golden log with namespaces: ``python -m tests.data.make_spaces``.

Keys have rows outside of namespaces and in namespaces of every kind, merges, timers, a state that was declared late, a
large row, and removed windows.
"""

from __future__ import annotations

import random
import sys
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
from pillarbox._state.log import limits
from pillarbox._state.log.state_log import StateLog, Sync
from pillarbox._time.internal_timer_service import InternalTimerService
from pillarbox._time.manual_clock import ManualProcessingTimeService
from tests.data.make_checkpoint import HERE, save

__all__ = ["EPOCHS", "PATH", "Model", "Windows", "operations"]

PATH = HERE / f"spaces-format-{FORMAT}.zip"
EPOCHS = 12
KEYS: list[Any] = [1, "text", (2, "pair"), b"bytes"]
NAMESPACES: list[Any] = [(0, 10), (10, 20), (20, 30), 7, "name", ((1, "nested"), 2)]


class Windows:
    def __init__(self, store: MemoryChunkStore) -> None:
        self.store = store
        self.fired: list[Any] = []
        self.backend = KeyedStateBackend("windows")
        get = self.backend.get_state
        self.own = get(ValueStateDescriptor("own"))
        self.contents = get(ListStateDescriptor("contents"), namespaced=True)
        self.sum = get(ReducingStateDescriptor("sum", lambda value, other: value + other), namespaced=True)
        self.timers = InternalTimerService("timers", self.backend, ManualProcessingTimeService(), self, namespaced=True)
        self.backend.seal()
        self.log = StateLog(LogIdentity("windows", 0, 1, 128), self.backend)
        self.sync: Sync = self.log.sync(store)

    def apply(self, what: str, key: Any, namespace: Any, argument: Any) -> None:
        self.backend.set_current_key(key)
        self.backend.set_current_namespace(namespace)
        if what == "own":
            self.own.update(argument)
        elif what == "add":
            self.contents.add(argument)
            self.sum.add(1)
        elif what == "late":
            self.late().put(argument, namespace)
        elif what == "timer":
            self.timers.register_event_time_timer(namespace, argument)
        elif what == "merge":
            self.contents.merge_namespaces(namespace, [argument])
            self.sum.merge_namespaces(namespace, [argument])
        elif what == "clear":
            for state in (self.contents, self.sum, self.late()):
                state.clear()

    def late(self) -> Any:
        return self.backend.get_state(MapStateDescriptor("late"), namespaced=True, late=True)

    def on_event_time(self, timestamp: int, namespace: Any) -> None:
        self.fired.append((timestamp, self.backend.key, namespace))

    def flush(self) -> None:
        pass

    def on_processing_time(self, timestamp: int, namespace: Any) -> None:
        raise AssertionError("no such timer is set")

    def view(self) -> dict[Any, Any]:
        seen: dict[Any, Any] = {}
        for key in [*self.backend.get_keys()]:
            self.backend.set_current_key(key)
            if self.own.value() is not None:
                seen[key, None] = self.own.value()
            for namespace in self.backend.get_namespaces():
                self.backend.set_current_namespace(namespace)
                held = list(self.contents.get()), self.sum.get(), dict(self.late().items())
                if any(held):
                    seen[key, namespace] = held
        return seen


class Model:
    """The windows' state as plain dictionaries."""

    def __init__(self) -> None:
        self.own: dict[Any, Any] = {}
        self.contents: dict[Any, list[Any]] = {}
        self.late: dict[Any, dict[Any, Any]] = {}
        self.timers: set[Any] = set()

    def apply(self, what: str, key: Any, namespace: Any, argument: Any) -> None:
        slot = (key, namespace)
        if what == "own":
            self.own[key] = argument
        elif what == "add":
            self.contents.setdefault(slot, []).append(argument)
        elif what == "late":
            self.late.setdefault(slot, {})[argument] = namespace
        elif what == "timer":
            self.timers.add((argument, key, namespace))
        elif what == "merge" and argument != namespace:
            self.contents.setdefault(slot, []).extend(self.contents.pop((key, argument), []))
        elif what == "clear":
            self.contents.pop(slot, None)
            self.late.pop(slot, None)

    def view(self) -> dict[Any, Any]:
        seen = {(key, None): value for key, value in self.own.items()}
        for slot in [*self.contents, *self.late]:
            contents = self.contents.get(slot, [])
            held = contents, len(contents) or None, self.late.get(slot, {})
            if any(held):
                seen[slot] = held
        return seen


def operations() -> list[list[tuple[str, Any, Any, Any]]]:
    rng = random.Random(7)
    every = []
    for epoch in range(EPOCHS):
        epochs = []
        for step in range(12):
            what = rng.choice(["own", "add", "add", "timer", "merge", "clear", "late" if epoch > 4 else "add"])
            argument: Any = {"merge": rng.choice(NAMESPACES), "timer": 100 + rng.randrange(20)}.get(what, (epoch, step))
            epochs.append((what, rng.choice(KEYS), rng.choice(NAMESPACES), argument))
        every.append(epochs)
    every[8].append(("add", KEYS[0], NAMESPACES[0], b"large" * 600))
    return every


def make() -> MemoryChunkStore:
    store = MemoryChunkStore()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "CHUNK_ROWS", 8)
        patch.setattr(limits, "CHUNK_BYTES", 2_500)
        patch.setattr(limits, "SLACK_BYTES", 500)
        patch.setattr(limits, "SPARE_CHUNKS", 4)
        for epoch in operations():
            windows = Windows(store)
            for operation in epoch:
                windows.apply(*operation)
            windows.log.commit(store, {})
    return store


if __name__ == "__main__":
    save({("windows", 0): make()}, PATH)
    print(f"{PATH}: {PATH.stat().st_size} bytes", file=sys.stderr)
