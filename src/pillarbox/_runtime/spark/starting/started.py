"""A registry of this process's queries that run a pillarbox program."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from pillarbox._runtime.spark.checkpoint.damage import damage_in
from pillarbox._runtime.spark.failures import end_with_message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.streaming.query import StreamingQuery

    from pillarbox._graph.layout import Layout
    from pillarbox._runtime.spark.plan.registry import RegisteredProgram
    from pillarbox._runtime.spark.running.heartbeat import Heartbeat
    from pillarbox._runtime.spark.session.configuration import SessionConfiguration
    from pillarbox._runtime.spark.session.writer import WriterStart
    from pillarbox._runtime.spark.tools import ToolHooks


class StartedQueryEnd(NamedTuple):
    """A query's end, with the error that ended it, or None."""

    failure: Exception | None


class StartedQuery:
    """A query that this process has started.

    Attributes:
        checkpoint: its checkpoint location, or None if that is temporary (so the query cannot be resumed).
        is_closed: whether its functions on the executors are closed or being closed.
        await_end: Spark's own ``awaitTermination``, which does not wait for threads that hold the query.
    """

    hooks: ToolHooks | None = None
    heartbeat: Heartbeat | None = None

    def __init__(
        self,
        query: StreamingQuery,
        start: WriterStart,
        programs: Sequence[RegisteredProgram] = (),
        run: str = "",
        configuration: SessionConfiguration | None = None,
        layouts: Sequence[Layout] = (),
        *,
        is_watched: bool = False,
    ) -> None:
        self.query = query
        self.start = start
        self.checkpoint = start.checkpoint
        self.programs = programs
        self.layouts = layouts
        self.run = run
        self.configuration = configuration
        self.is_watched = is_watched
        self.is_closed = False
        # Notified when no thread holds the query.
        self._changed = threading.Condition()
        self._holding = 0
        self.await_end: Any = getattr(query, "awaitTermination", None)
        self._failure: Any = getattr(query, "exception", lambda: None)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make threads that wait for the query's end also wait for the block's end. Thread-safe."""
        with self._changed:
            self._holding += 1
        try:
            yield
        finally:
            with self._changed:
                self._holding -= 1
                self._changed.notify_all()

    def wait_while_held(self, timeout: float | None = None) -> bool | None:
        """Wait until no thread holds the query. Thread-safe.

        Returns whether it had to wait, or None if a thread still holds the query after ``timeout`` seconds.
        """
        with self._changed:
            was_held = bool(self._holding)
            return was_held if self._changed.wait_for(lambda: not self._holding, timeout) else None

    def has_ended(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds. Returns whether the query has ended and no thread holds it."""
        began = time.monotonic()
        # Spark returns early if the query has just ended in the state ACTIVE: see ``EndingGate``.
        is_early = self.await_end(timeout) is False
        elapsed = time.monotonic() - began
        if is_early and elapsed >= int(timeout * 1000) / 1000:
            return False
        was_held = self.wait_while_held(max(0.0, timeout - elapsed))
        if was_held is None:
            return False
        return not ((is_early or was_held) and _is_active(self.query))

    def end_within(self, seconds: float, could_not_look: Callable[[Exception], None]) -> StartedQueryEnd | None:
        """Wait for the end of the query. Returns None if it is still running. Thread-safe.

        ``could_not_look`` is called if Spark raises an error while the query is running.
        """
        try:
            return StartedQueryEnd(None) if self.has_ended(seconds) else None
        except Exception as error:
            if not self.is_running:
                return StartedQueryEnd(error)
            could_not_look(error)
            time.sleep(seconds)
            return None

    @property
    def is_running(self) -> bool:
        return bool(self._holding) or _is_active(self.query)

    def hold_end(self, closing: Callable[[], None] = lambda: None) -> None:
        """Patch the query's ``awaitTermination()`` to wait until no thread holds the query.

        When it returns, programs usually exit, and Spark with them. Before that, a savepoint may have to be written and
        functions closed. If the query failed, the raised error ends with the task's message.
        """

        def held_termination(timeout: float | None = None) -> bool | None:
            try:
                if timeout is None:
                    ended: bool | None = self.await_end()
                    self.wait_while_held()
                else:
                    ended = self.has_ended(timeout)
            except Exception as error:
                if not self.is_running:
                    closing()
                self._explain(error)
                raise
            if ended is not False:
                closing()
            return ended

        def failure() -> Exception | None:
            error: Exception | None = self._failure()
            if error is not None:
                self._explain(error)
            return error

        self.query.awaitTermination = held_termination  # type: ignore[method-assign]
        self.query.exception = failure  # type: ignore[method-assign,assignment]

    def _explain(self, error: Exception) -> None:
        damage = damage_in(_texts_of(error), self.checkpoint)
        end_with_message(error, None if damage is None else f"pillarbox.CheckpointMismatchError: {damage}")


def _texts_of(error: Exception) -> Iterator[str]:
    yield str(error)
    stack = getattr(error, "_stackTrace", None)
    if isinstance(stack, str):
        yield stack


_lock = threading.Lock()
_queries: dict[str, StartedQuery] = {}


def remember(started: StartedQuery) -> list[StartedQuery]:
    """Register a started query, and remove ended queries. Returns the ended queries."""
    query: Any = started.query
    query._pillarbox_started = started
    started.hold_end()
    with _lock:
        ended = [other for number, other in _queries.items() if not other.is_running]
        before = _queries.get(str(started.query.id))
        ended += [] if before is None or before in ended else [before]
        for other in ended:
            del _queries[str(other.query.id)]
        _queries[str(started.query.id)] = started
    return ended


def find(query: StreamingQuery) -> StartedQuery | None:
    started: StartedQuery | None = getattr(query, "_pillarbox_started", None)
    if started is not None:
        return started
    with _lock:
        return _queries.get(str(query.id))


def running() -> list[str]:
    with _lock:
        return [number for number, started in _queries.items() if started.is_running]


def _is_active(query: StreamingQuery) -> bool:
    try:
        return query.isActive
    except Exception:
        return False
