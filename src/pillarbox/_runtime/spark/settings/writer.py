"""The options of a ``DataStreamWriter``, which it has no methods for.

Classic writers have private fields, those of Spark Connect a message.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "batch_function",
    "calls_function",
    "checkpoint_of",
    "files_of",
    "is_available_now",
    "is_once",
    "note_batch_function",
    "one_batch",
    "runs_every_plan",
    "session_of",
    "tasks_are_told",
    "without_sink",
]

_FILE_FORMATS = frozenset({"avro", "csv", "json", "orc", "parquet", "text", "xml"})
# Spark's sinks that read the rows of each batch they are given, also of one that they were given before.
_READING_SINKS = frozenset({"console", "foreach", "kafka", "memory", "noop"})

# The attribute of a writer with the function of ``foreachBatch``.
_FUNCTION = "_pillarbox_batch_function"


def session_of(writer: Any) -> SparkSession:
    """Return the session of a writer, classic or of Spark Connect."""
    return writer._spark if hasattr(writer, "_spark") else writer._session  # type: ignore[no-any-return]


def is_available_now(writer: Any) -> bool:
    """Return whether its trigger is ``availableNow``."""
    if _is_connect(writer):
        return bool(writer._write_proto.available_now)
    return str(_field(writer, "trigger").toString()) == "AvailableNowTrigger"


def calls_function(writer: Any) -> bool:
    """Return whether it hands its micro-batches to a function of the user's: ``foreachBatch``."""
    if _is_connect(writer):
        return bool(writer._write_proto.HasField("foreach_batch"))
    return str(_field(writer, "source")).lower() == "foreachbatch"


def is_once(writer: Any) -> bool:
    """Return whether its trigger is ``once``."""
    if _is_connect(writer):
        return bool(writer._write_proto.once)
    return str(_field(writer, "trigger").toString()) == "OneTimeTrigger"


def checkpoint_of(writer: Any, start: Callable[..., Any], *args: Any, **options: Any) -> str | None:
    """Return the checkpoint location of the query that ``start(*args, **options)`` starts, or None for a new one.

    Args:
        start: ``start`` or ``toTable`` of the writer.

    Raises:
        TypeError: it cannot be called like that.
    """
    given = inspect.signature(start).bind(*args, **options).arguments
    told = {name.lower(): value for name, value in given.get("options", {}).items()}
    checkpoint = told.get("checkpointlocation") or _option(writer, "checkpointLocation")
    if checkpoint:
        return str(checkpoint)
    name = given.get("queryName") or told.get("queryname") or _option(writer, "queryName")
    root = session_of(writer).conf.get("spark.sql.streaming.checkpointLocation", None)
    return f"{root.rstrip('/')}/{name}" if root and name else None


def files_of(writer: Any, start: Callable[..., Any], *args: Any, **options: Any) -> str | None:
    """Return the directory that the query of ``start(*args, **options)`` writes files to; None: it does not."""
    given = inspect.signature(start).bind(*args, **options).arguments
    if "tableName" in given:
        return _files_of_table(session_of(writer), given["tableName"])
    told = {name.lower(): value for name, value in given.get("options", {}).items()}
    if _format_of(writer, given) not in _FILE_FORMATS:
        return None
    path = given.get("path") or told.get("path") or _option(writer, "path")
    return str(path) if path else None


def note_batch_function(writer: Any, function: Callable[..., Any]) -> None:
    """Keep the function that a writer was given by ``foreachBatch``."""
    setattr(writer, _FUNCTION, function)


def batch_function(writer: Any) -> Callable[..., Any] | None:
    """Return the function of ``foreachBatch``; None: the writer has another sink."""
    found: Callable[..., Any] | None = getattr(writer, _FUNCTION, None) if calls_function(writer) else None
    return found


def runs_every_plan(writer: Any, start: Callable[..., Any], *args: Any, **options: Any) -> bool:
    """Return whether the sink reads the rows of each batch, also of one that it was given before.

    File sinks skip a batch that is in their log, and tables may do so. A function of ``foreachBatch`` may return early,
    but in a classic session
    :func:`~pillarbox._runtime.spark.starting.interrupted_batch.interrupted_batch_is_read` sees to it.
    """
    given = inspect.signature(start).bind(*args, **options).arguments
    if "tableName" in given:
        return False
    function = batch_function(writer)
    if function is not None:
        return not _is_connect(writer) or bool(getattr(function, "reads_every_batch", False))
    return _format_of(writer, given) in _READING_SINKS


def _format_of(writer: Any, given: dict[str, Any]) -> str:
    kind = writer._write_proto.format if _is_connect(writer) else _field(writer, "source")
    return str(given.get("format") or kind).lower()


def _files_of_table(spark: SparkSession, table: str) -> str | None:
    if not spark.catalog.tableExists(table):
        return None
    rows = spark.sql(f"DESCRIBE EXTENDED {table}").collect()
    said = {row.col_name: row.data_type for row in rows}
    return said.get("Location") if str(said.get("Provider")).lower() in _FILE_FORMATS else None


def tasks_are_told(writer: Any) -> bool:
    """Return whether settings of the session at its start reach the tasks of the query.

    A ``foreachBatch`` of Spark Connect runs each batch in the client's own session, as a query that is none.
    """
    return not (_is_connect(writer) and writer._write_proto.HasField("foreach_batch"))


@contextmanager
def one_batch(writer: Any) -> Iterator[None]:
    """Let a query that is started meanwhile run one micro-batch: the one that was not committed, if there is one."""
    if _is_connect(writer):
        proto = writer._write_proto
        saved = type(proto)()
        saved.CopyFrom(proto)
        proto.once = True
        try:
            yield
        finally:
            proto.CopyFrom(saved)
        return
    before = _field(writer, "trigger")
    trigger = writer._spark.sparkContext._jvm.org.apache.spark.sql.streaming.Trigger
    writer._jwrite = writer._jwrite.trigger(trigger.Once())
    try:
        yield
    finally:
        writer._jwrite = writer._jwrite.trigger(before)


@contextmanager
def without_sink(writer: Any) -> Iterator[None]:
    """Let a query that is started meanwhile write nowhere. The session is a classic one."""
    before = _field(writer, "source")
    writer._jwrite = writer._jwrite.format("noop")
    try:
        yield
    finally:
        writer._jwrite = writer._jwrite.format(before)


def _is_connect(writer: Any) -> bool:
    return hasattr(writer, "_write_proto")


def _option(writer: Any, name: str) -> str | None:
    if _is_connect(writer):
        proto = writer._write_proto
        told = {key.lower(): str(value) for key, value in proto.options.items()}
        return told.get(name.lower()) or (proto.query_name or None if name == "queryName" else None)
    found = _field(writer, "extraOptions").get(name)
    return str(found.get()) if found.isDefined() else None


def _field(writer: Any, name: str) -> Any:
    field = writer._jwrite.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(writer._jwrite)
