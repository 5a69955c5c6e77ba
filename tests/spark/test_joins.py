"""Joins and broadcast state on a real local Spark: equal to Spark's own joins, and after a restart."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from pillarbox import (
    KeyedBroadcastProcessFunction,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
)

AT = WatermarkStrategy.for_bounded_out_of_orderness("1 second").with_timestamp_assigner("at")
ROWS = 300
LIMITS = MapStateDescriptor("limits")


def clicks(spark):
    return spark.range(ROWS).select((F.col("id") % 7).alias("key"), (F.col("id") * 100).alias("at"), "id")


def views(spark):
    return spark.range(ROWS).select((F.col("id") % 5).alias("key"), (F.col("id") * 97 + 13).alias("at"), "id")


def streams(spark, *dataframes):
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)
    return [env.from_dataframe(df).assign_timestamps_and_watermarks(AT) for df in dataframes]


def interval_joined(spark, left, right):
    one, two = streams(spark, left, right)
    near = one.key_by("key").interval_join(two.key_by("key")).between("-1 second", 500)
    pairs = near.process(lambda click, view, ctx: [(click.id, view.id, ctx.timestamp())]).uid("near")
    return pairs.to_dataframe("click LONG, view LONG, at LONG")


def by_spark(left, right):
    one, two = left.alias("a"), right.alias("b")
    near = F.expr("a.key = b.key AND b.at BETWEEN a.at - 1000 AND a.at + 500")
    return Counter(map(tuple, one.join(two, near).select("a.id", "b.id", F.greatest("a.at", "b.at")).collect()))


def test_an_interval_join_equals_that_of_spark(spark):
    rows = interval_joined(spark, clicks(spark), views(spark)).collect()
    assert Counter(map(tuple, rows)) == by_spark(clicks(spark), views(spark))


def test_a_window_join_equals_that_of_spark(spark):
    one, two = streams(spark, clicks(spark), views(spark))
    windows = one.join(two).where("key").equal_to("key").window(TumblingEventTimeWindows.of("2 seconds"))
    pairs = windows.apply(lambda click, view: (click.id, view.id)).to_dataframe("click LONG, view LONG")
    same = F.expr("a.key = b.key AND a.at div 2000 = b.at div 2000")
    joined = clicks(spark).alias("a").join(views(spark).alias("b"), same).select("a.id", "b.id")
    assert Counter(map(tuple, pairs.collect())) == Counter(map(tuple, joined.collect()))


def stream_of(spark, df, folder: Path, files: int):
    df.repartitionByRange(files, "at").sortWithinPartitions("at").write.parquet(str(folder))
    for number, path in enumerate(sorted(folder.glob("part-*"))):
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark reads the oldest file first
    return spark.readStream.schema(df.schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def run(df, checkpoint: Path, batches: int | None = None):
    """Run a query to the end of its input, or for some batches; return its rows."""
    rows: list[tuple[Any, ...]] = []
    seen: list[int] = []

    def take(batch, number):
        if len(seen) == batches:
            raise RuntimeError("enough")
        seen.append(number)
        rows.extend(map(tuple, batch.collect()))

    query = df.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    started = query.start()
    if batches is None:
        started.awaitTermination()
    else:
        with pytest.raises(Exception, match="enough"):
            started.awaitTermination()
    return rows


def test_an_interval_join_goes_on_after_a_restart(spark, tmp_path):
    left = stream_of(spark, clicks(spark), tmp_path / "clicks", 4)
    right = stream_of(spark, views(spark), tmp_path / "views", 4)
    expected = by_spark(clicks(spark), views(spark))
    rows = run(interval_joined(spark, left, right), tmp_path / "checkpoint", batches=2)
    assert 0 < len(rows) < sum(expected.values())
    rows += run(interval_joined(spark, left, right), tmp_path / "checkpoint")
    assert Counter(rows) == expected


class Over(KeyedBroadcastProcessFunction):
    """The running total of a key, beside the number of limits that were known when the row came."""

    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total"))

    def process_element(self, row, ctx):
        self.total.update((self.total.value() or 0) + 1)
        yield row.key, self.total.value(), len(list(ctx.get_broadcast_state(LIMITS)))

    def process_broadcast_element(self, limit, ctx):
        ctx.get_broadcast_state(LIMITS).put(limit.id, limit.at)


def broadcast(spark, rows, limits):
    one, two = streams(spark, rows, limits)
    out = one.key_by("key").connect(two.broadcast(LIMITS)).process(Over()).uid("over")
    return out.to_dataframe("key LONG, total LONG, limits LONG")


def test_broadcast_state_is_there_after_a_restart(spark, tmp_path):
    left = stream_of(spark, clicks(spark), tmp_path / "clicks", 4)
    limits = stream_of(spark, spark.range(40).select("id", F.col("id").alias("at")), tmp_path / "limits", 4)
    rows = run(broadcast(spark, left, limits), tmp_path / "checkpoint", batches=2)
    rows += run(broadcast(spark, left, limits), tmp_path / "checkpoint")
    totals = Counter(key for key, _, _ in rows)
    assert totals == Counter(n % 7 for n in range(ROWS))
    for key, count in totals.items():
        mine = [(total, known) for k, total, known in rows if k == key]
        assert [total for total, _ in mine] == list(range(1, count + 1))
        known = [limits for _, limits in mine]
        assert known == sorted(known)
        # Each micro-batch brings ten; those of one may come before or behind its rows.
        assert known[-1] >= 30
        assert set(known) <= {0, 10, 20, 30, 40}
