"""Accesses classic sessions, whose driver is this process's JVM."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pillarbox._runtime.spark.session.folders import HadoopFolder
from pillarbox._runtime.spark.session.java import java_class, jvm, plan_steps, writer_field
from pillarbox._runtime.spark.session.session import Session, SessionWriter
from pillarbox._runtime.spark.session.spark_names import JOB_GROUP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Settings whose values may differ between a session and its application.
_SESSION_SETTINGS = (
    "spark.pillarbox.homes",
    "spark.sql.shuffle.partitions",
    "spark.sql.session.timeZone",
    "spark.sql.execution.arrow.maxRecordsPerBatch",
    "spark.sql.execution.arrow.maxBytesPerBatch",
    "spark.sql.streaming.minBatchesToRetain",
    "spark.sql.streaming.numRecentProgressUpdates",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
)


class ClassicSession(Session):
    """A classic session."""

    has_jvm = True

    @property
    def is_stopped(self) -> bool:
        return self.spark.sparkContext._jsc is None

    def settings(self) -> dict[str, str]:
        # A single string, because a call to Java for each setting would take too long.
        lines = self.spark.sparkContext.getConf().toDebugString().splitlines()
        settings = {name: value for name, _, value in (line.partition("=") for line in lines)}
        own = {name: self.spark.conf.get(name, None) for name in _SESSION_SETTINGS}
        return {**settings, **{name: value for name, value in own.items() if value is not None}}

    def java_version(self) -> str | None:
        return str(java_class(self.spark, "java.lang.System").getProperty("java.version"))

    def default_parallelism(self) -> int | None:
        return int(self.spark.sparkContext.defaultParallelism)

    def worker_python(self) -> str | None:
        return str(self.spark.sparkContext.pythonExec)

    def local_executor(self) -> int | None:
        if not re.match(r"local(\[|$)", self.spark.sparkContext.master):
            return None
        return int(java_class(self.spark, "java.lang.ProcessHandle").current().pid())

    @property
    def shows_progress_bar(self) -> bool:
        return bool(self.spark.sparkContext.getConf().get("spark.ui.showConsoleProgress", "false") == "true")

    @contextmanager
    def job_group(self, description: str) -> Iterator[None]:
        context, group = self.spark.sparkContext, uuid.uuid4().hex
        context.setJobGroup(group, description, True)
        try:
            yield
        except BaseException:
            context.cancelJobGroup(group)
            raise
        finally:
            for name in (JOB_GROUP, "spark.job.description", "spark.job.interruptOnCancel"):
                context.setLocalProperty(name, None)

    def running_jobs(self, group: str) -> list[int] | None:
        tracker = self.spark.sparkContext.statusTracker()
        running = set(tracker.getActiveJobsIds())
        if not running:
            return []
        # A single string, because each number of a Java array would take a call. Spark retains a thousand ended jobs.
        numbers = java_class(self.spark, "java.util.Arrays").toString(tracker._jtracker.getJobIdsForGroup(group))
        return sorted(running.intersection(json.loads(numbers)))

    def folder(self, path: str) -> HadoopFolder:
        return HadoopFolder(self.spark, path)

    def hadoop_folder(self, path: str) -> HadoopFolder | None:
        return HadoopFolder(self.spark, path)

    def plan_steps(self, df: DataFrame) -> list[Any] | None:
        return plan_steps(df)

    def aliases(self, df: DataFrame) -> str:
        # The string of the whole plan is truncated.
        return "\n".join(step.simpleString(1) for step in plan_steps(df) if step.nodeName() == "SubqueryAlias")

    def analyzed_now(self, df: DataFrame) -> DataFrame:
        return df

    def writer_class(self) -> type[Any]:
        from pyspark.sql.streaming.readwriter import DataStreamWriter

        return DataStreamWriter

    def writer(self, writer: Any) -> ClassicWriter:
        return ClassicWriter(self.spark, writer)


class ClassicWriter(SessionWriter):
    """The options of a classic ``DataStreamWriter``, which are private Java fields."""

    passes_settings = True

    def __init__(self, spark: Any, writer: Any) -> None:
        self._spark = spark
        self._writer = writer

    @property
    def dataframe(self) -> DataFrame:
        return self._writer._df  # type: ignore[no-any-return]

    @property
    def trigger(self) -> str:
        return str(writer_field(self._writer, "trigger").toString())

    @property
    def format(self) -> str:
        return str(writer_field(self._writer, "source"))

    def option(self, name: str) -> str | None:
        value = writer_field(self._writer, "extraOptions").get(name)
        return str(value.get()) if value.isDefined() else None

    @property
    def output_mode(self) -> str:
        return str(writer_field(self._writer, "outputMode").toString())

    @contextmanager
    def one_batch(self) -> Iterator[None]:
        before = writer_field(self._writer, "trigger")
        self._set_trigger(jvm(self._spark).org.apache.spark.sql.streaming.Trigger.Once())
        try:
            yield
        finally:
            self._set_trigger(before)

    def _set_trigger(self, trigger: Any) -> None:
        self._writer._jwrite = self._writer._jwrite.trigger(trigger)
