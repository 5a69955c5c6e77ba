"""The driver's side of commands to a running query."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from pillarbox._errors import describe
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.failures import message_for_user
from pillarbox._runtime.spark.running import monitoring
from pillarbox._runtime.spark.running.ending import end_query
from pillarbox._runtime.spark.running.requests import (
    DONE,
    FAILED,
    OPEN,
    OVER,
    RECORD,
    RUNNING,
    SAVEPOINT,
    STOPPED,
    STOPPING,
    TAKEN,
    ObservedState,
    QueryRequest,
    QueryStateRequest,
    RequestLog,
    Requests,
    RequestStatus,
)
from pillarbox._runtime.spark.running.stop import stop_with_savepoint
from pillarbox._runtime.spark.starting.started import StartedQuery

_log = logging.getLogger("pillarbox")


class RequestWatch:
    """Polls for commands to a running query, and runs each in another thread. Not thread-safe."""

    def __init__(self, started: StartedQuery, clock: Callable[[], float] = time.time) -> None:
        assert started.checkpoint is not None
        self._requests = Requests(started.start.spark, started.checkpoint)
        self._started = started
        self._clock = clock
        self._seen: frozenset[str] | None = None
        self._warned = False

    def look(self) -> None:
        """Check for a new command, and run it in another thread. Never raises.

        The first call discards commands that were sent to the previous run.
        """
        try:
            files = self._requests.files()
            if files == self._seen:
                return
            if self._seen is None:
                if not files:
                    self._requests.make_folder()
                self._observe_start(self._requests.lines())
                self._seen = frozenset()
                return
            wish = self._open_wish(self._requests.lines())
            self._seen = files
        except Exception as error:  # the next check may succeed
            self._could_not(error)
            return
        if wish is not None:
            # Not a daemon thread, so Python waits for it at exit.
            threading.Thread(target=self._carry_out, args=(wish,), name="pillarbox request", daemon=False).start()

    def end(self) -> None:
        try:
            files = self._requests.files()
            if files == self._seen or self._seen is None:
                return
            lines = self._requests.lines()
            if lines.is_to_stop:
                self._requests.write(ObservedState(lines.desired.desired, STOPPED))
            for request in lines.requests:
                if lines.outcome(request).status == OPEN:
                    self._requests.write(RequestStatus(request.request, FAILED, "the query has ended"))
        except Exception as error:
            self._could_not(error)

    def _could_not(self, error: Exception) -> None:
        quiet = self._warned or not self._started.is_running
        (_log.debug if quiet else _log.warning)(
            "requests to query %s could not be read or answered: %s", self._name, describe(error)
        )
        self._warned = True

    @property
    def _name(self) -> str:
        return str(self._started.query.id)

    def _observe_start(self, lines: RequestLog) -> None:
        now = self._clock() * 1000
        ignored: list[QueryStateRequest | QueryRequest] = []
        if lines.newest.state != RUNNING or lines.newest.observed < lines.desired.desired:
            if lines.is_to_stop and lines.desired.until > now:
                ignored.append(lines.desired)
            self._requests.write(ObservedState(max(lines.desired.desired, lines.newest.observed), RUNNING))
        for request in lines.requests:
            status = lines.outcome(request).status
            is_wanted = status == OPEN and request.until > now
            if is_wanted or status in (TAKEN, DONE):
                self._requests.write(RequestStatus(request.request, OVER))
            if is_wanted:
                ignored.append(request)
        for wish in ignored:
            _log.warning(
                "query %s: the request %s is older than this start, so it is ignored. If the command is still"
                " waiting, it sends the request again",
                *(self._name, wish),
            )

    def _open_wish(self, lines: RequestLog) -> QueryStateRequest | QueryRequest | None:
        now = self._clock() * 1000
        wishes: list[QueryStateRequest | QueryRequest] = [lines.desired] if lines.is_to_stop else []
        wishes += [request for request in lines.requests if lines.outcome(request).status == OPEN]
        return next((wish for wish in wishes if wish.until > now), None)

    def _carry_out(self, wish: QueryStateRequest | QueryRequest) -> None:
        with self._started.held():
            try:
                self._stop(wish) if isinstance(wish, QueryStateRequest) else self._answer(wish)
            except Exception as failure:
                _log.exception(
                    "query %s: the request %s could not be answered: %s", self._name, wish, describe(failure)
                )

    def _stop(self, desired: QueryStateRequest) -> None:
        self._requests.write(ObservedState(desired.desired, STOPPING))
        newest = self._requests.lines().desired
        if newest.state != STOPPED:
            self._requests.write(ObservedState(newest.desired, RUNNING))
            return
        _log.info("query %s: a command requests a stop", self._name)
        error = ""
        try:
            if not end_query(self._started, lambda: self._clock() * 1000 < desired.until):
                failure = self._started.query.exception()
                if failure is not None:
                    error = f"the query failed before it could be stopped: {describe(failure)}"
                else:
                    _log.warning("query %s: its epoch was interrupted, and the next start repeats it", self._name)
        except Exception as raised:
            _log.warning("query %s could not be stopped: %s", self._name, raised)
            error = message_for_user(raised)
        self._requests.write(ObservedState(desired.desired, RUNNING if error else STOPPED, error))

    def _answer(self, request: QueryRequest) -> None:
        self._requests.write(RequestStatus(request.request, TAKEN))
        if self._requests.lines().is_withdrawn(request):
            self._requests.write(RequestStatus(request.request, FAILED, "the request was withdrawn"))
            return
        _log.info("query %s: a command requests %s", self._name, request)
        try:
            self._record(request) if request.what == RECORD else self._write_savepoint(request)
        except Exception as error:
            _log.warning("query %s: the request %s failed: %s", self._name, request, error)
            self._requests.write(RequestStatus(request.request, FAILED, message_for_user(error)))
            return
        self._requests.write(RequestStatus(request.request, DONE))
        if request.what == SAVEPOINT:
            lines = self._requests.lines()
            self._requests.write(ObservedState(max(lines.desired.desired, lines.newest.observed) + 1, STOPPED))

    def _record(self, request: QueryRequest) -> None:
        started, task = self._started, request.task
        if task.get("epoch") is None:
            task = {**task, "epoch": Checkpoint(started.start.spark, str(started.checkpoint)).last_committed}
        monitoring.record(started.start.writer, request.directory, checkpointLocation=started.checkpoint, **task)

    def _write_savepoint(self, request: QueryRequest) -> None:
        left = max(request.until / 1000 - self._clock(), 0.001)
        stop_with_savepoint(self._started.query, request.directory, drain=request.drain, timeout=left)
