"""Bounds of the log's length and of an epoch's writes (bytes), for mixtures of row sizes.

The log's constants are divided by 64, so that states of some hundred kilobytes are large.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pillarbox._state.chunks.head import META, LogIdentity
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.log import large_collections, limits
from pillarbox._state.log.state_log import StateLog

MIB = 1024 * 1024 // 64
SIZES = (0, 10, 100, 1_000, 5_000, 20_000, 60_000)
LARGE = 32 * 1024 // 64
_OTHER_SIZES = pytest.mark.long("the random tests of this file have rows of these sizes")


class Task:
    def __init__(self, store):
        self.store = store
        self.backend = KeyedStateBackend("op")
        self.state = self.backend.get_state(ValueStateDescriptor("value"))
        self.map = self.backend.get_state(MapStateDescriptor("map"))
        self.list = self.backend.get_state(ListStateDescriptor("list"))
        self.backend.seal()
        self.log = StateLog(LogIdentity("op", 0, 1, 128), self.backend)
        self.sync = self.log.sync(store)

    def put(self, key, value):
        self.backend.set_current_key(key)
        self.state.update(value)

    def values(self):
        results = {}
        for key in list(self.backend.rows):
            self.backend.set_current_key(key)
            if self.state.value() is not None:
                results[key] = self.state.value()
        return results

    def collections(self):
        maps, lists = {}, {}
        for key in list(self.backend.rows):
            self.backend.set_current_key(key)
            if not self.map.is_empty():
                maps[key] = dict(self.map.items())
            if list(self.list):
                lists[key] = list(self.list)
        return maps, lists


def size(store):
    return sum(map(len, store.chunks.values()))


def fresh(values):
    task = Task(MemoryChunkStore())
    for key, value in values.items():
        task.put(key, value)
    task.log.commit(task.store, {})
    return size(task.store)


class Bounds:
    def __init__(self):
        self.task = Task(MemoryChunkStore())
        self.values = {}

    def epoch(self, changes):
        before = {key: self.values[key] for key in changes if key in self.values}
        for key, value in changes.items():
            self.task.put(key, value)
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = value
        self.task.log.commit(self.task.store, {})
        after = {key: value for key, value in changes.items() if value is not None}
        changed = max(fresh(before), fresh(after), fresh(dict.fromkeys(changes)))
        assert self.task.log.bytes_written <= 3 * changed + MIB
        largest = max(map(len, self.values.values()), default=0)
        assert size(self.task.store) <= 2 * fresh(self.values) + max(4 * MIB, 4 * largest)


PHASES = st.lists(
    st.tuples(
        st.sampled_from(["new", "hot", "any", "gone", "shrink"]),
        st.integers(1, 25),  # epochs
        st.integers(1, 40),  # keys of each
        st.lists(st.sampled_from(SIZES), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=7,
)


@pytest.fixture(autouse=True, scope="module")
def _a_64th():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "CHUNK_BYTES", MIB // 2)
        patch.setattr(limits, "SLACK_BYTES", MIB)
        patch.setattr(limits, "CHUNK_ROWS", 64)
        patch.setattr(large_collections, "_LARGE", LARGE)
        yield


@pytest.mark.slow("a model, with hundreds of epochs")
@given(PHASES, st.integers(0, 2**32))
@example([("new", 1, 1, [0]), ("new", 12, 26, [0, 1000]), ("new", 1, 3, [0, 60000]), ("gone", 10, 24, [0])], 0)
def test_the_log_and_what_an_epoch_writes_are_bounded_in_bytes(phases, seed):
    order = random.Random(seed)
    bounds = Bounds()
    fresh_key = iter(range(10**9))
    for what, epochs, count, sizes in phases:
        hot = [("hot", n) for n in range(min(count, 5))]
        for _ in range(epochs):
            keys_so_far = list(bounds.values)
            keys: list[Any]
            if what == "new":
                keys = [next(fresh_key) for _ in range(count)]
            elif what == "hot" or not keys_so_far:
                keys = hot
            else:
                keys = [order.choice(keys_so_far) for _ in range(count)]
            changes: dict[Any, bytes | None] = {}
            most = 400_000 - sum(map(len, bounds.values.values()))
            for key in keys:
                length = order.choice(sizes)
                if what == "gone" or (most := most - length) < 0:
                    changes[key] = None
                else:
                    changes[key] = order.randbytes(0 if what == "shrink" else length)
            bounds.epoch(changes)
    again = Task(bounds.task.store)
    assert again.values() == bounds.values
    assert again.log.state_bytes == pytest.approx(bounds.task.log.state_bytes, rel=0.05, abs=500)


class BoundsOfCollections:
    """A log of maps, lists and values. An epoch's changes are the touched elements."""

    def __init__(self):
        self.task = Task(MemoryChunkStore())
        self.values, self.maps, self.lists = {}, {}, {}

    @staticmethod
    def fresh(values, maps, lists):
        task = Task(MemoryChunkStore())
        for key, value in values.items():
            task.put(key, value)
        for key, content in maps.items():
            task.backend.set_current_key(key)
            task.map.put_all(content)
        for key, content in lists.items():
            task.backend.set_current_key(key)
            task.list.update(content)
        task.log.commit(task.store, {})
        return size(task.store)

    def epoch(self, operations):
        touched: dict[Any, set[Any]] = {key: set() for key, *_ in operations}
        before = self.maps, self.lists
        maps = {key: dict(content) for key, content in self.maps.items()}
        lists = {key: list(content) for key, content in self.lists.items()}
        values = self.values
        self.values = dict(values)
        for key, what, *arguments in operations:
            self.task.backend.set_current_key(key)
            if what == "value":
                self.task.put(key, *arguments)
                self.values[key] = arguments[0]
            elif what == "put":
                self.task.map.put(*arguments)
                maps.setdefault(key, {})[arguments[0]] = arguments[1]
                touched[key].add(arguments[0])
            elif what == "remove":
                self.task.map.remove(*arguments)
                maps.get(key, {}).pop(arguments[0], None)
                touched[key].add(arguments[0])
            elif what == "add":
                self.task.list.add(*arguments)
                lists.setdefault(key, []).append(arguments[0])
            else:
                self.task.map.clear()
                self.task.list.clear()
                touched[key] |= maps.pop(key, {}).keys()
                lists.pop(key, None)
        self.maps = {key: content for key, content in maps.items() if content}
        self.lists = {key: content for key, content in lists.items() if content}
        self.task.log.commit(self.task.store, {})

        def changes(values, maps, lists, other):
            sizes = {key: len(repr(content)) for key, content in maps.items()}
            return self.fresh(
                {key: values[key] for key in touched if key in values},
                {
                    key: {name: v for name, v in maps[key].items() if name in touched[key] or sizes[key] < 2 * LARGE}
                    for key in touched
                    if key in maps
                },
                {
                    key: lists[key] if len(repr(lists[key])) < 2 * LARGE else lists[key][len(other.get(key, ())) :]
                    for key in touched
                    if key in lists
                },
            )

        changed = max(changes(values, *before, self.lists), changes(self.values, self.maps, self.lists, before[1]))
        assert self.task.log.bytes_written <= 3 * changed + MIB
        everything = [*self.values.values(), *(v for m in self.maps.values() for v in m.values())]
        largest = max(map(len, everything), default=0)
        live = self.fresh(self.values, self.maps, self.lists)
        assert size(self.task.store) <= 2 * live + max(4 * MIB, 4 * largest)


@pytest.mark.long("the first test has values of all sizes")
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["grow", "hot", "shrink", "clear", "values"]),
            st.integers(1, 12),  # epochs
            st.integers(1, 60),  # operations of each
            st.lists(st.sampled_from(SIZES[:5]), min_size=1, max_size=3),
        ),
        min_size=1,
        max_size=7,
    ),
    st.integers(0, 2**32),
)
def test_the_same_with_large_maps_and_lists(phases, seed):
    order = random.Random(seed)
    bounds = BoundsOfCollections()
    names = iter(range(10**9))
    for what, epochs, count, sizes in phases:
        for _ in range(epochs):
            operations: list[Any] = []
            most = 100_000
            for _ in range(count):
                key = order.randrange(3)
                keys_so_far = list(bounds.maps.get(key, ())) or [0]
                value = order.randbytes(order.choice(sizes))
                most -= len(value)
                if most < 0:
                    break
                if what == "grow":
                    operations.append((key, "put", next(names), value))
                    operations.append((key, "add", value[:100]))
                elif what == "hot":
                    operations.append((key, "put", order.choice(keys_so_far), value))
                elif what == "shrink":
                    operations.append((key, "remove", order.choice(keys_so_far)))
                elif what == "values":
                    operations.append((key if order.random() < 0.5 else ("key", next(names)), "value", value))
            if what == "clear":
                operations.append((order.randrange(3), "clear"))
            bounds.epoch(operations)
    again = Task(bounds.task.store)
    assert (again.values(), *again.collections()) == (bounds.values, bounds.maps, bounds.lists)
    assert again.log.state_bytes == pytest.approx(bounds.task.log.state_bytes, rel=0.05, abs=500)


@pytest.mark.parametrize(
    ("cold", "hot", "epochs"),
    [
        pytest.param((2_000, 10), (5, 2_000), 300, marks=_OTHER_SIZES),
        ((500, 100), (3, 5_000), 300),
        pytest.param((0, 0), (20, 20_000), 100, marks=_OTHER_SIZES),
        pytest.param((300, 1_000), (1, 20_000), 100, marks=_OTHER_SIZES),
        ((3, 60_000), (2, 10), 300),
    ],
)
def test_cold_rows_beside_hot_ones(cold, hot, epochs):
    """When bounds counted entries, hot rows used up the allowance of cold rows, and the log grew far too long."""
    order = random.Random(1)
    task = Task(MemoryChunkStore())
    values = {("cold", n): order.randbytes(cold[1]) for n in range(cold[0])}
    for key, value in values.items():
        task.put(key, value)
    task.log.commit(task.store, {})
    for epoch in range(epochs):
        for n in range(hot[0]):
            values["hot", n] = order.randbytes(hot[1])
            task.put(("hot", n), values["hot", n])
        # Some are added and stay, with another size in the same epoch.
        values["new", epoch] = b"x"
        task.put(("new", epoch), b"x")
        task.log.commit(task.store, {})
        if epoch % 20 == 0:
            largest = max(map(len, values.values()))
            assert size(task.store) <= 2 * fresh(values) + max(4 * MIB, 4 * largest)
    assert Task(task.store).values() == values


def test_a_large_row_that_nobody_touches_is_written_once():
    task = Task(MemoryChunkStore())
    task.put("large", bytes(60_000))
    task.log.commit(task.store, {})
    for epoch in range(500):
        task.put("small", b"%d" % epoch * 300)
        task.log.commit(task.store, {})
        assert task.log.bytes_written < 20_000
    assert min(task.store.chunks) == -1
    assert Task(task.store).values() == task.values()
    task.put("large", None)
    task.log.commit(task.store, {})
    assert min(task.store.chunks) == META
    assert Task(task.store).values() == task.values()


def test_keys_that_go_together_go_in_chunks():
    task = Task(MemoryChunkStore())
    for n in range(3_000):
        task.put(f"session {n}", b"1")
    task.log.commit(task.store, {})
    for n in range(3_000):
        task.put(f"session {n}", None)
    task.log.commit(task.store, {})
    assert max(map(len, task.store.chunks.values())) <= 2 * MIB
    assert task.log.bytes_written < 1_000 + 3_000 * 2
    assert size(task.store) < 2 * MIB
    assert not Task(task.store).values()
