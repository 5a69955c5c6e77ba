"""Stops a query with a savepoint, like Flink's ``stop --savepointPath``, optionally with ``--drain``."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pillarbox._errors import ProgramError, SavepointError, describe, shorten
from pillarbox._reports.metrics import metrics
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.failures import message_for_user
from pillarbox._runtime.spark.running.ending import end_between_epochs, finish_epoch, run_one_epoch
from pillarbox._runtime.spark.savepoint.savepoint import check_new, savepoint
from pillarbox._runtime.spark.session.directories import checked_directory
from pillarbox._runtime.spark.starting.query_settings import last_epoch
from pillarbox._runtime.spark.starting.started import StartedQuery, find
from pillarbox._time.timestamp_assigner import MAX_WATERMARK

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("pillarbox")

# Seconds.
DEFAULT_TIMEOUT = 600.0
# Seconds between two starts of a query without input.
_TRY_EVERY = 2.0


def stop_with_savepoint(
    query: StreamingQuery, directory: str, *, drain: bool = False, timeout: float = DEFAULT_TIMEOUT
) -> None:
    """Stop a query between two epochs, and write a savepoint of its state after the last epoch.

    A query that starts from the savepoint resumes right after this query's last output. If :func:`pillarbox.start`
    started the query, ``awaitTermination()`` returns after the savepoint is written.

    With ``drain``, the query first completes all pending work (Flink's ``--drain``). One more epoch reads the available
    input, then event time ends: all windows and event-time timers fire, carried requests are answered, and the sink
    receives the output. As in Flink, processing-time timers that are not due stay in the savepoint. All later input is
    late, so do not drain a query if you want to continue from its state. This call waits for input, because Spark runs
    an epoch only if a source has input.

    Args:
        query: a query with a program of pillarbox, started by this process.
        directory: a new directory for the savepoint, as in :func:`pillarbox.savepoint`.
        drain: whether to end event time before the savepoint.
        timeout: maximum seconds, not counting the time to write the savepoint.

    Raises:
        SavepointError: the query was not stopped, or the savepoint is incomplete. The message explains which, and how
            to resume.
        ProgramError: an argument is wrong. The query is not affected.

    Example:
        >>> query = pillarbox.start(writer)  # doctest: +SKIP
        >>> stop_with_savepoint(query, "/savepoints/flights-1")  # doctest: +SKIP
    """
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise ProgramError(
            f"stop_with_savepoint(): timeout= must be a number of seconds above 0, not {shorten(timeout)}"
        )
    if not isinstance(drain, bool):
        raise ProgramError(f"stop_with_savepoint(): drain= must be True or False, not {shorten(drain)}")
    if not hasattr(query, "awaitTermination"):
        raise ProgramError(f"stop_with_savepoint() takes a query that start() returned, not {shorten(query)}")
    directory = checked_directory(directory, "stop_with_savepoint(): directory=")
    started = find(query)
    if started is None:
        raise SavepointError(
            f"query {query.id} contains no pillarbox program, or another process started it: nothing was done. Call"
            " stop_with_savepoint() in the process that started it, or stop it there and write a savepoint with"
            " pillarbox.savepoint(...) or 'pillarbox savepoint'"
        )
    if started.checkpoint is None:
        raise SavepointError(
            f"query {query.id} has no checkpointLocation, so no savepoint can be written, and the query continues:"
            " set checkpointLocation, or call query.stop() to stop it without keeping its state"
        )
    if drain and not started.start.passes_settings:
        raise SavepointError(
            f"query {query.id} cannot be drained: under Spark Connect, the tasks of foreachBatch and for_each_batch"
            " cannot detect the last epoch. Nothing was done: stop it without drain=True, or drain it in a classic"
            " session"
        )
    twice = sorted(uid for uid, count in Counter(_uids(started)).items() if count > 1)
    if twice:
        raise SavepointError(
            f"query {query.id} contains several programs with an operator {twice[0]!r}, but a savepoint has one state"
            " per uid: no savepoint was written, and the query continues. Run each program in a separate query"
        )
    check_new(started.start.spark, directory)
    with started.held():
        _Stop(started, time.monotonic() + timeout).run(directory, drain=drain)


class _Stop:
    def __init__(self, started: StartedQuery, deadline: float) -> None:
        self._started = started
        self._spark = started.start.spark
        self._checkpoint = str(started.checkpoint)
        self._deadline = deadline

    def run(self, directory: str, *, drain: bool) -> None:
        self._stop()
        try:
            if not finish_epoch(self._started.start, self._has_time_to_begin()):
                raise self._has_not_ended()
            if drain:
                self._drain()
        except SavepointError:
            raise
        except Exception as error:
            raise self._aborted(f"an epoch failed: {describe(error)}", begun=True) from error
        try:
            savepoint(self._spark, self._checkpoint, directory)
        except Exception as error:
            raise SavepointError(
                f"checkpoint {self._checkpoint}: the query is stopped, but its savepoint could not be written:"
                f" {message_for_user(error)}. Write it with 'pillarbox savepoint {self._checkpoint} DIR', or start"
                " the query again, which resumes where it stopped"
            ) from error

    def _stop(self) -> None:
        query: Any = self._started.query
        if not end_between_epochs(query, self._has_time):
            raise SavepointError(
                f"checkpoint {self._checkpoint}: the running epoch did not end within the timeout. The query is"
                " still running, and nothing was changed: try again with a longer timeout"
            )
        failure = query.exception()
        if failure is not None:
            raise self._aborted(f"the query failed before it could be stopped: {describe(failure)}", begun=True)

    def _has_time(self) -> bool:
        return time.monotonic() <= self._deadline

    def _drain(self) -> None:
        """Run the last epoch. With several programs, repeat this until each has had input in a last epoch."""
        every, ended = set(_uids(self._started)), set[str]()
        while True:
            number = Checkpoint(self._spark, self._checkpoint).note_last_epoch()
            try:
                with last_epoch(number):
                    progress = self._run_at_input(number, sorted(every - ended) if ended else [])
            finally:
                # Does nothing if the epoch has begun: it remains the last epoch when it is repeated.
                Checkpoint(self._spark, self._checkpoint).forget_last_epoch()
            if progress is None or progress["batchId"] != number:
                return
            just_now = {report.uid for report in metrics(progress) if report.watermark == MAX_WATERMARK}
            if not just_now:
                # The new part of a source had no rows.
                Checkpoint(self._spark, self._checkpoint).forget_last_epoch(number)
            ended |= just_now
            if every <= ended:
                return

    def _run_at_input(self, number: int, left: list[str]) -> Any:
        while True:
            progress = self._run_one()
            if Checkpoint(self._spark, self._checkpoint).last_committed >= number:
                return progress
            if time.monotonic() + _TRY_EVERY > self._deadline:
                which = f" of {', '.join(map(repr, left))} (the other operators had input)" if left else ""
                raise self._aborted(
                    f"no input arrived for the final epoch{which} within the timeout, but Spark runs an epoch only if"
                    " there is input: add any record to a source, such as one that the program filters out"
                )
            time.sleep(_TRY_EVERY)

    def _run_one(self) -> Any:
        query = run_one_epoch(self._started.start, self._has_time_to_begin())
        if query is None:
            raise self._has_not_ended()
        return query.lastProgress

    def _has_time_to_begin(self) -> Callable[[], bool]:
        least = time.monotonic() + 1.0
        return lambda: self._has_time() or time.monotonic() < least

    def _has_not_ended(self) -> SavepointError:
        return self._aborted("an epoch did not end within the timeout", begun=True)

    def _aborted(self, why: str, *, begun: bool = False) -> SavepointError:
        runs = "repeats that epoch, and continues" if begun else "resumes where it stopped"
        return SavepointError(
            f"checkpoint {self._checkpoint}: {why}. The query is stopped, and no savepoint was written. The next start"
            f" {runs}; 'pillarbox savepoint {self._checkpoint} DIR' writes a savepoint of the last committed epoch"
        )


def _uids(started: StartedQuery) -> list[str]:
    return [uid for program in started.programs for uid in program.summary.description.uids]
