"""Three ways to run a program: as a streaming query, as a batch query, and in this process without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

import pillarbox
from examples.flights.data import FILES_PER_SLICE, SCHEMA, deal, heartbeat, slices, write_files
from examples.flights.job import Event, build
from examples.flights.oracle import Outcome, canonical
from pillarbox import DataStream, Program, StreamExecutionEnvironment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Job(NamedTuple):
    """A program.

    Attributes:
        build: creates the program's stream from a stream of flights.
        row: the class of the results.
    """

    build: Callable[[DataStream], DataStream]
    row: Any


EVENTS = Job(build, Event)


def start_streaming(
    spark: SparkSession,
    table: pa.Table,
    folder: Path,
    batches: int,
    parallelism: int,
    shuffle: int | None = None,
    job: Job = EVENTS,
) -> tuple[StreamingQuery, Program]:
    """Write the flights into ``folder``, and start the query on them. Results are Parquet files in ``folder/events``.

    Files of an earlier run are removed.
    """
    for name in ("flights", "events", "checkpoint"):
        shutil.rmtree(folder / name, ignore_errors=True)
    write_files(table, folder / "flights", batches, shuffle)
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_SLICE)
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(parallelism)
    stream = job.build(env.from_dataframe(source.parquet(str(folder / "flights")), name="flights"))
    plan = env.get_execution_graph()
    results = stream.to_dataframe(job.row)
    writer = (
        (counted(results) if job is EVENTS else results)
        .writeStream.format("parquet")
        .option("path", str(folder / "events"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
    )
    return pillarbox.start(writer), plan


def counted(events: DataFrame) -> DataFrame:
    """Add Spark's count of each kind of event, which appears in the query's progress."""
    from pyspark.sql import functions as F

    kinds = ("propagated", "silent", "untracked", "overdue")
    return events.observe("events", *(F.count_if(F.col("kind") == kind).alias(kind) for kind in kinds))


def run_streaming(
    spark: SparkSession,
    table: pa.Table,
    folder: Path,
    batches: int,
    parallelism: int,
    shuffle: int | None = None,
    job: Job = EVENTS,
) -> list[Outcome]:
    """Run the program as a streaming query with ``batches`` micro-batches, and one for the heartbeat."""
    query, _ = start_streaming(spark, table, folder, batches, parallelism, shuffle, job)
    query.awaitTermination()
    return collected(spark.read.parquet(str(folder / "events")), job)


def run_batch(spark: SparkSession, table: pa.Table, folder: Path, parallelism: int, job: Job = EVENTS) -> list[Outcome]:
    """Run the program as a batch query."""
    shutil.rmtree(folder / "flights", ignore_errors=True)
    write_files(table, folder / "flights", 1)
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(parallelism)
    source = spark.read.schema(SCHEMA).parquet(str(folder / "flights"))
    return collected(job.build(env.from_dataframe(source, name="flights")).to_dataframe(job.row), job)


def run_local(
    table: pa.Table,
    batches: int,
    parallelism: int,
    *,
    shuffle: int | None = None,
    forget: bool = False,
    job: Job = EVENTS,
) -> list[Outcome]:
    """Run the program in this process without Spark.

    Args:
        forget: whether new tasks replace all tasks after each epoch, and resume from their state.
    """
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    events: list[Any] = []
    with env.local_job(events=job.build(env.from_collection([]))) as running:
        for part in [*slices(table, batches), heartbeat(table)]:
            files = deal(part, FILES_PER_SLICE, shuffle) if part.num_rows > 1 else [part]
            partitions = [file.to_batches(max_chunksize=10_000) for file in files]
            events += running.run_epoch({0: partitions})["events"]
            if forget:
                running.reset()
    return canonical(events)


def read_events(spark: SparkSession, folder: Path) -> list[Outcome]:
    """Return the events that a streaming query has written."""
    return collected(spark.read.parquet(str(folder / "events")))


def collected(results: DataFrame, job: Job = EVENTS) -> list[Outcome]:
    """Return the rows of a DataFrame of results."""
    # By way of Arrow, instants keep their time zone; Spark's rows would have them in the driver's.
    rows: list[dict[str, Any]] = results.select(*job.row._fields).toArrow().to_pylist()
    return canonical([tuple(row.values()) for row in rows])
