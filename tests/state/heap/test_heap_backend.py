from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pillarbox._errors import OperatorError, ProgramError
from pillarbox._state.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from pillarbox._state.heap import backend as heap_backend
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.heap.key_rows import KeyOwner
from pillarbox._state.keys.key_groups import stable_hash, subtask_of_key
from pillarbox._state.state_descriptor import StateDescriptor
from pillarbox._state.ttl import StateTtlConfig


@pytest.fixture
def backend():
    return KeyedStateBackend("op")


def state_of(backend, descriptor):
    state = backend.get_state(descriptor)
    backend.seal()
    backend.set_current_key("k")
    return state


def test_value_state(backend):
    state = state_of(backend, ValueStateDescriptor("s"))
    assert state.value() is None
    value: object
    for value in (0, "", False, []):  # falsy values are not absent
        state.update(value)
        assert state.value() == value and state.value() is not None
    state.clear()
    assert state.value() is None


def test_the_default_of_a_value_state_stands_for_a_value_that_is_not_there(backend):
    state = state_of(backend, ValueStateDescriptor("s", int, default=5))
    assert state.value() == 5
    state.update(0)
    assert state.value() == 0
    state.update(None)
    assert state.value() == 5
    state.update(1)
    state.clear()
    assert state.value() == 5
    assert backend.contents("k") == {}, "a default is not stored"


@pytest.mark.parametrize("ttl", [None, StateTtlConfig(5)])
def test_a_default_that_can_be_changed_is_made_each_time(backend, ttl):
    descriptor: Any = ValueStateDescriptor("s", default_factory=list)
    if ttl is not None:
        descriptor.enable_time_to_live(ttl)
    state = state_of(backend, descriptor)
    result = state.value()
    result.append(1)
    assert state.value() == []
    state.update(result)
    assert state.value() == [1]
    backend.set_current_key("other")
    assert state.value() == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"default": []}, "a default that can be changed, \\[\\], which all keys would share: .*default_factory=list"),
        ({"default": {"a": (1, [])}}, "a default that can be changed"),
        ({"default": 1, "default_factory": int}, "the state 's' has both default and default_factory"),
        ({"default_factory": 5}, "has 5 as default_factory: .* a factory being a function"),
    ],
)
def test_wrong_defaults_are_refused(options, says):
    with pytest.raises(ProgramError, match=says):
        ValueStateDescriptor("s", **options)


def test_the_keys_of_a_state_come_in_an_order_of_their_own(backend):
    value, map_ = ValueStateDescriptor("one"), MapStateDescriptor("other")
    state, entries = backend.get_state(value), backend.get_state(map_)
    again = KeyedStateBackend("op")
    same = again.get_state(value)
    keys = [*range(50), *"abc", None, (1, "x"), 0.5, b"b"]
    for key in keys:
        backend.set_current_key(key)
        state.update(1)
    for key in reversed(keys):
        again.set_current_key(key)
        same.update(2)
    backend.set_current_key("no")
    entries.put(1, 2)
    assert len(backend.keys_with(value)) == len(keys) and backend.keys_with(map_) == ["no"]
    assert backend.keys_with(value) == again.keys_with(value) != keys


def test_list_state(backend):
    state = state_of(backend, ListStateDescriptor("s"))
    assert list(state.get()) == list(state) == []
    state.add(1)
    state.add_all(x for x in (2, 3))
    assert list(state) == [1, 2, 3]
    state.update(x for x in (4,))
    assert list(state) == [4]
    source = [5]
    state.update(source)
    source.append(6)
    assert list(state) == [5]
    state.clear()
    assert list(state) == []


def test_map_state(backend):
    state = state_of(backend, MapStateDescriptor("s"))
    assert state.is_empty() and "a" not in state and state.get("a") is None and list(state) == []
    with pytest.raises(KeyError):
        state["a"]
    state["a"] = 1
    state.put_all({"b": 2, "c": None})
    assert (state["a"], state["c"], state.contains("c")) == (1, None, True)
    assert sorted(state.keys()) == list("abc") and dict(state.items())["b"] == 2 and 2 in state.values()
    del state["a"]
    state.remove("zzz")
    assert sorted(state) == ["b", "c"]
    state.remove("b")
    state.remove("c")
    assert state.is_empty()


def test_reducing_and_aggregating_state(backend):
    class Longest(AggregateFunction):
        def create_accumulator(self):
            return ""

        def add(self, value, accumulator):
            return max(accumulator, value, key=len)

        def get_result(self, accumulator):
            return len(accumulator)

    reducing = backend.get_state(ReducingStateDescriptor("r", max))
    aggregating = backend.get_state(AggregatingStateDescriptor("a", Longest()))
    backend.seal()
    backend.set_current_key("k")
    assert reducing.get() is None and aggregating.get() is None
    for value in (0, 3, 2):
        reducing.add(value)
        aggregating.add("x" * value)
    assert (reducing.get(), aggregating.get()) == (3, 3)
    reducing.clear()
    assert reducing.get() is None and aggregating.get() == 3


def test_states_belong_to_the_key(backend):
    state = state_of(backend, ValueStateDescriptor("s"))
    state.update(1)
    backend.set_current_key("other")
    assert state.value() is None
    backend.set_current_key("k")
    assert state.value() == 1


def test_equal_keys_are_one_key(backend):
    state = state_of(backend, ValueStateDescriptor("s"))
    backend.set_current_key(1)
    state.update("one")
    backend.set_current_key(1.0)
    assert state.value() == "one"


def test_the_same_name_gives_the_same_state(backend):
    assert backend.get_state(ValueStateDescriptor("s")) is backend.get_state(ValueStateDescriptor("s"))
    with pytest.raises(ProgramError, match="'op' declares the state 's' twice: as a value state and as a list state"):
        backend.get_state(ListStateDescriptor("s"))


def test_states_are_declared_in_open(backend):
    state = state_of(backend, ValueStateDescriptor("s"))
    assert backend.get_state(ValueStateDescriptor("s")) is state
    with pytest.raises(ProgramError, match=r"'op' asks for the state 'new' while records.*declare all states in open"):
        backend.get_state(ValueStateDescriptor("new"))


def test_wrong_descriptors(backend):
    with pytest.raises(ProgramError, match="not a descriptor of keyed state"):
        backend.get_state(StateDescriptor("s"))
    for name in ("", None, 5):
        with pytest.raises(ProgramError, match="non-empty string"):
            ValueStateDescriptor(name)  # type: ignore[arg-type]


def test_a_key_is_dirty_once(backend):
    state = state_of(backend, ListStateDescriptor("s"))
    for _ in range(3):
        state.add(1)
    assert backend.take_all_changes() == ([[backend.row], []], {})
    backend.rows["k"][0] = 1  # the log's mark
    assert backend.take_all_changes() == ([[], []], {})
    backend.set_current_key("k")
    list(state)
    assert backend.take_all_changes() == ([[], []], {})
    state.add(2)
    state.clear()
    assert backend.take_all_changes() == ([[], []], {"k": 1})


CHANGES = {"add": [2], "clear": [], "update": [[3]], "add_all": [[4]]}


@pytest.mark.parametrize(("method", "arguments"), CHANGES.items())
def test_every_change_is_noted(backend, method, arguments):
    state = state_of(backend, ListStateDescriptor("s"))
    state.add(1)
    backend.take_all_changes()
    backend.rows["k"][0] = 1
    getattr(state, method)(*arguments)
    assert [row[1] for row in backend.dirty] == ["k"]


def test_none_in_a_list_state_is_refused(backend):
    state = backend.get_state(ListStateDescriptor("l"))
    backend.seal()
    backend.set_current_key("k")
    state.add(1)
    for change in (lambda: state.add(None), lambda: state.add_all([2, None]), lambda: state.update([None])):
        with pytest.raises(ProgramError, match="operator 'op', key 'k': None cannot be put into the list state 'l'"):
            change()
    assert list(state) == [1]
    state.add_all([np.array([1, 2])])  # does not compare to a bool


class Summing(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value

    def get_result(self, accumulator):
        return accumulator


def test_none_clears_what_is_folded(backend):
    reducing = backend.get_state(ReducingStateDescriptor("r", lambda a, b: a + b))
    aggregating = backend.get_state(AggregatingStateDescriptor("a", Summing()))
    backend.seal()
    backend.set_current_key("k")
    for state in (reducing, aggregating):
        state.add(1)
        state.add(None)
        assert state.get() is None
        state.add(1)
        assert state.get() is not None


def test_what_a_list_state_gave_does_not_change(backend):
    state = backend.get_state(ListStateDescriptor("l"))
    backend.seal()
    backend.set_current_key("k")
    state.add(1)
    seen = state.get()
    assert seen == (1,)  # a tuple: appending to a copy would be lost silently
    for value in state:
        state.add(value + 1)  # nor does iteration
    state.add(3)
    assert seen == (1,) and state.get() == (1, 2, 3)


@pytest.mark.parametrize(
    "use", [lambda state: state.value(), lambda state: state.update(1), lambda state: state.clear()]
)
def test_state_without_a_current_key_is_refused(backend, use):
    state = backend.get_state(ValueStateDescriptor("total"))
    for sealed in (False, True):
        if sealed:
            backend.seal()
        with pytest.raises(
            ProgramError, match="operator 'op' uses the value state 'total' where there is no current key"
        ):
            use(state)


def test_a_key_of_another_subtask_is_refused():
    backend = KeyedStateBackend("op", KeyOwner(1, 4, 128))
    backend.get_state(ValueStateDescriptor("s"))
    backend.seal()
    own_keys = [key for key in range(100) if subtask_of_key(key, 128, 4) == 1]
    for key in range(100):
        if key in own_keys:
            backend.set_current_key(key)
        else:
            with pytest.raises(
                OperatorError, match=f"operator 'op': the key {key} belongs to subtask .* same key each time"
            ):
                backend.set_current_key(key)
    assert list(backend.rows) == own_keys


def test_the_order_of_keys_is_found_once(monkeypatch):
    hashed: list[Any] = []

    def counting(key: Any) -> int:
        hashed.append(key)
        return stable_hash(key) % 5  # some share a hash

    monkeypatch.setattr(heap_backend, "stable_hash", counting)
    backend = heap_backend.KeyedStateBackend("op")
    descriptor = ValueStateDescriptor("value")
    state = backend.get_state(descriptor)
    backend.seal()
    keys = [f"key {number}" for number in range(50)]
    for key in keys:
        backend.set_current_key(key)
        state.update(1)
    ordered = sorted(sorted(keys, key=repr), key=lambda key: stable_hash(key) % 5)
    hashed.clear()
    assert [backend.keys_with(descriptor) for _ in range(3)] == [ordered] * 3
    assert len(hashed) == 50
    backend.set_current_key("key 7")
    state.clear()
    assert backend.keys_with(descriptor) == [key for key in ordered if key != "key 7"]
    backend.set_current_key("key 99")
    state.update(1)
    expected = [*(key for key in keys if key != "key 7"), "key 99"]
    assert backend.keys_with(descriptor) == sorted(sorted(expected, key=repr), key=lambda key: stable_hash(key) % 5)
