# mypy: ignore-errors
from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

from pillarbox import (
    AggregateFunction,
    AllWindowFunction,
    CoGroupFunction,
    ContinuousEventTimeTrigger,
    CountEvictor,
    CountTrigger,
    Duration,
    DynamicEventTimeSessionWindows,
    EventTimeSessionWindows,
    FlatJoinFunction,
    GlobalWindows,
    JoinFunction,
    OutputTag,
    ProcessAllWindowFunction,
    ProcessFunction,
    ProcessJoinFunction,
    ProcessWindowFunction,
    ProgramError,
    ReduceFunction,
    Row,
    RuntimeExecutionMode,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    Time,
    TimestampAssigner,
    TimeWindow,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Types,
    ValueStateDescriptor,
    WatermarkGenerator,
    WatermarkStrategy,
    WindowFunction,
)
from pillarbox.testing import ProgramTestHarness

SECOND = 1_000
READING = Types.ROW_NAMED(["sensor", "at", "value"], [Types.STRING(), Types.LONG(), Types.INT()])


class Reading(NamedTuple):
    sensor: str
    at: int
    value: int


class At(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return value.at


IN_ORDER = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At())


@pytest.fixture(params=[RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH], ids=lambda mode: mode.name)
def env(request: pytest.FixtureRequest) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    return env.set_runtime_mode(request.param)


def some_readings(seed: int = 3) -> list[Reading]:
    draw = random.Random(seed)
    times = sorted(draw.sample(range(40 * SECOND), 80))
    return [Reading(draw.choice("abc"), at, draw.randrange(100)) for at in times]


READINGS = some_readings()


def by_sensor(env, readings=READINGS):
    typed = env.from_collection([tuple(reading) for reading in readings], READING)
    return typed.assign_timestamps_and_watermarks(IN_ORDER).key_by(lambda row: row.sensor, Types.STRING())


def in_windows(size: int, slide: int | None = None) -> dict[tuple[str, int], list[Reading]]:
    windows = defaultdict(list)
    slide = slide or size
    for reading in READINGS:
        start = reading.at - reading.at % slide
        while start > reading.at - size:
            windows[reading.sensor, start].append(reading)
            start -= slide
    return dict(windows)


TEN_SECONDS = TumblingEventTimeWindows.of(Time.seconds(10))


# -- window functions --


class Least(ReduceFunction):
    def reduce(self, value1: Row, value2: Row) -> Row:
        return value2 if value1.value > value2.value else value1


class Mean(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: Row, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value.value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return a[0] + b[0], a[1] + b[1]


class WithStart(ProcessWindowFunction):
    def process(
        self, key: str, context: ProcessWindowFunction.Context[TimeWindow], elements: Iterable[Any]
    ) -> Iterable[Any]:
        yield key, context.window().start, next(iter(elements))


class Sum(WindowFunction):
    def apply(self, key: str, window: TimeWindow, inputs: Iterable[Row]) -> Iterable[Any]:
        yield key, window.start, sum(row.value for row in inputs)


class SumOfAll(AllWindowFunction):
    def apply(self, window: TimeWindow, inputs: Iterable[Row]) -> Iterable[Any]:
        yield window.start, sum(row.value for row in inputs)


ASSIGNERS = [
    (TEN_SECONDS, (10 * SECOND, None)),
    (SlidingEventTimeWindows.of(Time.seconds(10), Time.seconds(5)), (10 * SECOND, 5 * SECOND)),
]


@pytest.mark.parametrize(("assigner", "windows"), ASSIGNERS)
def test_functions_of_windows(env, assigner, windows):
    keyed, expected = by_sensor(env), in_windows(*windows)

    def results(stream) -> list[Any]:
        return sorted(stream.execute_and_collect())

    value = lambda reading: reading.value  # noqa: E731
    least = [(*key, min(result, key=value)) for key, result in expected.items()]
    assert results(keyed.window(assigner).reduce(Least(), WithStart())) == sorted(least)
    out = Types.TUPLE([Types.STRING(), Types.LONG(), Types.DOUBLE()])
    mean = [(*key, sum(map(value, result)) / len(result)) for key, result in expected.items()]
    assert results(keyed.window(assigner).aggregate(Mean(), WithStart(), output_type=out)) == sorted(mean)
    total = [(*key, sum(map(value, result))) for key, result in expected.items()]
    assert results(keyed.window(assigner).apply(Sum())) == sorted(total)


def test_windows_of_all_keys(env):
    results = by_sensor(env).window_all(TEN_SECONDS).apply(SumOfAll()).execute_and_collect()
    sums = defaultdict(int)
    for reading in READINGS:
        sums[reading.at // 10_000 * 10_000] += reading.value
    assert results == sorted(sums.items())


def test_reduced_records_keep_the_type_of_the_stream(env):
    reduced = by_sensor(env).window(TEN_SECONDS).reduce(lambda a, b: (a[0], a[1], a[2] + b[2]))
    results = reduced.map(lambda row: (row.sensor, row.value)).execute_and_collect()
    assert sorted(results) == sorted((key[0], sum(r.value for r in rs)) for key, rs in in_windows(10_000).items())
    all_of_it = by_sensor(env).window_all(TEN_SECONDS).reduce(lambda a, b: (a[0], a[1], a[2] + b[2]))
    assert sum(all_of_it.map(lambda row: row.value).execute_and_collect()) == sum(r.value for r in READINGS)


@pytest.mark.parametrize(("assigner", "windows"), ASSIGNERS)
def test_fields_of_windows_are_folded(env, assigner, windows):
    expected = in_windows(*windows).values()

    def changed(readings: list[Reading], value: int) -> tuple[Any, ...]:
        return readings[0].sensor, readings[0].at, value

    for method, folds in {
        "sum": [changed(result, sum(r.value for r in result)) for result in expected],
        "min": [changed(result, min(r.value for r in result)) for result in expected],
        "max": [changed(result, max(r.value for r in result)) for result in expected],
        "min_by": [tuple(min(result, key=lambda r: r.value)) for result in expected],
        "max_by": [tuple(max(result, key=lambda r: r.value)) for result in expected],
    }.items():
        for field in (2, "value"):
            folded = getattr(by_sensor(env).window(assigner), method)(field)
            rows = list(folded.execute_and_collect())
            assert sorted(map(tuple, rows)) == sorted(folds), method
            assert {type(row)._fields for row in rows} == {("sensor", "at", "value")}


def test_fields_of_sessions_are_folded(env):
    times = (1, 9, 5, 20)  # 5 joins the sessions of 1 and 9
    stream = env.from_collection([Reading("a", at, at) for at in times]).assign_timestamps_and_watermarks(IN_ORDER)
    sessions = stream.key_by(lambda r: r.sensor).window(EventTimeSessionWindows.with_gap(Time.milliseconds(5)))
    assert [result.value for result in sessions.sum("value").execute_and_collect()] == [15, 20]
    largest = stream.key_by(lambda r: r.sensor).window(EventTimeSessionWindows.with_gap(5)).max_by("value")
    assert largest.execute_and_collect() == [Reading("a", 9, 9), Reading("a", 20, 20)]


@pytest.mark.parametrize("field", [-1, "", None, 1.5])
def test_unknown_fields_are_refused(env, field):
    with pytest.raises(ProgramError, match=r"max_by\(\) takes a field's position"):
        by_sensor(env).window(TEN_SECONDS).max_by(field)


# -- state of a window, late records --


class Firings(ProcessWindowFunction):
    def process(self, key: str, context: ProcessWindowFunction.Context, elements: Iterable[Any]) -> Iterable[Any]:
        of_window = context.window_state().get_state(ValueStateDescriptor("firings", Types.INT()))
        of_key = context.global_state().get_state(ValueStateDescriptor("firings of the key", Types.INT()))
        of_window.update((of_window.value() or 0) + 1)
        of_key.update((of_key.value() or 0) + 1)
        yield context.window().start, of_window.value(), of_key.value(), sum(r.value for r in elements)

    def clear(self, context: ProcessWindowFunction.Context) -> None:
        context.window_state().get_state(ValueStateDescriptor("firings", Types.INT())).clear()


LATE = OutputTag("late-data")


def test_late_firings_and_late_records():
    def build(env, readings):
        windows = (
            readings.assign_timestamps_and_watermarks(IN_ORDER)
            .key_by(lambda r: r.sensor)
            .window(TEN_SECONDS)
            .allowed_lateness(5 * SECOND)
            .side_output_late_data(LATE)
        )
        fired = windows.process(Firings(), Types.TUPLE([Types.LONG(), Types.INT(), Types.INT(), Types.INT()]))
        return {"fired": fired, "late": fired.get_side_output(LATE)}

    with ProgramTestHarness(build, parallelism=2) as harness:
        harness.push("readings", Reading("a", 1_000, 1), Reading("a", 12_000, 2))
        assert harness.run_epoch() == {"fired": [(0, 1, 1, 1)], "late": []}
        harness.push("readings", Reading("a", 9_000, 4))  # within the lateness
        assert harness.run_epoch() == {"fired": [(0, 2, 2, 5)], "late": []}
        harness.push("readings", Reading("a", 21_000, 8))
        assert harness.run_epoch() == {"fired": [(10_000, 1, 3, 2)], "late": []}
        harness.push("readings", Reading("a", 2_000, 16), Reading("a", 19_000, 32))
        assert harness.run_epoch() == {"fired": [(10_000, 2, 4, 34)], "late": [Reading("a", 2_000, 16)]}
        assert harness.end_input() == {"fired": [(20_000, 1, 5, 8)], "late": []}


class EarlyAndAtTheEnd(Trigger):
    """The documentation's custom trigger, which fires after every second element and at the end of the window."""

    def on_element(
        self, element: Any, timestamp: int, window: TimeWindow, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        ctx.register_event_time_timer(window.max_timestamp())
        count = ctx.get_partitioned_state(ValueStateDescriptor("count", Types.INT()))
        count.update((count.value() or 0) + 1)
        return TriggerResult.FIRE if count.value() % 2 == 0 else TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE_AND_PURGE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: TimeWindow, ctx: Trigger.OnMergeContext) -> None:
        raise AssertionError("tumbling windows do not merge")

    def clear(self, window: TimeWindow, ctx: Trigger.TriggerContext) -> None:
        ctx.get_partitioned_state(ValueStateDescriptor("count", Types.INT())).clear()
        ctx.delete_event_time_timer(window.max_timestamp())


def test_early_firings(env):
    readings = [Reading("a", at, at) for at in (1, 2, 3, 4, 5, 11_000)]
    fired = by_sensor(env, readings).window(TEN_SECONDS).trigger(EarlyAndAtTheEnd()).process(Firings())
    assert fired.execute_and_collect() == [(0, 1, 1, 3), (0, 2, 2, 10), (0, 3, 3, 15), (10_000, 1, 4, 11_000)]


def test_continuous_firings(env):
    """PyFlink's example: windows of ten milliseconds that fire every five."""
    readings = [Reading("hi", at, 1) for at in (1, 2, 3, 4, 5, 8, 9, 15)]
    windows = by_sensor(env, readings).window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
    fired = windows.trigger(ContinuousEventTimeTrigger.of(Time.milliseconds(5))).apply(Sum()).execute_and_collect()
    # All input arrives before event time advances.
    assert fired == [("hi", 0, 7), ("hi", 0, 7), ("hi", 10, 1)]


def test_the_last_of_a_global_window(env):
    """A sliding count window, like Java's `countWindow(3, 2)`, fires for the first time before it is full."""
    readings = [Reading("a", at, at) for at in range(1, 8)]
    windows = by_sensor(env, readings).window(GlobalWindows.create()).trigger(CountTrigger.of(2))
    summed = windows.evictor(CountEvictor.of(3)).reduce(lambda a, b: (a[0], a[1], a[2] + b[2]))
    assert [row.value for row in summed.execute_and_collect()] == [3, 9, 15]


class GapOfValue(SessionWindowTimeGapExtractor):
    def extract(self, element: Row) -> int:
        return element.value


def test_sessions_whose_gap_is_in_the_records(env):
    readings = [Reading("a", 1, 3), Reading("a", 3, 5), Reading("a", 8, 1), Reading("a", 20, 1)]
    sessions = by_sensor(env, readings).window(DynamicEventTimeSessionWindows.with_dynamic_gap(GapOfValue()))

    class Span(ProcessWindowFunction):
        def process(self, key: str, context: ProcessWindowFunction.Context, elements: Iterable[Any]) -> Iterable[Any]:
            yield context.window().start, context.window().end, len(list(elements))

    # Windows that touch merge, as in Flink.
    assert sessions.process(Span()).execute_and_collect() == [(1, 9, 3), (20, 21, 1)]


def test_a_window_of_all_that_there_is(env):
    to_the_end = GlobalWindows.create_with_end_of_stream_trigger()
    pairs = env.from_collection([("a", 1), ("b", 5), ("a", 3)])
    results = pairs.key_by(lambda pair: pair[0]).window(to_the_end).sum(1).execute_and_collect()
    assert sorted(results) == [("a", 4), ("b", 5)]
    assert pairs.window_all(to_the_end).max_by(1).execute_and_collect() == [("b", 5)]


def test_a_window_of_all_that_there_is_waits_for_the_end():
    def build(env, numbers):
        return numbers.window_all(GlobalWindows.create_with_end_of_stream_trigger()).reduce(lambda a, b: a + b)

    with ProgramTestHarness(build, parallelism=2) as harness:
        for number in (1, 2, 3):
            harness.push("numbers", number)
            assert harness.run_epoch()["output"] == []
        assert harness.end_input()["output"] == [6]


def test_windows_of_processing_time():
    def build(env, readings):
        keyed = readings.key_by(lambda r: r.sensor)
        return keyed.window(TumblingProcessingTimeWindows.of(Time.seconds(5))).sum("value")

    with ProgramTestHarness(build, processing_time=1_000) as harness:
        harness.push("readings", Reading("a", 0, 1), Reading("a", 0, 2))
        assert harness.run_epoch()["output"] == []
        harness.set_processing_time(5_000)
        assert harness.run_epoch()["output"] == [Reading("a", 0, 3)]


# -- windows of the results of windows --


class TopTwo(ProcessAllWindowFunction):
    def process(self, context: ProcessAllWindowFunction.Context, elements: Iterable[Any]) -> Iterable[Any]:
        highest = sorted(elements, key=lambda total: (-total[2], total[0]))[:2]
        yield context.window().start, [(sensor, total) for sensor, _, total in highest]


def test_top_two_of_each_window(env):
    totals = by_sensor(env).window(TEN_SECONDS).apply(Sum())
    results = totals.window_all(TumblingEventTimeWindows.of(Time.seconds(10))).process(TopTwo()).execute_and_collect()
    sums = defaultdict(list)
    for (sensor, start), readings in in_windows(10_000).items():
        sums[start].append((sensor, sum(r.value for r in readings)))
    ranked = {start: sorted(totals, key=lambda pair: (-pair[1], pair[0]))[:2] for start, totals in sums.items()}
    assert results == sorted(ranked.items())


# -- joins: the page's examples, with oranges and greens --


class Number(NamedTuple):
    at: int


ORANGE = [0, 1, 2, 3, 4, 5, 6, 7]
GREEN = [0, 1, 3, 4]


def both(env, orange: Iterable[int] = ORANGE, green: Iterable[int] = GREEN):
    return [
        env.from_collection([Number(at) for at in times]).assign_timestamps_and_watermarks(IN_ORDER)
        for times in (orange, green)
    ]


def one_key(number: Number) -> int:
    return 0


class Text(JoinFunction):
    def join(self, first: Number, second: Number) -> str:
        return f"{first.at},{second.at}"


def joined(env, assigner, orange: Iterable[int] = ORANGE, green: Iterable[int] = GREEN, function: Any = None):
    left, right = both(env, orange, green)
    windows = left.join(right).where(one_key).equal_to(one_key).window(assigner)
    return list(windows.apply(function or Text()).execute_and_collect())


def test_tumbling_window_join(env):
    windows = TumblingEventTimeWindows.of(Duration.of_millis(2))
    pairs = [f"{a},{b}" for a in ORANGE for b in GREEN if a // 2 == b // 2]
    assert joined(env, windows) == pairs == ["0,0", "0,1", "1,0", "1,1", "2,3", "3,3", "4,4", "5,4"]


def test_sliding_window_join(env):
    windows = SlidingEventTimeWindows.of(Duration.of_millis(2), Duration.of_millis(1))
    pairs = [f"{a},{b}" for start in range(-1, 8) for a in ORANGE for b in GREEN if {a, b} <= {start, start + 1}]
    assert joined(env, windows) == pairs
    assert pairs.count("3,3") == 2
    assert pairs.count("2,3") == 1


def test_session_window_join(env):
    # Three sessions, the last one with only oranges.
    windows = EventTimeSessionWindows.with_gap(Duration.of_millis(1))
    results = joined(env, windows, [1, 2, 5, 8, 9], [0, 4, 5])
    assert results == ["1,0", "2,0", "5,4", "5,5"]


def test_flat_join(env):
    class Even(FlatJoinFunction):
        def join(self, first: Number, second: Number) -> Iterable[int]:
            if first.at % 2 == 0:
                yield first.at + second.at

    assert joined(env, TumblingEventTimeWindows.of(2), function=Even()) == [0, 1, 5, 8]


def test_results_of_a_join_have_the_last_timestamp_of_their_window(env):
    class Times(ProcessFunction):
        def process_element(self, value: str, ctx: ProcessFunction.Context) -> Iterable[Any]:
            yield value, ctx.timestamp()

    left, right = both(env, [5, 9], [7])
    windows = left.join(right).where(one_key).equal_to(one_key).window(TumblingEventTimeWindows.of(5))
    assert windows.apply(Text()).process(Times()).execute_and_collect() == [("5,7", 9), ("9,7", 9)]


class LeftOuter(CoGroupFunction):
    def co_group(self, first: Iterable[Number], second: Iterable[Number]) -> Iterable[str]:
        for left in first:
            for right in second or [None]:
                yield f"{left.at},{right.at if right else None}"


def test_co_group_is_an_outer_join(env):
    left, right = both(env)
    windows = left.co_group(right).where(one_key).equal_to(one_key).window(TumblingEventTimeWindows.of(2))
    results = windows.apply(LeftOuter()).execute_and_collect()
    assert results == ["0,0", "0,1", "1,0", "1,1", "2,3", "3,3", "4,4", "5,4", "6,None", "7,None"]


class Pair(ProcessJoinFunction):
    def process_element(self, left: Number, right: Number, ctx: ProcessJoinFunction.Context) -> Iterable[str]:
        assert ctx.timestamp() == max(ctx.get_left_timestamp(), ctx.get_right_timestamp())
        yield f"{left.at},{right.at}"


@pytest.mark.parametrize("exclusive", [False, True])
def test_interval_join(env, exclusive):
    orange, green = [0, 2, 3, 4, 5, 7], [0, 1, 6, 7]
    left, right = both(env, orange, green)
    join = (
        left.key_by(one_key).interval_join(right.key_by(one_key)).between(Duration.of_millis(-2), Duration.of_millis(1))
    )
    if exclusive:
        join = join.lower_bound_exclusive().upper_bound_exclusive()
    low, high = (-1, 0) if exclusive else (-2, 1)
    pairs = [f"{a},{b}" for a in orange for b in green if a + low <= b <= a + high]
    assert sorted(join.process(Pair()).execute_and_collect()) == sorted(pairs)


# -- watermarks --


class BoundedOutOfOrderness(WatermarkGenerator):
    max_out_of_orderness = 3_500

    def __init__(self) -> None:
        self.current_max_timestamp = 0

    def on_event(self, event: Any, timestamp: int, output: Any) -> None:
        self.current_max_timestamp = max(self.current_max_timestamp, timestamp)

    def on_periodic_emit(self, output: Any) -> None:
        output.emit_watermark(self.current_max_timestamp - self.max_out_of_orderness - 1)


class Punctuated(WatermarkGenerator):
    def on_event(self, event: Any, timestamp: int, output: Any) -> None:
        if event.value < 0:
            output.emit_watermark(event.at)

    def on_periodic_emit(self, output: Any) -> None:
        pass


def windows_by(generator):
    strategy = WatermarkStrategy.for_generator(generator).with_timestamp_assigner(At())

    def build(env, readings):
        timed = readings.assign_timestamps_and_watermarks(strategy).key_by(lambda r: r.sensor)
        return timed.window(TEN_SECONDS).apply(Sum())

    return ProgramTestHarness(build, parallelism=2)


def test_a_periodic_generator():
    with windows_by(BoundedOutOfOrderness) as harness:
        harness.push("readings", Reading("a", 9_000, 1), Reading("a", 13_499, 2))
        assert harness.run_epoch()["output"] == []
        harness.push("readings", Reading("a", 8_000, 4), Reading("a", 13_500, 8))
        assert harness.run_epoch()["output"] == [("a", 0, 5)]


def test_a_punctuated_generator():
    with windows_by(Punctuated) as harness:
        harness.push("readings", Reading("a", 9_000, 1), Reading("a", 30_000, 2))
        assert harness.run_epoch()["output"] == []
        # Event time advances at the epoch's end: records after the marker in the same epoch are not late.
        harness.push("readings", Reading("a", 9_500, 4), Reading("b", 9_999, -1), Reading("a", 9_500, 8))
        assert sorted(harness.run_epoch()["output"]) == [("a", 0, 13), ("b", 0, -1)]
        harness.push("readings", Reading("a", 9_500, 16))
        assert harness.end_input()["output"] == [("a", 30_000, 2)]


def test_an_idle_source_does_not_hold_back_the_watermark():
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(1)).with_timestamp_assigner(At())

    def build(env, busy, quiet):
        streams = [
            stream.assign_timestamps_and_watermarks(strategy.with_idleness(Duration.of_minutes(1)))
            for stream in (busy, quiet)
        ]
        return streams[0].union(streams[1]).key_by(lambda r: r.sensor).window(TEN_SECONDS).apply(Sum())

    with ProgramTestHarness(build, parallelism=2) as harness:
        harness.push("busy", Reading("a", 5_000, 1))
        harness.push("quiet", Reading("a", 6_000, 2))
        harness.run_epoch()
        harness.push("busy", Reading("a", 12_000, 4))
        assert harness.run_epoch()["output"] == []
        harness.advance_processing_time(60_000)
        harness.push("busy", Reading("a", 13_000, 8))
        assert harness.run_epoch()["output"] == [("a", 0, 3)]


def test_watermark_alignment_says_what_limits_a_source():
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    assert not hasattr(strategy, "with_watermark_alignment")
    with pytest.raises(ProgramError, match=r"with_watermark_alignment\(\) .*maxOffsetsPerTrigger"):
        strategy.with_watermark_alignment("group", Duration.of_seconds(20), Duration.of_seconds(1))
