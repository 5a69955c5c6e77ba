"""Three ways to run the program: a streaming query, a batch query, and this process alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data import SCHEMA, heartbeat, slices, write_files
from job import Event, build
from oracle import sort
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pillarbox import Row, StreamExecutionEnvironment
from pillarbox.elements import Records
from pillarbox.runtime.local import LocalJob

FILES_PER_BATCH = 3


def environment(spark: SparkSession | None, parallelism: int) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(parallelism)


def start_streaming(
    spark: SparkSession, rows: list[dict[str, Any]], folder: Path, batches: int, parallelism: int
) -> tuple[StreamExecutionEnvironment, StreamingQuery]:
    """Start the query over files in ``folder``; its events go to Parquet files there."""
    shutil.rmtree(folder, ignore_errors=True)
    write_files(rows, folder / "flights", batches, FILES_PER_BATCH)
    source = (
        spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_BATCH).parquet(str(folder / "flights"))
    )
    env = environment(spark, parallelism)
    events = build(env.from_dataframe(source, name="flights")).to_dataframe()
    query = (
        events.writeStream.format("parquet")
        .option("path", str(folder / "events"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    return env, query


def read_events(spark: SparkSession, folder: Path) -> list[Event]:
    """Give the events that a streaming query has written, sorted."""
    return collected(spark.read.parquet(str(folder / "events")))


def collected(df: Any) -> list[Event]:
    # Arrow keeps the time zone; rows by collect() would be in the driver's.
    return sort([tuple(row.values()) for row in df.toArrow().to_pylist()])


def run_streaming(
    spark: SparkSession, rows: list[dict[str, Any]], folder: Path, batches: int, parallelism: int
) -> list[Event]:
    _, query = start_streaming(spark, rows, folder, batches, parallelism)
    query.awaitTermination()
    return read_events(spark, folder)


def run_batch(spark: SparkSession, rows: list[dict[str, Any]], folder: Path, parallelism: int) -> list[Event]:
    shutil.rmtree(folder, ignore_errors=True)
    write_files(rows, folder / "flights", 1, FILES_PER_BATCH)
    source = spark.read.schema(SCHEMA).parquet(str(folder / "flights"))
    return collected(build(environment(spark, parallelism).from_dataframe(source)).to_dataframe())


def run_local(
    rows: list[dict[str, Any]], batches: int, parallelism: int, between: Callable[[LocalJob], None] | None = None
) -> list[Event]:
    """Run without Spark: the same tasks, epoch by epoch, in this process; ``between`` is called after each epoch."""
    env = environment(None, parallelism)
    out = build(env.from_collection([]))
    epochs = [*slices(rows, batches), [heartbeat(rows)]]
    events: list[Any] = []
    with env.local_job(events=out) as job:
        for epoch in epochs:
            parts = [epoch[start::FILES_PER_BATCH] for start in range(FILES_PER_BATCH)]
            partitions = [[Records([Row.of(**row) for row in part])] for part in parts]
            events += job.run_epoch({0: partitions})["events"]
            if between is not None:
                between(job)
    return sort(events)
