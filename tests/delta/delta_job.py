"""A program between Delta Lake tables; ``python -m tests.delta.delta_job HOME`` is its driver."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyspark

import pillarbox
from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor, WatermarkStrategy
from tests.support.sessions import session_with_package

__all__ = ["COLUMNS", "END", "PACKAGE", "environment", "read", "session", "totals", "writer"]

# Delta has a release per Spark version; there is none for 4.3 yet.
PACKAGE = f"io.delta:delta-spark_{'.'.join(pyspark.__version__.split('.')[:2])}_2.13:4.4.0"
COLUMNS = "card STRING, n LONG, total LONG"
# Event time that no record has.
END = 4_000_000_000_000


class Total(KeyedProcessFunction):
    """Emits the number and the sum of a card's payments with each payment, and once more when event time ends."""

    def open(self, runtime_context):
        self.state = runtime_context.get_state(ValueStateDescriptor("total"))

    def process_element(self, payment, ctx):
        n, total = self.state.value() or (0, 0)
        self.state.update((n + 1, total + payment.amount))
        ctx.timer_service().register_event_time_timer(END)
        yield payment.card, n + 1, total + payment.amount

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), 0, self.state.value()[1]


def session(home: Path) -> Any:
    return session_with_package(
        home,
        "delta",
        PACKAGE,
        spark__sql__extensions="io.delta.sql.DeltaSparkSessionExtension",
        spark__sql__catalog__spark_catalog="org.apache.spark.sql.delta.catalog.DeltaCatalog",
        spark__databricks__delta__snapshotPartitions="1",
    )


def environment(spark: Any, parallelism: int) -> Any:
    env = StreamExecutionEnvironment.get_execution_environment(spark)
    return env.set_parallelism(parallelism).set_max_parallelism(2 * parallelism)


def read(spark: Any, table: Path, **options: Any) -> Any:
    return spark.readStream.format("delta").options(**options).load(str(table))


def totals(env: Any, sources: dict[str, Any]) -> Any:
    at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    streams = [env.from_dataframe(df, name).assign_timestamps_and_watermarks(at) for name, df in sources.items()]
    rows = streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]
    return rows.key_by("card").process(Total()).uid("total").to_dataframe(COLUMNS)


def writer(env: Any, sources: dict[str, Any], checkpoint: Path, table: Path) -> Any:
    rows = totals(env, sources).writeStream.format("delta").option("path", str(table))
    return rows.option("checkpointLocation", str(checkpoint))


def main(home: Path) -> None:
    spark = session(home / "driver")
    rows = read(spark, home / "payments", maxFilesPerTrigger=1)
    query = writer(environment(spark, 2), {"payments": rows}, home / "killed", home / "totals")
    pillarbox.start(query.trigger(processingTime="0 seconds")).awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
