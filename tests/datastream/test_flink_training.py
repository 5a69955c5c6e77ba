# mypy: ignore-errors
from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from pillarbox import (
    CoFlatMapFunction,
    Duration,
    FilterFunction,
    FlatMapFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessWindowFunction,
    RuntimeContext,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    Time,
    TimestampAssigner,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from pillarbox.testing import ProgramTestHarness, harness_for

HOUR = 3_600_000
MINUTE = 60_000


@dataclass(frozen=True)
class Ride:
    ride_id: int
    is_start: bool
    at: int
    lon: float = -73.98
    lat: float = 40.75


class Fare(NamedTuple):
    ride_id: int
    driver_id: int
    at: int
    tip: float


class EventTime(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return value.at


IN_ORDER = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(EventTime())
A_MINUTE_LATE = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(60)).with_timestamp_assigner(
    EventTime()
)


@pytest.fixture(params=[RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH], ids=lambda mode: mode.name)
def env(request: pytest.FixtureRequest) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    return env.set_runtime_mode(request.param)


# -- ride cleansing: a filter --


class InTheCity(FilterFunction):
    def filter(self, ride: Ride) -> bool:
        return -74.05 <= ride.lon <= -73.7 and 40.5 <= ride.lat <= 41.0


def test_ride_cleansing(env):
    rides = [Ride(1, True, 0), Ride(2, True, 1, lon=-0.12, lat=51.5), Ride(3, False, 2, lat=41.01), Ride(4, False, 3)]
    assert env.from_collection(rides).filter(InTheCity()).execute_and_collect() == [rides[0], rides[3]]


# -- rides and fares: a join by state --


class Enrich(CoFlatMapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.ride = runtime_context.get_state(ValueStateDescriptor("saved ride", Types.PICKLED_BYTE_ARRAY()))
        self.fare = runtime_context.get_state(ValueStateDescriptor("saved fare", Types.PICKLED_BYTE_ARRAY()))

    def flat_map1(self, ride: Ride) -> Iterable[Any]:
        fare = self.fare.value()
        if fare is not None:
            self.fare.clear()
            yield ride, fare
        else:
            self.ride.update(ride)

    def flat_map2(self, fare: Fare) -> Iterable[Any]:
        ride = self.ride.value()
        if ride is not None:
            self.ride.clear()
            yield ride, fare
        else:
            self.fare.update(fare)


def test_rides_and_fares(env):
    rides = [Ride(n, start, n) for n in range(20) for start in (True, False)]
    fares = [Fare(n, 100 + n, n, 1.0) for n in reversed(range(20))]
    starts = env.from_collection(rides).filter(lambda ride: ride.is_start).key_by(lambda ride: ride.ride_id)
    paid = env.from_collection(fares).key_by(lambda fare: fare.ride_id)
    joined = starts.connect(paid).flat_map(Enrich()).uid("enrichment").name("enrichment")
    expected = [(Ride(n, True, n), Fare(n, 100 + n, n, 1.0)) for n in range(20)]
    assert sorted(joined.execute_and_collect(), key=lambda pair: pair[0].ride_id) == expected


UNMATCHED_RIDES = OutputTag("unmatched rides")
UNMATCHED_FARES = OutputTag("unmatched fares")


class EnrichOrExpire(KeyedCoProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.ride = runtime_context.get_state(ValueStateDescriptor("saved ride", Types.PICKLED_BYTE_ARRAY()))
        self.fare = runtime_context.get_state(ValueStateDescriptor("saved fare", Types.PICKLED_BYTE_ARRAY()))

    def process_element1(self, ride: Ride, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any]:
        fare = self.fare.value()
        if fare is not None:
            self.fare.clear()
            ctx.timer_service().delete_event_time_timer(fare.at)
            yield ride.ride_id, fare.tip
        else:
            self.ride.update(ride)
            # Once event time reaches the ride, its fare can no longer arrive.
            ctx.timer_service().register_event_time_timer(ride.at)

    def process_element2(self, fare: Fare, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any]:
        ride = self.ride.value()
        if ride is not None:
            self.ride.clear()
            ctx.timer_service().delete_event_time_timer(ride.at)
            yield fare.ride_id, fare.tip
        else:
            self.fare.update(fare)
            ctx.timer_service().register_event_time_timer(fare.at)

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterable[Any]:
        if self.fare.value() is not None:
            yield UNMATCHED_FARES, self.fare.value()
            self.fare.clear()
        if self.ride.value() is not None:
            yield UNMATCHED_RIDES, self.ride.value()
            self.ride.clear()


def rides_with_fares(env, rides, fares):
    rides = rides.filter(lambda ride: ride.is_start).assign_timestamps_and_watermarks(A_MINUTE_LATE)
    fares = fares.assign_timestamps_and_watermarks(A_MINUTE_LATE)
    joined = rides.key_by(lambda ride: ride.ride_id).connect(fares.key_by(lambda fare: fare.ride_id))
    joined = joined.process(EnrichOrExpire(), Types.TUPLE([Types.LONG(), Types.FLOAT()])).uid("join")
    return {
        "joined": joined,
        "rides": joined.get_side_output(UNMATCHED_RIDES),
        "fares": joined.get_side_output(UNMATCHED_FARES),
    }


def test_rides_and_fares_that_are_lost_expire():
    with ProgramTestHarness(rides_with_fares, parallelism=2) as harness:
        harness.push_all("rides", [Ride(n, True, n * MINUTE) for n in (1, 2, 3)])
        harness.push_all("fares", [Fare(n, 7, n * MINUTE, 0.5) for n in (2, 4)])
        # Event time is a minute behind the rides, so two minutes have not passed.
        assert harness.run_epoch() == {"joined": [(2, 0.5)], "rides": [Ride(1, True, MINUTE)], "fares": []}
        harness.push("rides", Ride(9, True, 9 * MINUTE))
        harness.push("fares", Fare(8, 7, 8 * MINUTE, 0.25), Fare(3, 7, 3 * MINUTE, 0.75))
        second = harness.run_epoch()
        assert second == {"joined": [(3, 0.75)], "rides": [], "fares": [Fare(4, 7, 4 * MINUTE, 0.5)]}
        last = harness.end_input()
        assert last == {"joined": [], "rides": [Ride(9, True, 9 * MINUTE)], "fares": [Fare(8, 7, 8 * MINUTE, 0.25)]}


# -- hourly tips: windows, and windows of their results --


class AddTips(ProcessWindowFunction):
    def process(
        self, key: int, context: ProcessWindowFunction.Context, elements: Iterable[Fare]
    ) -> Iterable[tuple[int, int, float]]:
        return [(context.window().end, key, sum(fare.tip for fare in elements))]


TOTAL = Types.TUPLE([Types.LONG(), Types.LONG(), Types.DOUBLE()])


def some_fares(seed: int = 7) -> list[Fare]:
    draw = random.Random(seed)
    times = sorted(draw.randrange(5 * HOUR) for _ in range(200))
    return [Fare(n, draw.randrange(6), at, draw.randrange(1_000) / 4) for n, at in enumerate(times)]


def tips_by_hour(fares: Iterable[Any]) -> dict[int, dict[int, float]]:
    totals: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for fare in fares:
        totals[fare.at // HOUR * HOUR + HOUR][fare.driver_id] += fare.tip
    return totals


def highest_tips(fares: Iterable[Any]) -> list[tuple[int, int, float]]:
    results = []
    for end, drivers in sorted(tips_by_hour(fares).items()):
        driver = max(drivers, key=drivers.__getitem__)
        results.append((end, driver, drivers[driver]))
    return results


def hourly_tips(fares):
    by_driver = fares.assign_timestamps_and_watermarks(IN_ORDER).key_by(lambda fare: fare.driver_id)
    totals = by_driver.window(TumblingEventTimeWindows.of(Time.hours(1))).process(AddTips(), TOTAL).uid("per driver")
    return totals.window_all(TumblingEventTimeWindows.of(Time.hours(1))).max_by(2).uid("per hour")


def test_hourly_tips(env):
    fares = some_fares()
    assert hourly_tips(env.from_collection(fares)).execute_and_collect() == highest_tips(fares)


@pytest.mark.parametrize("mode", RuntimeExecutionMode)
def test_hourly_tips_by_a_rolling_maximum_end_with_the_same(mode):
    """From the exercise's discussion: without the second window, each new maximum is emitted."""
    env = StreamExecutionEnvironment.get_execution_environment().set_runtime_mode(mode)
    fares = some_fares()
    by_driver = (
        env.from_collection(fares).assign_timestamps_and_watermarks(IN_ORDER).key_by(lambda fare: fare.driver_id)
    )
    totals = by_driver.window(TumblingEventTimeWindows.of(Time.hours(1))).process(AddTips(), TOTAL)
    rolling = list(totals.key_by(lambda total: total[0]).max_by(2).execute_and_collect())
    of_all = sum(map(len, tips_by_hour(fares).values()))
    assert len(rolling) == (of_all if mode is RuntimeExecutionMode.STREAMING else len(highest_tips(fares)))
    last = {end: (end, driver, tip) for end, driver, tip in rolling}
    assert sorted(last.values()) == highest_tips(fares)


LATE_FARES = OutputTag("late fares")


class PseudoWindow(KeyedProcessFunction):
    """The course's hand-written windows: a map from each window's end to its sum, and a timer per window."""

    def __init__(self, duration: Time) -> None:
        self.length = duration.to_milliseconds()

    def open(self, runtime_context: RuntimeContext) -> None:
        self.tips = runtime_context.get_map_state(MapStateDescriptor("sum of tips", Types.LONG(), Types.DOUBLE()))

    def process_element(self, fare: Fare, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        timers = ctx.timer_service()
        if fare.at <= timers.current_watermark():
            yield LATE_FARES, fare
            return
        end = fare.at - fare.at % self.length + self.length - 1
        timers.register_event_time_timer(end)
        self.tips.put(end, (self.tips.get(end) or 0.0) + fare.tip)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield timestamp + 1, ctx.get_current_key(), self.tips.get(timestamp)
        self.tips.remove(timestamp)


def test_a_window_made_by_hand_has_the_sums_of_a_window():
    def build(env, fares):
        timed = fares.assign_timestamps_and_watermarks(A_MINUTE_LATE)
        totals = timed.key_by(lambda fare: fare.driver_id).process(PseudoWindow(Time.hours(1)), TOTAL)
        return {"totals": totals, "late": totals.get_side_output(LATE_FARES)}

    fares = some_fares()
    half = next(n for n, fare in enumerate(fares) if fare.at > 3 * HOUR)
    late, in_time = Fare(900, 1, HOUR, 1_000.0), Fare(901, 1, fares[half - 1].at - MINUTE // 2, 3.0)
    with ProgramTestHarness(build, parallelism=2) as harness:
        harness.push_all("fares", fares[:half])
        harness.run_epoch()
        harness.push("fares", late, in_time)
        harness.push_all("fares", fares[half:])
        harness.end_input()
        totals = {(end, driver): tips for end, driver, tips in harness.get_output("totals")}
        assert harness.get_output("late") == [late]
    sums = tips_by_hour([*fares, in_time])
    assert totals == {(end, driver): tips for end, drivers in sums.items() for driver, tips in drivers.items()}


# -- long ride alerts: timers that are deleted, events out of order --


class LongRides(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.ride = runtime_context.get_state(ValueStateDescriptor("ride event", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, ride: Ride, ctx: KeyedProcessFunction.Context) -> Iterable[int]:
        first = self.ride.value()
        if first is None:
            self.ride.update(ride)
            if ride.is_start:
                ctx.timer_service().register_event_time_timer(ride.at + 2 * HOUR)
            return
        start, end = (ride, first) if ride.is_start else (first, ride)
        if not ride.is_start:
            ctx.timer_service().delete_event_time_timer(first.at + 2 * HOUR)
        if end.at - start.at > 2 * HOUR:
            yield ride.ride_id
        self.ride.clear()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[int]:
        yield self.ride.value().ride_id
        self.ride.clear()


def test_long_rides_in_and_out_of_order():
    start, end = Ride(1, True, 0), Ride(1, False, 2 * HOUR)
    short_end, long_end = Ride(1, False, MINUTE), Ride(1, False, 2 * HOUR + MINUTE)
    for events, at_once, later in (
        ([start, short_end], [], []),
        ([short_end, start], [], []),
        ([start, end], [], []),  # exactly two hours are not too long
        ([start, long_end], [1], []),
        ([long_end, start], [1], []),
        ([start], [], [1]),  # its end is lost
    ):
        with harness_for(LongRides(), key_by=lambda ride: ride.ride_id) as harness:
            for ride in events:
                harness.push(ride, timestamp=ride.at)
            assert harness.get_output() == at_once, events
            harness.clear_output()
            harness.push_watermark(2 * HOUR)
            assert harness.get_output() == later, events
            assert harness.num_keyed_state_entries() == 0
            assert harness.num_event_time_timers() == 0


def test_long_rides_are_told_as_soon_as_event_time_is_there():
    def build(env, rides):
        timed = rides.assign_timestamps_and_watermarks(A_MINUTE_LATE)
        return timed.key_by(lambda ride: ride.ride_id).process(LongRides(), Types.LONG())

    with ProgramTestHarness(build, parallelism=2) as harness:
        harness.push("rides", Ride(1, True, 0), Ride(2, True, 1_000), Ride(3, False, 30 * MINUTE))
        assert harness.run_epoch()["output"] == []
        harness.push("rides", Ride(2, False, 50 * MINUTE), Ride(3, True, 20 * MINUTE), Ride(4, True, 2 * HOUR))
        assert harness.run_epoch()["output"] == []  # event time is a minute behind
        harness.push("rides", Ride(4, False, 2 * HOUR + MINUTE + 1))
        assert harness.run_epoch()["output"] == [1]
        harness.push("rides", Ride(1, False, 3 * HOUR))
        assert harness.end_input()["output"] == []  # the end of a ride that was already reported


# -- the course: state of a key, connected streams --


class FirstOfKey(FlatMapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.BOOLEAN()))

    def flat_map(self, event: Any) -> Iterable[Any]:
        if self.seen.value() is None:
            yield event
            self.seen.update(True)


def test_the_first_event_of_each_key(env):
    rides = [Ride(n % 5, True, n) for n in range(40)]
    first = env.from_collection(rides).key_by(lambda ride: ride.ride_id).flat_map(FirstOfKey())
    assert sorted(first.execute_and_collect(), key=lambda ride: ride.at) == rides[:5]


class Blocked(CoFlatMapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.blocked = runtime_context.get_state(ValueStateDescriptor("blocked", Types.BOOLEAN()))

    def flat_map1(self, word: str) -> Iterable[str]:
        self.blocked.update(True)

    def flat_map2(self, word: str) -> Iterable[str]:
        if self.blocked.value() is None:
            yield word


def test_a_stream_that_controls_another():
    def build(env, control, words):
        return control.key_by(lambda word: word).connect(words.key_by(lambda word: word)).flat_map(Blocked())

    with ProgramTestHarness(build, parallelism=2) as harness:
        harness.push("control", "drop", "ignore")
        harness.run_epoch()
        harness.push("words", "apache", "drop", "flink", "ignore", "apache")
        assert sorted(harness.run_epoch()["output"]) == ["apache", "apache", "flink"]
