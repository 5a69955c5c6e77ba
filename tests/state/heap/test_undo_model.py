"""Undo of all kinds of state and timers, compared with a model that copies all before each call.

After any undo, a backend that reads the log equals the live backend, which shows that the log contains all changes.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from pillarbox._state.chunks.head import LogIdentity
from pillarbox._state.chunks.large_collection import LiveMap
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.heap import undo
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.log.state_log import StateLog

KEYS = ("k", "other")
LARGE = 300  # large enough to be stored outside of the row
ACCESSED = StateTtlConfig.UpdateType.OnReadAndWrite
SHOWN = StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp


class Gathers(AggregateFunction):
    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator):
        return accumulator


def extend(elements, other):
    elements += other
    return elements


class Keyed:
    def __init__(self, ttl: StateTtlConfig | None) -> None:
        self.backend = KeyedStateBackend("op")
        self.undo = self.backend.allow_undo()
        self.descriptors: list[Any] = [
            ValueStateDescriptor("value"),
            ListStateDescriptor("list"),
            MapStateDescriptor("map"),
            ReducingStateDescriptor("reducing", extend),
            AggregatingStateDescriptor("aggregating", Gathers()),
        ]
        if ttl is not None:
            for descriptor in self.descriptors:
                descriptor.enable_time_to_live(ttl)
        states = [self.backend.get_state(descriptor) for descriptor in self.descriptors]
        self.value, self.list, self.map, self.reducing, self.aggregating = self.states = states
        self.timers = self.backend.create_timers("timers")
        self.backend.seal()
        self.log = StateLog(LogIdentity("op", 0, 1, 128), self.backend)

    def seen(self) -> Any:
        backend = self.backend
        held = {key: dict(zip(backend.slots, backend.rows[key][2:])) for key in KEYS if key in backend.rows}
        return copy.deepcopy(
            {
                (key, slot.name): list(content.items()) if isinstance(content, dict) else content
                for key, slots in held.items()
                for slot, content in slots.items()
                if content is not None
            }
        )

    def fill(self) -> None:
        self.backend.set_current_key("k")
        self.list.add_all([[f"{number}" * 200] for number in range(LARGE)])
        self.map.put_all({number: [f"{number}" * 200] for number in range(LARGE)})

    def do(self, what: str, n: int) -> None:
        if what == "value":
            held = self.value.value() or []
            held.append(n)
            self.value.update(held)
        elif what == "new value":
            self.value.update([n])
        elif what == "add":
            self.list.add([n])
        elif what == "add all":
            self.list.add_all([[n], [n + 1]])
        elif what == "update":
            self.list.update([*list(self.list)[-n:], [n]])
        elif what == "change elements":
            elements = list(self.list.get())
            for element in elements[:n]:
                element.append(n)
            self.list.update(elements)
        elif what == "put":
            self.map.put(n, [n])
        elif what == "put all":
            self.map.put_all({n: ["all"], n + 1: ["all"]})
        elif what == "change":
            held = self.map.get(n)
            if held is not None:
                held.append(n)
                self.map.put(n, held)
        elif what == "remove":
            self.map.remove(n)
        elif what == "remove as another type":
            self.map.remove(float(n))
        elif what == "last":  # the last used one is last
            held = self.map.get(n)
            if held is not None:
                self.map.remove(n)
                self.map.put(n, held)
        elif what == "first":
            oldest = next(iter(self.map.keys()), None)
            if oldest is not None:
                self.map.remove(oldest)
        elif what == "items":
            for key, element in list(self.map.items())[:n]:
                element.append("in items")
                self.map.put(key, element)
        elif what == "fold":
            self.reducing.add([n])
            self.aggregating.add(n)
        elif what == "get":
            for folded in (self.reducing.get(), self.aggregating.get()):
                if folded:
                    folded.append(n)
            self.reducing.add([n])
            self.aggregating.add(n)
        elif what == "clear":
            self.states[n % 5].clear()
        elif what == "timer":
            self.timers.register(n)
        elif what == "delete timer":
            self.timers.delete(n)
        elif what == "other key":
            self.backend.set_current_key(KEYS[n % 2])


KINDS = (
    "value", "new value", "add", "add all", "update", "change elements", "put", "put all", "change", "remove",
    "remove as another type", "last", "first", "items", "fold", "get", "clear", "timer", "delete timer", "other key",
)  # fmt: skip
actions = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 6) | st.integers(LARGE - 2, LARGE + 3)), max_size=8)
# Per call: its action; its action after a mark, and whether that fails; whether the call fails; whether the epoch ends,
# and how much later the next one is.
calls = st.lists(
    st.tuples(actions, actions, st.booleans(), st.booleans(), st.booleans(), st.sampled_from([0, 4, 20])),
    min_size=1,
    max_size=6,
)
LIVES = [
    None,
    StateTtlConfig(10, cleanup_in_background=False),
    StateTtlConfig(10, cleanup_in_background=False, update_type=ACCESSED, state_visibility=SHOWN),
]


@pytest.mark.slow("a model")
@pytest.mark.parametrize("ttl", LIVES, ids=["for ever", "for a while", "since the last look"])
@given(calls=calls, is_large=st.booleans())
def test_undo_restores_the_state(ttl, calls, is_large):
    keyed, store = Keyed(ttl), MemoryChunkStore()
    backend, undo = keyed.backend, keyed.undo
    keyed.log.sync(store)
    if is_large:
        keyed.fill()
        keyed.log.commit(store, {})
        assert isinstance(backend.contents("k")["map"], LiveMap)
    for first, second, second_fails, fails, commits, later in calls:
        before = keyed.seen()
        backend.set_current_key("k")
        undo.begin()
        for action in first:
            keyed.do(*action)
        between, mark = keyed.seen(), undo.mark()
        for action in second:
            keyed.do(*action)
        if second_fails:
            undo.restore(mark)
            assert keyed.seen() == between
        if fails:
            undo.restore()
            assert keyed.seen() == before
        undo.end()
        assert timers_of(keyed) == [(at, key) for at in range(LARGE + 5) for key in KEYS if at in stamps(keyed, key)]
        if commits:
            keyed.log.commit(store, {})
            backend.now += later
        # State also changes between calls.
        backend.set_current_key("k")
        keyed.do("put", 3)
        keyed.do("remove", 4)
    keyed.log.commit(store, {})
    again = Keyed(ttl)
    StateLog(LogIdentity("op", 0, 1, 128), again.backend).sync(store)
    assert again.seen() == keyed.seen()


def test_new_elements_of_a_large_map_are_written_in_order():
    keyed, store = Keyed(None), MemoryChunkStore()
    keyed.log.sync(store)
    keyed.fill()
    keyed.log.commit(store, {})
    keyed.backend.set_current_key("k")
    for number in (1_000, 1_001):
        keyed.map.put(number, ["new"])
    keyed.undo.begin()
    keyed.map.remove(1_000)
    keyed.undo.restore()
    keyed.log.commit(store, {})
    again = Keyed(None)
    StateLog(LogIdentity("op", 0, 1, 128), again.backend).sync(store)
    assert again.seen() == keyed.seen()
    again.backend.set_current_key("k")
    assert list(again.map.keys())[-2:] == [1_000, 1_001]


def stamps(keyed: Keyed, key: str) -> list[int]:
    return keyed.backend.timestamps(key).get("timers", [])


def timers_of(keyed: Keyed) -> list[tuple[int, str]]:
    queue = copy.deepcopy(keyed.backend.timers[0].queue)
    results = []
    while (timestamp := queue.next_timestamp()) is not None:
        results += [(timestamp, key) for key in queue.pop(timestamp) if timestamp in stamps(keyed, key)]
    return sorted(results)


class Copied:
    copies = 0

    def __init__(self, text: str = "text" * 10) -> None:
        self.text = text

    def __deepcopy__(self, memo):
        Copied.copies += 1
        return Copied(self.text)


@pytest.mark.parametrize("fails", [False, True])
def test_a_call_notes_no_more_than_it_does(fails, monkeypatch):
    orders: list[Any] = []
    monkeypatch.setattr(undo._Order, "__init__", counted(orders, undo._Order.__init__))
    monkeypatch.setattr(Copied, "copies", 0)
    keyed, store = Keyed(None), MemoryChunkStore()
    keyed.log.sync(store)
    keyed.backend.set_current_key("k")
    keyed.list.add_all([Copied() for _ in range(5_000)])
    keyed.map.put_all({number: Copied() for number in range(5_000)})
    for number in range(5_000):
        keyed.timers.register(number)
    keyed.value.update(Copied())
    keyed.log.commit(store, {})
    keyed.backend.set_current_key("k")
    for number in range(100):
        keyed.undo.begin()
        keyed.list.add(Copied())
        keyed.map.put(number, Copied())
        keyed.map.put(10_000 + number, Copied())
        keyed.map.get(1_000 + number)
        keyed.map.remove(2_000 + number)
        keyed.map.remove(next(iter(keyed.map.keys())))
        keyed.timers.register(10_000 + number)
        keyed.timers.delete(number)
        assert keyed.undo.mark() < 40
        if fails:
            keyed.undo.restore()
    assert Copied.copies == 100  # the examined values
    assert len(orders) == 1  # once in an epoch
    assert len(keyed.map.keys()) == (5_000 if fails else 4_900)


def counted(calls: list[Any], function: Any) -> Any:
    def call(*arguments: Any) -> Any:
        calls.append(arguments)
        return function(*arguments)

    return call
