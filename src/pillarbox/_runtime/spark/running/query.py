"""Managed queries, which :func:`start` starts.

A thread in the driver watches the query. With processing time, Spark would run an ``availableNow`` query forever, so
this thread ends it.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn

from pillarbox._elements.task_report import TaskReport
from pillarbox._errors import ProgramError, describe, shorten
from pillarbox._reports.progress import millis, tasks_of
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.plan.registry import RegisteredProgram, programs_of, wanted_parallelism
from pillarbox._runtime.spark.running.ending import end_query, finish_epoch
from pillarbox._runtime.spark.running.heartbeat import Pulse
from pillarbox._runtime.spark.running.other_driver import check_no_other_driver
from pillarbox._runtime.spark.running.progress_reader import ProgressReader
from pillarbox._runtime.spark.running.request_watch import RequestWatch
from pillarbox._runtime.spark.session.writer import WriterStart
from pillarbox._runtime.spark.starting.closing import close_started
from pillarbox._runtime.spark.starting.rescale import check_spark, rescale
from pillarbox._runtime.spark.starting.start import changes_refused
from pillarbox._runtime.spark.starting.started import StartedQuery, find
from pillarbox._runtime.spark.tools import Progress

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_log = logging.getLogger("pillarbox")

# Seconds between two reads of a query's progress. The second constant is for `availableNow`.
_LOOK_EVERY = 1.0
_LOOK_FOR_END_EVERY = 0.2
_REQUESTS_EVERY = 5.0
# Maximum seconds to close one query's functions, and all queries' functions at exit.
_CLOSING = 60.0
_LEAVING = 30.0


def start(
    writer: DataStreamWriter,
    path: str | None = None,
    *,
    table: str | None = None,
    take_over: bool = False,
    **options: Any,
) -> StreamingQuery:
    """Start a streaming query with a pillarbox program, like ``writer.start()``, and manage it.

    - Refuses a program that cannot resume from the checkpoint, because the number of shuffles or sources, a key, a uid
      or the max parallelism has changed. Logs a warning about changes that may be unsafe.
    - Refuses a checkpoint whose query another driver runs, or whose rescaling was interrupted.
    - With ``env.set_auto_rescale(True)``, rescales a checkpoint to the program's parallelism. Otherwise, the query runs
      with the checkpoint's parallelism, and a warning is logged.
    - With ``trigger(availableNow=True)``, ends even a query that uses processing time: when all input has been read,
      the timers due by then have fired, and carried requests have been answered. Later timers stay in the checkpoint.
    - Makes ``pillarbox stop CHECKPOINT`` and ``pillarbox savepoint CHECKPOINT DIR --stop`` work from any machine. To
      wait for the query's end or a signal, call :func:`pillarbox.run`.
    - When the query has ended, calls the functions' ``close()``, for at most five seconds, before
      ``awaitTermination()`` returns.

    Args:
        writer: from a program's ``to_dataframe(...).writeStream`` or ``for_each_batch``.
        path: as in ``DataStreamWriter.start``.
        table: a table to write to, as in ``DataStreamWriter.toTable``.
        take_over: whether to stop another driver's query (between two epochs) instead of raising.
        options: as in ``start`` or ``toTable``.

    Raises:
        CheckpointMismatchError: the checkpoint belongs to a different program, or its rescaling was interrupted.
        ConfigurationError: another driver runs the query, or this Spark cannot rescale in spite of
            ``env.set_auto_rescale(True)``.
        ProgramError: the query has no program of pillarbox.
    """
    if not hasattr(writer, "foreachBatch"):
        raise ProgramError(
            f"start() takes the writer of a program, such as to_dataframe(...).writeStream, not {shorten(writer)}"
        )
    if table is not None and path is not None:
        raise ProgramError("start() takes a path or a table, not both")
    planned = programs_of(writer)
    if not planned:
        raise ProgramError(
            "start() takes the writer of a program, such as to_dataframe(...).writeStream or for_each_batch(...). For"
            " a query without a pillarbox program, call the writer's own start()"
        )
    how = (
        WriterStart(writer, "start", path, **options)
        if table is None
        else WriterStart(writer, "toTable", table, **options)
    )
    instead = _instead.get()
    if instead is not None:
        instead(how)
    check_no_other_driver(how.spark, how.checkpoint, take_over=take_over)
    _adapt(how, planned)
    with changes_refused(watched=True):
        query = how.run()
    timed = any(program.summary.uses_processing_time for program in planned)
    started = find(query)
    assert started is not None
    watch = _Watch(started, ends=timed and how.is_available_now)
    started.hold_end(watch.wait_for_closing)
    watch.start()
    return query


_instead: ContextVar[Callable[[WriterStart], NoReturn] | None] = ContextVar("pillarbox_instead_of_start", default=None)


@contextmanager
def instead_of_starting(call: Callable[[WriterStart], NoReturn]) -> Iterator[None]:
    """Within the block, calls of :func:`start` in this thread run ``call`` instead. For ``pillarbox record``."""
    token = _instead.set(call)
    try:
        yield
    finally:
        _instead.reset(token)


def _adapt(start: WriterStart, planned: Sequence[RegisteredProgram]) -> None:
    target = wanted_parallelism(planned)
    if target is None or not any(program.summary.auto_rescale for program in planned):
        return
    if start.checkpoint is None:
        return
    checkpoint = Checkpoint(start.spark, start.checkpoint)
    present = checkpoint.parallelism
    if present is None or (present == target and checkpoint.interrupted is None):
        return
    check_spark(start.spark)
    finish_epoch(start, lambda: True)
    if rescale(start.spark, start.checkpoint, target):
        _log.info("checkpoint %s: its parallelism changed from %d to %d", checkpoint, present, target)


class QueryEndOfWork:
    """Detects when an ``availableNow`` query has no more work."""

    def __init__(self) -> None:
        # Unix time in ms.
        self._input_ended: int | None = None
        self._is_first = True
        # The last report of each task that may have work left without input.
        self._last: dict[tuple[str, str, int], TaskReport] = {}

    def is_reached(self, progress: Any) -> bool:
        """Return whether no work is left after a batch. ``progress`` is the batch's report, or None if that is lost.

        No work is left when all work that was due at the end of the input is done. The first batch after a start does
        not count, because it may have been planned before the start.
        """
        if progress is None:
            self._last.clear()
            return False
        first, self._is_first = self._is_first, False
        for report in tasks_of(progress):
            if report.level:
                self._last[report.program, report.uid, report.subtask] = report
        if any(source["startOffset"] != source["endOffset"] for source in progress["sources"]):
            self._input_ended = None
            return False
        if first:
            return False
        if self._input_ended is None:
            self._input_ended = millis(progress["timestamp"])
        return not any(self._has_work(report, self._input_ended) for report in self._last.values())

    def _has_work(self, report: TaskReport, until: int) -> bool:
        wakes_up = report.next_wake_up
        return bool(report.unfinished) or (wakes_up is not None and wakes_up <= until)


class _Watch(threading.Thread):
    """Watches a query until it ends, and polls for commands to it. With ``ends``, ends it when no work is left."""

    def __init__(self, started: StartedQuery, *, ends: bool) -> None:
        super().__init__(name=f"pillarbox query {started.query.id}", daemon=True)
        self._managed = started
        self._query: Any = started.query
        self._end = QueryEndOfWork() if ends else None
        self._requests = None if started.checkpoint is None else RequestWatch(started)
        self._progress = ProgressReader(started.query)
        self._pulse = Pulse(started)
        self._beaten_at = 0.0
        self._warned = False

    def wait_for_closing(self) -> None:
        if self is not threading.current_thread():
            self.join(_CLOSING)

    def run(self) -> None:
        _watches.add(self)
        try:
            self._watch()
        finally:
            _watches.discard(self)

    def _watch(self) -> None:
        failure = self._wait()
        if failure is not None:
            # `awaitTermination` raises the failure.
            _log.debug("query %s ended: %s", self._query.id, describe(failure))
        self._managed.wait_while_held()
        if self._requests is not None:
            self._requests.end()
        self._pulse.end()
        if self._managed.hooks is not None:
            self._take_progress()
            self._managed.hooks.ended(failure)
        close_started(self._managed)

    def _wait(self) -> Exception | None:
        self._beat()
        if self._requests is not None:
            self._requests.look()
        looked_for_requests = time.monotonic()
        while True:
            end = self._managed.end_within(
                _LOOK_EVERY if self._end is None else _LOOK_FOR_END_EVERY, self._could_not_look
            )
            if end is not None:
                return end.failure
            if self._requests is not None and time.monotonic() - looked_for_requests >= _REQUESTS_EVERY:
                self._requests.look()
                looked_for_requests = time.monotonic()
            is_reached = False
            for progress in self._progress.epochs_in(self._take_progress()):
                is_reached = self._end is not None and self._end.is_reached(progress)
            if is_reached:
                end_query(self._managed, lambda: True)

    def _take_progress(self) -> list[Progress]:
        """Pass on new progress reports. After an error, the next call includes the missed reports."""
        try:
            reports = self._progress.new()
        except Exception as error:
            self._could_not_look(error)
            return []
        self._pulse.take(reports)
        self._beat()
        if self._managed.hooks is not None:
            self._managed.hooks.progressed(reports)
        return reports

    def _beat(self) -> None:
        if time.monotonic() - self._beaten_at < _LOOK_EVERY:
            return
        self._beaten_at = time.monotonic()
        try:
            self._managed.heartbeat = self._pulse.beat()
        except Exception as error:
            self._could_not_look(error)

    def _could_not_look(self, error: Exception) -> None:
        level = logging.DEBUG if self._warned or not self._managed.is_running else logging.WARNING
        self._warned = True
        _log.log(
            level,
            "query %s: its progress could not be read, and will be read again: %s",
            self._query.id,
            describe(error),
        )

    def leave(self, seconds: float) -> None:
        if not self._query.isActive:
            self.join(seconds)


_watches: set[_Watch] = set()


@atexit.register
def _close_before_leaving() -> None:
    deadline = time.monotonic() + _LEAVING
    for watch in list(_watches):
        try:
            watch.leave(max(0.0, deadline - time.monotonic()))
        except Exception as error:  # Spark has ended
            _log.debug("a query could not be stopped when the process ended: %s", describe(error))
