"""A program that reads payments from Kafka; ``python -m tests.kafka.kafka_job HOME SERVERS TOPIC`` is its driver."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyspark

import pillarbox
from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor, WatermarkStrategy
from tests.support.sessions import session_with_package

__all__ = ["COLUMNS", "END", "PACKAGE", "read", "session", "totals", "writer"]

# Spark 4.3's package is not released yet (as of 4.3.0); 4.2's works.
_RELEASED = {"4.3.0": "4.2.0"}
PACKAGE = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{_RELEASED.get(pyspark.__version__, pyspark.__version__)}"
COLUMNS = "card STRING, n LONG, total LONG, mark STRING"
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
        yield payment.card, n + 1, total + payment.amount, payment.headers[0].key

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), 0, self.state.value()[1], "end"


def session(home: Path) -> Any:
    return session_with_package(home, "kafka", PACKAGE)


def read(spark: Any, servers: str, topic: str, **options: Any) -> Any:
    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("includeHeaders", True)
        .options(**{"startingOffsets": "earliest", **options})
        .load()
    )
    return rows.selectExpr(
        "CAST(key AS STRING) AS card",
        "CAST(CAST(value AS STRING) AS LONG) AS amount",
        "timestamp",
        "headers",
    )


def totals(env: Any, sources: dict[str, Any]) -> Any:
    at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("timestamp")
    streams = [env.from_dataframe(df, name).assign_timestamps_and_watermarks(at) for name, df in sources.items()]
    rows = streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]
    return rows.key_by("card").process(Total()).uid("total").to_dataframe(COLUMNS)


def writer(env: Any, sources: dict[str, Any], checkpoint: Path) -> Any:
    return (
        totals(env, sources)
        .writeStream.format("json")
        .option("path", f"{checkpoint}-out")
        .option("checkpointLocation", str(checkpoint))
    )


def main(home: Path, servers: str, topic: str) -> None:
    spark = session(home)
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(8)
    rows = read(spark, servers, topic, maxOffsetsPerTrigger=20)
    query = pillarbox.start(writer(env, {"payments": rows}, home / "killed").trigger(processingTime="0 seconds"))
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
