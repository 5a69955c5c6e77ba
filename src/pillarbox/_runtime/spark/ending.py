"""Ending a query between two epochs, so that none is begun and not committed.

``query.stop()`` interrupts the epoch that runs: the next start runs it again, with all of its requests, and nothing
that needs a whole checkpoint is accepted before that. But Spark looks before each epoch whether the query is to go on,
which is how ``availableNow`` ends by itself. So a query is told that it is not, and the epoch that runs comes to its
end. Where that cannot be told (Spark Connect), an epoch that was interrupted is run to its end by itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pillarbox._errors import describe
from pillarbox._runtime.spark.description import Description
from pillarbox._runtime.spark.start import changes_refused
from pillarbox._runtime.spark.writer import one_batch, session_of

if TYPE_CHECKING:
    from pillarbox._runtime.spark.started import StartedQuery

__all__ = ["end_between_epochs", "end_query", "run_one_epoch"]

_log = logging.getLogger("pillarbox")

# How often a query that is to end is looked at (seconds).
_LOOK_EVERY = 0.05
# Spark's method in which the thread of a query waits for the time of its next trigger.
_WAITS_FOR_TRIGGER = "waitTillTime"


def end_query(started: StartedQuery, has_time: Callable[[], bool]) -> bool:
    """End a query after the running epoch, or, where there is no time for that, at once. Any thread.

    Args:
        has_time: whether there still is time.

    Returns:
        Whether it is between two epochs, so that the checkpoint is whole. If not, the next start runs the one that was
        begun again.
    """
    query: Any = started.query
    with started.held():
        if not end_between_epochs(query, has_time):
            query.stop()
            return False
        if query.exception() is not None:
            return False
        if started.checkpoint is None:
            return True
        description = Description(session_of(started.writer), started.checkpoint)
        if description.unfinished is None or description.interrupted is not None:
            return True
        _log.info("checkpoint %s: finishing epoch %d", started.checkpoint, description.last_committed + 1)
        return run_one_epoch(started, has_time) is not None


def end_between_epochs(query: Any, has_time: Callable[[], bool]) -> bool:
    """End a query after the running epoch; return whether there was time for that. If not, the query continues."""
    gate, seen = _Gate(query), _batch(query)
    while gate.is_running:
        # Where the gate is closed, the query's thread ends by itself, unless it sleeps until its next trigger. Where it
        # cannot be closed, an epoch that has just ended leaves the least to be done again.
        if gate.is_asleep if gate.close() else not query.status["isTriggerActive"] or _batch(query) != seen:
            query.stop()
            return True
        if not has_time():
            gate.open()
            return False
        time.sleep(_LOOK_EVERY)
    return True


def run_one_epoch(started: StartedQuery, has_time: Callable[[], bool]) -> Any:
    """Start a query for one epoch, and wait for its end; return that query, or None where time ran out."""
    with one_batch(started.writer), changes_refused():
        query: Any = started.start()
    while not query.awaitTermination(_LOOK_EVERY):
        if not has_time():
            query.stop()
            return None
    return query


def _batch(query: Any) -> int | None:
    progress = query.lastProgress
    return None if progress is None else int(progress["batchId"])


class _Gate:
    """The place between two epochs of a query, which can be closed: then no other epoch begins.

    In a classic session, the query's state is at hand, by methods of Spark's that are none of its API: while it is
    closed, ``isActive`` is false, and ``awaitTermination`` with a time is true, though an epoch may still run. Where
    Spark does not have them, it cannot be closed.
    """

    def __init__(self, query: Any) -> None:
        self._query = query
        self._open: Any = None
        self._closed: Any = None
        self._execution: Any = None
        if not hasattr(query, "_jsq"):  # Spark Connect
            return
        try:
            execution = query._jsq.streamingQuery()
            execution.queryExecutionThread().isAlive()
            self._state = execution.state()
            self._execution = execution
        except Exception as error:  # another Spark than those that are known
            _log.warning("query %s cannot be held between two epochs: %s", query.id, describe(error))

    @property
    def is_running(self) -> bool:
        """Whether the query has not come to its end."""
        if self._execution is None:
            return bool(self._query.isActive)
        return bool(self._execution.queryExecutionThread().isAlive())

    @property
    def is_asleep(self) -> bool:
        """Whether the query's thread waits for the time of its next trigger. The session is a classic one."""
        frames = self._execution.queryExecutionThread().getStackTrace()
        return any(str(frame.getMethodName()) == _WAITS_FOR_TRIGGER for frame in frames)

    def close(self) -> bool:
        """Let no other epoch begin; return whether none will."""
        if self._execution is None:
            return False
        if self._closed is None:
            state = self._state.get()
            kind = state.getClass()
            name = str(kind.getName())
            if name.endswith(".TERMINATED$"):  # it ends by itself
                return True
            if not name.endswith(".ACTIVE$"):  # it begins
                return False
            other = kind.getClassLoader().loadClass(name.removesuffix("ACTIVE$") + "TERMINATED$")
            self._open, self._closed = state, other.getField("MODULE$").get(None)
        self._state.compareAndSet(self._open, self._closed)
        return True

    def open(self) -> None:
        """Let epochs begin again, unless the query has ended meanwhile."""
        if self._closed is not None:
            self._state.compareAndSet(self._closed, self._open)
            # It may just have found it closed.
            time.sleep(_LOOK_EVERY)
            if not self.is_running:
                self._state.set(self._closed)
