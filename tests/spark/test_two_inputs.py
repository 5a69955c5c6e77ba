from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pyspark.sql import functions as F

from pillarbox import (
    KeyedCoProcessFunction,
    ListStateDescriptor,
    OutputTag,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
    metrics,
    start,
)
from tests.spark.streams import stream_of

UNPAID = OutputTag("unpaid")
BY_AT = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
ORDERS = 200


class Paid(KeyedCoProcessFunction):
    """Joins an order with its payment, in any order of arrival. A side output receives orders without a payment."""

    def open(self, runtime_context):
        self.order = runtime_context.get_state(ValueStateDescriptor("order"))
        self.early = runtime_context.get_list_state(ListStateDescriptor("early"))

    def process_element1(self, order, ctx):
        paid = list(self.early)
        if paid:
            yield order.id, order.customer, paid[0]
        else:
            self.order.update(order)
            ctx.timer_service().register_event_time_timer(order.at + 1_000_000)

    def process_element2(self, payment, ctx):
        order = self.order.value()
        if order is None:
            self.early.add(payment.amount)
        else:
            ctx.timer_service().delete_event_time_timer(order.at + 1_000_000)
            self.order.clear()
            yield order.id, order.customer, payment.amount

    def on_timer(self, timestamp, ctx):
        yield UNPAID, ctx.get_current_key()


def orders(spark):
    return spark.range(ORDERS).select(
        "id", (F.col("id") * 100).alias("at"), F.concat(F.lit("c"), "id").alias("customer")
    )


def payments(spark):
    paid = spark.range(ORDERS).where("id % 10 != 0")
    number = F.lit(ORDERS - 1) - F.col("id")
    return paid.select(F.col("id").alias("order_id"), (number * 100).alias("at"), (F.col("id") * 1.5).alias("amount"))


def joined(spark, orders_df, payments_df):
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(2)
    left = env.from_dataframe(orders_df, "orders").assign_timestamps_and_watermarks(BY_AT)
    right = env.from_dataframe(payments_df, "payments").assign_timestamps_and_watermarks(BY_AT)
    both = left.key_by("id").connect(right.key_by("order_id")).process(Paid()).uid("paid")
    return env, both


EXPECTED = {(n, f"c{n}", n * 1.5) for n in range(ORDERS) if n % 10}


def test_connected_streams_in_batch(spark):
    _, both = joined(spark, orders(spark), payments(spark))
    rows = both.to_dataframe("id LONG, customer STRING, amount DOUBLE").collect()
    assert Counter(map(tuple, rows)) == Counter(EXPECTED)
    _, both = joined(spark, orders(spark), payments(spark))
    unpaid = both.get_side_output(UNPAID).execute_and_collect()
    assert Counter(unpaid) == Counter(range(0, ORDERS, 10))


@pytest.mark.long("runtime/programs/test_partitioners.py spreads records without Spark")
def test_rebalance_spreads_one_partition_over_all_subtasks(spark, tmp_path):
    async def doubled(row):
        return row.id, row.id * 2

    def program(df):
        env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(2)
        spread = env.from_dataframe(df).rebalance().map_async(doubled, on_barrier="carry").uid("doubled")
        return spread.to_dataframe("id LONG, twice LONG")

    assert sorted(map(tuple, program(orders(spark).coalesce(1)).collect())) == [(n, 2 * n) for n in range(ORDERS)]

    stream = stream_of(spark, orders(spark), tmp_path / "in", 3)
    rows: list[tuple[Any, ...]] = []
    query = start(
        program(stream)
        .writeStream.foreachBatch(lambda batch, number: rows.extend(map(tuple, batch.collect())))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    query.awaitTermination()
    assert sorted(rows) == [(n, 2 * n) for n in range(ORDERS)]
    tasks = [task for progress in query.recentProgress for task in metrics(progress)]
    took: Counter[int] = Counter()
    for task in tasks:
        if task.uid == "doubled":
            took[task.subtask] += task.records_in
    assert sum(took.values()) == ORDERS
    assert abs(took[0] - took[1]) <= 3  # at most one more in each epoch
