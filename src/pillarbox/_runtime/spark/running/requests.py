"""What commands want of a running query, in a folder next to its checkpoint.

There is no other way that is open wherever a query runs: both sides can read and write there. Each line is a JSON
object in a file of its own, and is never changed or removed.

**Whether the query runs** is a state. A command writes the :class:`Desired` state, the driver the :class:`Observed`
one. The highest generation holds: who no longer wants the query to stop desires that it runs. Two commands that want it
to stop want the same.

**A savepoint, and a recording** are requests: a file with the :class:`Request`, and files with its :class:`Status`.

A driver says that it begins before it does anything. A command that gives up says so, and a driver that has begun looks
for that once more: so one of the two always knows of the other. At the end of its query, a driver answers all that is
open. A start observes what was desired before it, and says of earlier requests that they are over: a query stops for
nobody who has gone. A command that still waits asks again. A command that was killed may be called again: what it has
asked for is found, or is done.
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
# The states of a query, and of requests.
RUNNING, STOPPING, STOPPED = "running", "stopping", "stopped"
OPEN, TAKEN, DONE, FAILED, WITHDRAWN, OVER, LOST = "open", "taken", "done", "failed", "withdrawn", "over", "lost"


@dataclass(frozen=True)
class Desired:
    """The state that a command wants the query to have.

    Attributes:
        desired: the generation: higher than all before.
        state: ``stopped``, or ``running`` if it is no longer to be stopped.
        until: until when a driver may begin to stop it (epoch ms).
    """

    desired: int
    state: str
    until: int = 0

    def __str__(self) -> str:
        return "to stop the query"


@dataclass(frozen=True)
class Observed:
    """The state of the query, by its driver.

    Attributes:
        observed: the newest generation that the driver knew.
        state: ``stopping``, ``stopped``, or ``running``: it was started since, or could not be stopped.
        error: why it could not be stopped; empty: no error.
    """

    observed: int
    state: str
    error: str = ""


@dataclass(frozen=True)
class Request:
    """A request to the driver of a query.

    Attributes:
        request: its id.
        what: ``savepoint``: stop, and write a savepoint; ``record``: record a task of an epoch.
        directory: where the savepoint or the recording is to be.
        until: until when a driver may take it (epoch ms).
        drain: whether event time is to end before the savepoint.
        task: the task to record, as arguments of ``record``.
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
class Status:
    """What became of a request.

    Attributes:
        of: the id of the request.
        status: ``taken``, ``withdrawn``, ``done``, ``failed``, or ``over``: the query was started again since.
        error: why it failed.
    """

    of: str
    status: str
    error: str = ""


class Outcome(NamedTuple):
    """What became of a wish: ``open``, or a status. ``lost``: taken by a driver that has ended without an answer."""

    status: str
    error: str = ""


class Lines:
    """All lines of a folder, as far as this version understands them.

    Attributes:
        desired: the newest desired state.
        newest: the newest observed state.
        requests: the requests.
    """

    def __init__(self, lines: Sequence[dict[str, Any]]) -> None:
        self.desired: Desired = max(_all(Desired, lines), key=lambda each: each.desired, default=Desired(0, RUNNING))
        order = (STOPPING, STOPPED, RUNNING)
        self._observed = [each for each in _all(Observed, lines) if each.state in order]
        self.newest: Observed = max(
            self._observed, key=lambda each: (each.observed, order.index(each.state)), default=Observed(0, RUNNING)
        )
        self.requests: list[Request] = _all(Request, lines)
        self._statuses = _all(Status, lines)

    @property
    def is_to_stop(self) -> bool:
        """Whether the query is to stop, and no driver knows it."""
        return self.desired.state == STOPPED and self.desired.desired > self.newest.observed

    def outcome(self, wish: Desired | Request) -> Outcome:
        """Return what became of a wish."""
        return self._of_desired(wish) if isinstance(wish, Desired) else self._of_request(wish)

    def _of_desired(self, wish: Desired) -> Outcome:
        if any(each.state == STOPPED and each.observed >= wish.desired for each in self._observed):
            return Outcome(DONE)
        states = {each.state: each.error for each in self._observed if each.observed == wish.desired}
        if states.get(RUNNING):
            return Outcome(FAILED, states[RUNNING])
        if STOPPING in states:
            return Outcome(LOST if self.newest.state == RUNNING else TAKEN)
        if self.newest.observed >= wish.desired:
            return Outcome(OVER)
        return Outcome(OPEN if self.desired.state == STOPPED else WITHDRAWN)

    def _of_request(self, wish: Request) -> Outcome:
        known = {each.status: each.error for each in self._statuses if each.of == wish.request}
        if OVER in known and TAKEN in known and not known.keys() & {DONE, FAILED}:
            return Outcome(LOST)
        status = next((each for each in (DONE, FAILED, OVER, TAKEN, WITHDRAWN) if each in known), OPEN)
        return Outcome(status, known.get(status, ""))

    def is_withdrawn(self, request: Request) -> bool:
        """Return whether the command that has written a request has withdrawn it."""
        return Status(request.request, WITHDRAWN) in self._statuses


def _all(kind: type[T], lines: Sequence[dict[str, Any]]) -> list[T]:
    """Return the lines of a kind: they have all of its fields without a default."""
    found: list[T] = []
    for line in lines:
        try:
            found.append(read(kind, line))
        except TypeError:
            continue
    return found


class Requests:
    """The folder of a checkpoint.

    Args:
        checkpoint: the checkpoint location.
    """

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._folder = session_of(spark).folder(f"{checkpoint.rstrip('/')}/pillarbox/requests")

    def write(self, line: Desired | Observed | Request | Status) -> None:
        """Add a line."""
        self._folder.add_line(json_of(line))

    def files(self) -> frozenset[str]:
        """Return the names of the files; Spark runs no job for that."""
        return frozenset(self._folder.names())

    def lines(self) -> Lines:
        """Read all lines."""
        return Lines([json_object(line) for _, line in self._folder.lines()])

    def make_folder(self) -> None:
        """Create the folder, with a line that says nothing.

        To find that a folder does not exist takes three requests to an object store, and to list one that does takes
        one. Under Spark Connect, Spark's log has a stack trace for each look at one that does not exist.
        """
        self.write(Observed(0, RUNNING))
