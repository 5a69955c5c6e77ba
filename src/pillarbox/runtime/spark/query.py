"""Queries that pillarbox looks after from start to end: :func:`start` in place of a writer's own.

Beside the checkpoint lies a description of the programs that it belongs to, so that a changed program is told of before
anything runs. A thread in the driver watches the query: it ends an ``availableNow`` query, which Spark would run for
ever where a program uses processing time, and has the functions closed when the query has ended.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pillarbox.errors import CheckpointMismatchError, ProgramError, describe
from pillarbox.graph import Program
from pillarbox.graph.description import compare, describe_programs, read_description
from pillarbox.runtime.spark import residency
from pillarbox.runtime.spark.metrics import metrics
from pillarbox.runtime.spark.session import task_slots, worker_pool
from pillarbox.runtime.spark.start import PlannedProgram, programs_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["start"]

_log = logging.getLogger("pillarbox")

# How often the progress of an `availableNow` query is looked at (seconds).
_LOOK_EVERY = 0.2
# Else the thread only waits for the end.
_WAIT = 5.0
# Rounds in which residents are looked for, at most.
_CLOSING_ROUNDS = 8


def start(
    writer: DataStreamWriter, path: str | None = None, *, table: str | None = None, **options: Any
) -> StreamingQuery:
    """Start a streaming query with a program of pillarbox, as ``writer.start()`` does, and look after it.

    - A program that cannot go on with the checkpoint is refused before anything runs: keyed levels or sources that were
      added or removed, another key, another parallelism, another uid. Of what may be such, a warning tells. For this, a
      description of the program is written into ``pillarbox/`` of the checkpoint location.
    - With ``trigger(availableNow=True)`` the query ends also where the program uses processing time: when all input is
      read, processing-time timers that were due by then have fired, and requests carried from epoch to epoch are
      answered. Later timers stay in the checkpoint. The end is ``query.stop()``: ``awaitTermination()`` returns, and
      ``exception()`` is None. It may come in the middle of a batch without input, which the next start runs again.
    - When the query has ended, the ``close()`` of its functions is called in the workers that are still there.

    Args:
        writer: of a program's ``to_dataframe(...).writeStream``, or of ``for_each_batch``.
        path: as of ``DataStreamWriter.start``.
        table: a table to write to, as of ``DataStreamWriter.toTable``.
        options: as of ``start`` or ``toTable``.

    Raises:
        CheckpointMismatchError: the checkpoint belongs to another program.
        ProgramError: the query has no program of pillarbox.
    """
    if table is not None and path is not None:
        raise ProgramError("start() takes a path or a table, not both")
    planned = programs_of(writer)
    if not planned:
        raise ProgramError(
            "start() takes the writer of a program, such as to_dataframe(...).writeStream or for_each_batch(...); start"
            " a query without a program of pillarbox by its writer's own start()"
        )
    writer = writer.options(**{name: value for name, value in options.items() if name not in _NAMED})
    if options.get("queryName") is not None:
        writer = writer.queryName(options["queryName"])
    spark: SparkSession = getattr(writer, "_spark", None) or writer._session  # type: ignore[attr-defined]
    settings = _settings_of(writer, spark)
    programs = [one.program for one in planned if one.program is not None]
    if settings.checkpoint is not None and len(programs) == len(planned):
        _Description(spark, settings.checkpoint).check(programs)
    query = writer.toTable(table, **options) if table is not None else writer.start(path, **options)
    ends = settings.available_now and any(program.uses_processing_time for program in programs)
    _Watch(spark, query, planned, ends=ends).start()
    return query


# -- what a writer was told --

# Arguments of `DataStreamWriter.start` that are no options.
_NAMED = ("format", "outputMode", "partitionBy", "queryName")


@dataclass(frozen=True)
class _Settings:
    """What a writer was told.

    Attributes:
        checkpoint: where its checkpoint is; None: Spark makes a new place for it.
    """

    checkpoint: str | None
    available_now: bool


def _settings_of(writer: Any, spark: SparkSession) -> _Settings:
    if hasattr(writer, "_write_proto"):  # Spark Connect
        proto = writer._write_proto
        options = {name.lower(): value for name, value in proto.options.items()}
        checkpoint, name = options.get("checkpointlocation"), proto.query_name or options.get("queryname")
        available_now = bool(proto.available_now)
    else:
        checkpoint, name = (_option(writer, option) for option in ("checkpointLocation", "queryName"))
        available_now = _field(writer, "trigger").toString() == "AvailableNowTrigger"
    if checkpoint is None and name:
        root = spark.conf.get("spark.sql.streaming.checkpointLocation", None)
        checkpoint = f"{root.rstrip('/')}/{name}" if root else None
    return _Settings(checkpoint, available_now)


def _field(writer: Any, name: str) -> Any:
    """Return a private field of Spark's writer, which has no way to ask for what it was told."""
    field = writer._jwrite.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(writer._jwrite)


def _option(writer: Any, name: str) -> str | None:
    found = _field(writer, "extraOptions").get(name)
    return str(found.get()) if found.isDefined() else None


# -- the description --


class _Description:
    """The descriptions of a query's programs, beside its checkpoint.

    They are written and read by Spark, so they can be wherever a checkpoint can. Each start with a changed program adds
    a file, so a driver that dies meanwhile leaves what there was. A description says from which batch on it holds: one
    of a program that never committed a batch, because it failed, or was refused further on, binds nobody.
    """

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._spark = spark
        self._checkpoint = checkpoint.rstrip("/")
        self._folder = f"{self._checkpoint}/pillarbox"

    def check(self, programs: Sequence[Program]) -> None:
        """Compare with the programs that the checkpoint belongs to; note what there is now.

        Raises:
            CheckpointMismatchError: it belongs to programs that these cannot take the place of.
        """
        now = describe_programs(programs)
        every = self._read()
        committed = self._last_committed()
        binding = [description for description in every if description["batch"] <= committed]
        if binding:
            self._compare(binding[-1], now)
        if not every or every[-1]["programs"] != now["programs"]:
            self._add({**now, "number": len(every) + 1, "batch": committed + 1})

    def _compare(self, then: dict[str, Any], now: dict[str, Any]) -> None:
        found = compare(then, now)
        if found.refused:
            changes = "".join(f"\n  - {what}" for what in found.refused)
            raise CheckpointMismatchError(
                f"the checkpoint {self._checkpoint} belongs to another program (as noted in {self._folder}):{changes}\n"
                "change it back, or start from a new checkpoint"
            )
        for what in found.doubtful:
            _log.warning("checkpoint %s: %s", self._checkpoint, what)

    def _read(self) -> list[dict[str, Any]]:
        """Return all descriptions, in the order in which they were written."""
        found = [read_description(line) for line in self._column(self._folder, "value")]
        return sorted((one for one in found if one is not None), key=itemgetter("number"))

    def _add(self, description: dict[str, Any]) -> None:
        text = json.dumps(description, sort_keys=True)
        written = self._spark.sql("SELECT :text AS value", args={"text": text})
        written.write.mode("append").option("compression", "none").text(self._folder)

    def _last_committed(self) -> int:
        """Return the number of the last micro-batch that was committed; -1 where there is none."""
        names = self._column(f"{self._checkpoint}/commits", "_metadata.file_name")
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def _column(self, folder: str, column: str) -> list[str]:
        from pyspark.errors import AnalysisException

        try:
            return [row[0] for row in self._spark.read.text(folder).select(column).collect()]
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            return []


# -- the end --


class EndOfWork:
    """Finds the micro-batch behind which an ``availableNow`` query has nothing left to do."""

    def __init__(self) -> None:
        # When the input ended: the time of the first batch without any (epoch ms).
        self._input_ended: int | None = None
        self._is_first = True

    def is_reached(self, progress: Any) -> bool:
        """Tell whether it is the one of this progress report; some reports may be left out.

        Of a batch without input, exactly the tasks with something due run, and report. The others have nothing to do by
        its time, which is no earlier than the end of the input. The first batch of a run says nothing: it may be one
        that the run before planned and did not finish, ahead of all input that has come since.
        """
        first, self._is_first = self._is_first, False
        if any(source["startOffset"] != source["endOffset"] for source in progress["sources"]):
            self._input_ended = None
            return False
        if first:
            return False
        if self._input_ended is None:
            self._input_ended = _millis(progress["timestamp"])
        return not any(self._has_work(report, self._input_ended) for report in metrics(progress))

    def _has_work(self, report: dict[str, Any], until: int) -> bool:
        wakes_up = report["next_wake_up"]
        return bool(report["unfinished"]) or (wakes_up is not None and wakes_up <= until)


class _Watch(threading.Thread):
    """Waits for the end of a query, or brings it about.

    Args:
        ends: whether the query is to end when there is nothing left to do.
    """

    def __init__(self, spark: SparkSession, query: StreamingQuery, planned: Sequence[PlannedProgram], *, ends: bool):
        super().__init__(name=f"pillarbox query {query.id}", daemon=True)
        self._spark = spark
        self._query: Any = query
        self._pools = [pool for one in planned for pool in one.pools]
        self._end = EndOfWork() if ends else None

    def run(self) -> None:
        """Watch."""
        try:
            self._wait()
        except Exception as error:
            # The query's own failure is raised where the user waits for it.
            _log.debug("query %s ended: %s", self._query.id, describe(error))
        try:
            close_functions(self._spark, str(self._query.id), self._pools)
        except Exception as error:
            _log.debug("the functions of query %s were not closed: %s", self._query.id, describe(error))

    def _wait(self) -> None:
        if self._end is None:
            while not self._query.awaitTermination(_WAIT):
                pass
            return
        looked_at = None
        while not self._query.awaitTermination(_LOOK_EVERY):
            progress = self._query.lastProgress
            if progress is not None and progress["batchId"] != looked_at:
                looked_at = progress["batchId"]
                if self._end.is_reached(progress):
                    self._query.stop()


def _millis(timestamp: str) -> int:
    return int(datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp() * 1000)


# -- closing --


class _Closer:
    """The function for ``mapInArrow`` that closes what the worker holds of a query; a row is how many that was."""

    def __init__(self, query: str) -> None:
        self._query = query

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"closed": [residency.here.close_query(self._query)]})


def close_functions(spark: SparkSession, query: str, pools: Sequence[str]) -> None:
    """Close the residents of a query that has ended, in the workers that are idle now.

    Nobody can ask for a certain worker. But Spark hands a task to the one that has been idle the longest, so more tasks
    than there are workers reach all of them. They are asked again as long as some had residents.
    """
    tasks = 2 * task_slots(spark)
    for pool in (None, *pools):
        for _ in range(_CLOSING_ROUNDS):
            with worker_pool(spark, pool):
                closing = spark.range(0, tasks, 1, tasks).mapInArrow(_Closer(query), "closed LONG")
            if not sum(row[0] for row in closing.collect()):
                break
