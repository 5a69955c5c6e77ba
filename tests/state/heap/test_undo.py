from __future__ import annotations

import copy
import datetime
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import ListStateDescriptor, MapStateDescriptor, Types, ValueStateDescriptor
from pillarbox._state.chunks.head import LogIdentity
from pillarbox._state.chunks.large_collection import LiveMap
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.heap.undo import ElementNotes
from pillarbox._state.keys.key_note import KeyNote
from pillarbox._state.log.state_log import StateLog


class Thing:
    def __init__(self, content: Any) -> None:
        self.content = content


@pytest.mark.parametrize(
    "value", [5, "text", datetime.date(2024, 5, 1), (1, "two"), [1, 2], [[1], [2]], {"a": 1}, {"a": [1]}, {1, 2}]
)
def test_values_are_put_back(value):
    backend = KeyedStateBackend("op")
    undo = backend.allow_undo()
    state = backend.get_state(ValueStateDescriptor("v"))
    backend.set_current_key("k")
    state.update(value)
    before = repr(value)
    undo.begin()
    held = state.value()
    for change in ("append", "add", "clear"):
        if hasattr(held, change):
            getattr(held, change)(*([] if change == "clear" else [7]))
    state.update("other")
    undo.restore()
    assert repr(state.value()) == before


def test_a_users_own_object_is_put_back():
    backend = KeyedStateBackend("op")
    undo = backend.allow_undo()
    state = backend.get_state(ValueStateDescriptor("v"))
    backend.set_current_key("k")
    state.update(Thing([1]))
    undo.begin()
    state.value().content.append(2)
    undo.restore()
    assert state.value().content == [1]


@pytest.mark.parametrize("end", [KeyedStateBackend.drop_keys, KeyedStateBackend.take_all_changes])
def test_nothing_of_a_map_outlives_its_key(end):
    backend = KeyedStateBackend("op")
    undo = backend.allow_undo()
    state = backend.get_state(MapStateDescriptor("m"))
    backend.set_current_key("k")
    undo.begin()
    held = Thing([1])
    state.put_all({1: held, 2: held})
    state.remove(2)
    state.put(2, held)
    state.remove(1)
    if end is KeyedStateBackend.take_all_changes:
        state.clear()
    end(backend)
    undo.begin()
    content = weakref.ref(held)
    del held
    assert content() is None


def test_a_large_map_stays_the_object_that_the_log_knows():
    backend = KeyedStateBackend("op")
    undo = backend.allow_undo()
    state = backend.get_state(MapStateDescriptor("m"))
    backend.seal()
    identity = LogIdentity("op", 0, 1, 128)
    log, store = StateLog(identity, backend), MemoryChunkStore()
    log.sync(store)
    backend.set_current_key("k")
    state.put_all({number: [f"{number}" * 200] for number in range(300)})
    log.commit(store, {})
    assert backend.dirty == []
    undo.begin()
    state.get(7).append("in place")
    undo.restore()
    assert state.get(7) == ["7" * 200]
    assert backend.dirty == []
    backend.set_current_key("k")
    state.put(8, ["new"])
    log.commit(store, {})
    again = KeyedStateBackend("op")
    restored = again.get_state(MapStateDescriptor("m"))
    again.seal()
    StateLog(identity, again).sync(store)
    again.set_current_key("k")
    assert dict(restored.items()) == dict(state.items())
    assert list(restored.keys()) == list(range(300))


KEYS = st.integers(0, 12) | st.integers(298, 305)
changes = st.tuples(st.sampled_from(["get", "put", "grow", "remove", "items", "put all", "clear"]), KEYS)
calls = st.lists(st.tuples(st.booleans(), st.lists(changes, max_size=5), st.booleans()), min_size=1, max_size=5)


def change(elements: Any, what: str, key: int, number: int) -> None:
    if what == "get":
        result = elements.get(key)
        if result is not None:
            result.append("in place")
    elif what == "put":
        elements[key] = [f"new {number}"]
    elif what == "grow" and key in elements:
        elements[key] = [*elements.get(key), str(number)]
    elif what == "remove" and key in elements:
        del elements[key]
    elif what == "items":
        for _, value in list(elements.items())[:3]:
            value.append("in items")
    elif what == "put all":
        (elements.update if isinstance(elements, dict) else elements.put_all)({key: ["all"], key + 1: ["all"]})
    elif what == "clear":
        elements.clear()


@given(calls, st.booleans(), st.booleans())
def test_a_large_map_is_put_back(calls, in_log, is_plain):
    """After the undo, every read returns the same as a dict.

    Args:
        in_log: whether the map's elements are already in the log. If not, the map is new.
        is_plain: whether the map's types are declared.
    """
    key = KeyNote(columns=["key"], types=["string"]) if is_plain else None
    identity = LogIdentity("op", 0, 1, 128, key=key)
    types = (Types.LONG(), Types.LIST(Types.STRING())) if is_plain else ()
    backend = KeyedStateBackend("op")
    undo = backend.allow_undo()
    state = backend.get_state(MapStateDescriptor("m", *types))
    backend.seal()
    log, store = StateLog(identity, backend), MemoryChunkStore()
    log.sync(store)
    expected: dict[int, list[Any]] = {number: [f"{number}" * 200] for number in range(300)}
    backend.set_current_key("k")
    state.put_all(copy.deepcopy(expected))
    if in_log:
        log.commit(store, {})
        assert isinstance(backend.contents("k")["m"], LiveMap)
    for number, (fails, changes, commits) in enumerate(calls):
        backend.set_current_key("k")
        undo.begin()
        after = copy.deepcopy(expected)
        for what, key in changes:
            # A value that is changed in place need not be written unless it is put: it is put.
            change(state, what, key, number)
            change(after, what, key, number)
            for touched in list(after) if what == "items" else [key]:
                if what in ("get", "items") and touched in after and not fails:
                    state.put(touched, state.get(touched))
        if fails:
            undo.restore()
        else:
            expected = after
        undo.begin()
        assert list(state.items()) == list(expected.items())
        if commits or number == len(calls) - 1:
            log.commit(store, {})
            again = KeyedStateBackend("op")
            restored = again.get_state(MapStateDescriptor("m", *types))
            again.seal()
            StateLog(identity, again).sync(store)
            again.set_current_key("k")
            assert list(restored.items()) == list(expected.items())


def test_states_that_are_the_same_are_not_looked_at():
    backend = KeyedStateBackend("op")
    undo = backend.allow_undo(unchanged=["own"])
    own, users = (backend.get_state(ListStateDescriptor(name)) for name in ("own", "users"))
    backend.set_current_key("k")
    own.add([1])
    users.add([1])
    undo.begin()
    for state in (own, users):
        state.get()[0].append(2)
        state.add([3])
    undo.restore()
    assert (own.get(), users.get()) == (([1, 2], [3]), ([1],))


def test_changes_of_several_elements_are_rewound_and_repeated() -> None:
    backend = KeyedStateBackend("op")
    undo = backend.allow_undo()
    value = backend.get_state(ValueStateDescriptor("value"))
    elements = backend.get_state(ListStateDescriptor("list"))
    mapped = backend.get_state(MapStateDescriptor("map"))
    timers = backend.create_timers("t/event")
    for key in "ab":
        backend.set_current_key(key)
        value.update([key])
        elements.add(1)
        for number in range(5):
            mapped.put(number, [number])
        timers.register(3)
    before = {key: copy.deepcopy((backend.contents(key), backend.timestamps(key))) for key in "ab"}
    notes = {key: ElementNotes() for key in "ab"}
    for step in range(2):  # the elements' steps alternate
        for key in "ab":
            backend.set_current_key(key)
            undo.enter(notes[key])
            value.value().append(step)
            elements.add(step)
            mapped.remove(step)
            mapped.put(step, [key])
            mapped.get(4).append(step)
            timers.register(10 + step)
            timers.delete(3)
            undo.leave()
    after = {key: copy.deepcopy((backend.contents(key), backend.timestamps(key))) for key in "ab"}
    orders = {key: list(backend.contents(key)["map"]) for key in "ab"}
    again = {key: undo.rewind(notes[key]) for key in "ab"}
    assert {key: (backend.contents(key), backend.timestamps(key)) for key in "ab"} == before
    assert list(backend.contents("a")["map"]) == list(range(5))
    assert len(timers) == 2
    undo.repeat(again["a"])
    undo.repeat(again["b"])
    assert {key: (backend.contents(key), backend.timestamps(key)) for key in "ab"} == after
    assert {key: list(backend.contents(key)["map"]) for key in "ab"} == orders
    undo.undo(notes["a"])
    assert (backend.contents("a"), backend.timestamps("a")) == before["a"]
    assert (backend.contents("b"), backend.timestamps("b")) == after["b"]
    assert {row[1] for row in notes["b"].rows()} == {"b"}


@pytest.mark.parametrize("name", ["t/event", "t/processing"])
def test_claimed_timers_stay_in_their_rows(name: str) -> None:
    backend = KeyedStateBackend("op")
    timers: Any = backend.create_timers(name)
    for key, stamp in (("b", 2), ("a", 1), ("a", 5), ("c", 9), ("a", 3)):
        backend.set_current_key(key)
        timers.register(stamp)
    assert timers.claim(5) == {"a": 5, "b": 2}
    assert timers.next_timestamp() == 9
    assert len(timers) == 5
    backend.set_current_key("a")
    timers.delete(3)
    timers.delete(5)
    timers.register(5)
    assert len(timers) == 4
    assert timers.claim(5) == {"a": 5}
    assert [timers.take_due(backend.rows["a"], 5) for _ in range(3)] == [1, 5, None]
    assert timers.take_due(backend.rows["b"], 1) is None
    backend.drop_keys()
    assert len(timers) == 0


def test_overdue_timers_are_claimed_apart() -> None:
    backend = KeyedStateBackend("op")
    timers: Any = backend.create_timers("t/processing")
    for key, stamp in (("a", 1), ("a", 5), ("b", 5)):
        backend.set_current_key(key)
        timers.register(stamp)
    timers.begin_epoch(3)
    assert timers.claim(6) == {"b": 5}
    assert timers.has_overdue()
    assert timers.claim_overdue() == {"a": 5}
    assert not timers.has_overdue()
    timers.begin_epoch(10)  # they stay claimed
    assert timers.claim_overdue() == {}
    assert [timers.take_due(backend.rows["a"], 6) for _ in range(3)] == [1, 5, None]
    assert len(timers) == 1
