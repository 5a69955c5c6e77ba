"""The maximum watermark, 2**63 - 1: every timer fires, and the operator finishes."""

from __future__ import annotations

import pytest

from pillarbox import (
    ContinuousEventTimeTrigger,
    GlobalWindows,
    KeyedProcessFunction,
    OperatorError,
    OutputTag,
    ProcessJoinFunction,
    ProcessWindowFunction,
    ProgramError,
    PurgingTrigger,
    StreamExecutionEnvironment,
    Trigger,
    TriggerResult,
    WatermarkStrategy,
)
from pillarbox._time import internal_timer_service
from pillarbox.testing import harness_for
from tests.operators.windowing.windows import Number, open_windows

LAST = 2**63 - 1
AT = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda pair: pair[1])


class Pair(ProcessJoinFunction):
    def process_element(self, left, right, ctx):
        yield left, right


def timed(env, pairs):
    return env.from_collection(pairs).assign_timestamps_and_watermarks(AT).key_by(lambda pair: pair[0])


@pytest.mark.parametrize(("lower", "upper"), [(0, 10), (-10, 0), (-10, -5), (5, 10)])
@pytest.mark.parametrize("before", [0, 3, 10, 20])
def test_an_interval_join_drops_records_of_the_end_of_time(lower, upper, before):
    env = StreamExecutionEnvironment()
    times = (LAST, LAST - before)
    left, right = (timed(env, [("a", time)]) for time in times)
    joined = left.interval_join(right).between(lower, upper).process(Pair()).execute_and_collect()
    assert joined == ([(("a", LAST), ("a", LAST - before))] if lower <= -before <= upper else [])


def test_deduplicate_remembers_a_key_until_the_end_of_time():
    env = StreamExecutionEnvironment()
    records = [("a", LAST - 5), ("a", LAST), ("b", LAST)]
    assert timed(env, records).deduplicate("1 minute").execute_and_collect() == [("a", LAST - 5), ("b", LAST)]


class Beats(KeyedProcessFunction):
    def __init__(self, until):
        self.until = until

    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(60_000)

    def on_timer(self, timestamp, ctx):
        if timestamp < self.until:
            ctx.timer_service().register_event_time_timer(timestamp + 60_000)
        yield timestamp


@pytest.mark.parametrize("on_error", ["fail", OutputTag("letters")])
def test_a_timer_that_sets_itself_without_end_is_told_of(monkeypatch, on_error):
    monkeypatch.setattr(internal_timer_service, "_LAST", 1_000)
    with harness_for(Beats(LAST), key_by=lambda key: key, on_error=on_error) as harness:
        harness.push("a")
        harness.push("b")
        harness.push_watermark(60_000 * 3_000)  # in the course of the data there is no limit
        assert len(harness.get_output()) == 2 * 3_000
        with pytest.raises(
            ProgramError,
            match=r"key '[ab]': after the end of the data, .* set more than 1200 timers, the latest at 21\d+\."
            r".* set no timer if current_watermark\(\) is 2\*\*63 - 1, or use batch mode",
        ):
            harness.end_input()


def test_timers_that_come_to_an_end_fire_all():
    with harness_for(Beats(60_000 * 2_000), key_by=lambda key: key) as harness:
        harness.push("a")
        harness.end_input()
        assert harness.get_output() == [60_000 * n for n in range(1, 2_001)]


class Size(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield len(elements)


@pytest.mark.parametrize(
    "trigger", [ContinuousEventTimeTrigger.of(10), PurgingTrigger.of(ContinuousEventTimeTrigger.of(10))]
)
@pytest.mark.parametrize("fold", [False, True])
def test_global_windows_that_fire_at_intervals_end_with_the_data(trigger, fold):
    def build(stream):
        windows = stream.window(GlobalWindows.create()).trigger(trigger)
        return windows.aggregate(Number()) if fold else windows.process(Size())

    purges = isinstance(trigger, PurgingTrigger)
    with open_windows(build) as harness:
        harness.push(("a", 1), 1)
        harness.push_watermark(35)
        assert harness.get_output() == ([1] if purges else [1, 1, 1])
        harness.push(("a", 1), 36)
        harness.end_input()
        assert harness.get_output() == ([1, 1] if purges else [1, 1, 1, 2, 2])


class Again(Trigger):
    def on_element(self, element, timestamp, window, ctx):
        ctx.register_event_time_timer(timestamp)
        return TriggerResult.CONTINUE

    def on_event_time(self, time, window, ctx):
        ctx.register_event_time_timer(time + 1)
        return TriggerResult.CONTINUE

    def clear(self, window, ctx):
        pass


def test_a_trigger_of_global_windows_that_fires_without_end_is_told_of(monkeypatch):
    monkeypatch.setattr(internal_timer_service, "_LAST", 1_000)
    with open_windows(
        lambda stream: stream.window(GlobalWindows.create()).trigger(Again()).aggregate(Number())
    ) as harness:
        harness.push(("a", 1), 1)
        with pytest.raises((ProgramError, OperatorError), match=r"timers have set more than 1100 timers"):
            harness.end_input()
