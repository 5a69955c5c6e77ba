"""How a query is about to be started: by a writer's ``start`` or ``toTable``, and with which options.

A ``DataStreamWriter`` has no methods that return its options. Classic writers have private fields, writers of Spark
Connect a message.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pillarbox._runtime.spark.facts import change_writer, jvm, message_of, session_of, writer_field
from pillarbox._time.duration import to_millis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_FILE_FORMATS = frozenset({"avro", "csv", "json", "orc", "parquet", "text", "xml"})

# The attribute of a writer with the function of ``foreachBatch``.
_FUNCTION = "_pillarbox_batch_function"


def note_batch_function(writer: Any, function: Callable[..., Any]) -> None:
    """Keep the function that a writer was given by ``foreachBatch``."""
    setattr(writer, _FUNCTION, function)


class Start:
    """A start of a query, which can be repeated.

    Args:
        method: ``start`` or ``toTable``.
        arguments: the method's arguments.
        options: the method's options.

    Attributes:
        writer: a ``DataStreamWriter``, classic or of Spark Connect.
        spark: its session.
    """

    def __init__(self, writer: Any, method: str, /, *arguments: Any, **options: Any) -> None:
        self.writer = writer
        self.spark: SparkSession = session_of(writer)
        self._method = method
        self._arguments = arguments
        self._options = options
        # None: the writer is a classic one.
        self._proto = message_of(writer)

    def run(self) -> StreamingQuery:
        """Start the query."""
        query: StreamingQuery = getattr(self.writer, self._method)(*self._arguments, **self._options)
        return query

    # -- the query --

    @cached_property
    def checkpoint(self) -> str | None:
        """The checkpoint location; None: it is a new one.

        Raises:
            TypeError: the method cannot be called like that.
        """
        checkpoint = self._option("checkpointLocation")
        if checkpoint:
            return checkpoint
        name = self._given.get("queryName") or self._option("queryName")
        root = self.spark.conf.get("spark.sql.streaming.checkpointLocation", None)
        return f"{root.rstrip('/')}/{name}" if root and name else None

    @property
    def is_available_now(self) -> bool:
        """Whether its trigger is ``availableNow``."""
        return self._has_trigger("available_now", "AvailableNowTrigger")

    @property
    def is_once(self) -> bool:
        """Whether its trigger is ``once``."""
        return self._has_trigger("once", "OneTimeTrigger")

    @property
    def trigger(self) -> str:
        """Its trigger, as Spark's classic sessions name it, such as ``ProcessingTimeTrigger(1000)``."""
        if self._proto is None:
            return str(writer_field(self.writer, "trigger").toString())
        for field in ("available_now", "once"):
            if getattr(self._proto, field):
                return field
        interval = self._proto.processing_time_interval
        return f"ProcessingTimeTrigger({to_millis(interval) if interval else 0})"

    @contextmanager
    def one_batch(self) -> Iterator[None]:
        """Let it run one micro-batch meanwhile: the micro-batch that was not committed, if there is one."""
        proto = self._proto
        if proto is not None:
            saved = type(proto)()
            saved.CopyFrom(proto)
            proto.once = True
            try:
                yield
            finally:
                proto.CopyFrom(saved)
            return
        once = jvm(self.spark).org.apache.spark.sql.streaming.Trigger.Once()
        with self._changed("trigger", "trigger", once):
            yield

    # -- its sink --

    @property
    def calls_function(self) -> bool:
        """Whether it hands its micro-batches to a function of the user's: ``foreachBatch``."""
        return self._format == "foreachbatch" if self._proto is None else bool(self._proto.HasField("foreach_batch"))

    @property
    def batch_function(self) -> Callable[..., Any] | None:
        """The function of ``foreachBatch``; None: it has another sink."""
        found: Callable[..., Any] | None = getattr(self.writer, _FUNCTION, None) if self.calls_function else None
        return found

    @property
    def function_reads_all(self) -> bool:
        """Whether it has a function that reads all rows of each batch: pillarbox's own of ``for_each_batch()``."""
        return bool(getattr(self.batch_function, "reads_every_batch", False))

    @property
    def tasks_are_told(self) -> bool:
        """Whether settings of the session at its start reach the tasks of the query.

        A ``foreachBatch`` of Spark Connect runs each batch in the client's own session, as a query that is none.
        """
        return self._proto is None or not self.calls_function

    @property
    def files(self) -> str | None:
        """The directory that it writes files to; None: it does not."""
        if "tableName" in self._given:
            return self._files_of_table(self._given["tableName"])
        if self._format not in _FILE_FORMATS:
            return None
        path = self._given.get("path") or self._option("path")
        return str(path) if path else None

    @contextmanager
    def without_sink(self) -> Iterator[None]:
        """Let it write nowhere meanwhile. The session is a classic one."""
        with self._changed("source", "format", "noop"):
            yield

    @contextmanager
    def _changed(self, field: str, method: str, value: Any) -> Iterator[None]:
        """Have another value in a field of a classic writer meanwhile."""
        before = writer_field(self.writer, field)
        change_writer(self.writer, method, value)
        try:
            yield
        finally:
            change_writer(self.writer, method, before)

    def _files_of_table(self, table: str) -> str | None:
        if not self.spark.catalog.tableExists(table):
            return None
        rows = self.spark.sql(f"DESCRIBE EXTENDED {table}").collect()
        said = {row.col_name: row.data_type for row in rows}
        return said.get("Location") if str(said.get("Provider")).lower() in _FILE_FORMATS else None

    # -- options --

    @cached_property
    def _given(self) -> dict[str, Any]:
        """The arguments by their names."""
        method = inspect.signature(getattr(self.writer, self._method))
        return method.bind(*self._arguments, **self._options).arguments

    @property
    def _format(self) -> str:
        of_writer = writer_field(self.writer, "source") if self._proto is None else self._proto.format
        return str(self._given.get("format") or of_writer).lower()

    def _has_trigger(self, field: str, name: str) -> bool:
        if self._proto is not None:
            return bool(getattr(self._proto, field))
        return str(writer_field(self.writer, "trigger").toString()) == name

    def _option(self, name: str) -> str | None:
        """Return an option of the call, or else of the writer."""
        given = {key.lower(): value for key, value in self._given.get("options", {}).items()}.get(name.lower())
        if given:
            return str(given)
        if self._proto is None:
            found = writer_field(self.writer, "extraOptions").get(name)
            return str(found.get()) if found.isDefined() else None
        told = {key.lower(): str(value) for key, value in self._proto.options.items()}
        return told.get(name.lower()) or (self._proto.query_name or None if name == "queryName" else None)
