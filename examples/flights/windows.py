"""Windows of flights in pillarbox, and the same windows in Spark.

There are tumbling windows of an hour for each airport, sliding windows of three hours for each carrier, and sessions
for each aircraft, which end when it has not left New York for six hours.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from examples.flights.job import instant
from pillarbox import (
    AggregateFunction,
    DataStream,
    EventTimeSessionWindows,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class Departures(NamedTuple):
    """The departures in a window."""

    kind: str  # of the window
    key: str
    start: datetime
    end: datetime
    flights: int
    cancelled: int
    minutes: int  # of delay
    worst: int | None


Sums = tuple[int, int, int, "int | None"]


class Sum(AggregateFunction):
    """Adds up departures."""

    def create_accumulator(self) -> Sums:
        return 0, 0, 0, None

    def add(self, value: Any, accumulator: Sums) -> Sums:
        delay = value.dep_delay
        return self.merge(accumulator, (1, delay is None, delay or 0, delay))

    def get_result(self, accumulator: Sums) -> Sums:
        return accumulator

    def merge(self, accumulator: Sums, other: Sums) -> Sums:
        flights, cancelled, minutes = (a + b for a, b in zip(accumulator[:3], other[:3]))
        worst = max((delay for delay in (accumulator[3], other[3]) if delay is not None), default=None)
        return flights, cancelled, minutes, worst


class Name(ProcessWindowFunction):
    """Adds the kind, the key and the window to a window's sums."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def process(self, key: str, context: ProcessWindowFunction.Context[Any], elements: Iterable[Sums]) -> Any:
        start, end = map(instant, context.window())
        (sums,) = elements
        yield Departures(self.kind, key, start, end, *sums)


def build(rows: DataStream) -> DataStream:
    """Return a stream of windows for a stream of flights and heartbeats."""
    by_departure = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("departed")
    stamped = rows.assign_timestamps_and_watermarks(by_departure)
    flights = stamped.filter(lambda row: row.kind == "flight" and row.tail is not None)
    windows = {
        "hour": flights.key_by("origin").window(TumblingEventTimeWindows.of("1 hour")),
        "three hours": flights.key_by("carrier").window(SlidingEventTimeWindows.of("3 hours", "1 hour")),
        "day": flights.key_by("tail").window(EventTimeSessionWindows.with_gap("6 hours")),
    }
    first, *others = (
        windowed.aggregate(Sum(), Name(kind), output_type=Departures).uid(kind) for kind, windowed in windows.items()
    )
    return first.union(*others)


def by_spark(flights: DataFrame) -> DataFrame:
    """Return the same windows, computed by Spark from a batch of flights."""
    from pyspark.sql import functions as F

    def windows(kind: str, key: str, window: Column) -> DataFrame:
        grouped = flights.where("tail IS NOT NULL").groupBy(window.alias("window"), F.col(key).alias("key"))
        delay = F.col("dep_delay")
        sums = grouped.agg(
            F.count("*").alias("flights"),
            F.count_if(delay.isNull()).alias("cancelled"),
            F.coalesce(F.sum(delay), F.lit(0)).alias("minutes"),
            F.max(delay).alias("worst"),
        )
        named = sums.select("*", F.lit(kind).alias("kind"), "window.start", "window.end")
        return named.select(*Departures._fields)

    hours = windows("hour", "origin", F.window("departed", "1 hour"))
    three = windows("three hours", "carrier", F.window("departed", "3 hours", "1 hour"))
    return hours.unionAll(three).unionAll(windows("day", "tail", F.session_window("departed", "6 hours")))
