"""The queries of programs that this process has started, and all that it takes to start them once more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.streaming.query import StreamingQuery

    from pillarbox._runtime.spark.start import PlannedProgram

__all__ = ["StartedQuery", "find", "remember", "running"]


class StartedQuery:
    """A query that was started, and how.

    Args:
        start: starts it again, as it was.

    Attributes:
        query: as Spark has it.
        writer: whose options it has.
        checkpoint: its checkpoint location; None: it has one of its own, which nobody could go on with.
        programs: those in its plan.
    """

    def __init__(
        self,
        query: StreamingQuery,
        writer: Any,
        start: Callable[[], StreamingQuery],
        checkpoint: str | None,
        programs: Sequence[PlannedProgram],
    ) -> None:
        self.query = query
        self.writer = writer
        self.start = start
        self.checkpoint = checkpoint
        self.programs = programs
        # Guards the number; threads wait for it to be 0.
        self._changed = threading.Condition()
        self._holding = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let threads that wait for the end of the query wait for the end of this block as well. Any thread."""
        with self._changed:
            self._holding += 1
        try:
            yield
        finally:
            with self._changed:
                self._holding -= 1
                self._changed.notify_all()

    def wait_while_held(self) -> None:
        """Wait until nobody is busy with the query that has ended. Any thread."""
        with self._changed:
            self._changed.wait_for(lambda: not self._holding)

    def hold_its_end(self) -> None:
        """Let ``awaitTermination()`` of the query return when nobody is busy with it any more.

        A program usually ends, and Spark with it, when that returns; but a query that is stopped with a savepoint
        still has to be read then.
        """
        await_termination: Any = self.query.awaitTermination

        def held_termination(timeout: float | None = None) -> bool | None:
            ended: bool | None = await_termination() if timeout is None else await_termination(timeout)
            if ended is not False:
                self.wait_while_held()
            return ended

        self.query.awaitTermination = held_termination  # type: ignore[method-assign]


_lock = threading.Lock()
_queries: dict[str, StartedQuery] = {}


def remember(started: StartedQuery) -> None:
    """Keep a query that has just been started; those that have ended are forgotten."""
    with _lock:
        for number, other in list(_queries.items()):
            if not _is_active(other.query):
                del _queries[number]
        _queries[str(started.query.id)] = started


def find(query: StreamingQuery) -> StartedQuery | None:
    """Return how a query was started; None: another process did it, or it has no program of pillarbox."""
    with _lock:
        return _queries.get(str(query.id))


def running() -> list[str]:
    """Return the ids of queries that run, of all sessions of this process."""
    with _lock:
        return [number for number, started in _queries.items() if _is_active(started.query)]


def _is_active(query: StreamingQuery) -> bool:
    try:
        return query.isActive
    except Exception:  # its Spark is gone
        return False
