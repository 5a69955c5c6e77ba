"""``WriterStart``: a call to a writer's ``start`` or ``toTable``."""

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

# The writer's attribute with the ``foreachBatch`` function.
_FUNCTION = "_pillarbox_batch_function"


def note_batch_function(writer: Any, function: Callable[..., Any]) -> None:
    setattr(writer, _FUNCTION, function)


class WriterStart:
    """A repeatable call to a writer's ``start`` or ``toTable``, with its arguments and the writer's options."""

    def __init__(self, writer: Any, method: str, /, *arguments: Any, **options: Any) -> None:
        self.writer = writer
        self.spark: SparkSession = spark_of(writer)
        self._writer = session_of(self.spark).writer(writer)
        self._method = method
        self._arguments = arguments
        self._options = options

    def run(self) -> StreamingQuery:
        query: StreamingQuery = getattr(self.writer, self._method)(*self._arguments, **self._options)
        return query

    @cached_property
    def checkpoint(self) -> str | None:
        checkpoint = self._option("checkpointLocation")
        if checkpoint:
            return checkpoint
        name = self._bound.get("queryName") or self._option("queryName")
        root = self.spark.conf.get("spark.sql.streaming.checkpointLocation", None)
        return f"{root.rstrip('/')}/{name}" if root and name else None

    @property
    def dataframe(self) -> DataFrame:
        return self._writer.dataframe

    @property
    def trigger(self) -> str:
        return self._writer.trigger

    @property
    def is_available_now(self) -> bool:
        return self.trigger == "AvailableNowTrigger"

    @property
    def is_once(self) -> bool:
        return self.trigger == "OneTimeTrigger"

    def one_batch(self) -> AbstractContextManager[None]:
        """Within the block, a start runs one micro-batch: the uncommitted micro-batch, if any."""
        return self._writer.one_batch()

    @property
    def calls_function(self) -> bool:
        return self._format == "foreachbatch"

    @property
    def batch_function(self) -> Callable[..., Any] | None:
        function: Callable[..., Any] | None = getattr(self.writer, _FUNCTION, None) if self.calls_function else None
        return function

    @property
    def function_reads_all(self) -> bool:
        return bool(getattr(self.batch_function, "reads_every_batch", False))

    @property
    def passes_settings(self) -> bool:
        return self._writer.passes_settings

    @property
    def files(self) -> str | None:
        if "tableName" in self._bound:
            return self._files_of_table(self._bound["tableName"])
        if self._format not in _FILE_FORMATS:
            return None
        path = self._bound.get("path") or self._option("path")
        return str(path) if path else None

    def again(self, checkpoint: str, name: str) -> WriterStart:
        """Return a start of one micro-batch on another checkpoint, without output. Needs a classic session.

        It uses a new writer, because Spark's ``start`` changes the writer's options.
        """
        mode = self._bound.get("outputMode") or ClassicWriter(self.spark, self.writer).output_mode
        writer = self.dataframe.writeStream.format("noop").outputMode(mode).trigger(once=True)
        return WriterStart(writer, "start", checkpointLocation=checkpoint, queryName=name)

    def _files_of_table(self, table: str) -> str | None:
        if not self.spark.catalog.tableExists(table):
            return None
        rows = self.spark.sql(f"DESCRIBE EXTENDED {table}").collect()
        properties = {row.col_name: row.data_type for row in rows}
        return properties.get("Location") if str(properties.get("Provider")).lower() in _FILE_FORMATS else None

    @cached_property
    def _bound(self) -> dict[str, Any]:
        method = inspect.signature(getattr(self.writer, self._method))
        return method.bind(*self._arguments, **self._options).arguments

    @property
    def _format(self) -> str:
        return str(self._bound.get("format") or self._writer.format).lower()

    def _option(self, name: str) -> str | None:
        option = {key.lower(): value for key, value in self._bound.get("options", {}).items()}.get(name.lower())
        if option:
            return str(option)
        return self._writer.option(name)
