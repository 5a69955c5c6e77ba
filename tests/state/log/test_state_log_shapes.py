"""Bounds of the log's length, with values of hidden sizes, large keys, and further kinds of rows.

The log's constants are divided by 64, as in test_state_log_bounds.py.
"""

from __future__ import annotations

import os
import pickle
import random
from collections import deque
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import OperatorError
from pillarbox._state.chunks.head import META, LogIdentity
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.log import large_collections, limits
from pillarbox._state.log.state_log import StateLog, Sync
from pillarbox._state.ttl import StateTtlConfig
from pillarbox._time.internal_timer_service import InternalTimerService
from pillarbox._time.manual_clock import ManualProcessingTimeService

MIB = 1024 * 1024 // 64
LONG = "PILLARBOX_LONG" in os.environ
_LONG = pytest.mark.long("hundreds of epochs; the models of the log have values of fewer shapes")


@dataclass
class Wide:
    """An object whose field names take more bytes than its values, once per pickle."""

    a_long_name_of_a_field: int
    another_long_name_of_a_field: int
    payload: bytes


@dataclass
class Narrow:
    __slots__ = ("payload",)
    payload: bytes


SHARED = b"shared" * 100
SHAPES = {
    "bytes": lambda n, rng: rng.randbytes(n),
    "wide": lambda n, rng: Wide(rng.randrange(9), 2, rng.randbytes(n)),
    "narrow": lambda n, rng: Narrow(rng.randbytes(n)),
    "fields, the first one large": lambda n, rng: {"payload": rng.randbytes(n), **{f"f{i}": i for i in range(60)}},
    "fields, the last one large": lambda n, rng: {**{f"f{i}": i for i in range(60)}, "payload": rng.randbytes(n)},
    "a header and numbers": lambda n, rng: [rng.randbytes(n), *range(2_000 if n > 100 else 50)],
    "numbers and a trailer": lambda n, rng: [*range(2_000 if n > 100 else 50), rng.randbytes(n)],
    "dicts of the same fields": lambda n, rng: [{"some_field": i, "another_field": i} for i in range(n // 12)],
    "queue": lambda n, rng: deque(rng.randbytes(9) for _ in range(n // 12)),
    "shared": lambda n, rng: (rng.randrange(99), SHARED),
}


class Operator:
    """A log of keys and namespaces with values, maps, lists and timers, some with a time-to-live."""

    def __init__(self, store):
        self.store = store
        self.backend = KeyedStateBackend("op")
        self.backend.now = 0
        get = self.backend.get_state
        self.value = get(ValueStateDescriptor("value"))
        self.map = get(MapStateDescriptor("map"))
        stamped = ListStateDescriptor("list")
        stamped.enable_time_to_live(StateTtlConfig(1_000))
        self.list = get(stamped)
        self.contents = get(ListStateDescriptor("contents"), namespaced=True)
        clock = ManualProcessingTimeService()
        self.timers = InternalTimerService("timers", self.backend, clock, self)
        self.windows = InternalTimerService("windows", self.backend, clock, self, namespaced=True)
        self.backend.seal()
        self.log = StateLog(LogIdentity("op", 0, 1, 128), self.backend)
        self.sync = self.log.sync(store)

    def on_event_time(self, timestamp, namespace):
        if namespace is not None:
            self.contents.clear()

    def flush(self):
        pass

    def on_processing_time(self, timestamp, namespace):
        raise AssertionError("the clock stands still")

    def at(self, key, namespace=None):
        self.backend.set_current_key(key)
        if namespace is not None:
            self.backend.set_current_namespace(namespace)
        return self

    def copy(self, only=None):
        other = Operator(MemoryChunkStore())
        for key, row in [*self.backend.rows.items()]:
            if only is None or key in only:
                result = other.backend
                result.set_current_key(key)
                result.row[2:] = pickle.loads(pickle.dumps(row[2:]))
        for row in [*self.backend.namespaces.every_row()]:
            key, namespace, _ = row[1]
            if only is None or (key, namespace) in only:
                other.at(key, namespace)
                other.backend.namespaces.row[2:] = pickle.loads(pickle.dumps(row[2:]))
        other.log.commit(other.store, {})
        return size(other.store)


def size(store):
    return sum(map(len, store.chunks.values()))


@pytest.fixture(autouse=True, scope="module")
def _a_64th():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "CHUNK_BYTES", MIB // 2)
        patch.setattr(limits, "SLACK_BYTES", MIB)
        patch.setattr(limits, "CHUNK_ROWS", 64)
        patch.setattr(large_collections, "_LARGE", 32 * 1024 // 64)
        yield


def in_turn(tasks: list[Operator], epoch: int, store: MemoryChunkStore) -> Operator:
    turn = epoch % len(tasks)
    if tasks[turn].log.sync(store) is Sync.OUT_OF_STEP:
        tasks[turn] = Operator(store)
    return tasks[turn]


class Log:
    def __init__(self, workers=1):
        self.store = MemoryChunkStore()
        self.tasks = [Operator(self.store) for _ in range(workers)]
        self.values: dict[Any, Any] = {}
        self.epochs = 0

    @staticmethod
    def fresh(values):
        task = Operator(MemoryChunkStore())
        for key, value in values.items():
            task.at(key).value.update(value)
        task.log.commit(task.store, {})
        return size(task.store)

    def epoch(self, changes):
        task = in_turn(self.tasks, self.epochs, self.store)
        self.epochs += 1
        before = {key: self.values[key] for key in changes if key in self.values}
        for key, value in changes.items():
            task.at(key).value.update(value)
        self.values.update(changes)
        self.values = {key: value for key, value in self.values.items() if value is not None}
        task.log.commit(self.store, {})
        after = {key: value for key, value in changes.items() if value is not None}
        changed = max(map(self.fresh, (before, after, dict.fromkeys(changes))))
        assert task.log.bytes_written <= 3 * changed + MIB
        return task

    def check(self):
        largest = max((len(pickle.dumps(pair, 5)) for pair in self.values.items()), default=0)
        assert size(self.store) <= 2 * self.fresh(self.values) + max(4 * MIB, 4 * largest)


def test_large_keys_beside_small_rows():
    order, log = random.Random(1), Log()
    key = order.randbytes(10_000)
    for epoch in range(60):
        log.epoch({key: order.randbytes(9_000), **{(epoch, n): n for n in range(20)}})
    log.check()


@pytest.mark.parametrize("shape", ["a header and numbers", "fields, the first one large", "queue", "narrow"])
def test_values_whose_size_does_not_show(shape):
    order, log = random.Random(1), Log()
    for epoch in range(100):
        log.epoch({"odd": SHAPES[shape](5_000, order), **{n: order.randbytes(1_000) for n in range(3)}})
        if epoch % 10 == 9:
            log.check()


@_LONG
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["new", "hot", "any", "gone"]),
            st.integers(1, 20),  # epochs
            st.integers(1, 20),  # keys of each
            st.lists(st.sampled_from([*SHAPES]), min_size=1, max_size=3),
            st.sampled_from([10, 500, 5_000]),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 2**32),
    st.integers(1, 2),
)
def test_values_of_all_shapes_by_workers_in_turn(phases, seed, workers):
    order, log, fresh_key = random.Random(seed), Log(workers), iter(range(10**9))
    for what, epochs, count, shapes, length in phases:
        for _ in range(epochs):
            keys_so_far = list(log.values) or ["first"]
            keys: list[Any]
            if what == "new" and len(keys_so_far) < 150:
                keys = [next(fresh_key) for _ in range(count)]
            elif what == "hot":
                keys = [("hot", n) for n in range(min(count, 5))]
            else:
                keys = [order.choice(keys_so_far) for _ in range(count)]
            make = SHAPES[order.choice(shapes)]
            log.epoch({key: None if what == "gone" else make(length, order) for key in keys})
        log.check()
    again = Operator(log.store)
    results = {key: row[2] for key, row in again.backend.rows.items()}
    assert results == log.values


@_LONG
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["windows", "fire", "timers", "lists", "maps", "shrink", "wait", "value"]),
            st.integers(1, 12),  # epochs
            st.integers(1, 60),  # operations of each
            st.sampled_from([5, 300]),
        ),
        min_size=1,
        max_size=7,
    ),
    st.integers(0, 2**32),
    st.integers(1, 2),
)
def test_windows_timers_and_stamps_by_workers_in_turn(phases, seed, workers):
    order = random.Random(seed)
    store = MemoryChunkStore()
    tasks = [Operator(store) for _ in range(workers)]
    epoch, now, watermark = 0, 0, 0
    for what, epochs, count, length in phases:
        for _ in range(epochs):
            task = in_turn(tasks, epoch, store)
            epoch += 1
            task.backend.now = now
            task.timers.current_watermark = task.windows.current_watermark = watermark
            places = [(order.randrange(20), (watermark + order.randrange(50) * 10, 10)) for _ in range(count)]
            # Expired values are also removed from other keys; and timers fire for any key.
            touched = (
                None if now or what == "fire" else {address if what == "windows" else address[0] for address in places}
            )
            older = task.copy(touched)
            for key, window in places:
                task.at(key)
                if what == "windows":
                    task.at(key, window).contents.add(order.randbytes(length))
                    task.windows.register_event_time_timer(window, window[0] + 10)
                elif what == "timers":
                    task.timers.register_event_time_timer(None, watermark + order.randrange(100_000))
                elif what == "lists":
                    task.list.add(order.randbytes(length))
                elif what == "maps":
                    task.map.put(order.randrange(2_000), order.randbytes(length))
                elif what == "shrink":
                    task.map.remove(order.choice([*task.map.keys()] or [0]))
                elif what == "value":
                    task.value.update(order.randbytes(length))
            if what == "fire":
                watermark += 40
                task.windows.advance_watermark(watermark)
                task.timers.advance_watermark(watermark)
            if what == "wait":
                now += 300
            task.log.commit(store, {})
            assert task.log.bytes_written <= 3 * max(older, task.copy(touched)) + MIB
            largest = max([len(pickle.dumps(row)) for row in task.backend.rows.values()], default=0)
            assert size(store) <= 2 * task.copy() + max(4 * MIB, 4 * largest)
    again = Operator(store)
    last = tasks[(epoch - 1) % workers]
    for key in range(20):
        assert again.backend.contents(key) == last.backend.contents(key)
        for namespace in last.backend.namespaces.namespaces_of(key):
            assert again.backend.contents(key, namespace) == last.backend.contents(key, namespace)
    assert META in store.chunks


def test_state_besides_the_keys_that_spark_does_not_take_is_named(monkeypatch):
    backend = KeyedStateBackend("op")
    backend.seal()
    log = StateLog(LogIdentity("op", 0, 1, 128), backend)
    store = MemoryChunkStore()
    log.sync(store)
    monkeypatch.setattr(limits, "VALUE_BYTES", 10_000)
    log.commit(store, {"operators": {"op": bytes(9_000)}})
    with pytest.raises(OperatorError, match=r"'op': what it keeps besides .* takes 11\d{3} bytes, and Spark takes no"):
        log.commit(store, {"operators": {"op": bytes(11_000)}})
