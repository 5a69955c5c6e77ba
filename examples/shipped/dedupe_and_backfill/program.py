"""Adds live orders to totals that begin with historical orders, and drops orders that arrive twice."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from pyspark.sql import DataFrame

import pillarbox
from pillarbox import (
    KeyedProcessFunction,
    Row,
    RuntimeContext,
    StateTtlConfig,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
    local_session,
)

ORDER = "id STRING, customer STRING, at TIMESTAMP, cents LONG"


class Total(KeyedProcessFunction[str, Row, tuple[Any, ...]]):
    def open(self, runtime_context: RuntimeContext) -> None:
        spent = ValueStateDescriptor("spent", int, default=0)
        spent.enable_time_to_live(StateTtlConfig("90 days"))  # who orders nothing for so long is forgotten
        self.spent = runtime_context.get_state(spent)

    def process_element(self, order: Row, ctx: Any) -> Iterator[tuple[Any, ...]]:
        spent = (self.spent.value() or 0) + order.cents
        self.spent.update(spent)
        yield order.customer, order.id, spent


spark = local_session()
here, work = Path(__file__).parent, Path(mkdtemp())

# The history becomes the state that the stream begins with.
history = spark.read.csv(str(here / "history.csv"), header=True, schema=ORDER).dropDuplicates(["id"])
history.createOrReplaceTempView("history")
totals = spark.sql("SELECT customer, sum(cents) AS spent FROM history GROUP BY customer")
pillarbox.write_state(totals, str(work / "history"), "totals", key="customer")
print(f"history: {history.count()} orders, {totals.count()} customers")

# Spark reads files in the order of their times of modification; an installed package does not keep these.
(work / "live").mkdir()
for second, file in enumerate(sorted((here / "live").glob("*.csv"))):
    os.utime(shutil.copy(file, work / "live"), (1_700_000_000 + second, 1_700_000_000 + second))
live = spark.readStream.option("maxFilesPerTrigger", 1).csv(str(work / "live"), header=True, schema=ORDER)

env = StreamExecutionEnvironment.get_execution_environment(spark)
env.from_savepoint(str(work / "history"))
times = WatermarkStrategy.for_bounded_out_of_orderness("5 minutes").with_timestamp_assigner("at")
once = env.from_dataframe(live).assign_timestamps_and_watermarks(times).key_by("id").deduplicate("2 hours").uid("once")
spending = once.key_by("customer").process(Total(), "customer STRING, id STRING, spent LONG").uid("totals")
out: list[Any] = []


def collect(orders: DataFrame, epoch: int) -> None:
    out.extend(orders.collect())


writer = spending.to_dataframe().writeStream.foreachBatch(collect).trigger(availableNow=True)
query = pillarbox.start(writer.option("checkpointLocation", str(work / "checkpoint")))
pillarbox.run(query)

rows = spark.read.csv(str(work / "live"), header=True, schema=ORDER).count()
print(f"live: {rows} rows in, {len(out)} out, {rows - len(out)} dropped")
state = pillarbox.read_state(spark, str(work / "checkpoint"), "totals")
seen = pillarbox.read_state(spark, str(work / "checkpoint"), "once")
print(f"state: {state.count()} customers, {seen.count()} orders of the last hours")
state.selectExpr("key AS customer", "spent").orderBy("spent", ascending=False).show(5)
