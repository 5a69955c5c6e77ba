from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest

from pillarbox import CheckpointMismatchError, OperatorError, ProgramError
from pillarbox._state.chunks.head import META, LogIdentity
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.heap.key_rows import KeyOwner
from pillarbox._state.keys.key_groups import subtask_of_key
from pillarbox._state.log import limits
from pillarbox._state.log.state_log import StateLog
from pillarbox._time.internal_timer_service import InternalTimerService
from pillarbox._time.manual_clock import ManualProcessingTimeService
from tests.data import make_spaces as golden
from tests.data.make_checkpoint import load

FIRST, SECOND, THIRD = (0, 10), (10, 20), (20, 30)
LATE = "trigger"


class Joined(AggregateFunction):
    def create_accumulator(self):
        return ""

    def add(self, value, accumulator):
        return accumulator + value

    def get_result(self, accumulator):
        return accumulator.upper()

    def merge(self, accumulator_a, accumulator_b):
        return f"{accumulator_a}+{accumulator_b}"


class Windows:
    """The state of a window operator: contents, timers, and lazily created trigger states."""

    def __init__(self, store=None, *, contents: Any = None, own=False, owner=None, logged=True):
        self.fired: list[Any] = []
        self.backend = KeyedStateBackend("windows", owner)
        self.contents = self.backend.get_state(contents or ListStateDescriptor("contents"), namespaced=True)
        self.own: Any = self.backend.get_state(ValueStateDescriptor("own")) if own else None
        self.timers = InternalTimerService("timers", self.backend, ManualProcessingTimeService(), self, namespaced=True)
        self.backend.seal()
        self.store = MemoryChunkStore() if store is None else store
        self.log = StateLog(LogIdentity("windows", 0, 1, 128), self.backend)
        self.sync = self.log.sync(self.store) if logged else None

    def at(self, key, namespace):
        self.backend.set_current_key(key)
        self.backend.set_current_namespace(namespace)
        return self

    def add(self, *values):
        for value in values:
            self.contents.add(value)
        return self

    def timer(self, namespace, timestamp):
        self.timers.register_event_time_timer(namespace, timestamp)
        return self

    def trigger(self, descriptor=None):
        return self.backend.get_state(descriptor or ValueStateDescriptor(LATE), namespaced=True, late=True)

    def on_event_time(self, timestamp, namespace):
        self.fired.append((timestamp, self.backend.key, namespace, self.contents.get()))

    def flush(self):
        pass

    def on_processing_time(self, timestamp, namespace):
        raise AssertionError("no such timer is set")

    def commit(self):
        self.log.commit(self.store, {})
        return self

    def held(self, key):
        spaces = self.backend.namespaces
        return {row[1][1]: spaces.contents_of(row) for row in spaces.rows_of(key)}

    @property
    def num_rows(self):
        return len([*self.backend.every_row(), *self.backend.namespaces.every_row()])


def test_each_namespace_has_its_own():
    windows = Windows()
    windows.at("k", FIRST).add(1).at("k", SECOND).add(2).at("j", FIRST).add(3)
    assert windows.at("k", FIRST).contents.get() == (1,)
    assert windows.at("k", SECOND).contents.get() == (2,)
    assert windows.at("j", FIRST).contents.get() == (3,)
    assert windows.at("j", SECOND).contents.get() == ()
    assert windows.backend.get_namespaces() == [FIRST]
    assert sorted(windows.backend.get_keys()) == ["j", "k"]
    assert windows.backend.num_keys == 2
    assert windows.num_rows == 4  # the empty one is removed at the epoch's end
    windows.commit()
    assert windows.num_rows == 3


def test_a_key_without_states_of_its_own_costs_no_row():
    windows = Windows()
    windows.at("k", FIRST).add(1)
    assert not windows.backend.rows
    assert not windows.commit().backend.rows
    own = Windows(own=True)
    own.at("k", FIRST).add(1)
    own.own.update(5)
    assert own.backend.contents("k") == {"own": 5}
    assert own.held("k") == {FIRST: {"contents": [1]}}


@pytest.mark.parametrize("use", [lambda state: state.get(), lambda state: state.add(1), lambda state: state.clear()])
def test_another_key_has_no_current_namespace(use):
    windows = Windows()
    windows.at("k", FIRST).add(1).backend.set_current_key("j")
    with pytest.raises(ProgramError, match="'windows' uses the list state 'contents' where there is no current namesp"):
        use(windows.contents)


@pytest.mark.parametrize("namespace", [None, 1.5, True, b"x", (1, None), (1, (2, [])), [1], frozenset()])
def test_namespaces_are_plain_values(namespace):
    with pytest.raises(ProgramError, match="operator 'windows': a namespace is an int, text, or a tuple of such, not"):
        Windows().at("k", namespace)


def test_a_key_of_another_subtask_is_refused():
    windows = Windows(owner=KeyOwner(1, 4, 128), logged=False)
    for key in range(100):
        if subtask_of_key(key, 128, 4) == 1:
            windows.at(key, FIRST).add(1)
        else:
            with pytest.raises(OperatorError, match=f"'windows': the key {key} belongs to subtask"):
                windows.at(key, FIRST)


# -- timers --


def test_a_timer_fires_with_its_namespace():
    windows = Windows()
    windows.at("k", FIRST).add(1).timer(FIRST, 9).timer(FIRST, 9).timer(SECOND, 19)
    windows.at("j", FIRST).add(2).timer(FIRST, 9)
    windows.timers.advance_watermark(9)
    assert windows.fired == [(9, "k", FIRST, (1,)), (9, "j", FIRST, (2,))]
    assert windows.timers.num_event_time_timers() == 1
    windows.at("k", THIRD).timers.delete_event_time_timer(SECOND, 19)
    windows.timers.advance_watermark(30)
    assert len(windows.fired) == 2


def test_a_row_is_there_as_long_as_it_has_state_or_a_timer():
    windows = Windows()
    windows.at("k", FIRST).add(1).timer(FIRST, 9).commit()
    windows.at("k", FIRST).contents.clear()
    windows.commit()
    assert windows.held("k") == {FIRST: {}}
    windows.timers.advance_watermark(9)
    windows.commit()
    assert windows.num_rows == 0 == windows.log.contents.ledger.current
    assert Windows(windows.store).num_rows == 0


# -- merging --


@pytest.mark.parametrize(
    ("descriptor", "merged"),
    [
        (ListStateDescriptor("contents"), ("c", "a", "b")),
        (ReducingStateDescriptor("contents", lambda value, other: f"{value}|{other}"), "c|a|b"),
        (AggregatingStateDescriptor("contents", Joined()), "C+A+B"),
    ],
    ids=lambda what: getattr(what, "kind", ""),
)
def test_namespaces_merge_into_one(descriptor, merged):
    windows = Windows(contents=descriptor)
    for namespace, value in ((FIRST, "a"), (SECOND, "b"), (THIRD, "c")):
        windows.at("k", namespace).add(value)
    windows.at("j", FIRST).add("other").commit()
    windows.at("k", (5, 6))
    windows.contents.merge_namespaces(THIRD, [FIRST, SECOND, (7, 8)])
    assert not windows.contents.get()  # the current namespace is the previous one
    assert windows.at("k", THIRD).contents.get() == merged
    assert windows.backend.get_namespaces() == [THIRD]
    windows.commit()
    again = Windows(windows.store, contents=descriptor)
    assert again.at("k", THIRD).contents.get() == merged
    assert again.at("j", FIRST).contents.get() in (("other",), "other", "OTHER")
    assert again.num_rows == 2


def test_merging_nothing_leaves_nothing():
    windows = Windows().at("k", FIRST)
    windows.contents.merge_namespaces(SECOND, [FIRST])
    assert windows.backend.get_namespaces() == []


def test_states_of_keys_do_not_merge():
    backend = KeyedStateBackend("op")
    state = backend.get_state(ListStateDescriptor("s"))
    backend.seal()
    backend.set_current_key("k")
    with pytest.raises(ProgramError, match="a state of keys has no namespaces"):
        state.merge_namespaces(SECOND, [FIRST])


# -- states declared late --


def test_a_late_state_fits_into_rows_that_are_there():
    windows = Windows(own=True)
    windows.at("k", FIRST).add(1)
    windows.own.update("own")
    windows.commit()
    windows.at("k", FIRST).trigger().update("late")
    assert windows.trigger() is windows.trigger()
    of_key = windows.backend.get_state(MapStateDescriptor("global"), late=True)
    of_key.put("a", 1)
    windows.at("k", SECOND).trigger().update("more")
    windows.commit()
    assert windows.held("k") == {FIRST: {"contents": [1], LATE: "late"}, SECOND: {LATE: "more"}}
    assert windows.backend.contents("k") == {"own": "own", "global": {"a": 1}}


def test_a_late_state_of_a_key_that_has_no_other():
    windows = Windows().at("k", FIRST)
    windows.backend.get_state(ValueStateDescriptor("global"), late=True).update(5)
    windows.backend.set_current_key("j")
    assert windows.backend.get_state(ValueStateDescriptor("global"), late=True).value() is None
    assert windows.backend.contents("k") == {"global": 5}


def test_a_late_state_is_restored_before_it_is_asked_for():
    windows = Windows()
    windows.at("k", FIRST).add(1).trigger().update("late")
    windows.commit()
    again = Windows(windows.store)
    assert again.held("k") == {FIRST: {"contents": [1], LATE: "late"}}
    again.at("k", SECOND).add(2).commit()  # it keeps states that it does not use
    third = Windows(again.store)
    assert third.at("k", FIRST).trigger().value() == "late"
    assert third.at("k", SECOND).trigger().value() is None
    with pytest.raises(
        CheckpointMismatchError, match=r"'trigger' of operator 'windows' as value state, .* as map state"
    ):
        Windows(again.store).trigger(MapStateDescriptor(LATE))
    with pytest.raises(ProgramError, match=r"declares the state 'trigger' twice: as a value state and as a map state"):
        third.trigger(MapStateDescriptor(LATE))


def test_late_states_may_be_asked_for_in_another_order():
    windows = Windows()
    windows.at("k", FIRST).add(1)
    windows.trigger(ValueStateDescriptor("x")).update("x1")
    windows.commit()
    other = Windows(windows.store)
    other_y = other.trigger(ValueStateDescriptor("y"))
    other.at("k", FIRST)
    other_y.update("y1")
    other.commit()
    assert Windows(windows.store).held("k") == other.held("k") == {FIRST: {"contents": [1], "x": "x1", "y": "y1"}}


def test_other_states_are_declared_before_records_come():
    with pytest.raises(ProgramError, match="declare all states in open"):
        Windows().backend.get_state(ValueStateDescriptor("x"), namespaced=True)


# -- the log --


def test_only_the_namespaces_that_changed_are_written():
    windows = Windows()
    for start in range(100):
        windows.at("k", (start, start + 10)).add("x" * 1_000)
    windows.commit()
    windows.at("k", (50, 60)).add("y").commit()
    assert windows.log.bytes_written < 3_000


def test_the_rows_of_keys_come_before_those_of_namespaces_also_when_cleaning_moves_some(monkeypatch):
    monkeypatch.setattr(limits, "CHUNK_ROWS", 4)
    monkeypatch.setattr(limits, "SLACK_BYTES", 100)
    monkeypatch.setattr(limits, "SPARE_CHUNKS", 2)
    monkeypatch.setattr(limits, "GATHERING", 2)
    windows = Windows(own=True)
    for epoch in range(30):
        for key in (epoch % 7, epoch % 5, 7):
            windows.at(key, (epoch % 3, 5)).contents.update([epoch] * 5)
            windows.own.update((key, epoch))
        windows.commit()
    assert windows.log.contents.ledger.chunks[0].number > 1
    again = Windows(windows.store, own=True)
    for key in range(8):
        assert again.held(key) == windows.held(key)
        assert again.backend.contents(key) == windows.backend.contents(key)


def test_a_large_row_of_a_namespace_lies_by_itself():
    windows = Windows()
    windows.at("k", FIRST).add(bytes(600_000)).at("k", SECOND).add("small").commit()
    assert -1 in windows.store.chunks
    again = Windows(windows.store)
    assert again.at("k", FIRST).contents.get() == (bytes(600_000),)
    assert again.at("k", SECOND).contents.get() == ("small",)
    late = again.at("k", FIRST).trigger()
    assert late.value() is None
    again.contents.clear()
    again.commit()
    assert -1 not in again.store.chunks


def test_a_key_that_looks_like_an_address_is_another_one():
    windows = Windows(own=True)
    windows.at("k", FIRST).add(1)
    windows.backend.set_current_key(("k", FIRST))
    windows.own.update("own")
    windows.at((1, 2, 3), FIRST).add(2)
    windows.own.update(np.arange(2))
    windows.commit()
    again = Windows(windows.store, own=True)
    assert again.held("k") == {FIRST: {"contents": [1]}}
    assert again.backend.contents(("k", FIRST)) == {"own": "own"}
    assert again.held((1, 2, 3)) == {FIRST: {"contents": [2]}}


def test_what_cannot_be_written_is_named_with_its_namespace():
    windows = Windows()
    windows.at("k", FIRST).add(threading.Lock())
    with pytest.raises(
        OperatorError, match=r"the list state 'contents' of key 'k' in namespace \(0, 10\) cannot be wr"
    ):
        windows.commit()


def test_a_program_without_namespaces_does_not_go_on_with_them():
    windows = Windows()
    windows.at("k", FIRST).add(1).commit()
    backend = KeyedStateBackend("windows")
    backend.seal()
    with pytest.raises(CheckpointMismatchError, match="holds list 'contents' of operator 'windows', which the program"):
        StateLog(LogIdentity("windows", 0, 1, 128), backend).sync(windows.store)


# -- the format --


def test_the_golden_log_with_namespaces_is_read():
    (store,) = load(golden.PATH).values()
    model = golden.Model()
    for epoch in golden.operations():
        for operation in epoch:
            model.apply(*operation)
    windows = golden.Windows(store)
    assert windows.view() == model.view()
    for what in (("late", "text", 7, "more"), ("merge", "text", (0, 10), 7), ("timer", 1, "name", 150)):
        windows.apply(*what)
        model.apply(*what)
    windows.log.commit(store, {})
    again = golden.Windows(store)
    assert again.view() == model.view()
    again.timers.advance_watermark(1_000)
    assert sorted(again.fired, key=repr) == sorted(model.timers, key=repr)
    assert len(model.timers) > 5 < len(model.view())
    assert any(number < 0 for number in load(golden.PATH)["windows", 0].chunks)


def test_what_uses_no_namespaces_is_written_as_before_them():
    """Older versions read it, and refuse logs with namespaces."""
    backend = KeyedStateBackend("op")
    state = backend.get_state(ValueStateDescriptor("s"))
    backend.seal()
    log, store = StateLog(LogIdentity("op", 0, 1, 128), backend), MemoryChunkStore()
    fields = set()
    for epoch in range(3):
        for key in range(epoch + 2):
            backend.set_current_key(key)
            state.update("x" * key * 1_000 if epoch < 2 else None)
        log.commit(store, {})
        fields.update(pickle.loads(store.chunks[epoch + 1]))
    backend.set_current_key("large")
    state.update(bytes(600_000))
    log.commit(store, {})
    head = pickle.loads(store.chunks[META][15:])
    assert head.keys() == {
        "operator", "subtask", "parallelism", "max_parallelism", "program", "key", "layouts", "version", "stamps",
        "first", "following", "entry", "entries", "cleaned", "newest", "large", "task",
    }  # fmt: skip
    fields.update(pickle.loads(store.chunks[head["following"] - 1]))
    assert fields == {"epoch", "keys", "rows", "before", "replaced", "weights", "large"}
