"""Queries that pillarbox looks after from start to end: :func:`start` instead of a writer's own.

A changed program is refused before anything runs, by its description next to the checkpoint. A thread in the driver
watches the query: it ends an ``availableNow`` query, which Spark would run for ever where a program uses processing
time, and has the functions closed when the query has ended.
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

from pillarbox._elements import TaskReport
from pillarbox._errors import ProgramError, describe, shorten
from pillarbox._reports.progress import millis, tasks_of
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.plan.registry import PlannedProgram, programs_of, wanted_parallelism
from pillarbox._runtime.spark.running.ending import end_query, finish_epoch
from pillarbox._runtime.spark.running.heartbeat import Pulse, check_no_other_driver
from pillarbox._runtime.spark.running.progress_reader import ProgressReader
from pillarbox._runtime.spark.running.request_watch import RequestWatch
from pillarbox._runtime.spark.session.writer import Start
from pillarbox._runtime.spark.starting.closing import close_started
from pillarbox._runtime.spark.starting.rescale import check_spark, rescale
from pillarbox._runtime.spark.starting.start import changes_refused
from pillarbox._runtime.spark.starting.started import StartedQuery, find
from pillarbox._runtime.spark.tools import Progress

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_log = logging.getLogger("pillarbox")

# How often the progress of a query is looked at, and of an `availableNow` query (seconds).
_LOOK_EVERY = 1.0
_LOOK_FOR_END_EVERY = 0.2
# How often requests from the command line are looked for (seconds).
_REQUESTS_EVERY = 5.0
# How long whoever waits for the end of a query waits for its functions to be closed, and the end of the process for all
# of those (seconds).
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
    """Start a streaming query with a program of pillarbox, as ``writer.start()`` does, and look after it.

    - A program that cannot resume from the checkpoint is refused before anything runs: shuffles or sources that were
      added or removed, another key, max parallelism or uid. Changes that may be such are logged as a warning. For this,
      a description of the program is written into ``pillarbox/`` of the checkpoint location.
    - A checkpoint whose query another driver runs is refused, with that driver's machine and process.
    - A checkpoint whose change to another parallelism was interrupted is refused. One with another parallelism than
      the program sets is rescaled first, where ``env.set_auto_rescale(True)`` was called; else the query runs with that
      of the checkpoint, and a warning says so.
    - With ``trigger(availableNow=True)`` the query ends also where the program uses processing time: when all input is
      read, processing-time timers that were due by then have fired, and requests carried from epoch to epoch are
      answered. Later timers stay in the checkpoint. The end comes between two epochs, and ``exception()`` is None.
    - ``pillarbox stop CHECKPOINT`` and ``pillarbox savepoint CHECKPOINT DIR --stop`` find it, whichever machine it runs
      on; :func:`pillarbox.run` waits for its end, and for signals.
    - When the query has ended, the ``close()`` of its functions is called, for which they have five seconds. Then
      ``awaitTermination()`` returns.

    Args:
        writer: of a program's ``to_dataframe(...).writeStream``, or of ``for_each_batch``.
        path: as of ``DataStreamWriter.start``.
        table: a table to write to, as of ``DataStreamWriter.toTable``.
        take_over: stop the query of another driver first, between two epochs, instead of refusing its checkpoint.
        options: as of ``start`` or ``toTable``.

    Raises:
        CheckpointMismatchError: the checkpoint belongs to another program; or to change its parallelism was
            interrupted.
        ConfigurationError: another driver runs the query; or this Spark cannot rescale, and
            ``env.set_auto_rescale(True)`` asks for it.
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
            "start() takes the writer of a program, such as to_dataframe(...).writeStream or for_each_batch(...); start"
            " a query without a program of pillarbox by its writer's own start()"
        )
    how = Start(writer, "start", path, **options) if table is None else Start(writer, "toTable", table, **options)
    instead = _instead.get()
    if instead is not None:
        instead(how)
    check_no_other_driver(how.spark, how.checkpoint, take_over=take_over)
    _adapt(how, planned)
    with changes_refused(watched=True):
        query = how.run()
    timed = any(one.facts.uses_processing_time for one in planned)
    started = find(query)
    assert started is not None
    watch = _Watch(started, ends=timed and how.is_available_now)
    started.hold_its_end(watch.wait_for_closing)
    watch.start()
    return query


_instead: ContextVar[Callable[[Start], NoReturn] | None] = ContextVar("pillarbox_instead_of_start", default=None)


@contextmanager
def instead_of_starting(call: Callable[[Start], NoReturn]) -> Iterator[None]:
    """Let :func:`start` call something else in this thread: ``pillarbox record`` runs the user's program with that."""
    token = _instead.set(call)
    try:
        yield
    finally:
        _instead.reset(token)


# -- another parallelism --


def _adapt(start: Start, planned: Sequence[PlannedProgram]) -> None:
    """Give the checkpoint the parallelism of the programs, if they ask for that."""
    wanted = wanted_parallelism(planned)
    if wanted is None or not any(one.facts.auto_rescale for one in planned):
        return
    if start.checkpoint is None:
        return
    checkpoint = Checkpoint(start.spark, start.checkpoint)
    present = checkpoint.parallelism
    if present is None or (present == wanted and checkpoint.interrupted is None):
        return
    check_spark(start.spark)
    finish_epoch(start, lambda: True)
    if rescale(start.spark, start.checkpoint, wanted):
        _log.info("checkpoint %s: its parallelism went from %d to %d", checkpoint, present, wanted)


# -- the end --


class EndOfWork:
    """Finds the micro-batch after which an ``availableNow`` query has nothing left to do."""

    def __init__(self) -> None:
        # When the input ended: the time of the first batch without any (epoch ms).
        self._input_ended: int | None = None
        self._is_first = True
        # The last report of each task of which there may be more to come without input.
        self._last: dict[tuple[str, str, int], TaskReport] = {}

    def is_reached(self, progress: Any) -> bool:
        """Return whether it is the one of this progress report, of the batch that follows; None: it is not known.

        Of a batch without input, exactly the tasks with something due run, and report; what the others have reported
        before still holds. The end is where nothing is left that was due when the input ended. The first batch of a run
        is not the end: it may be one that the run before planned and did not finish, ahead of all input that has come
        since.
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
    """Waits for the end of a query, or brings it about; meanwhile it looks for requests from the command line.

    Args:
        ends: whether the query is to end when there is nothing left to do.
    """

    def __init__(self, started: StartedQuery, *, ends: bool) -> None:
        super().__init__(name=f"pillarbox query {started.query.id}", daemon=True)
        self._managed = started
        self._query: Any = started.query
        self._end = EndOfWork() if ends else None
        self._requests = None if started.checkpoint is None else RequestWatch(started)
        self._progress = ProgressReader(started.query)
        self._pulse = Pulse(started)
        self._beaten_at = 0.0
        self._warned = False

    def wait_for_closing(self) -> None:
        """Wait until the functions of the query, which has ended, are closed. Any thread."""
        if self is not threading.current_thread():
            self.join(_CLOSING)

    def run(self) -> None:
        """Watch."""
        _watches.add(self)
        try:
            self._watch()
        finally:
            _watches.discard(self)

    def _watch(self) -> None:
        failure = self._wait()
        if failure is not None:
            # The query's own failure is raised where the user waits for it.
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
        """Wait for the end of the query; return why it failed, or None."""
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
        """Return the new progress reports, and hand them on. An error is logged: the next look sees what is missing."""
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
            level, "query %s: its progress could not be read, and is read again: %s", self._query.id, describe(error)
        )

    def leave(self, seconds: float) -> None:
        """Wait for the end of a query that has ended as far as its program knows: the process ends."""
        if not self._query.isActive:
            self.join(seconds)


# Those that run.
_watches: set[_Watch] = set()


@atexit.register
def _close_before_leaving() -> None:
    """Let queries that have ended have their functions closed: Spark would tell of errors if this process just went."""
    deadline = time.monotonic() + _LEAVING
    for watch in list(_watches):
        try:
            watch.leave(max(0.0, deadline - time.monotonic()))
        except Exception as error:  # Spark is gone
            _log.debug("a query is left: %s", describe(error))
