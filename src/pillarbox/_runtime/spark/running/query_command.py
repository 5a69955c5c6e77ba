"""Sends requests from a command to a running query's driver."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pillarbox._errors import CheckpointMismatchError, ConfigurationError, PillarboxError, SavepointError
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.running.heartbeat import Heartbeat, dead_driver
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
    QueryRequest,
    QueryStateRequest,
    RequestLog,
    Requests,
    RequestStatus,
)
from pillarbox._runtime.spark.savepoint.savepoint import open_savepoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_EVERY = 1.0
# Seconds that a living driver needs at most to accept a request. Then the command checks its heartbeat.
_ACCEPTING = 20.0
# Minimum seconds that a driver gets to finish a savepoint or recording that it has begun.
_FINISHING = 600.0
# Seconds that the driver gets to end the query after a stop's deadline. Then it interrupts the epoch.
_INTERRUPTING = 120.0

Notify = Callable[[str], None]


def stop_query(spark: SparkSession, checkpoint: str, *, timeout: float, notify: Notify = lambda progress: None) -> None:
    """Ask a running query's driver to stop it, and wait at most ``timeout`` seconds."""
    command = QueryCommand(spark, checkpoint, timeout, notify)
    lines = command.lines("the query to stop")
    if lines.newest.state == STOPPED:
        notify("an earlier command has already done it")
        return
    if lines.desired.state == STOPPED and command.is_pending(lines, lines.desired):
        notify("waiting for an earlier command that requested it")
        command.wait_for(lines.desired)
    else:
        command.ask(QueryStateRequest(0, STOPPED))


def request_savepoint(
    spark: SparkSession,
    checkpoint: str,
    directory: str,
    *,
    drain: bool,
    timeout: float,
    notify: Notify = lambda progress: None,
) -> None:
    hint = "; for a stopped query, run 'pillarbox savepoint' without --stop"
    command = QueryCommand(spark, checkpoint, timeout, notify, hint=hint)
    lines = command.lines("the query to stop")
    request = QueryRequest("", SAVEPOINT, directory.rstrip("/") or directory, 0, drain)
    outcomes = {lines.outcome(earlier).status for earlier in lines.requests if _is_same(earlier, request)}
    # The savepoint may be complete even if the driver died before it answered.
    if outcomes & {TAKEN, DONE} and _is_written(spark, request.directory):
        notify("an earlier command has already done it")
        return
    if lines.newest.state == STOPPED:
        raise command.failed(
            "an earlier command has stopped the query, and no pillarbox.start(...) has started it since, so"
            f" nothing was requested. To write a savepoint, run 'pillarbox savepoint {checkpoint} DIR'"
        )
    for earlier in lines.requests:
        if earlier.what == SAVEPOINT and not _is_same(earlier, request) and command.is_pending(lines, earlier):
            raise command.failed(
                f"an earlier request, {earlier}, is under way, so nothing was requested: try again when it is done"
            )
    try:
        command.ask(request)
    except SavepointError:
        # Perhaps the driver wrote it for an earlier call.
        if not outcomes & {OPEN, TAKEN} or not _is_written(spark, request.directory):
            raise


def request_record(
    spark: SparkSession,
    checkpoint: str,
    directory: str,
    *,
    timeout: float,
    notify: Notify = lambda progress: None,
    **task: Any,
) -> None:
    """Ask a running query's driver to record a task, and wait at most ``timeout`` seconds.

    ``directory`` is on the driver's machine. ``task`` contains further arguments of ``record``.
    """
    hint = "; for an ended query, pass its script as --program"
    command = QueryCommand(spark, checkpoint, timeout, notify, error=ConfigurationError, hint=hint)
    command.lines("the query to record")
    command.ask(QueryRequest("", RECORD, directory, 0, task={**task, "timeout": timeout}))


def _is_same(request: QueryRequest, other: QueryRequest) -> bool:
    return (request.what, request.directory, request.drain) == (other.what, other.directory, other.drain)


def _is_written(spark: SparkSession, directory: str) -> bool:
    try:
        open_savepoint(spark, directory)
    except CheckpointMismatchError:
        return False
    return True


class QueryCommand:
    """Sends a request to a query's driver, and waits for its outcome."""

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: str,
        timeout: float,
        notify: Notify,
        *,
        error: type[PillarboxError] = SavepointError,
        hint: str = "",
    ) -> None:
        self._spark = spark
        self._folder = Requests(spark, checkpoint)
        self._checkpoint = checkpoint
        self._timeout = timeout
        self._notify = notify
        self._error = error
        self._hint = hint
        self._deadline = time.time() + timeout
        self._is_taken = self._is_withdrawn = False
        self._look_for_driver_at = time.time() + _ACCEPTING
        self._dead_driver: Heartbeat | None = None

    def lines(self, instead: str) -> RequestLog:
        Checkpoint(self._spark, self._checkpoint).started_query(instead)
        return self._folder.lines()

    def is_pending(self, lines: RequestLog, wish: QueryStateRequest | QueryRequest) -> bool:
        lasts = {OPEN: 0.0, TAKEN: self._finishing(wish)}.get(lines.outcome(wish).status)
        return lasts is not None and wish.until / 1000 + lasts >= time.time()

    def _finishing(self, wish: QueryStateRequest | QueryRequest) -> float:
        return _INTERRUPTING if isinstance(wish, QueryStateRequest) else max(self._timeout, _FINISHING)

    def ask(self, wish: QueryStateRequest | QueryRequest) -> None:
        self._notify("waiting for the query's driver to accept the request")
        self.wait_for(self._write(wish))

    def wait_for(self, wish: QueryStateRequest | QueryRequest) -> None:
        current: QueryStateRequest | QueryRequest | None = wish
        try:
            while (current := self._look(wish)) is not None:
                wish = current
                time.sleep(_LOOK_EVERY)
        except BaseException:
            if not (self._is_taken or self._is_withdrawn):
                self._withdraw(wish)  # because the command no longer waits
            raise

    def _look(self, wish: QueryStateRequest | QueryRequest) -> QueryStateRequest | QueryRequest | None:
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
                "the query was started again before the driver answered the request. That driver has died, or is"
                f" still working on it. {self._outcome(wish)}"
            )
        if status == TAKEN:
            if not self._is_taken:
                self._notify("the driver accepted the request")
            self._is_taken = True
            # The driver keeps the same deadline, except while it writes a savepoint.
            if now > wish.until / 1000 + self._finishing(wish):
                raise self.failed(
                    "the driver accepted the request, but has not responded: it may have died, or may still be"
                    f" working on the request. See its log. {self._outcome(wish)}"
                )
        elif status == OPEN:
            if self._has_no_driver(now):
                self._deadline = now
            if now > wish.until / 1000 or self._dead_driver is not None:
                self._withdraw(wish)
        elif now > self._deadline:
            dead = self._dead_driver
            within = f" within {self._timeout:g} seconds" if dead is None else ""
            why = (
                ", was not started with pillarbox.start(...)"
                if dead is None
                else f" (its driver, {dead.driver}, wrote its last heartbeat {dead.age // 1000} seconds ago)"
            )
            raise self.failed(
                f"no driver accepted the request{within}, so it was withdrawn. The query is not running{why},"
                f" or the two machines' clocks differ{self._hint}"
            )
        else:
            # The query has been started again, or the earlier call has ended.
            self._notify("asking the query's driver again")
            wish = self._write(wish)
        return wish

    def _has_no_driver(self, now: float) -> bool:
        if now >= self._look_for_driver_at:
            self._look_for_driver_at = now + _ACCEPTING
            self._dead_driver = dead_driver(self._spark, self._checkpoint)
        return self._dead_driver is not None

    def _write(self, wish: QueryStateRequest | QueryRequest) -> QueryStateRequest | QueryRequest:
        self._is_withdrawn = False
        until = int(self._deadline * 1000)
        if isinstance(wish, QueryStateRequest):
            lines = self._folder.lines()
            wish = QueryStateRequest(max(lines.desired.desired, lines.newest.observed) + 1, STOPPED, until)
        else:
            wish = replace(wish, request=uuid.uuid4().hex, until=until)
        self._folder.write(wish)
        return wish

    def _withdraw(self, wish: QueryStateRequest | QueryRequest) -> None:
        self._is_withdrawn = True
        withdrawal = (
            QueryStateRequest(wish.desired + 1, RUNNING)
            if isinstance(wish, QueryStateRequest)
            else RequestStatus(wish.request, WITHDRAWN)
        )
        self._folder.write(withdrawal)

    def _outcome(self, wish: QueryStateRequest | QueryRequest) -> str:
        if isinstance(wish, QueryStateRequest):
            return f"If the query still runs, call 'pillarbox stop {self._checkpoint}' again"
        if wish.what == RECORD:
            return f"If {wish.directory}/recording.json exists, the recording is complete; if not, try again"
        return f"If {wish.directory}/manifest exists, the savepoint is complete; if not, try again"

    def failed(self, why: str) -> PillarboxError:
        return self._error(f"checkpoint {self._checkpoint}: {why}")
