from __future__ import annotations

from typing import Any

import pytest

from pillarbox import (
    CountTrigger,
    EventTimeSessionWindows,
    MapStateDescriptor,
    OperatorError,
    ProcessWindowFunction,
    ProgramError,
    PurgingTrigger,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
)

TEN = TumblingEventTimeWindows.of(10)
SESSIONS = EventTimeSessionWindows.with_gap(10)
WINDOWS: dict[str, Any] = {
    "tumbling": lambda keyed: keyed.window(TEN),
    "sliding": lambda keyed: keyed.window(SlidingEventTimeWindows.of(10, 5)),
    "sessions": lambda keyed: keyed.window(SESSIONS),
    "count": lambda keyed: keyed.count_window(2),
    "tumbling with a trigger": lambda keyed: keyed.window(TEN).trigger(PurgingTrigger.of(CountTrigger.of(3))),
    "sessions with a trigger": lambda keyed: keyed.window(SESSIONS).trigger(CountTrigger.of(3)),
}


def keyed(values: list[Any], time: Any = lambda value: 5) -> Any:
    at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(time)
    return StreamExecutionEnvironment().from_collection(values).assign_timestamps_and_watermarks(at).key_by(bool)


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("values", [[None], [None, 1], [1, None]])
def test_a_record_that_is_none_is_not_the_functions_fault(windows, values):
    stream = WINDOWS[windows](keyed(values)).reduce(lambda value, other: (value, other))
    with pytest.raises((OperatorError, ProgramError), match=r"'window.reduce'.*a record is None, which cannot"):
        stream.execute_and_collect()


@pytest.mark.parametrize("windows", WINDOWS)
def test_a_function_that_returns_none_is_named(windows):
    stream = WINDOWS[windows](keyed([1, 2, 3])).reduce(lambda value, other: None)
    with pytest.raises(
        (OperatorError, ProgramError), match=r"'window.reduce', key True.* returned None.*return the result"
    ):
        stream.execute_and_collect()


@pytest.mark.parametrize("windows", [window for window in WINDOWS if "sessions" in window])
@pytest.mark.parametrize("time", [2**63 - 11, 2**63 - 10, 2**63 - 2])
def test_a_session_that_would_end_behind_the_end_of_time_is_refused_with_its_record(windows, time):
    stream = WINDOWS[windows](keyed([time], lambda value: value)).reduce(max)
    if time == 2**63 - 11:
        assert stream.execute_and_collect() == ([time] if windows == "sessions" else [])
        return
    with pytest.raises(OperatorError, match=rf"at the record {time}: .*its session would end at {time + 10}, beyond"):
        stream.execute_and_collect()


@pytest.mark.parametrize("windows", [window for window in WINDOWS if "sessions" in window])
def test_results_of_count_windows_have_no_time_for_sessions(windows):
    stream = WINDOWS[windows](keyed([1], lambda value: 2**63 - 1)).reduce(max)
    with pytest.raises(ProgramError, match="as count windows"):
        stream.execute_and_collect()


class UsesStateInClose(ProcessWindowFunction):
    def __init__(self, use):
        self.use = use

    def open(self, runtime_context):
        self.state = runtime_context.get_state(ValueStateDescriptor("declared"))

    def process(self, key, context, elements):
        self.context = context
        self.state.update(1)
        yield key

    def close(self):
        self.use(self)


USES: dict[str, Any] = {
    "declared": lambda function: function.state.update(2),
    "global": lambda function: function.context.global_state().get_map_state(MapStateDescriptor("m")).put(1, 1),
    "of the window": lambda function: function.context.window_state().get_state(ValueStateDescriptor("w")).update(1),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("windows", ["tumbling", "sliding", "count"])
def test_state_is_refused_in_close(windows, use):
    stream = WINDOWS[windows](keyed([1, 2])).process(UsesStateInClose(USES[use]))
    with pytest.raises((OperatorError, ProgramError), match=r"no current key|while a window fires"):
        stream.execute_and_collect()
