"""Queries for the dashboard: healthy, with a slow sink, stuck, and failed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import pillarbox
from pillarbox import (
    DataStream,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)

#: When the first payment was made (epoch ms).
FIRST = 1_700_000_000_000
SCHEMA = "card STRING, amount LONG, at LONG"


class Count(KeyedProcessFunction):
    """Counts a card's payments until an hour without payments. Raises for a negative amount."""

    def open(self, ctx: Any) -> None:
        self.seen = ctx.get_state(ValueStateDescriptor("seen"))
        self.timer = ctx.get_state(ValueStateDescriptor("timer"))

    def process_element(self, payment: Any, ctx: Any) -> Any:
        if payment.amount < 0:
            raise ValueError(f"an amount of {payment.amount}")
        self.seen.update((self.seen.value() or 0) + 1)
        timers = ctx.timer_service()
        if self.timer.value() is not None:
            timers.delete_event_time_timer(self.timer.value())
        self.timer.update(payment.at + 3_600_000)
        timers.register_event_time_timer(payment.at + 3_600_000)
        yield payment.card, self.seen.value()

    def on_timer(self, timestamp: int, ctx: Any) -> None:
        self.seen.clear()
        self.timer.clear()


class Inbox:
    """A folder of JSON files that a query reads, one file per epoch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._number = 0

    def put(self, *payments: tuple[str, int, int]) -> None:
        self._number += 1
        lines = [{"card": card, "amount": amount, "at": FIRST + 1000 * at} for card, amount, at in payments]
        hidden = self.folder / f".{self._number}"
        hidden.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        hidden.rename(self.folder / f"{self._number:06d}.json")

    def read(self, spark: SparkSession) -> DataFrame:
        files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(self.folder))
        return files.select("*", "_metadata")


def counts(spark: SparkSession, *inboxes: Inbox, uid: str = "count") -> DataStream:
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)
    times = WatermarkStrategy.for_bounded_out_of_orderness("1 minute").with_timestamp_assigner("at")
    streams = [
        env.from_dataframe(inbox.read(spark)).name(inbox.folder.name).assign_timestamps_and_watermarks(times)
        for inbox in inboxes
    ]
    every = streams[0] if len(streams) == 1 else streams[0].union(*streams[1:])
    return (
        every.filter(lambda payment: payment.card != "test").name("no tests").key_by("card").process(Count()).uid(uid)
    )


def started(stream: DataStream, checkpoint: Path, name: str, **options: Any) -> Any:
    writer = stream.to_dataframe("card STRING, seen LONG").writeStream.format("noop").queryName(name)
    return pillarbox.start(writer.option("checkpointLocation", str(checkpoint)), **options)


def slow_sink(stream: DataStream, checkpoint: Path, seconds: float) -> Any:
    """Return a query whose sink takes ``seconds`` for each Arrow batch.

    The rows are wide, because the sockets between the processes buffer some megabytes. (Spark's ``foreach`` would take
    all rows at once, and store them on disk.)
    """

    def slowly(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            time.sleep(seconds)
            yield batch

    def write(rows: DataFrame, number: int) -> None:
        rows.sparkSession.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
        rows.mapInArrow(slowly, rows.schema).write.format("noop").mode("overwrite").save()

    wide = stream.map(lambda counted: (counted[0].ljust(2000), counted[1])).name("wide")
    writer = wide.to_dataframe("card STRING, seen LONG").writeStream.foreachBatch(write).queryName("slow sink")
    return pillarbox.start(writer.option("checkpointLocation", str(checkpoint)))
