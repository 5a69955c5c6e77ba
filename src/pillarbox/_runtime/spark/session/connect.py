"""Accesses Spark Connect sessions, whose driver is a server that accepts only plans."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from pillarbox._runtime.spark.session.folders import HadoopFolder, SparkFolder
from pillarbox._runtime.spark.session.session import Session, SessionWriter
from pillarbox._runtime.spark.session.session_settings import session_settings
from pillarbox._time.duration import to_millis

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PLAN_LENGTH = "spark.sql.maxPlanStringLength"
# Maximum length of a Java array.
_WHOLE = str(2**31 - 1 - 15)


class ConnectSession(Session):
    """A Spark Connect session."""

    has_jvm = False

    @property
    def is_stopped(self) -> bool:
        return bool(self.spark.is_stopped)

    def settings(self) -> dict[str, str]:
        return {str(name): str(value) for name, value in self.spark.conf.getAll.items()}

    def java_version(self) -> str | None:
        return None

    def default_parallelism(self) -> int | None:
        value = self.spark.conf.get("spark.default.parallelism", None)
        return None if value is None else int(value)

    def worker_python(self) -> str | None:
        return None

    def local_executor(self) -> int | None:
        return None

    @property
    def shows_progress_bar(self) -> bool:
        return False

    def job_group(self, description: str) -> AbstractContextManager[None]:
        return nullcontext()

    def running_jobs(self, group: str) -> list[int] | None:
        return None

    def folder(self, path: str) -> SparkFolder:
        return SparkFolder(self.spark, path)

    def hadoop_folder(self, path: str) -> HadoopFolder | None:
        return None

    def plan_steps(self, df: DataFrame) -> list[Any] | None:
        return None

    def aliases(self, df: DataFrame) -> str:
        # Needs the full text, because only the server resolves views.
        is_whole = self.spark.conf.get(_PLAN_LENGTH, _WHOLE) == _WHOLE
        with session_settings(self.spark, {} if is_whole else {_PLAN_LENGTH: _WHOLE}):
            plans = str(df._explain_string(mode="extended"))  # type: ignore[operator]
        return plans.partition("== Analyzed Logical Plan ==")[2].partition("== Optimized Logical Plan ==")[0]

    def analyzed_now(self, df: DataFrame) -> DataFrame:
        return df.localCheckpoint(eager=False)

    def writer_class(self) -> type[Any]:
        from pyspark.sql.connect.streaming.readwriter import DataStreamWriter

        return DataStreamWriter

    def writer(self, writer: Any) -> ConnectWriter:
        return ConnectWriter(writer)


class ConnectWriter(SessionWriter):
    """The options of a Spark Connect ``DataStreamWriter``, a protobuf message."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._proto = writer._write_proto
        # A foreachBatch function runs each batch in the client's own session.
        self.passes_settings = not self._proto.HasField("foreach_batch")

    @property
    def dataframe(self) -> DataFrame:
        from pyspark.sql.connect.dataframe import DataFrame

        return DataFrame(self._writer._write_stream._child, self._writer._session)

    @property
    def trigger(self) -> str:
        if self._proto.available_now:
            return "AvailableNowTrigger"
        if self._proto.once:
            return "OneTimeTrigger"
        interval = self._proto.processing_time_interval
        return f"ProcessingTimeTrigger({to_millis(interval) if interval else 0})"

    @property
    def format(self) -> str:
        return "foreachbatch" if self._proto.HasField("foreach_batch") else str(self._proto.format)

    def option(self, name: str) -> str | None:
        options = {key.lower(): str(value) for key, value in self._proto.options.items()}
        return options.get(name.lower()) or (self._proto.query_name or None if name == "queryName" else None)

    @contextmanager
    def one_batch(self) -> Iterator[None]:
        proto = self._proto
        saved = type(proto)()
        saved.CopyFrom(proto)
        proto.once = True
        try:
            yield
        finally:
            proto.CopyFrom(saved)
