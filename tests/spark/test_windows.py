from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import functions as F

from pillarbox import (
    AggregateFunction,
    EventTimeSessionWindows,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    start,
)
from tests.spark.streams import Rows

BY_AT = WatermarkStrategy.for_bounded_out_of_orderness("2 seconds").with_timestamp_assigner("at")
COLUMNS = "key INT, start TIMESTAMP, end TIMESTAMP, n LONG, total LONG"


class CountAndSum(AggregateFunction):
    def create_accumulator(self):
        return 0, 0

    def add(self, row, accumulator):
        return accumulator[0] + 1, accumulator[1] + row.amount

    def get_result(self, accumulator):
        return accumulator

    def merge(self, accumulator, other):
        return accumulator[0] + other[0], accumulator[1] + other[1]


class WithWindow(ProcessWindowFunction):
    """Adds the key, and the window in Spark's form, to results."""

    def process(self, key, context, elements):
        from datetime import datetime, timezone

        ((n, total),) = elements
        start, end = (datetime.fromtimestamp(edge / 1000, timezone.utc) for edge in context.window())
        yield key, start, end, n, total


def events(spark):
    at = F.col("id") * 480 - F.when(F.col("id") % 3 == 0, F.col("id") % 2000).otherwise(0)
    return spark.range(500).select(
        (F.col("id") % 7).cast("int").alias("key"),
        F.timestamp_millis(at + 1_700_000_000_000).alias("at"),
        F.col("id").alias("amount"),
    )


def windows(spark, df, assigner):
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(2)
    timed = env.from_dataframe(df).assign_timestamps_and_watermarks(BY_AT)
    stream = timed.key_by("key").window(assigner).aggregate(CountAndSum(), WithWindow()).uid("windows")
    return stream.to_dataframe(COLUMNS)


def sparks_own(df, window):
    grouped = df.groupBy(window.alias("w"), "key").agg(F.count("*").alias("n"), F.sum("amount").alias("total"))
    return grouped.select("key", "w.start", "w.end", "n", "total")


KINDS = {
    "tumbling": (TumblingEventTimeWindows.of("1 minute"), lambda: F.window("at", "1 minute")),
    "tumbling with an offset": (
        TumblingEventTimeWindows.of("1 minute", "10 seconds"),
        lambda: F.window("at", "1 minute", None, "10 seconds"),
    ),
    "sliding": (SlidingEventTimeWindows.of("1 minute", "20 seconds"), lambda: F.window("at", "1 minute", "20 seconds")),
    "sessions": (
        EventTimeSessionWindows.with_gap("3300 milliseconds"),
        lambda: F.session_window("at", "3300 milliseconds"),
    ),
}


def counted(rows) -> Counter[Any]:
    return Counter(map(tuple, rows))


@pytest.mark.parametrize("kind", KINDS)
def test_windows_equal_sparks_own_row_for_row(spark, kind):
    assigner, window = KINDS[kind]
    expected = counted(sparks_own(events(spark), window()).collect())
    assert len(expected) > 20
    assert counted(windows(spark, events(spark), assigner).collect()) == expected


@pytest.mark.long("it waits for seconds of silence; operators/windowing/test_quiet_model.py has it without Spark")
def test_the_last_windows_of_a_quiet_stream_close_by_the_clock(spark, tmp_path):
    rows = events(spark).where(F.col("id") < 60)  # half a minute
    rows.coalesce(1).write.parquet(str(tmp_path / "in"))
    window = F.window("at", "5 seconds")
    counts = sparks_own(rows, window)
    again = counts.groupBy(F.window(F.col("end") - F.expr("INTERVAL 1 MILLISECOND"), "10 seconds").alias("w"))
    totals = again.agg(F.sum("n").alias("n"), F.sum("total").alias("total"))
    expected = counted(totals.select(F.lit(0), "w.start", "w.end", "n", "total").collect())

    result = Rows()

    def query() -> Any:
        env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(2)
        source = env.from_dataframe(spark.readStream.schema(rows.schema).parquet(str(tmp_path / "in")))
        timed = source.assign_timestamps_and_watermarks(BY_AT.with_wall_clock_progress("2 seconds"))
        keyed = timed.key_by("key").window(TumblingEventTimeWindows.of("5 seconds"))
        windows = keyed.aggregate(CountAndSum(), WithWindow()).uid("windows")
        totals = windows.key_by(lambda _: 0).window(TumblingEventTimeWindows.of("10 seconds"))
        df = totals.aggregate(Totals(), WithWindow()).uid("totals").to_dataframe(COLUMNS)
        return df.writeStream.foreachBatch(result).option("checkpointLocation", str(tmp_path / "checkpoint"))

    stopped = start(query().trigger(availableNow=True))
    assert stopped.awaitTermination(300)  # by itself: work after the end of the input can wait
    running = start(query())
    try:
        deadline = time.monotonic() + 300
        while len(result) < len(expected) and time.monotonic() < deadline and running.isActive:
            time.sleep(0.2)
    finally:
        running.stop()
    assert running.exception() is None
    assert counted(result) == expected


class Totals(CountAndSum):
    def add(self, value, accumulator):
        return accumulator[0] + value[3], accumulator[1] + value[4]
