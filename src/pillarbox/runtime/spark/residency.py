"""Tasks that live on in a Python worker between epochs.

A worker is one process with one thread that runs Spark's tasks one after another; which subtask it is handed next is
Spark's choice. So a worker may hold any number of residents; one that was not asked for in a while is let go.
"""

from __future__ import annotations

import atexit
import gc
import logging
import time
from collections.abc import Callable
from typing import TypeVar

from pillarbox.runtime.shipping import ShippedVertex
from pillarbox.state import ChunkStore
from pillarbox.task import KeyedStreamTask, SourceStreamTask, StreamTask

__all__ = ["discard", "resident_keyed_task", "resident_source_task", "spare_the_collector"]

_LET_GO_AFTER_SECONDS = 600.0

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


@atexit.register
def close_all() -> None:
    """End all residents, when the worker ends in good order."""
    for place in list(_residents):
        _close(place)
