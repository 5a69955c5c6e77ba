"""Access to a query for the public tools, with a thread that follows queries without hooks."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pillarbox._errors import ProgramError, describe, shorten
from pillarbox._runtime.spark.running.progress_reader import ProgressReader
from pillarbox._runtime.spark.starting.started import StartedQuery, find
from pillarbox_tools.watching.watched import WatchedQuery

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_READ_EVERY = 1.0


def watched_query(query: StreamingQuery, method: str, otherwise: str = "") -> WatchedQuery:
    """Return the watched form of a query, as :func:`watched`.

    Args:
        method: the public method, for errors.
        otherwise: the advice for a query of another process.
    """
    if not hasattr(query, "awaitTermination"):
        raise ProgramError(f"{method} takes a query, as start() returned it, not {shorten(query)}")
    started = find(query)
    if started is None:
        raise ProgramError(
            f"{method} takes a query with a program of pillarbox, as start() returned it. Query {query.id} has no"
            f" such program, or another process has started it{otherwise}"
        )
    return watched(started)


_lock = threading.Lock()
_watched: WeakKeyDictionary[StartedQuery, WatchedQuery] = WeakKeyDictionary()


def watched(started: StartedQuery) -> WatchedQuery:
    """Return the watched form of a query. A thread follows it if it has no hooks. Any thread."""
    with _lock:
        query = _watched.get(started)
        if query is None:
            query = _watched[started] = WatchedQuery(started)
            if not started.is_watched:
                _Follower(started, query).start()
    return query


class _Follower(threading.Thread):
    """Follows a query that was started by its writer's own ``start()``, without hooks."""

    def __init__(self, started: StartedQuery, watched: WatchedQuery) -> None:
        super().__init__(name=f"pillarbox watches query {started.query.id}", daemon=True)
        self._managed = started  # `_started` is an attribute of Thread
        self._watched = watched
        self._progress = ProgressReader(started.query)

    def run(self) -> None:
        while (end := self._managed.end_within(_READ_EVERY, self._log_failure)) is None:
            self._take_progress()
        self._take_progress()
        try:
            self._watched.end(end.failure)
        except Exception as error:
            self._log_failure(error)

    def _take_progress(self) -> None:
        try:
            self._watched.take(self._progress.new())
        except Exception as error:
            self._log_failure(error)

    def _log_failure(self, error: Exception) -> None:
        self._watched.log_missing_progress(describe(error))
