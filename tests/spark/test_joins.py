from __future__ import annotations

from collections import Counter

from pyspark.sql import functions as F

import pillarbox.functions as PF
from pillarbox import (
    MapStateDescriptor,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
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
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(2)
    return [env.from_dataframe(df).assign_timestamps_and_watermarks(AT) for df in dataframes]


def interval_joined(spark, left, right):
    lefts, rights = streams(spark, left, right)
    near = lefts.key_by("key").interval_join(rights.key_by("key")).between("-1 second", 500)
    pairs = near.process(lambda click, view, ctx: [(click.id, view.id, ctx.timestamp())]).uid("near")
    return pairs.to_dataframe("click LONG, view LONG, at LONG")


def by_spark(left, right):
    a, b = left.alias("a"), right.alias("b")
    near = F.expr("a.key = b.key AND b.at BETWEEN a.at - 1000 AND a.at + 500")
    return Counter(map(tuple, a.join(b, near).select("a.id", "b.id", F.greatest("a.at", "b.at")).collect()))


def test_an_interval_join_equals_that_of_spark(spark):
    rows = interval_joined(spark, clicks(spark), views(spark)).collect()
    assert Counter(map(tuple, rows)) == by_spark(clicks(spark), views(spark))


def test_a_window_join_equals_that_of_spark(spark):
    lefts, rights = streams(spark, clicks(spark), views(spark))
    windows = lefts.join(rights).where("key").equal_to("key").window(TumblingEventTimeWindows.of("2 seconds"))
    pairs = windows.apply(lambda click, view: (click.id, view.id)).to_dataframe("click LONG, view LONG")
    same = F.expr("a.key = b.key AND a.at div 2000 = b.at div 2000")
    joined = clicks(spark).alias("a").join(views(spark).alias("b"), same).select("a.id", "b.id")
    assert Counter(map(tuple, pairs.collect())) == Counter(map(tuple, joined.collect()))


def orders(spark):
    return spark.range(ROWS).select(
        F.when(F.col("id") % 15 != 4, F.concat(F.lit("é"), F.col("id") % 7)).alias("name"),
        F.when(F.col("id") % 11 != 0, (F.col("id") % 2).cast("int")).alias("shop"),
        F.timestamp_millis(1_700_000_000_000 + F.col("id") * 100).alias("at"),
        "id",
        F.when(F.col("id") % 3 != 0, (F.col("id") / 7).cast("decimal(12, 3)")).alias("price"),
        F.array(F.col("id"), F.lit(None)).alias("list"),
        F.create_map(F.lit("id"), F.col("id").cast("string")).alias("map"),
        F.struct(
            F.col("id").alias("a"), F.date_add(F.lit("2024-02-27").cast("date"), F.col("id").cast("int") % 5)
        ).alias("part"),
    )


def answers(spark):
    return views(spark).select(
        F.concat(F.lit("é"), "key").alias("name"),
        F.when(F.col("id") % 13 != 0, (F.col("id") % 2).cast("short")).alias("shop"),
        F.timestamp_millis(1_700_000_000_000 + F.col("at")).alias("at"),
        "id",
        F.when(F.col("id") % 2 == 0, F.array(F.lit("x"))).alias("tags"),
    )


def by_columns(left, right, how):
    return PF.interval_join(
        left,
        right,
        on=["name", "shop"],
        time="at",
        lower="-1 second",
        upper=500,
        how=how,
        delay="1 second",
        upper_bound_exclusive=True,
        suffixes=("", "_answer"),
        uid="near",
    )


def columns_by_spark(left, right, how):
    a, b = left.alias("a"), right.alias("b")
    near = F.expr(
        "a.name = b.name AND a.shop = b.shop AND b.at >= a.at - INTERVAL 1 SECOND AND b.at < a.at + INTERVAL 0.5 SECOND"
    )
    joined = a.join(b, near, how)
    return joined.select("a.*", F.col("b.at").alias("at_answer"), F.col("b.id").alias("id_answer"), "b.tags")


def counted(rows):
    return Counter(map(repr, rows))


def test_a_join_of_columns_equals_that_of_spark(spark):
    result, expected = (join(orders(spark), answers(spark), "left") for join in (by_columns, columns_by_spark))
    assert [(field.name, field.dataType) for field in result.schema] == [
        (field.name, field.dataType) for field in expected.schema
    ]
    rows = expected.collect()
    assert sum(row.id_answer is not None for row in rows) > 100
    assert counted(result.collect()) == counted(rows)
