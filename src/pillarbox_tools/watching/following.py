"""Finds the model of a query for the public functions."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pillarbox._errors import ProgramError, describe, shorten
from pillarbox._runtime.spark.running.progress_reader import ProgressReader
from pillarbox._runtime.spark.starting.started import StartedQuery, find
from pillarbox_tools.watching.watched import WatchedQuery

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("pillarbox")

_READ_EVERY = 1.0


def watched_query(query: StreamingQuery, method: str, otherwise: str = "") -> WatchedQuery:
    if not hasattr(query, "awaitTermination"):
        raise ProgramError(f"{method} takes a query that start() returned, not {shorten(query)}")
    started = find(query)
    if started is None:
        raise ProgramError(
            f"{method} needs a query that start() returned in this process, but query {query.id} has no pillarbox"
            f" program, or another process started it{otherwise}"
        )
    return watched(started)


_lock = threading.Lock()
_watched: WeakKeyDictionary[StartedQuery, WatchedQuery] = WeakKeyDictionary()


def watched(started: StartedQuery) -> WatchedQuery:
    """Return the model of a query. For a query without hooks, start a thread that updates it. Thread-safe."""
    with _lock:
        query = _watched.get(started)
        if query is None:
            query = _watched[started] = WatchedQuery(started)
            if not started.is_watched:
                name = f"pillarbox watches query {started.query.id}"
                follow = partial(_follow, started, query, ProgressReader(started.query))
                threading.Thread(target=follow, name=name, daemon=True).start()
    return query


def _follow(started: StartedQuery, query: WatchedQuery, progress: ProgressReader) -> None:
    """Update the model of a query without hooks (started by its writer's ``start()``) until its end."""
    errors: list[Exception] = []
    level = logging.WARNING
    end = None
    while end is None:
        end = started.end_within(_READ_EVERY, errors.append)
        try:
            query.take(progress.new())
        except Exception as error:
            errors.append(error)
        if errors:
            _log.log(level, "query %s: its progress cannot be read: %s", query.id, describe(errors[0]))
            level = logging.DEBUG
            errors.clear()
    query.end(end.failure)
