"""Stopping a query with a savepoint: between epochs, so nothing is half done; at the end of event time, if asked.

Source of the behaviour: Flink's ``stop --savepointPath``, with ``--drain``.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pillarbox._errors import ProgramError, SavepointError, describe, shorten
from pillarbox._reports.metrics import metrics
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.failures import sentence_of
from pillarbox._runtime.spark.running.ending import end_between_epochs, finish_epoch, run_one_epoch
from pillarbox._runtime.spark.savepoint.savepoint import check_new, savepoint
from pillarbox._runtime.spark.session.places import place_of
from pillarbox._runtime.spark.starting.query_settings import last_epoch
from pillarbox._runtime.spark.starting.started import StartedQuery, find
from pillarbox._time.timestamps import MAX_WATERMARK

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("pillarbox")

# Seconds.
DEFAULT_TIMEOUT = 600.0
# How often a query without input is started.
_TRY_EVERY = 2.0


def stop_with_savepoint(
    query: StreamingQuery, directory: str, *, drain: bool = False, timeout: float = DEFAULT_TIMEOUT
) -> None:
    """Stop a query between two epochs, and write a savepoint of its last one.

    A running epoch completes first. If Spark is stopped in the middle of an epoch nevertheless, that epoch
    is run to its end by itself. So nothing is half done: a query that starts from the savepoint resumes right after
    the last output of this one. Then ``awaitTermination()`` of the query returns, where :func:`pillarbox.start` has
    started it.

    With ``drain`` the query works off all that it waits for, for good (Flink's ``--drain``): one more epoch reads the
    input that there is, and after it event time ends. Windows and event-time timers fire, whatever their time;
    requests that are carried from epoch to epoch are answered; processing-time timers that are not due do not fire, as
    in Flink, and are in the savepoint. The output goes to the query's own sink. Everything that ever comes later is
    late: do not drain a query that is to resume with its state.

    Spark runs an epoch only where a source has input. So for ``drain``, the call waits for input if there is none.

    Args:
        query: one with a program of pillarbox, which this process has started.
        directory: where the savepoint is written, as by :func:`pillarbox.savepoint`. It must not exist.
        drain: whether event time ends.
        timeout: how long all of that may take, without the writing of the savepoint (seconds).

    Raises:
        SavepointError: it could not be done; the message says whether the query is stopped, and how to resume it.
        ProgramError: an argument is wrong; nothing has happened.

    Example:
        >>> query = pillarbox.start(writer)  # doctest: +SKIP
        >>> stop_with_savepoint(query, "/savepoints/flights-1")  # doctest: +SKIP
    """
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise ProgramError(f"timeout is a number of seconds above 0, not {shorten(timeout)}")
    if not isinstance(drain, bool):
        raise ProgramError(f"drain is True or False, not {shorten(drain)}")
    if not hasattr(query, "awaitTermination"):
        raise ProgramError(f"stop_with_savepoint() takes a query, as start() returned it, not {shorten(query)}")
    directory = place_of(directory, "stop_with_savepoint(): the place of the savepoint")
    started = find(query)
    if started is None:
        raise SavepointError(
            f"query {query.id} holds no program of pillarbox, or another process has started it: nothing was done. Call"
            " this where it was started; or stop it there, and write the savepoint of its checkpoint, with"
            " pillarbox.savepoint(...) or 'pillarbox savepoint'"
        )
    if started.checkpoint is None:
        raise SavepointError(
            f"query {query.id} has no checkpointLocation that it could be started with again: nothing was done"
        )
    if drain and not started.start.passes_settings:
        raise SavepointError(
            f"query {query.id} cannot be drained: under Spark Connect, the tasks of foreachBatch and for_each_batch are"
            " not told which epoch is the last one. Nothing was done: stop it without drain, or drain it in a classic"
            " session"
        )
    twice = sorted(uid for uid, count in Counter(_uids(started)).items() if count > 1)
    if twice:
        raise SavepointError(
            f"query {query.id} holds several programs that have an operator {twice[0]!r}, and a savepoint has one state"
            " for each uid: nothing was done. Give operators of all programs in a query uids of their own"
        )
    check_new(started.start.spark, directory)
    with started.held():
        _Stop(started, time.monotonic() + timeout).run(directory, drain=drain)


class _Stop:
    """One query on its way to a savepoint.

    Args:
        deadline: until when it has to be stopped, by the monotonic clock (seconds).
    """

    def __init__(self, started: StartedQuery, deadline: float) -> None:
        self._started = started
        self._spark = started.start.spark
        self._checkpoint = str(started.checkpoint)
        self._deadline = deadline

    def run(self, directory: str, *, drain: bool) -> None:
        """Go all the way."""
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
                f" {sentence_of(error)}. Write it with 'pillarbox savepoint {self._checkpoint} DIR', or start the query"
                " again, which resumes where it stopped"
            ) from error

    def _stop(self) -> None:
        query: Any = self._started.query
        if not end_between_epochs(query, self._has_time):
            raise SavepointError(
                f"checkpoint {self._checkpoint}: the epoch under way did not end within the timeout; the query still"
                " runs, and nothing was done. Try again with a longer timeout"
            )
        failure = query.exception()
        if failure is not None:
            raise self._aborted(f"the query failed before it could be stopped: {describe(failure)}", begun=True)

    def _has_time(self) -> bool:
        return time.monotonic() <= self._deadline

    def _drain(self) -> None:
        """Run the last epoch: of several programs, each has its own, when there is input for it."""
        every, ended = set(_uids(self._started)), set[str]()
        while True:
            number = Checkpoint(self._spark, self._checkpoint).note_last_epoch()
            try:
                with last_epoch(number):
                    progress = self._run_at_input(number, sorted(every - ended) if ended else [])
            finally:
                # Without effect where it was begun: then it stays the last one, whoever runs it again.
                Checkpoint(self._spark, self._checkpoint).forget_last_epoch()
            if progress is None or progress["batchId"] != number:
                return  # Spark has told nothing of it
            just_now = {report.uid for report in metrics(progress) if report.watermark == MAX_WATERMARK}
            if not just_now:
                # The new part of a source had no rows, and no partitions.
                Checkpoint(self._spark, self._checkpoint).forget_last_epoch(number)
            ended |= just_now
            if every <= ended:
                return

    def _run_at_input(self, number: int, left: list[str]) -> Any:
        """Run an epoch that was not begun when there is input; return what Spark tells of it.

        Args:
            left: the operators that have not ended, where others have.
        """
        while True:
            progress = self._run_one()
            if Checkpoint(self._spark, self._checkpoint).last_committed >= number:
                return progress
            if time.monotonic() + _TRY_EVERY > self._deadline:
                which = f" of {', '.join(map(repr, left))}, which other operators had," if left else ""
                raise self._aborted(
                    f"there was no input for the last epoch{which} within the timeout, and Spark runs none without:"
                    " have a source get a record, which may be one that the program drops"
                )
            time.sleep(_TRY_EVERY)

    def _run_one(self) -> Any:
        """Start the query for one epoch, and wait for its end; return what Spark tells of it, if there was one."""
        query = run_one_epoch(self._started.start, self._has_time_to_begin())
        if query is None:
            raise self._has_not_ended()
        return query.lastProgress

    def _has_time_to_begin(self) -> Callable[[], bool]:
        """Return what tells whether there still is time for an epoch that begins now: a second at least."""
        least = time.monotonic() + 1.0
        return lambda: self._has_time() or time.monotonic() < least

    def _has_not_ended(self) -> SavepointError:
        return self._aborted("an epoch did not end within the timeout", begun=True)

    def _aborted(self, why: str, *, begun: bool = False) -> SavepointError:
        """Return the error of a query that is stopped and has no savepoint."""
        runs = "runs that epoch again, and continues" if begun else "resumes where it stopped"
        return SavepointError(
            f"checkpoint {self._checkpoint}: {why}. The query is stopped, and no savepoint was written. Started again,"
            f" it {runs}; 'pillarbox savepoint {self._checkpoint} DIR' writes a savepoint of the last epoch that was"
            " committed"
        )


def _uids(started: StartedQuery) -> list[str]:
    """Return the uids of all operators with state, of all programs in the query."""
    return [uid for one in started.programs for uid in one.facts.description.uids]
