"""Tasks that live on in a Python worker between epochs.

A worker is one process with one thread that runs Spark's tasks one after another; which subtask it is handed next is
Spark's choice. So a worker may hold any number of residents; one that was not asked for in a while is let go. All
of this belongs to the worker's main thread, which is the mailbox thread of all residents.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import NoReturn, TypeVar

from pillarbox.runtime.shipping import ShippedVertex
from pillarbox.state import ChunkStore
from pillarbox.task import KeyedStreamTask, SourceStreamTask, StreamTask, TaskState

__all__ = ["close_query", "discard", "resident_keyed_task", "resident_source_task", "spare_the_collector"]

_LET_GO_AFTER_SECONDS = 600.0

# How long a worker that is let go may take to close its residents.
_LEAVE_WITHIN_SECONDS = 10.0

# Of the wall clock, at most this part goes into looking for cycles among all objects.
_COLLECTING = 0.01

T = TypeVar("T", bound=StreamTask)
_Place = tuple[str, str, int]
_residents: dict[_Place, StreamTask] = {}
_last_used: dict[_Place, float] = {}
_log = logging.getLogger("pillarbox")


def _query() -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    return (context.getLocalProperty("sql.streaming.queryId") if context is not None else None) or ""


def _resident(place: _Place, make: Callable[[], T]) -> T:
    now = time.monotonic()
    for other, used in list(_last_used.items()):
        if now - used > _LET_GO_AFTER_SECONDS and other != place:
            _close(other)
    task = _residents.get(place)
    if task is None:
        _close_before_leaving()
        task = _residents[place] = make()
    _last_used[place] = now
    return task  # type: ignore[return-value]


def _close(place: _Place) -> None:
    task = _residents.pop(place)
    _last_used.pop(place, None)
    _Collector.took = 0.0  # a task and what it refers to are a cycle
    try:
        task.close()
    except Exception:
        _log.exception("closing the operators of %s failed", task.vertex.name)


def discard(task: StreamTask) -> None:
    """Let a task go that failed, or holds what was not committed."""
    for place, resident in list(_residents.items()):
        if resident is task:
            del _residents[place]
            _last_used.pop(place, None)
    _Collector.took = 0.0
    task.cancel()


def resident_source_task(shipped: ShippedVertex) -> SourceStreamTask:
    """Give the worker's task of a source: one serves all partitions, in turn."""

    def make() -> SourceStreamTask:
        task = SourceStreamTask(shipped.load(), 0)
        task.restore()
        return task

    return _resident((_query(), shipped.digest, -1), make)


def resident_keyed_task(shipped: ShippedVertex, subtask: int, store: ChunkStore) -> KeyedStreamTask:
    """Give the task of a subtask, at the version in ``store``."""
    place = (_query(), shipped.digest, subtask)

    def make() -> KeyedStreamTask:
        return KeyedStreamTask(shipped.load(), subtask)

    task = _resident(place, make)
    try:
        if task.restore(store):
            return task
        # It went through an epoch here that Spark did not commit: nothing of it may stay.
        discard(task)
        task = _resident(place, make)
        if not task.restore(store):
            raise AssertionError("a new task has nothing that could differ from the store")
        return task
    except BaseException:
        discard(task)
        raise


class _Collector:
    """The full collections of this process: when the last one was, and how long it took (seconds).

    The first one can wait: what a cold start has read has no cycles, and looking at it would take as long as that did.
    """

    ended = time.monotonic()
    took = 1.0


def spare_the_collector() -> None:
    """Have the live state left out of the collections that Spark asks for.

    PySpark's daemon collects all garbage after each task, which takes a second for a million keys: an epoch would cost
    what exists, not what it touches. State has no cycles as a rule, and needs no collector. For what has, there is a
    full collection from time to time: so rarely that it takes a small share of the time.
    """
    now = time.monotonic()
    if now - _Collector.ended >= _Collector.took / _COLLECTING:
        gc.unfreeze()
        gc.collect()
        _Collector.ended = time.monotonic()
        _Collector.took = _Collector.ended - now
    else:
        # What the epoch left behind is young, and need not be kept until then.
        gc.collect(1)
    gc.freeze()


def close_query(query: str) -> int:
    """Close the residents of a query that has ended, and return how many there were."""
    places = [place for place in _residents if place[0] == query]
    for place in places:
        _close(place)
    return len(places)


@atexit.register
def close_all() -> None:
    """End all residents, when the worker ends in good order."""
    for place in list(_residents):
        _close(place)


@cache
def _close_before_leaving() -> None:
    """Have residents closed when Spark lets this worker go.

    Spark closes the socket of a worker that was idle for a minute. PySpark's daemon then ends it by ``os._exit``, which
    runs no exit handlers.
    """
    worker, leave = os.getpid(), os._exit

    def close_and_leave(status: int) -> NoReturn:
        # Not in a process that a function has forked, nor where user code leaves in the middle of an epoch.
        mine = os.getpid() == worker and threading.current_thread() is threading.main_thread()
        if mine and not any(task.state is TaskState.RUNNING for task in _residents.values()):
            # Also where a function's close() never returns, or left a thread that does not.
            last_moment = threading.Timer(_LEAVE_WITHIN_SECONDS, leave, (status,))
            last_moment.daemon = True
            last_moment.start()
            try:
                close_all()
            finally:
                leave(status)
        leave(status)

    os._exit = close_and_leave
