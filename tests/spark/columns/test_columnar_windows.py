"""Columnar aggregates have the same results as Spark's, in batch mode and in a streaming query with a restart."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import functions as F

import pillarbox.functions as PF
from pillarbox import (
    CumulativeEventTimeWindows,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    avg_,
    count_,
    first_,
    key_history,
    last_,
    max_,
    metrics,
    min_,
    start,
    sum_,
)

AGGREGATES: dict[str, Any] = {
    "n": count_(),
    "nx": count_("x"),
    "sx": sum_("x"),
    "sf": sum_("f"),
    "sd": sum_("d"),
    "ad": avg_("d"),
    "ax": avg_("x"),
    "lx": min_("x"),
    "gf": max_("f"),
    "gs": max_("s"),
    "ld": min_("d"),
    "gt": max_("at"),
    "fx": first_("id"),
    "ex": last_("id"),
}


def sparks_own(df, window):
    grouped = df.groupBy(window.alias("w"), "key", "shop").agg(
        F.count("*").alias("n"),
        F.count("x").alias("nx"),
        F.sum("x").alias("sx"),
        F.sum("f").alias("sf"),
        F.sum("d").alias("sd"),
        F.avg("d").alias("ad"),
        F.avg("x").alias("ax"),
        F.min("x").alias("lx"),
        F.max("f").alias("gf"),
        F.max("s").alias("gs"),
        F.min("d").alias("ld"),
        F.max("at").alias("gt"),
        F.min_by("id", "at").alias("fx"),
        F.max_by("id", "at").alias("ex"),
    )
    return grouped.select("key", "shop", F.col("w.start").alias("window_start"), F.col("w.end"), *AGGREGATES)


def events(spark):
    at = F.col("id") * 480 - F.when(F.col("id") % 3 == 0, F.col("id") % 2000).otherwise(0)
    some = F.when(F.col("id") % 5 != 0, F.col("id"))
    return spark.range(600).select(
        "id",
        (F.col("id") % 7).cast("int").alias("key"),
        F.when(F.col("id") % 2 == 0, F.lit("ä")).alias("shop"),
        F.timestamp_millis(at + 1_700_000_000_000).alias("at"),
        some.cast("int").alias("x"),
        F.when(F.col("id") % 50 == 7, F.lit("NaN")).otherwise(some / 4).cast("double").alias("f"),
        (some / 7).cast("decimal(12, 3)").alias("d"),
        some.cast("string").alias("s"),
    )


WINDOWS = {
    "tumbling": (
        TumblingEventTimeWindows.of("1 minute", "10 seconds"),
        lambda: F.window("at", "1 minute", None, "10 seconds"),
    ),
    "sliding": (SlidingEventTimeWindows.of("1 minute", "20 seconds"), lambda: F.window("at", "1 minute", "20 seconds")),
    "sessions": (
        EventTimeSessionWindows.with_gap("6700 milliseconds"),
        lambda: F.session_window("at", "6700 milliseconds"),
    ),
}


def counted(rows) -> Counter[Any]:
    return Counter(tuple("NaN" if value != value else value for value in row) for row in rows)


@pytest.mark.parametrize("kind", WINDOWS)
def test_aggregates_equal_sparks_own_row_for_row(spark, kind):
    assigner, window = WINDOWS[kind]
    own = sparks_own(events(spark), window())
    df = PF.window_aggregate(events(spark), keys=["key", "shop"], time="at", window=assigner, **AGGREGATES)
    expected = counted(own.collect())
    assert len(expected) > 60
    assert counted(df.collect()) == expected
    assert [field.dataType for field in df.schema] == [field.dataType for field in own.schema]


@pytest.mark.parametrize("kind", [pytest.param("sliding", marks=pytest.mark.long("as sessions")), "sessions"])
def test_aggregates_of_a_stream_go_on_after_a_restart(spark, tmp_path, kind):
    rows = events(spark)
    last = rows.where("id = 0").withColumn("at", F.timestamp_millis(F.lit(1_800_000_000_000)))
    for number, (low, high) in enumerate([(0, 250), (250, 600)]):
        part = rows.where((F.col("id") >= low) & (F.col("id") < high)).coalesce(1)
        part.write.parquet(str(tmp_path / "in" / f"part={number}"))
    assigner, window = WINDOWS[kind]
    expected = counted(sparks_own(rows, window()).collect())

    def run() -> tuple[list[tuple[Any, ...]], list[Any]]:
        source = spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1)
        stream = source.parquet(str(tmp_path / "in" / "part=*"))
        df = PF.window_aggregate(
            stream, keys=["key", "shop"], time="at", window=assigner, delay="2 seconds", uid="windows", **AGGREGATES
        )
        results: list[tuple[Any, ...]] = []
        writer = df.writeStream.foreachBatch(lambda batch, number: results.extend(map(tuple, batch.collect())))
        query = start(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True))
        query.awaitTermination()
        return results, query.recentProgress

    before, progress = run()
    # The newest row waits in an open window of its key.
    history = key_history(spark, str(tmp_path / "checkpoint"), "windows", '[3, "ä"]')
    assert (history["key"], history["epochs"], history["timers"]) == ("(3, 'ä')", [0, 1], [])
    newest = [json.loads(row["value"])["ex: last_('id')[0]"] for row in history["state"]]
    assert 598 in newest
    last.coalesce(1).write.parquet(str(tmp_path / "in" / "part=9"))
    after, _ = run()
    assert 0 < len(before) < sum(expected.values())
    assert counted(before + after) == expected
    reports = [report for event in progress for report in metrics(event) if report.uid == "windows"]
    assert reports and all(report.counters["windows.late_records_dropped"] == 0 for report in reports)
    assert any(report.state_bytes for report in reports)  # a subtask may have no key


@pytest.mark.usefixtures("one_attempt")
def test_a_sum_that_does_not_fit_is_an_error(spark):
    rows = spark.sql("SELECT 'ann' AS card, 0L AS at, explode(array(9223372036854775807L, 1L)) AS amount")
    df = PF.window_aggregate(
        rows, keys="card", time="at", window=TumblingEventTimeWindows.of("1 minute"), total=sum_("amount")
    )
    with pytest.raises(Exception, match=r"'ann' in the window from 0 .* does not fit bigint"):
        df.collect()


def test_rows_of_functions_and_filters_are_aggregated_too(spark):
    env = StreamExecutionEnvironment.get_execution_environment(spark)
    rows = env.from_dataframe(events(spark)).filter(lambda row: row.id % 2 == 0)
    from pillarbox import WatermarkStrategy

    timed = rows.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    )
    windows = timed.key_by("key").window(CumulativeEventTimeWindows.of("10 minutes", "10 minutes"))
    results = windows.aggregate(n=count_(), total=sum_("id")).to_dataframe().collect()
    expected = events(spark).where("id % 2 = 0").groupBy("key", F.window("at", "10 minutes").alias("w"))
    assert counted((row.key, row.n, row.total) for row in results) == counted(
        (row.key, row.n, row.total)
        for row in expected.agg(F.count("*").alias("n"), F.sum("id").alias("total")).collect()
    )
