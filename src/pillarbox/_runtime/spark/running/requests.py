"""Commands to a running query, in a folder next to its checkpoint, which both sides can always access.

Each line is a JSON object in a file of its own, which is never changed or removed.

To stop a query, a command writes a :class:`DesiredState`, and the driver writes :class:`ObservedState`. The state with
the highest generation is current. To get a savepoint or recording, a command writes a :class:`QueryRequest`, and the
driver writes its :class:`RequestStatus`.

Before a driver acts, it writes that it has taken the request, and then checks that the command has not withdrawn it.
When its query ends, a driver answers all open requests. When a query starts, earlier requests are marked as over. A
command that was killed can be called again: it finds its request, or the outcome.
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
class DesiredState:
    """The state of the query that a command requests.

    Attributes:
        state: ``stopped``, or ``running`` if the stop is withdrawn.
        until: deadline for a driver to begin to stop the query (epoch ms).
    """

    desired: int
    state: str
    until: int = 0

    def __str__(self) -> str:
        return "to stop the query"


@dataclass(frozen=True)
class ObservedState:
    """The state of the query, as written by its driver.

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
        until: deadline for a driver to take the request (epoch ms).
        drain: whether event time ends before the savepoint.
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
    """The outcome of a request.

    Attributes:
        status: ``taken``, ``withdrawn``, ``done``, ``failed``, or ``over`` if the query has been started again.
    """

    of: str
    status: str
    error: str = ""


class RequestOutcome(NamedTuple):
    """The outcome of a command: ``open``, a status, or ``lost`` if its driver ended first."""

    status: str
    error: str = ""


class RequestLog:
    """All lines in a requests folder that this version can parse."""

    def __init__(self, lines: Sequence[dict[str, Any]]) -> None:
        self.desired: DesiredState = max(
            _all(DesiredState, lines), key=lambda line: line.desired, default=DesiredState(0, RUNNING)
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
        """Whether a command requests the query to stop, and no driver has answered."""
        return self.desired.state == STOPPED and self.desired.desired > self.newest.observed

    def outcome(self, wish: DesiredState | QueryRequest) -> RequestOutcome:
        return self._of_desired(wish) if isinstance(wish, DesiredState) else self._of_request(wish)

    def _of_desired(self, wish: DesiredState) -> RequestOutcome:
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
    """The requests folder of a checkpoint."""

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._folder = session_of(spark).folder(f"{checkpoint.rstrip('/')}/pillarbox/requests")

    def write(self, line: DesiredState | ObservedState | QueryRequest | RequestStatus) -> None:
        self._folder.add_line(json_of(line))

    def files(self) -> frozenset[str]:
        return frozenset(self._folder.names())

    def lines(self) -> RequestLog:
        return RequestLog([json_object(line) for _, line in self._folder.lines()])

    def make_folder(self) -> None:
        """Create the folder, with an empty observed state.

        In object stores, checking a folder is cheaper if it exists. Under Spark Connect, checking a missing folder logs
        a stack trace.
        """
        self.write(ObservedState(0, RUNNING))
