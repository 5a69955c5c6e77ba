"""Further cases from Flink's own window tests."""

from __future__ import annotations

from typing import Any

import pytest

from pillarbox import (
    AggregateFunction,
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    CountTrigger,
    CumulativeEventTimeWindows,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    MergingWindowAssigner,
    OperatorError,
    OutputTag,
    PurgingTrigger,
    ReducingStateDescriptor,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TimeEvictor,
    TimeWindow,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from tests.operators.windowing.windows import Contents, NumberWithoutMerge, open_windows

LATE = OutputTag("late")
FOREVER = 2**63 - 1


def push(harness: Any, *records: tuple[str, int, int | None]) -> list[Any]:
    harness.clear_output()
    for key, value, time in records:
        harness.push((key, value), time)
    return list(harness.get_output())


def advance(harness: Any, watermark: int) -> list[Any]:
    harness.clear_output()
    harness.push_watermark(watermark)
    return list(harness.get_output())


class Listed(AggregateFunction):
    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        return [*accumulator, value[1]]

    def get_result(self, accumulator):
        return sorted(accumulator)

    def merge(self, accumulator, other):
        return accumulator + other


# -- sessions --


class PointSessions(EventTimeSessionWindows):
    """Sessions whose elements may have no length."""

    def assign_windows(self, element, timestamp, context):
        if element[1] == 33:
            return [TimeWindow(timestamp, timestamp)]
        return super().assign_windows(element, timestamp, context)


def test_sessions_of_a_point_merge_with_those_that_they_touch():
    with open_windows(lambda s: s.window(PointSessions(3000)).process(Contents())) as harness:
        push(harness, ("a", 1, 0), ("a", 33, 1000))
        push(harness, ("b", 1, 10), ("b", 2, 2000), ("b", 33, 2500))
        out = advance(harness, 12_000)
        assert sorted(out) == [("a", (0, 3000), [1, 33]), ("b", (10, 5000), [1, 2, 33])]


@pytest.mark.parametrize("folds", [True, False])
def test_a_long_session_takes_up_those_that_lie_within_it(folds):
    def build(stream: Any) -> Any:
        windows = stream.window(EventTimeSessionWindows.with_dynamic_gap(lambda record: record[1]))
        return windows.aggregate(Listed()) if folds else windows.process(Contents())

    with open_windows(build) as harness:
        push(harness, ("a", 3, 1), ("a", 2, 5), ("a", 2, 10), ("a", 5, 30))
        snapshot = harness.snapshot()
    with open_windows(build, snapshot=snapshot) as harness:
        push(harness, ("a", 12, 0), ("a", 12, 0), ("a", 4, 2))
        result = advance(harness, 100)
        assert result == (
            [[2, 2, 3, 4, 12, 12], [5]] if folds else [("a", (0, 12), [3, 2, 2, 12, 12, 4]), ("a", (30, 35), [5])]
        )
        harness.snapshot()
        assert harness.get_keys() == []


def test_a_late_record_belongs_to_a_session_that_is_there_and_a_purged_session_is_still_there():
    def build(stream: Any) -> Any:
        windows = stream.window(EventTimeSessionWindows.with_gap(3000)).allowed_lateness(10)
        trigger = PurgingTrigger.of(EventTimeTrigger.create())
        return windows.trigger(trigger).side_output_late_data(LATE).process(Contents())

    with open_windows(build) as harness:
        push(harness, ("b", 1, 1000), ("b", 2, 2000), ("b", 3, 4500))
        assert advance(harness, 8500) == [("b", (1000, 7500), [1, 2, 3])]
        assert push(harness, ("a", 1, 10)) == []  # its session would have ended
        assert harness.get_side_output(LATE) == [("a", 1)]
        assert push(harness, ("a", 2, 14_600)) == []
        assert advance(harness, 14_600) == []
        assert push(harness, ("a", 3, 10_000)) == []  # complete by itself, and its session would touch no other: 13,000
        assert harness.get_side_output(LATE) == [("a", 3)]
        assert push(harness, ("a", 4, 14_500), ("a", 5, 11_610)) == []  # touches the session from 14,500 on
        assert advance(harness, 20_000) == [("a", (11_610, 17_600), [2, 4, 5])]
        assert push(harness, ("a", 6, 16_000)) == []  # that session has ended
        assert harness.get_side_output(LATE) == [("a", 6)]
    with open_windows(build) as harness:
        push(harness, ("a", 1, 0))
        assert advance(harness, 3005) == [("a", (0, 3000), [1])]
        assert push(harness, ("a", 2, 1)) == [("a", (0, 3001), [2])]  # purged, and still there: it grows
        assert advance(harness, 3010) == []
        assert push(harness, ("a", 3, 2)) == [("a", (2, 3002), [3])]  # not any more


def test_a_purge_keeps_the_set_of_sessions():
    def build(stream: Any) -> Any:
        windows = stream.window(EventTimeSessionWindows.with_gap(10)).trigger(PurgingTrigger.of(CountTrigger.of(2)))
        return windows.process(Contents())

    with open_windows(build) as harness:
        assert push(harness, ("a", 1, 0), ("a", 2, 5)) == [("a", (0, 15), [1, 2])]
        snapshot = harness.snapshot()
    with open_windows(build, snapshot=snapshot) as harness:
        assert push(harness, ("a", 3, 14), ("a", 4, 3)) == [("a", (0, 24), [3, 4])]
        assert advance(harness, 23) == []
        harness.snapshot()
        assert harness.get_keys() == [] and harness.num_event_time_timers() == 0


class Shrinking(MergingWindowAssigner):
    """A key's windows become one window that ends too early."""

    def assign_windows(self, element, timestamp, context):
        return [TimeWindow(0, 22 + element[1])]

    def get_default_trigger(self, env=None):
        return EventTimeTrigger.create()

    def is_event_time(self):
        return True

    def merge_windows(self, windows, callback):
        windows = list(windows)
        if len(windows) > 1:
            callback.merge(windows, TimeWindow(0, 11))


def test_windows_that_shrink_below_event_time_are_refused():
    with open_windows(lambda s: s.window(Shrinking()).allowed_lateness(10).process(Contents())) as harness:
        push(harness, ("a", 0, 0))
        advance(harness, 19)
        push(harness, ("a", 3, 0))  # the merged window ends at 10, and is over at 20
    with open_windows(lambda s: s.window(Shrinking()).allowed_lateness(10).process(Contents())) as harness:
        push(harness, ("a", 0, 0))
        advance(harness, 20)
        with pytest.raises(
            Exception, match=r"merged windows into TimeWindow\(start=0, end=11\), which event time has already passed"
        ):
            push(harness, ("a", 3, 0))


# -- timers --


class Dangling(Trigger):
    """Sets timers and never deletes them; purges its elements."""

    fired = ReducingStateDescriptor("fired", lambda value, other: value + other)

    def __init__(self, at: int, answer: TriggerResult) -> None:
        self.at, self.answer = at, answer

    def on_element(self, element, timestamp, window, ctx):
        ctx.register_event_time_timer(self.at)
        return self.answer

    def on_event_time(self, time, window, ctx):
        return TriggerResult.FIRE

    def can_merge(self):
        return True

    def on_merge(self, window, ctx):
        pass

    def clear(self, window, ctx):
        pass


@pytest.mark.parametrize("assigner", [TumblingEventTimeWindows.of(10), EventTimeSessionWindows.with_gap(8)])
@pytest.mark.parametrize(("at", "answer"), [(4, TriggerResult.PURGE), (25, TriggerResult.CONTINUE)])
def test_timers_of_windows_that_are_empty_or_over_do_nothing(assigner, at, answer):
    with open_windows(lambda s: s.window(assigner).trigger(Dangling(at, answer)).process(Contents())) as harness:
        push(harness, ("a", 1, 2))
        assert harness.num_event_time_timers() == 2  # the trigger's, and that which ends the window
        assert advance(harness, 8) == []
        advance(harness, 20)
        harness.clear_output()
        assert advance(harness, 30) == []
        harness.snapshot()
        assert harness.num_event_time_timers() == 0 and harness.get_keys() == []


def test_a_continuous_trigger_of_the_global_window_over_a_restart():
    def build(stream: Any) -> Any:
        return stream.window(GlobalWindows.create()).trigger(ContinuousEventTimeTrigger.of(3000)).process(Contents())

    with open_windows(build) as harness:
        push(harness, ("a", 1, 1000), ("b", 2, 20))
        assert advance(harness, 2999) == []
        snapshot = harness.snapshot()
    with open_windows(build, snapshot=snapshot) as harness:
        assert sorted(advance(harness, 3000)) == [("a", (), [1]), ("b", (), [2])]
        push(harness, ("a", 3, 3500))
        assert sorted(advance(harness, 6000)) == [("a", (), [1, 3]), ("b", (), [2])]
        assert sorted(advance(harness, 9500)) == [("a", (), [1, 3]), ("b", (), [2])]


@pytest.mark.parametrize("assigner", [TumblingEventTimeWindows.of(20), EventTimeSessionWindows.with_gap(20)])
def test_a_continuous_trigger_of_the_clock_outlives_the_windows_end_by_the_clock(assigner):
    trigger = ContinuousProcessingTimeTrigger.of(10)
    with open_windows(lambda s: s.window(assigner).trigger(trigger).process(Contents())) as harness:
        push(harness, ("a", 1, 0))
        for clock, firings in [(9, 0), (10, 1), (18, 1), (19, 2), (28, 2), (29, 3), (39, 4), (40, 4), (59, 6)]:
            harness.set_processing_time(clock)
            assert len(harness.get_output()) == firings
        assert advance(harness, 100) == []
        harness.set_processing_time(1000)
        assert harness.get_output() == [] and harness.num_processing_time_timers() == 0
        # One that begins when the clock has passed its end.
        push(harness, ("b", 2, 103))
        for clock, firings in [(1009, 0), (1010, 1), (1019, 1), (1020, 2)]:
            harness.set_processing_time(clock)
            assert len(harness.get_output()) == firings
        advance(harness, 200)
        harness.snapshot()
        assert harness.num_processing_time_timers() == 0 and harness.get_keys() == []


def test_a_continuous_trigger_of_the_clock_fires_at_the_end_of_windows_of_the_clock():
    trigger = ContinuousProcessingTimeTrigger.of(6)
    windows = TumblingProcessingTimeWindows.of(10)
    with open_windows(lambda s: s.window(windows).trigger(trigger).process(Contents())) as harness:
        harness.push(("a", 1))
        for clock, firings in [(5, 0), (6, 1), (8, 1), (9, 2), (30, 2)]:
            harness.set_processing_time(clock)
            assert harness.get_output() == [("a", (0, 10), [1])] * firings
        harness.snapshot()
        assert harness.num_processing_time_timers() == 0 and harness.get_keys() == []


# -- lateness without end --


@pytest.mark.parametrize(
    "assigner",
    [
        TumblingEventTimeWindows.of(10),
        SlidingEventTimeWindows.of(20, 10),
        CumulativeEventTimeWindows.of(20, 10),
        EventTimeSessionWindows.with_gap(10),
    ],
)
@pytest.mark.parametrize("folds", [True, False])
def test_a_lateness_without_end_keeps_windows_for_good(assigner, folds):
    def build(stream: Any) -> Any:
        windows = stream.window(assigner).allowed_lateness(FOREVER)
        return windows.aggregate(Listed()) if folds else windows.process(Contents())

    with open_windows(build) as harness:
        push(harness, ("a", 1, 5))
        assert len(advance(harness, 10**9)) >= 1
        again = push(harness, ("a", 2, 6))
        assert again and all((result if folds else result[2]) == [1, 2] for result in again)
        assert harness.num_event_time_timers() == 0


# -- evictors --


def test_an_evictor_by_time_leaves_elements_without_timestamps():
    def build(stream: Any) -> Any:
        windows = stream.window(GlobalWindows.create()).trigger(CountTrigger.of(2))
        return windows.evictor(TimeEvictor.of(2)).process(Contents())

    with open_windows(build) as harness:
        result = push(harness, *[("a", number, None) for number in range(6)])
        assert [values for _, _, values in result] == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5]]


def test_errors_of_triggers_name_the_record():
    class Broken(Dangling):
        def on_element(self, element, timestamp, window, ctx):
            return None

    trigger = Broken(1, TriggerResult.FIRE)
    says = pytest.raises(OperatorError, match=r"at the record \('a', 1\).*returned None: return")
    windows = TumblingEventTimeWindows.of(10)
    with open_windows(lambda s: s.window(windows).trigger(trigger).process(Contents())) as harness, says:
        push(harness, ("a", 1, 2))


class ByTheClock(Dangling):
    def on_element(self, element, timestamp, window, ctx):
        ctx.register_processing_time_timer(self.at)
        return self.answer


def test_a_trigger_of_ones_own_that_purges_still_uses_processing_time():
    env = StreamExecutionEnvironment()
    keyed = env.from_collection([1]).key_by(lambda value: value).window(GlobalWindows.create())
    for kind, expected in ((ByTheClock, True), (Dangling, False)):
        trigger = PurgingTrigger.of(PurgingTrigger.of(kind(1, TriggerResult.FIRE)))
        with env.local_job(out=keyed.trigger(trigger).process(Contents())) as job:
            assert job.program.uses_processing_time is expected


def test_an_evictor_keeps_the_elements_of_sessions_so_no_accumulators_are_merged():
    def build(stream: Any) -> Any:
        sessions = stream.window(EventTimeSessionWindows.with_gap(5)).evictor(CountEvictor.of(2))
        return sessions.aggregate(NumberWithoutMerge())

    with open_windows(build) as harness:
        push(harness, ("a", 1, 0), ("a", 2, 8), ("a", 3, 4))
        assert advance(harness, 100) == [2]
