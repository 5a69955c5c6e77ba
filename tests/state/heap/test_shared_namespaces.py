"""Windows shared by all keys are stored by window, and written as rows by key."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import OperatorError, ProgramError
from pillarbox._state.chunks.head import LogIdentity
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from pillarbox._state.heap import shared_windows as heap_windows
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.heap.key_rows import KeyOwner
from pillarbox._state.keys.key_groups import subtask_of_key
from pillarbox._state.log import limits
from pillarbox._state.log.state_log import StateLog, Sync
from pillarbox._time.internal_timer_service import InternalTimerService
from pillarbox._time.manual_clock import ManualProcessingTimeService

Window = tuple[int, int]


class Gathered(AggregateFunction):
    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        accumulator.append(value)
        return None if value is None else accumulator

    def get_result(self, accumulator):
        return list(accumulator)


class Worker:
    def __init__(self, store, *, fold=None, owner=None):
        self.fired: list[Any] = []
        self.backend = KeyedStateBackend("windows", owner)
        self.backend.share_namespaces()
        self.timers = InternalTimerService("timers", self.backend, ManualProcessingTimeService(), self, namespaced=True)
        descriptor = fold or AggregatingStateDescriptor("contents", Gathered())
        self.state: Any = self.backend.get_state(descriptor, namespaced=True)
        self.backend.seal()
        self.store = store
        self.log = StateLog(LogIdentity("windows", 0, 1, 128), self.backend)
        self.sync()

    def sync(self) -> Sync:
        synced = self.log.sync(self.store)
        if synced is Sync.LOADED:
            for window in self.state.namespaces():
                self.timers.register_event_time_timer(window, window[1] - 1)
        return synced

    def window(self, window: Window) -> Any:
        windows = self.state.get_window(window)
        if windows is None:
            windows = self.state.open_window(window)
            self.timers.register_event_time_timer(window, window[1] - 1)
        return windows

    def fold(self, window: Window, *elements: tuple[Any, Any], check: Any = None) -> Worker:
        keys, values = [key for key, _ in elements], [value for _, value in elements]
        self.state.fold(values, keys, [self.window(window)] * len(keys), check)
        return self

    def on_event_time(self, timestamp, namespace):
        self.fired.append((timestamp, namespace, [(key, list(folded)) for key, folded in self.state.items(namespace)]))
        self.state.drop_window(namespace)

    def flush(self):
        pass

    def on_processing_time(self, timestamp, namespace):
        raise AssertionError("no such timer is set")

    def commit(self) -> Worker:
        self.log.commit(self.store, {})
        return self

    def held(self) -> dict[Window, dict[Any, list[Any]]]:
        results = {window: {k: list(v) for k, v in self.state.items(window)} for window in self.state.namespaces()}
        return {window: held for window, held in results.items() if held}


FIRST, SECOND = (0, 10), (10, 20)
KEYS, WINDOWS = st.sampled_from("abcdef"), st.sampled_from([FIRST, SECOND, (20, 30)])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("fold"), WINDOWS, st.lists(KEYS, max_size=6)),
        st.tuples(st.just("end"), WINDOWS),
        st.tuples(st.just("remove"), WINDOWS, KEYS),
        st.tuples(st.just("rewrite"), WINDOWS),
        st.tuples(st.sampled_from(["commit", "commit", "commit", "restart", "other"])),
    ),
    max_size=30,
)


@given(STEPS)
def test_windows_are_what_dictionaries_are(steps):
    store, model = MemoryChunkStore(), dict[Window, dict[Any, list[Any]]]()
    number = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "CHUNK_ROWS", 3)
        patch.setattr(limits, "SPARE_CHUNKS", 2)
        patch.setattr(limits, "SLACK_BYTES", 100)
        workers = [Worker(store), Worker(store)]
        turn = 0
        for what, *arguments in steps:
            worker = workers[turn]
            if what == "fold":
                window, keys = arguments
                elements = []
                for key in keys:
                    number += 1
                    elements.append((key, number))
                    model.setdefault(window, {}).setdefault(key, []).append(number)
                worker.fold(window, *elements)
            elif what == "end":
                worker.state.drop_window(arguments[0])
                model.pop(arguments[0], None)
            elif what == "remove":
                window, key = arguments
                assert worker.state.folded(window, key) == model.get(window, {}).get(key)
                if worker.state.get_window(window) is not None:
                    worker.state.remove(window, key)
                model.get(window, {}).pop(key, None)
            elif what == "rewrite":
                if worker.state.get_window(arguments[0]) is not None:
                    worker.state.thaw_all(arguments[0])
            else:
                worker.commit()
                turn = 1 - turn if what == "other" else turn
                if what == "restart":
                    workers[turn] = Worker(store)
                if workers[turn].sync() is Sync.OUT_OF_STEP:
                    workers[turn] = Worker(store)
            assert workers[turn].held() == {window: held for window, held in model.items() if held}
        worker = workers[turn].commit()
        cold = Worker(store)
        # The same, in the same order, in a warm worker.
        assert [list(worker.state.items(window)) for window in sorted(worker.state.namespaces())] == [
            list(cold.state.items(window)) for window in sorted(cold.state.namespaces())
        ]
        assert sorted(cold.backend.get_keys()) == sorted({key for held in model.values() for key in held})
        assert worker.backend.num_keys == cold.backend.num_keys == len({key for held in model.values() for key in held})
        cold.timers.advance_watermark(100)
        assert [window for _, window, _ in cold.fired] == sorted(window for window, held in model.items() if held)
        for _ in range(10):
            cold.commit()
        assert cold.log.state_bytes == 0 and not cold.held() and len(cold.timers.event_timers) == 0


def test_a_window_that_begins_and_ends_in_an_epoch_leaves_no_trace():
    worker = Worker(MemoryChunkStore()).commit()
    before = len(worker.store.chunks)
    worker.fold(FIRST, ("a", 1), ("b", 2), ("a", 3))
    worker.timers.advance_watermark(9)
    assert worker.fired == [(9, FIRST, [("a", [1, 3]), ("b", [2])])]
    worker.commit()
    assert len(worker.store.chunks) == before and worker.log.contents.head.entry == 0


def test_rows_are_those_of_any_namespaces():
    store = MemoryChunkStore()
    Worker(store).fold(FIRST, ("a", 1), ("b", 2)).fold(SECOND, ("a", 3)).commit()
    backend = KeyedStateBackend("windows")
    backend.create_timers("timers/event", namespaced=True)
    backend.create_timers("timers/processing", namespaced=True)
    state = backend.get_state(AggregatingStateDescriptor("contents", Gathered()), namespaced=True)
    log = StateLog(LogIdentity("windows", 0, 1, 128), backend)
    assert log.sync(store) is Sync.LOADED
    assert backend.timestamps("a", FIRST) == {"timers/event": [9]} == backend.timestamps("b", FIRST)
    backend.select("a", SECOND)
    state.add(4)
    log.commit(store, {})
    worker = Worker(store)
    assert worker.held() == {FIRST: {"a": [1], "b": [2]}, SECOND: {"a": [3, 4]}}
    assert worker.backend.timestamps("a", SECOND) == {"timers/event": [19]}


def test_states_that_are_asked_for_late_are_in_the_same_row():
    worker = Worker(MemoryChunkStore()).fold(FIRST, ("a", 1), ("b", 2)).commit()
    worker.fold(FIRST, ("b", 3))
    marks = worker.backend.get_state(ValueStateDescriptor("mark"), namespaced=True, late=True)
    seen = worker.backend.get_state(ListStateDescriptor("seen"), namespaced=True, late=True)
    for key, _ in worker.state.items(FIRST):
        worker.backend.set_current_namespace(FIRST)
        assert marks.value() is None
        marks.update(key)
        seen.add(key)
    worker.backend.set_current_key("c")  # a key that has nothing folded there
    worker.backend.set_current_namespace(SECOND)
    marks.update("alone")
    worker.commit()
    again = Worker(worker.store)
    for held in (worker, again):
        assert held.backend.contents("a", FIRST) == {"contents": [1], "mark": "a", "seen": ["a"]}
        assert held.backend.contents("b", FIRST) == {"contents": [2, 3], "mark": "b", "seen": ["b"]}
        assert held.backend.contents("c", SECOND) == {"mark": "alone"}
    marks = again.backend.get_state(ValueStateDescriptor("mark"), namespaced=True, late=True)
    again.backend.set_current_key("c")
    again.backend.set_current_namespace(SECOND)
    marks.clear()
    again.state.drop_window(FIRST)
    again.commit()
    assert list(again.backend.get_keys()) == [] and Worker(again.store).backend.num_keys == 0


@pytest.mark.parametrize(
    ("fold", "says"),
    [
        (None, "the function that folds the state 'contents' returned None"),
        (ReducingStateDescriptor("contents", max), "a record is None, which cannot be reduced with others"),
    ],
)
def test_none_is_refused_and_the_key_that_failed_is_the_current_one(fold, says):
    worker = Worker(MemoryChunkStore(), fold=fold)
    with pytest.raises(ProgramError, match=f"key 'b': {says}"):
        worker.fold(FIRST, ("a", 1), ("b", None), ("c", 3))
    assert worker.backend.key == "b"


def test_a_key_of_another_subtask_is_refused_when_it_is_new():
    worker = Worker(MemoryChunkStore(), owner=KeyOwner(1, 4, 128))
    own_keys = [key for key in range(100) if subtask_of_key(key, 128, 4) == 1]

    def check(key: Any, window: Any) -> None:
        assert window.namespace == FIRST
        worker.backend.check_owner(key)

    worker.fold(FIRST, *((key, key) for key in own_keys), check=check)
    other = next(key for key in range(100) if key not in own_keys)
    with pytest.raises(OperatorError, match=f"the key {other} belongs to subtask"):
        worker.fold(FIRST, (other, 1), check=check)
    assert worker.backend.key == other


def test_keys_are_counted_as_long_as_that_is_quick(monkeypatch):
    worker = (
        Worker(MemoryChunkStore()).fold(FIRST, ("a", 1), ("b", 1)).commit().fold(SECOND, ("b", 2), ("c", 2), ("d", 3))
    )
    assert worker.backend.num_keys == 4
    monkeypatch.setattr(heap_windows, "_COUNTED", 4)
    assert worker.backend.num_keys == 3
