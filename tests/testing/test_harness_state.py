from __future__ import annotations

import pickle
from typing import Any

import pytest

from pillarbox import (
    CheckpointMismatchError,
    EventTimeSessionWindows,
    KeyedProcessFunction,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
    TimeWindow,
    TumblingEventTimeWindows,
    TypeMismatchError,
    Types,
    ValueStateDescriptor,
)
from pillarbox._state.chunks.head import META
from pillarbox.testing import harness_for
from tests.operators.windowing.windows import Contents, key_of, open_windows

FIRST, SECOND = TimeWindow(0, 10), TimeWindow(10, 20)


class Sum(KeyedProcessFunction):
    def open(self, runtime_context):
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def process_element(self, value, ctx):
        self.sum.update((self.sum.value() or 0) + value[1])
        timers = ctx.timer_service()
        for at in (30, 20):
            timers.register_event_time_timer(at)
        timers.register_processing_time_timer(7)
        yield self.sum.value()


class Remembers(ProcessWindowFunction):
    def process(self, key, context, elements):
        fired = context.window_state().get_state(ValueStateDescriptor("fired"))
        fired.update((fired.value() or 0) + 1)
        context.global_state().get_state(ValueStateDescriptor("last")).update(context.window().start)
        return []

    def clear(self, context):
        context.window_state().get_state(ValueStateDescriptor("fired")).clear()


def test_windows_of_a_key():
    def build(keyed):
        return keyed.window(TumblingEventTimeWindows.of(10)).allowed_lateness(5).process(Remembers())

    with open_windows(build) as harness:
        assert harness.get_keys() == [] == harness.get_namespaces("a")
        harness.push(("a", 1), 3)
        harness.push(("a", 2), 14)
        harness.push(("b", 3), 1)
        assert harness.get_keys() == ["a", "b"]
        assert harness.get_namespaces("a") == [FIRST, SECOND]
        assert harness.state_of("a") == {}
        assert harness.state_of("a", FIRST) == {"window-contents": [(("a", 1),)]}
        harness.state_of("a", FIRST)["window-contents"].clear()  # a copy
        assert harness.state_of("a", FIRST)["window-contents"]
        assert harness.state_of("b", SECOND) == {} == harness.state_of("c", FIRST)
        assert harness.event_time_timers_of("a", FIRST) == [9, 14]
        assert harness.event_time_timers_of("a") == [] == harness.processing_time_timers_of("a", FIRST)
        assert harness.event_time_timers_of("b", SECOND) == []
        assert harness.num_keyed_state_entries() == 3
        harness.push_watermark(9)
        assert harness.state_of("a", FIRST) == {"window-contents": [(("a", 1),)], "window/fired": 1}
        assert harness.state_of("a") == {"global/last": 0}
        assert harness.event_time_timers_of("a", FIRST) == [14]
        snapshot = harness.snapshot()
    with open_windows(build, snapshot=snapshot) as restored:
        assert restored.state_of("a", FIRST) == {"window-contents": [(("a", 1),)], "window/fired": 1}
        assert restored.event_time_timers_of("a", FIRST) == [14]
        restored.push_watermark(24)
        assert restored.get_keys() == ["a", "b"]  # the state of the keys themselves
        assert restored.get_namespaces("a") == []


def test_windows_that_merge_lie_under_the_first():
    with open_windows(lambda keyed: keyed.window(EventTimeSessionWindows.with_gap(5)).process(Contents())) as harness:
        harness.push_all([("a", 1), ("a", 2)], [3, 6])
        assert harness.state_of("a") == {"merging-windows": {(3, 11): (3, 8)}}
        assert harness.state_of("a", TimeWindow(3, 8)) == {"window-contents": [(("a", 1),), (("a", 2),)]}
        assert harness.event_time_timers_of("a", TimeWindow(3, 11)) == [10]


def test_a_look_makes_nothing():
    with open_windows(lambda keyed: keyed.window(TumblingEventTimeWindows.of(10)).process(Contents())) as harness:
        for look in (harness.state_of, harness.event_time_timers_of, harness.processing_time_timers_of):
            look("a")
            look("a", FIRST)
        assert harness.get_keys() == []
        assert len(harness._backend.rows) == 0 == harness._backend.namespaces.num_keys


def test_timers_of_a_key():
    with harness_for(Sum(), key_by=key_of) as harness:
        harness.push(("a", 1))
        assert harness.event_time_timers_of("a") == [20, 30]
        assert harness.processing_time_timers_of("a") == [7]
        harness.push_watermark(25)
        assert harness.event_time_timers_of("a") == [30]
        assert harness.event_time_timers_of("b") == []


def types_in_head(snapshot: Any) -> Any:
    return pickle.loads(snapshot.chunks[META][15:]).get("types")


@pytest.mark.parametrize("key_type", [Types.STRING(), None])
def test_a_snapshot_is_plain_where_a_tasks_would_be(key_type):
    with harness_for(Sum(), key_by=key_of, key_type=key_type) as harness:
        harness.push(("a", 1))
        snapshot = harness.snapshot()
        assert types_in_head(snapshot) == ({"state/sum": "LONG"} if key_type else None)
        with pytest.raises(TypeMismatchError, match="the value state 'sum' of key 'a' does not fit its declared"):
            harness.push(("a", 0.5))
    with harness_for(Sum(), key_by=key_of, key_type=key_type, snapshot=snapshot) as restored:
        assert restored.state_of("a") == {"sum": 1}


def test_windows_of_declared_types_are_plain_in_a_harness():
    env = StreamExecutionEnvironment()
    keyed = env.from_collection([]).key_by(key_of, key_type=Types.STRING())

    with open_windows(lambda _: keyed.count_window(2).process(Contents())) as harness:
        harness.push(("a", 1))
        assert types_in_head(harness.snapshot()) is None  # its elements are of any type
    with open_windows(lambda _: keyed.deduplicate(5)) as harness:
        harness.push(("a", 1), 1)
        assert types_in_head(harness.snapshot()) == {"state/seen": "BOOLEAN"}


def test_a_snapshot_of_another_key_is_refused():
    with harness_for(Sum(), key_by=key_of, key_type=Types.STRING()) as harness:
        harness.push(("a", 1))
        snapshot = harness.snapshot()
    with pytest.raises(CheckpointMismatchError, match=r"the key was .*STRING.*, and is .*BIGINT"):
        harness_for(Sum(), key_by=key_of, key_type=Types.LONG(), snapshot=snapshot)
