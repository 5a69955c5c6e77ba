"""The program: how late do flights leave each airport, hour after hour, in which weather, and when is that too much?

Three streams meet. Departures make a rolling hour of each airport, every five minutes. Each such hour is joined with
the weather that was observed while it ended; an hour without an observation is left out. And it is compared with the
airport's limit, which changes while the program runs: the one in force when the hour ended counts, however fast the
streams are. So what comes out depends neither on the parallelism nor on how the rows were cut into micro-batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

from examples.flights.job import instant
from pillarbox import (
    AggregateFunction,
    DataStream,
    KeyedBroadcastProcessFunction,
    MapStateDescriptor,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    WatermarkStrategy,
)

LIMITS = MapStateDescriptor[str, list[tuple[int, int]]]("limits")  # of an airport: since when (epoch ms), minutes


class Hour(NamedTuple):
    """An hour of an airport."""

    origin: str
    ends: datetime
    departures: int
    delay: float | None  # minutes, on average; null: all flights were cancelled
    wind: float | None = None  # miles an hour
    rain: float | None = None  # inches in an hour
    limit: int | None = None  # minutes of delay
    alarm: bool = False


class Delays(AggregateFunction):
    """Counts departures, and averages their delays; cancelled flights have none."""

    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, flight: Any, so_far: tuple[int, int]) -> tuple[int, int]:
        return so_far if flight.dep_delay is None else (so_far[0] + 1, so_far[1] + flight.dep_delay)

    def get_result(self, so_far: tuple[int, int]) -> tuple[int, float | None]:
        departures, minutes = so_far
        return departures, minutes / departures if departures else None

    def merge(self, accumulator: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + other[0], accumulator[1] + other[1]


class AsHour(ProcessWindowFunction):
    def process(self, origin: str, context: Any, elements: Iterable[tuple[int, float | None]]) -> Iterator[Hour]:
        for departures, delay in elements:
            yield Hour(origin, instant(context.window().end), departures, delay)


class Alarms(KeyedBroadcastProcessFunction):
    """Holds each hour until event time has come to its end: then all limits up to there are known."""

    def open(self, runtime_context: Any) -> None:
        self.waiting = runtime_context.get_map_state(MapStateDescriptor[int, Hour]("waiting"))

    def process_element(self, hour: Hour, ctx: Any) -> None:
        self.waiting.put(ctx.timestamp(), hour)
        ctx.timer_service().register_event_time_timer(ctx.timestamp())

    def process_broadcast_element(self, limit: Any, ctx: Any) -> None:
        limits = ctx.get_broadcast_state(LIMITS)
        limits.put(limit.origin, sorted([*(limits.get(limit.origin) or ()), (ctx.timestamp(), limit.minutes)]))

    def on_timer(self, now: int, ctx: Any) -> Iterator[Hour]:
        hour = self.waiting[now]
        self.waiting.remove(now)
        limits = ctx.get_broadcast_state(LIMITS).get(hour.origin) or ()
        since = bisect_right(limits, now, key=lambda limit: limit[0])
        limit = limits[since - 1][1] if since else None
        yield hour._replace(limit=limit, alarm=None not in (limit, hour.delay) and hour.delay > limit)


def build(flights: DataStream, weather: DataStream, limits: DataStream) -> DataStream:
    """Return the hours of all airports."""
    hours = (
        timed(flights, "departed")
        .key_by("origin")
        .window(SlidingEventTimeWindows.of("1 hour", "5 minutes"))
        .aggregate(Delays(), AsHour())
        .uid("hours")
    )
    in_their_weather = (
        hours.key_by("origin")
        .interval_join(timed(weather, "observed").key_by("origin"))
        .between("-1 hour", 0)
        .lower_bound_exclusive()
        .process(lambda hour, sky, ctx: [hour._replace(wind=sky.wind, rain=sky.rain)])
        .uid("weather")
    )
    limits_for_all = timed(limits, "since").broadcast(LIMITS)
    return in_their_weather.key_by("origin").connect(limits_for_all).process(Alarms(), Hour).uid("alarms")


def timed(rows: DataStream, column: str) -> DataStream:
    """Take event time from a column. Rows without an airport are heartbeats, which do nothing but move it on."""
    by_column = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(column)
    return rows.assign_timestamps_and_watermarks(by_column).filter(lambda row: row.origin is not None)
