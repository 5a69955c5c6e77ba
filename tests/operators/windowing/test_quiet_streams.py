from __future__ import annotations

import pytest

from pillarbox import (
    EventTimeSessionWindows,
    OutputTag,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from pillarbox._errors import ProgramError
from pillarbox.testing import ProgramTestHarness
from tests.support.programs import bounded, first

LATE = OutputTag("late")


class Contents(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, tuple(context.window()), sorted(element[2] for element in elements)


def closing(assigner, strategy=None):
    def build(env, events):
        timed = events.assign_timestamps_and_watermarks(strategy or bounded(20).with_wall_clock_progress(100))
        windows = timed.key_by(first).window(assigner).side_output_late_data(LATE).process(Contents())
        return {"windows": windows, "late": windows.get_side_output(LATE)}

    return build


EVENTS = [("a", 10, 1), ("b", 40, 2), ("a", 60, 3)]
TUMBLING = TumblingEventTimeWindows.of(50)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_the_last_windows_close_without_data(parallelism):
    with ProgramTestHarness(closing(TUMBLING), parallelism=parallelism, processing_time=5000) as harness:
        harness.push("events", *EVENTS)
        assert harness.run_epoch()["windows"] == []  # the watermark is 39
        harness.advance_processing_time(109)
        assert harness.run_epoch()["windows"] == []  # 48
        harness.advance_processing_time(1)
        assert sorted(harness.run_epoch()["windows"]) == [("a", (0, 50), [1]), ("b", (0, 50), [2])]
        harness.advance_processing_time(50)
        assert harness.run_epoch()["windows"] == [("a", (50, 100), [3])]
        harness.push("events", ("a", 70, 4), ("a", 110, 5))  # event time is 99
        assert harness.run_epoch() == {"windows": [], "late": [("a", 70, 4)]}
        harness.advance_processing_time(151)
        assert harness.run_epoch()["windows"] == [("a", (100, 150), [5])]


def test_without_it_they_stay_open():
    with ProgramTestHarness(closing(TUMBLING, bounded(20))) as harness:
        harness.push("events", *EVENTS)
        harness.run_epoch()
        harness.advance_processing_time(10**9)
        assert harness.run_epoch()["windows"] == []


def test_the_end_of_the_input_closes_windows_anyway():
    with ProgramTestHarness(closing(TUMBLING)) as harness:
        harness.push("events", *EVENTS)
        assert len(harness.end_input()["windows"]) == 3


@pytest.mark.parametrize(
    ("assigner", "expected"),
    [
        (SlidingEventTimeWindows.of(100, 50), [("a", (0, 100), [1, 3]), ("a", (50, 150), [3]), ("b", (0, 100), [2])]),
        (EventTimeSessionWindows.with_gap(30), [("a", (10, 40), [1]), ("a", (60, 90), [3]), ("b", (40, 70), [2])]),
    ],
)
def test_sliding_windows_and_sessions(assigner, expected):
    with ProgramTestHarness(closing(assigner), processing_time=5000) as harness:
        harness.push("events", *EVENTS)
        harness.run_epoch()
        harness.advance_processing_time(250)
        harness.run_epoch()
        assert set(map(str, expected)) <= {str(window) for window in harness.get_output("windows")}


def test_an_epoch_that_runs_again_and_a_restart():
    with ProgramTestHarness(closing(TUMBLING), parallelism=2, processing_time=5000) as harness:
        harness.push("events", *EVENTS)
        harness.run_epoch()
        harness.advance_processing_time(60)
        harness.run_epoch()
        stopped = harness.snapshot()
        harness.advance_processing_time(60)
        harness.fail_epoch()
        output = sorted(harness.run_epoch()["windows"])
        assert output == [("a", (0, 50), [1]), ("b", (0, 50), [2])]
        now = harness.processing_time_service.current_processing_time()
    with ProgramTestHarness(closing(TUMBLING), parallelism=2, processing_time=now, snapshot=stopped) as harness:
        assert sorted(harness.run_epoch()["windows"]) == output


def test_windows_behind_windows_close_too():
    def build(env, events):
        timed = events.assign_timestamps_and_watermarks(bounded(20).with_wall_clock_progress(100))
        counts = timed.key_by(first).window(TUMBLING).aggregate(*counting())
        totals = counts.key_by(lambda pair: "all").window(TumblingEventTimeWindows.of(100)).reduce(added)
        return {"counts": counts, "totals": totals}

    with ProgramTestHarness(build, parallelism=2, processing_time=5000) as harness:
        harness.push("events", *EVENTS)
        harness.run_epoch()
        harness.advance_processing_time(159)
        assert harness.run_epoch()["totals"] == []
        harness.advance_processing_time(1)
        assert harness.run_epoch()["totals"] == [("all", 3)]


def counting():
    from pillarbox import AggregateFunction

    class Count(AggregateFunction):
        def create_accumulator(self):
            return 0

        def add(self, value, accumulator):
            return accumulator + 1

        def get_result(self, accumulator):
            return accumulator

    class Named(ProcessWindowFunction):
        def process(self, key, context, elements):
            yield "all", next(iter(elements))

    return Count(), Named()


def added(pair, other):
    return pair[0], pair[1] + other[1]


def test_a_source_that_goes_on_holds_the_silent_one_only_where_that_is_not_behind():
    def build(env, fast, slow):
        strategy = bounded(0).with_wall_clock_progress(100)
        timed = [stream.assign_timestamps_and_watermarks(strategy) for stream in (fast, slow)]
        return timed[0].union(timed[1]).key_by(first).window(TUMBLING).process(Contents())

    with ProgramTestHarness(build, processing_time=5000) as harness:
        harness.push("fast", ("a", 10, 1))
        harness.push("slow", ("a", 20, 2))
        assert harness.run_epoch()["output"] == []
        harness.advance_processing_time(120)
        harness.push("fast", ("a", 500, 3))
        assert harness.run_epoch()["output"] == []  # slow: 39
        harness.advance_processing_time(10)
        assert harness.run_epoch()["output"] == [("a", (0, 50), [1, 2])]


def test_strategies_of_one_source_count_by_themselves():
    def build(env, events):
        outputs = {}
        for name, strategy in {"waits": bounded(0), "goes": bounded(0).with_wall_clock_progress(100)}.items():
            timed = events.assign_timestamps_and_watermarks(strategy)
            outputs[name] = timed.key_by(first).window(TUMBLING).process(Contents())
        both = bounded(0).with_wall_clock_progress(100), bounded(0)
        progressing, waiting = (events.assign_timestamps_and_watermarks(strategy) for strategy in both)
        outputs["union"] = progressing.union(waiting).key_by(first).window(TUMBLING).process(Contents())
        return outputs

    with ProgramTestHarness(build) as harness:
        harness.push("events", ("a", 10, 1))
        harness.run_epoch()
        harness.advance_processing_time(1000)
        assert harness.run_epoch() == {"waits": [], "goes": [("a", (0, 50), [1])], "union": []}


@pytest.mark.parametrize("parallelism", [1, 2])
def test_parts_of_one_source_become_idle_by_themselves(parallelism):
    def build(env, events):
        parts = (
            events.filter(lambda event, key=key: event[0] == key).assign_timestamps_and_watermarks(
                bounded(0).with_idleness(timeout)
            )
            for key, timeout in (("a", 100), ("b", 200))
        )
        return next(parts).union(*parts).key_by(first).window(TUMBLING).process(Contents())

    with ProgramTestHarness(build, parallelism=parallelism) as harness:
        harness.push("events", ("a", 10, 1), ("a", 60, 2), ("b", 10, 3))
        assert harness.run_epoch()["output"] == []
        harness.advance_processing_time(199)
        harness.push("events", ("a", 110, 4))
        assert harness.run_epoch()["output"] == []
        harness.advance_processing_time(1)
        harness.push("events", ("a", 160, 5))
        results = sorted(harness.run_epoch()["output"])
        assert results == [("a", (0, 50), [1]), ("a", (50, 100), [2]), ("a", (100, 150), [4]), ("b", (0, 50), [3])]


def test_it_is_about_a_source():
    env = StreamExecutionEnvironment()
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda event: event[1])
    stream = env.from_collection(EVENTS).rebalance()
    stream = stream.assign_timestamps_and_watermarks(strategy.with_wall_clock_progress("1 minute"))
    with pytest.raises(ProgramError, match=r"with_wall_clock_progress\(\) works only for sources: assign the"):
        stream.execute_and_collect()
    timed = env.from_collection(EVENTS).assign_timestamps_and_watermarks(
        strategy.with_wall_clock_progress("1 minute").with_idleness("5 seconds")
    )
    assert len(timed.key_by(first).window(TUMBLING).process(Contents()).execute_and_collect()) == 3
