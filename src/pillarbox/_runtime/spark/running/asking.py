"""The command's side: it asks the driver of a running query, and waits for what becomes of that."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pillarbox._errors import CheckpointMismatchError, ConfigurationError, PillarboxError, SavepointError
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.running.requests import (
    DONE,
    FAILED,
    LOST,
    OPEN,
    RECORD,
    RUNNING,
    SAVEPOINT,
    STOPPED,
    TAKEN,
    WITHDRAWN,
    Desired,
    Lines,
    Request,
    Requests,
    Status,
)
from pillarbox._runtime.spark.savepoint.savepoint import open_savepoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How often the command looks for an answer (seconds).
_LOOK_EVERY = 1.0
# How long a driver may take at least to finish what it has begun in time (seconds).
_FINISHING = 600.0

Tell = Callable[[str], None]


def stop_query(spark: SparkSession, checkpoint: str, *, timeout: float, tell: Tell = lambda progress: None) -> None:
    """Ask the driver of a running query to stop it, and wait for that; it may be stopped already by an earlier call.

    Args:
        timeout: how long to wait (seconds).
        tell: is called with what happens.

    Raises:
        CheckpointMismatchError: no query was ever started there; nothing was asked.
        SavepointError: it was not done.
    """
    command = Command(spark, checkpoint, timeout, tell)
    lines = command.lines("the query to stop")
    if lines.newest.state == STOPPED:
        tell("an earlier call has asked for it, and it is done")
        return
    if lines.desired.state == STOPPED and command.is_pending(lines, lines.desired):
        tell("an earlier call has asked for it: waiting for that")
        command.wait_for(lines.desired)
    else:
        command.ask(Desired(0, STOPPED))


def request_savepoint(
    spark: SparkSession,
    checkpoint: str,
    directory: str,
    *,
    drain: bool,
    timeout: float,
    tell: Tell = lambda progress: None,
) -> None:
    """Ask the driver of a running query to stop it with a savepoint, and wait for that.

    Args:
        directory: where the driver is to write the savepoint. It may have done so for an earlier call.
        timeout: how long to wait until the query is stopped (seconds).
        tell: is called with what happens.

    Raises:
        CheckpointMismatchError: no query was ever started there; nothing was asked.
        SavepointError: it was not done.
    """
    hint = "; of a query that is stopped, 'pillarbox savepoint' without --stop writes a savepoint"
    command = Command(spark, checkpoint, timeout, tell, hint=hint)
    lines = command.lines("the query to stop")
    request = Request("", SAVEPOINT, directory.rstrip("/") or directory, 0, drain)
    outcomes = {lines.outcome(each).status for each in lines.requests if _is_same(each, request)}
    # (Also if the driver has died after the savepoint, and before its answer.)
    if outcomes & {TAKEN, DONE} and _is_written(spark, request.directory):
        tell("an earlier call has asked for it, and it is done")
        return
    if lines.newest.state == STOPPED:
        raise command.failed(
            "an earlier call has stopped the query, and no pillarbox.start(...) has started it since; nothing was"
            f" asked. 'pillarbox savepoint {checkpoint} DIR' writes a savepoint"
        )
    for each in lines.requests:
        if each.what == SAVEPOINT and not _is_same(each, request) and command.is_pending(lines, each):
            raise command.failed(f"an earlier call has asked {each}, which is under way: nothing was asked")
    try:
        command.ask(request)
    except SavepointError:
        # The driver may have done it for an earlier call.
        if not outcomes & {OPEN, TAKEN} or not _is_written(spark, request.directory):
            raise


def request_record(
    spark: SparkSession,
    checkpoint: str,
    directory: str,
    *,
    timeout: float,
    tell: Tell = lambda progress: None,
    **task: Any,
) -> None:
    """Ask the driver of a running query to record a task, and wait for that.

    Args:
        directory: where the recording is to be, on the driver's machine.
        timeout: how long to wait for a driver, and how long the recording may take (seconds).
        tell: is called with what happens.
        task: the task, as arguments of ``record``.

    Raises:
        CheckpointMismatchError: no query was ever started there; nothing was asked.
        ConfigurationError: it was not done.
    """
    hint = "; of a query that has ended, give the script by --program"
    command = Command(spark, checkpoint, timeout, tell, error=ConfigurationError, hint=hint)
    command.lines("the query to record")
    command.ask(Request("", RECORD, directory, 0, task={**task, "timeout": timeout}))


def _is_same(one: Request, other: Request) -> bool:
    return (one.what, one.directory, one.drain) == (other.what, other.directory, other.drain)


def _is_written(spark: SparkSession, directory: str) -> bool:
    """Return whether there is a whole savepoint at a place."""
    try:
        open_savepoint(spark, directory)
    except CheckpointMismatchError:
        return False
    return True


class Command:
    """A command that asks the driver of a query, and waits.

    Args:
        timeout: how long a driver may take to begin (seconds).
        error: the class of its errors.
        hint: what to do if no driver begins, as a message.
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: str,
        timeout: float,
        tell: Tell,
        *,
        error: type[PillarboxError] = SavepointError,
        hint: str = "",
    ) -> None:
        self._spark = spark
        self._folder = Requests(spark, checkpoint)
        self._checkpoint = checkpoint
        self._timeout = timeout
        self._tell = tell
        self._error = error
        self._hint = hint
        self._deadline = time.time() + timeout
        self._is_taken = self._is_withdrawn = False

    def lines(self, wanted: str) -> Lines:
        """Return what is known of earlier commands.

        Args:
            wanted: what to give instead of a folder that is no checkpoint.

        Raises:
            CheckpointMismatchError: no query was ever started there.
        """
        Checkpoint(self._spark, self._checkpoint).started_query(wanted)
        return self._folder.lines()

    def is_pending(self, lines: Lines, wish: Desired | Request) -> bool:
        """Return whether a driver may still take a wish, or is at it."""
        lasts = {OPEN: 0.0, TAKEN: max(self._timeout, _FINISHING)}.get(lines.outcome(wish).status)
        return lasts is not None and wish.until / 1000 + lasts >= time.time()

    def ask(self, wish: Desired | Request) -> None:
        """Ask, and wait for the answer.

        Raises:
            PillarboxError: it was not done.
        """
        self._tell("waiting for the query's driver to take the request")
        self.wait_for(self._write(wish))

    def wait_for(self, wish: Desired | Request) -> None:
        """Wait for the answer to a wish of this call, or of an earlier one.

        Raises:
            PillarboxError: it was not done.
        """
        current: Desired | Request | None = wish
        try:
            while (current := self._look(wish)) is not None:
                wish = current
                time.sleep(_LOOK_EVERY)
        except BaseException:
            if not (self._is_taken or self._is_withdrawn):
                self._withdraw(wish)  # nobody waits any more: no query is to stop for it
            raise

    def _look(self, wish: Desired | Request) -> Desired | Request | None:
        """Look what became of a wish; return the wish to wait for, or None if it is done."""
        status, error = self._folder.lines().outcome(wish)
        now = time.time()
        if status == DONE:
            return None
        if status == FAILED:
            self._is_taken = True
            raise self._error(error)
        if status == LOST and not self._is_withdrawn:
            self._is_taken = True
            raise self.failed(
                "the query was started again before the driver that had taken the request has answered: that one has"
                f" died, or is still at it. {self._outcome(wish)}"
            )
        if status == TAKEN:
            if not self._is_taken:
                self._tell("the driver has taken the request")
            self._is_taken = True
            # The driver keeps to the same time, but the writing of a savepoint takes as long as it does.
            if now > wish.until / 1000 + max(self._timeout, _FINISHING):
                raise self.failed(
                    "the driver has taken the request, and does not answer: it has died, or is still at it; look at its"
                    f" log. {self._outcome(wish)}"
                )
        elif status == OPEN:
            if now > wish.until / 1000:
                self._withdraw(wish)
        elif now > self._deadline:
            raise self.failed(
                f"no driver has accepted the request within {self._timeout:g} seconds, and it is withdrawn. The query"
                " does not run, was not started with pillarbox.start(...), or the clocks of both machines differ"
                f"{self._hint}"
            )
        else:
            # The query was started since, or the call that had asked had less time, or was interrupted.
            self._tell("the query's driver is asked once more")
            wish = self._write(wish)
        return wish

    def _write(self, wish: Desired | Request) -> Desired | Request:
        self._is_withdrawn = False
        until = int(self._deadline * 1000)
        if isinstance(wish, Desired):
            lines = self._folder.lines()
            wish = Desired(max(lines.desired.desired, lines.newest.observed) + 1, STOPPED, until)
        else:
            wish = replace(wish, request=uuid.uuid4().hex, until=until)
        self._folder.write(wish)
        return wish

    def _withdraw(self, wish: Desired | Request) -> None:
        self._is_withdrawn = True
        withdrawal = (
            Desired(wish.desired + 1, RUNNING) if isinstance(wish, Desired) else Status(wish.request, WITHDRAWN)
        )
        self._folder.write(withdrawal)

    def _outcome(self, wish: Desired | Request) -> str:
        """Return the message that says how to find out whether a wish was done."""
        if isinstance(wish, Desired):
            return f"If the query still runs, call 'pillarbox stop {self._checkpoint}' again"
        if wish.what == RECORD:
            return f"The recording is complete if there is {wish.directory}/recording.json; if not, call this again"
        return f"The savepoint is complete if there is {wish.directory}/manifest; if not, call this again"

    def failed(self, why: str) -> PillarboxError:
        """Return an error of this command."""
        return self._error(f"checkpoint {self._checkpoint}: {why}")
