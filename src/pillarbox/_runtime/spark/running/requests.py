"""Commands to a running query, as files in a folder next to its checkpoint, which command and driver can access.

Each file is one JSON object in one line, and is never changed or removed.

To stop a query, a command writes the :class:`QueryStateRequest`, and the driver writes the :class:`ObservedState`; the
highest generation is current. To get a savepoint or recording, a command writes a :class:`QueryRequest`, and the driver
writes a :class:`RequestStatus` for each step.

Before the driver acts, it writes that it has taken the request, and then checks that the request was not withdrawn.
When the query ends, the driver answers all open requests. When a query starts, earlier requests are marked as over. A
killed command can be run again, and finds its request or the outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pillarbox._graph.description import json_object
from pillarbox._json import json_of, read
from pillarbox._runtime.spark.session.session import session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

SAVEPOINT, RECORD = "savepoint", "record"
RUNNING, STOPPING, STOPPED = "running", "stopping", "stopped"
OPEN, TAKEN, DONE, FAILED, WITHDRAWN, OVER, LOST = "open", "taken", "done", "failed", "withdrawn", "over", "lost"


@dataclass(frozen=True)
class QueryStateRequest:
    """The state that a command requests for a query.

    Attributes:
        state: ``stopped``, or ``running`` to withdraw the request.
        until: deadline for the driver to begin to stop the query (Unix time in ms).
    """

    desired: int
    state: str
    until: int = 0

    def __str__(self) -> str:
        return "to stop the query"


@dataclass(frozen=True)
class ObservedState:
    """A query's state, as its driver reports it.

    Attributes:
        state: ``stopping``, ``stopped``, or ``running`` if the query was started again or could not be stopped.
    """

    observed: int
    state: str
    error: str = ""


@dataclass(frozen=True)
class QueryRequest:
    """A request to the driver of a query.

    Attributes:
        what: ``savepoint`` to stop and write a savepoint, or ``record`` to record a task of an epoch.
        until: deadline for the driver to take the request (Unix time in ms).
        drain: whether to end event time before the savepoint.
    """

    request: str
    what: str
    directory: str
    until: int
    drain: bool = False
    task: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.what == RECORD:
            return f"to record a task in {self.directory}"
        return f"to {'drain' if self.drain else 'stop'} the query with a savepoint in {self.directory}"


@dataclass(frozen=True)
class RequestStatus:
    """The status of a request, as its driver reports it.

    Attributes:
        status: ``taken``, ``withdrawn``, ``done``, ``failed``, or ``over`` if the query has been started again.
    """

    of: str
    status: str
    error: str = ""


class RequestOutcome(NamedTuple):
    """The outcome of a command: its last status, ``open`` without a status, or ``lost`` if the driver has ended."""

    status: str
    error: str = ""


class RequestLog:
    """All lines in a folder of requests that this version can parse."""

    def __init__(self, lines: Sequence[dict[str, Any]]) -> None:
        self.desired: QueryStateRequest = max(
            _all(QueryStateRequest, lines), key=lambda line: line.desired, default=QueryStateRequest(0, RUNNING)
        )
        order = (STOPPING, STOPPED, RUNNING)
        self._observed = [line for line in _all(ObservedState, lines) if line.state in order]
        self.newest: ObservedState = max(
            self._observed, key=lambda line: (line.observed, order.index(line.state)), default=ObservedState(0, RUNNING)
        )
        self.requests: list[QueryRequest] = _all(QueryRequest, lines)
        self._statuses = _all(RequestStatus, lines)

    @property
    def is_to_stop(self) -> bool:
        return self.desired.state == STOPPED and self.desired.desired > self.newest.observed

    def outcome(self, wish: QueryStateRequest | QueryRequest) -> RequestOutcome:
        return self._of_desired(wish) if isinstance(wish, QueryStateRequest) else self._of_request(wish)

    def _of_desired(self, wish: QueryStateRequest) -> RequestOutcome:
        if any(line.state == STOPPED and line.observed >= wish.desired for line in self._observed):
            return RequestOutcome(DONE)
        states = {line.state: line.error for line in self._observed if line.observed == wish.desired}
        if states.get(RUNNING):
            return RequestOutcome(FAILED, states[RUNNING])
        if STOPPING in states:
            return RequestOutcome(LOST if self.newest.state == RUNNING else TAKEN)
        if self.newest.observed >= wish.desired:
            return RequestOutcome(OVER)
        return RequestOutcome(OPEN if self.desired.state == STOPPED else WITHDRAWN)

    def _of_request(self, wish: QueryRequest) -> RequestOutcome:
        statuses = {line.status: line.error for line in self._statuses if line.of == wish.request}
        if OVER in statuses and TAKEN in statuses and not statuses.keys() & {DONE, FAILED}:
            return RequestOutcome(LOST)
        status = next((name for name in (DONE, FAILED, OVER, TAKEN, WITHDRAWN) if name in statuses), OPEN)
        return RequestOutcome(status, statuses.get(status, ""))

    def is_withdrawn(self, request: QueryRequest) -> bool:
        return RequestStatus(request.request, WITHDRAWN) in self._statuses


def _all(kind: type[T], lines: Sequence[dict[str, Any]]) -> list[T]:
    parsed: list[T] = []
    for line in lines:
        try:
            parsed.append(read(kind, line))
        except TypeError:
            continue
    return parsed


class Requests:
    """The folder with the requests to a query."""

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._folder = session_of(spark).folder(f"{checkpoint.rstrip('/')}/pillarbox/requests")

    def write(self, line: QueryStateRequest | ObservedState | QueryRequest | RequestStatus) -> None:
        self._folder.add_line(json_of(line))

    def files(self) -> frozenset[str]:
        return frozenset(self._folder.names())

    def lines(self) -> RequestLog:
        return RequestLog([json_object(line) for _, line in self._folder.lines()])

    def make_folder(self) -> None:
        """Create the folder, with an empty observed state.

        Polling a missing folder would cost more in object stores, and would log a stack trace under Spark Connect.
        """
        self.write(ObservedState(0, RUNNING))
