# SPDX-License-Identifier: Apache-2.0
"""Streaming queries that receive micro-batches one by one."""

from __future__ import annotations

import importlib
import os
import shutil
import time
from collections.abc import Callable, Mapping
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness.findings import examine_queries, notice_queries
from benchmarks.harness.machine import cpu_seconds
from benchmarks.harness.process import carry_whole
from benchmarks.harness.rows import SUBTASKS, observed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from pillarbox import TaskReport

STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
TASK_METRICS = ("busy_ms", "state_ms", "back_pressured_ms", "idle_ms", "state_sync")


class SteppedQuery:
    """A streaming query over Parquet files. Each directory that is moved in is one micro-batch.

    The directory is then removed, because a waiting query keeps listing files, which would slow down other sides.
    """

    def __init__(self, spark: SparkSession, directory: Path, schema: str) -> None:
        self._directory = directory
        self._arrived = directory / "in"
        # Spark evaluates a glob again each time, and a directory appears atomically. The glob must match something from
        # the start.
        (self._arrived / "nothing").mkdir(parents=True, exist_ok=True)
        self._number = 0
        self.source = spark.readStream.schema(schema).parquet(str(self._arrived / "*"))

    def start(
        self, result: DataFrame, start: Callable[[DataStreamWriter], StreamingQuery] = methodcaller("start")
    ) -> StreamingQuery:
        """Start to consume ``result`` as cheaply as possible.

        Args:
            start: starts the writer, by default with its own method.
        """
        checkpoint = str(self._directory / "checkpoint")
        self._query = start(result.writeStream.format("noop").option("checkpointLocation", checkpoint))
        return self._query

    def step(self, batch: str | Path) -> StreamingQueryProgress:
        """Run a micro-batch of the files in the directory ``batch``, which is moved."""
        shutil.move(batch, self._arrived / Path(batch).name)
        self._query.processAllAvailable()
        number, self._number = self._number, self._number + 1
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for progress in self._query.recentProgress:
                if progress.batchId == number and progress.numInputRows:
                    shutil.rmtree(self._arrived / Path(batch).name)
                    return progress
            time.sleep(0.02)
        raise SystemExit(f"Spark reported no progress of micro-batch {number}")

    def stop(self) -> None:
        """Stop the query."""
        self._query.stop()


def run_to_the_end(result: Callable[[], DataFrame], checkpoint: Path) -> tuple[float, list[Row], StreamingQuery]:
    """Run a query from its start, with rows waiting, until all rows are processed.

    Returns:
        the seconds from building the query to its first rows at the sink, all rows, and the ended query.
    """
    out: list[Row] = []
    seconds = 0.0

    def take(batch: DataFrame, _: int) -> None:
        nonlocal seconds
        rows = batch.collect()
        if rows and not out:
            seconds = time.perf_counter() - started
        out.extend(rows)

    started = time.perf_counter()
    writer = result().writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return seconds, out, query


# For other sides, because `local_session` makes workers start with pillarbox's modules.
AS_SPARK_COMES = {"spark__python__daemon__module": "pyspark.daemon"}


def step_settings(memory: str) -> dict[str, str]:
    """Return a session's settings for stepped queries, with ``__`` for dots."""
    return {
        "spark__driver__memory": memory,
        "spark__sql__streaming__noDataMicroBatches__enabled": "false",
        "spark__sql__streaming__pollingDelay": "250ms",  # so that a waiting side hardly slows down others
        # For all sides: pillarbox's settings for its queries (on Spark 4.3).
        "spark__sql__streaming__stateStore__providerClass": STATE_STORE,
        "spark__sql__streaming__stateStore__rocksdb__changelogCheckpointing__enabled": "true",
        "spark__sql__streaming__stateStore__checkpointFormatVersion": "2",
        "spark__log__level": "ERROR",
    }


def task_reports(progress: StreamingQueryProgress, level: int = 1) -> list[TaskReport]:
    """Return the task reports of a level in a micro-batch: 0 for sources, 1 for keyed subtasks."""
    from pillarbox import metrics  # sides without pillarbox do not load it

    return [task for task in metrics(progress) if task.level == level]


class SparkSide:
    """A side with its own Spark.

    Args:
        directory: the folder for files of Spark and the side.
        settings: Spark's settings, with ``__`` for dots.
        slots: number of concurrent tasks.
        ours: whether its queries use pillarbox. If False, Spark has its default settings.
    """

    def __init__(
        self, directory: str, settings: Mapping[str, str], *, slots: int = SUBTASKS, ours: bool = True
    ) -> None:
        from pillarbox import local_session

        self.directory = Path(directory)
        defaults = {"spark__local__dir": f"{directory}/local", **settings, **({} if ours else AS_SPARK_COMES)}
        self.spark = local_session(slots, **defaults)
        if ours:
            notice_queries()

    def close(self) -> None:
        """Stop Spark."""
        examine_queries()
        self.spark.stop()


class Stepped(SparkSide):
    """A side with queries that receive micro-batches on request.

    Args:
        module: the case's module, with ``SCHEMA`` (the rows' columns) and ``query``, which creates a query over a
            streaming DataFrame.
    """

    def __init__(self, module: str, directory: str, memory: str, *, ours: bool) -> None:
        super().__init__(directory, step_settings(memory), ours=ours)
        self._case = importlib.import_module(module)
        carry_whole(self._case)
        self._queries: dict[str, SteppedQuery] = {}

    def begin(self, name: str, directory: str, settings: Mapping[str, str], question: Mapping[str, Any]) -> None:
        """Start a query with its own settings."""
        for setting, value in settings.items():
            self.spark.conf.set(setting, value)
        self._queries[name] = query = SteppedQuery(self.spark, Path(directory), self._case.SCHEMA)
        self.start(query, observed(self._case.query(query.source, question)))

    def start(self, query: SteppedQuery, result: DataFrame) -> None:
        """Start a query."""
        query.start(result)

    def step(self, name: str, batch: str) -> dict[str, Any]:
        """Run a micro-batch of a query."""
        before = cpu_seconds(os.getpid())
        progress = self._queries[name].step(batch)
        return {
            "ms": progress.durationMs["triggerExecution"],
            "cpu": cpu_seconds(os.getpid()) - before,
            "results": [value or 0 for value in progress.observedMetrics["results"]],
            "tasks": [{name: getattr(task, name) for name in TASK_METRICS} for task in task_reports(progress)],
        }

    def end(self, name: str) -> None:
        """Stop a query."""
        self._queries.pop(name).stop()
