"""A query that somebody wants to see: found by Spark's object, and followed if nobody looks after it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from pillarbox._errors import ProgramError, describe, shorten
from pillarbox._runtime.spark.starting.started import StartedQuery, find
from pillarbox._runtime.spark.watching.watched import WatchedQuery

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

# How often the progress of a query is looked at that nobody else watches (seconds).
_LOOK_EVERY = 1.0


def watched_query(query: StreamingQuery, method: str, otherwise: str = "") -> WatchedQuery:
    """Return a query as it is watched; where nobody does, a thread does from now on.

    Args:
        method: the public method that takes it.
        otherwise: what to do with a query of another process.

    Raises:
        ProgramError: it is no query with a program of pillarbox, or another process has started it.
    """
    if not hasattr(query, "awaitTermination"):
        raise ProgramError(f"{method} takes a query, as start() returned it, not {shorten(query)}")
    started = find(query)
    if started is None:
        raise ProgramError(
            f"{method} takes a query with a program of pillarbox, as start() returned it, and query {query.id} is"
            f" none, or another process has started it{otherwise}"
        )
    return watched(started)


def watched(started: StartedQuery) -> WatchedQuery:
    """Return a query as it is watched; where nobody does, a thread does from now on."""
    if started.watched is None:
        started.watched = WatchedQuery(started)
        _Follower(started, started.watched).start()
    return started.watched


class _Follower(threading.Thread):
    """Follows a query that its writer's own ``start()`` has started, which nobody looks after."""

    def __init__(self, started: StartedQuery, watched: WatchedQuery) -> None:
        super().__init__(name=f"pillarbox watches query {started.query.id}", daemon=True)
        self._query: Any = started.query
        self._watched = watched

    def run(self) -> None:
        failure: Exception | None = None
        try:
            while not self._query.awaitTermination(_LOOK_EVERY):
                self._watched.take_progress()
        except Exception as error:
            failure = error
        try:
            self._watched.end(failure)
        except Exception as error:  # its Spark is gone
            self._watched.tell_unknown(describe(error))
