"""Finds out how late flights leave each airport, in which weather, and whether this exceeds a limit.

Three streams meet. Departures form rolling hours for each airport, one every five minutes. Each hour is joined with the
airport's weather observation from its last 60 minutes; hours without an observation are dropped. Each hour is also
compared with the limit that was in force at the airport when the hour ended, even if the limit arrives later. The
result therefore does not depend on the parallelism, or on how rows are divided into micro-batches.
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
    """The departures of an airport in an hour, with weather and limit."""

    origin: str
    ends: datetime
    departures: int
    delay: float | None  # minutes, on average; null: all flights were cancelled
    wind: float | None = None  # miles an hour
    rain: float | None = None  # inches in an hour
    limit: int | None = None  # minutes of delay
    alarm: bool = False


class Delays(AggregateFunction):
    """Counts departures and averages their delays, without cancelled flights."""

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
    """Holds each hour until event time reaches its end, when all limits up to then have arrived."""

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
    """Return a stream with each ``Hour`` of all airports."""
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
    """Assign event time from a column, and then drop heartbeats (rows without an airport)."""
    by_column = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(column)
    return rows.assign_timestamps_and_watermarks(by_column).filter(lambda row: row.origin is not None)
