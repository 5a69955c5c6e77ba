"""The start of a query: by a writer's ``start`` or ``toTable``, and with which options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pillarbox._runtime.spark.session.classic import ClassicWriter
from pillarbox._runtime.spark.session.session import session_of, spark_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession
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
        self.spark: SparkSession = spark_of(writer)
        self._writer = session_of(self.spark).writer(writer)
        self._method = method
        self._arguments = arguments
        self._options = options

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
    def dataframe(self) -> DataFrame:
        """What it writes."""
        return self._writer.dataframe

    @property
    def trigger(self) -> str:
        """Its trigger by the name of Spark's class, such as ``ProcessingTimeTrigger(1000)``."""
        return self._writer.trigger

    @property
    def is_available_now(self) -> bool:
        """Whether its trigger is ``availableNow``."""
        return self.trigger == "AvailableNowTrigger"

    @property
    def is_once(self) -> bool:
        """Whether its trigger is ``once``."""
        return self.trigger == "OneTimeTrigger"

    def one_batch(self) -> AbstractContextManager[None]:
        """Let it run one micro-batch in this block: an interrupted one first."""
        return self._writer.one_batch()

    # -- its sink --

    @property
    def calls_function(self) -> bool:
        """Whether it hands its micro-batches to a function of the user's: ``foreachBatch``."""
        return self._format == "foreachbatch"

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
    def passes_settings(self) -> bool:
        """Whether the session's settings at its start reach the tasks of the query."""
        return self._writer.passes_settings

    @property
    def files(self) -> str | None:
        """The directory that it writes files to; None: it does not."""
        if "tableName" in self._given:
            return self._files_of_table(self._given["tableName"])
        if self._format not in _FILE_FORMATS:
            return None
        path = self._given.get("path") or self._option("path")
        return str(path) if path else None

    def without_sink(self) -> AbstractContextManager[None]:
        """Let it write nowhere in this block. The session is a classic one."""
        return ClassicWriter(self.spark, self.writer).without_sink()

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
        return str(self._given.get("format") or self._writer.format).lower()

    def _option(self, name: str) -> str | None:
        """Return an option of the call, or else of the writer."""
        given = {key.lower(): value for key, value in self._given.get("options", {}).items()}.get(name.lower())
        if given:
            return str(given)
        return self._writer.option(name)
