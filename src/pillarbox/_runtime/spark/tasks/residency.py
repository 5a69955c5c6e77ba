"""Keeps tasks in a process (home process or Spark worker) between epochs. Such tasks are *resident*.

Spark chooses the subtasks that a worker runs, so a worker may have any number of resident tasks, and closes unused
tasks. Use this module only in the main thread, which is the mailbox thread of all resident tasks.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, NoReturn, TypeVar
from weakref import WeakValueDictionary

import pyarrow as pa

from pillarbox._graph.layout import Layout, lay_out
from pillarbox._operators.budgets.ledger import LedgerScope
from pillarbox._operators.frame.shared_resources import EVENT_LOOP, SharedResources
from pillarbox._runtime.shipping import ShippedVertex
from pillarbox._runtime.spark.tasks.leaving import run_exit_handlers
from pillarbox._runtime.spark.tasks.task_info import TaskInfo
from pillarbox._state.chunks.store import ChunkStore
from pillarbox._task.lifecycle import TaskState
from pillarbox._task.multiple_input_stream_task import MultipleInputStreamTask
from pillarbox._task.source_stream_task import SourceStreamTask
from pillarbox._task.stream_task import StreamTask
from pillarbox._task.vertex import Vertex
from pillarbox._time.clock_log import ClockLog, ReplayedClock

if TYPE_CHECKING:
    from pillarbox._operators.async_keyed.loop import KeyedLoop

_IDLE_SECONDS = 600.0

# Maximum seconds to close an ending worker's residents.
_CLOSING_SECONDS = 10.0

# Maximum share of processor time (waiting does not count) for a slow call.
_SHARE = 0.01

# With fewer objects, a full collection takes only a few milliseconds.
_MANY_OBJECTS = 50_000

# Young collections between two full collections.
_NEVER = 1_000_000_000

R = TypeVar("R")
T = TypeVar("T", bound=StreamTask)
# (run, program, layout, subtask), with subtask -1 for a source.
_Key = tuple[str, str, Layout, int]
_log = logging.getLogger("pillarbox")


class _RareCall:
    """Limits the calls of a slow function to a small share of the processor time.

    ``seconds`` is the processor time of the last call.
    """

    def __init__(self, worked: Callable[[], float], seconds: float) -> None:
        self.seconds = seconds
        self._worked = worked
        self._ended_at = worked()

    @property
    def is_due(self) -> bool:
        return self._worked() - self._ended_at >= self.seconds / _SHARE

    def run(self, function: Callable[[], R]) -> R:
        began = self._worked()
        result = function()
        self._ended_at = self._worked()
        self.seconds = self._ended_at - began
        return result


class Residency:
    """The resident tasks of one process.

    Args:
        stay: whether a subtask always runs in this process. If False, Spark chooses a worker for each epoch.
        resting: returns a context manager that a task enters while it waits for mail.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        worked: Callable[[], float] = time.process_time,
        *,
        idle: float = _IDLE_SECONDS,
        stay: bool = False,
        resting: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._clock = clock
        self._idle = idle
        self._stay = stay
        self._resting = resting
        self._residents: dict[_Key, StreamTask] = {}
        # Resources that a vertex's tasks in one partition share.
        self._shared: WeakValueDictionary[_Key, SharedResources] = WeakValueDictionary()
        self._of_thread = SharedResources(stay=stay, resting=resting)
        # Least recently used first.
        self._last_used: dict[_Key, float] = {}
        # The first full collection can wait: a cold start creates no cycles.
        self._full_collection = _RareCall(worked, seconds=1.0)
        self._count = _RareCall(worked, seconds=0.0)
        # Whether a task has ended since the last collection.
        self._has_ended = False
        # Whether this process has frozen objects since its fork.
        self._has_frozen = False
        # ``{run: query}``.
        self._queries: dict[str, str] = {}
        self.is_busy = False
        self.closes_later = False

    def source_task(self, shipped: ShippedVertex, facts: TaskInfo) -> SourceStreamTask:
        """Return this worker's task for all partitions of a source."""

        def make() -> SourceStreamTask:
            vertex = loaded(shipped, facts.layout)
            task = SourceStreamTask(vertex, 0)
            task.restore()
            return task

        return self._resident((facts.run, shipped.digest, facts.layout, -1), facts.query, make)

    def __len__(self) -> int:
        return len(self._residents)

    @property
    def event_loop(self) -> KeyedLoop | None:
        loop: KeyedLoop | None = self._of_thread.get(EVENT_LOOP)
        return loop

    def has(self, shipped: ShippedVertex, subtask: int, facts: TaskInfo) -> bool:
        return (facts.run, shipped.digest, facts.layout, subtask) in self._residents

    def task(self, shipped: ShippedVertex, subtask: int, store: ChunkStore, facts: TaskInfo) -> MultipleInputStreamTask:
        """Return a subtask's task. Its state has the same version as ``store``."""
        key = (facts.run, shipped.digest, facts.layout, subtask)

        def make() -> MultipleInputStreamTask:
            vertex = loaded(shipped, facts.layout)
            vertex.budget_scope = LedgerScope(shipped.ledger, facts.partitions or vertex.partitions)
            vertex.shared = self._shared.setdefault(
                (*key[:-1], facts.partition),
                SharedResources(stay=self._stay, resting=self._resting, query=facts.query, of_thread=self._of_thread),
            )
            return MultipleInputStreamTask(vertex, subtask, clock=_clock_of(facts))

        task = self._resident(key, facts.query, make)
        try:
            if task.restore(store):
                return task
            # The task has run an epoch that Spark did not commit.
            self.discard(task)
            task = self._resident(key, facts.query, make)
            if not task.restore(store):
                raise AssertionError("a new task has nothing that could differ from the store")
            return task
        except BaseException:
            self.discard(task)
            raise

    def _resident(self, key: _Key, query: str, make: Callable[[], T]) -> T:
        now = self._clock()
        self._last_used.pop(key, None)
        while self._last_used:
            oldest, used = next(iter(self._last_used.items()))
            if now - used <= self._idle:
                break
            self._close(oldest)
        task = self._residents.get(key)
        if task is None:
            if self._stay:
                _collect_young_objects_only()
            else:
                _close_before_leaving()
            self._close_older_runs(key[0], query)
            task = self._residents[key] = make()
        self._last_used[key] = now
        return task  # type: ignore[return-value]

    def _close_older_runs(self, run: str, query: str) -> None:
        runs = set(self.runs)
        for older in [older for older, of_query in self._queries.items() if of_query == query and older != run]:
            self.close_run(older)
        self._queries = {run_id: of_query for run_id, of_query in self._queries.items() if run_id in runs}
        if query and run:
            self._queries[run] = query

    def _close(self, key: _Key) -> None:
        task = self._residents.pop(key)
        self._last_used.pop(key, None)
        self._full_collection.seconds = 0.0
        try:
            task.close()
        except Exception:
            _log.exception("closing the operators failed %s", task.place)

    def end(self, task: StreamTask) -> None:
        self._forget(task)
        self._has_ended = True
        task.close()

    def discard(self, task: StreamTask) -> None:
        self._forget(task)
        self._full_collection.seconds = 0.0
        task.cancel()

    def _forget(self, task: StreamTask) -> None:
        for key, resident in list(self._residents.items()):
            if resident is task:
                del self._residents[key]
                self._last_used.pop(key, None)

    @property
    def runs(self) -> list[str]:
        return list(dict.fromkeys(key[0] for key in self._residents))

    def close_run(self, run: str) -> int:
        keys = [key for key in self._residents if key[0] == run]
        for key in keys:
            self._close(key)
        self._queries.pop(run, None)
        if keys:
            self._collect()
        return len(keys)

    def close_all(self) -> None:
        for key in list(self._residents):
            self._close(key)

    @property
    def is_at_work(self) -> bool:
        return self.is_busy or any(
            task.state in (TaskState.RESTORING, TaskState.RUNNING) for task in self._residents.values()
        )

    def spare_the_collector(self) -> None:
        """Keep garbage collections short, so that an epoch's time depends only on the objects that the epoch uses.

        State rarely has cycles, so full collections get only a small share of the time. PySpark collects after each
        task, which takes a second for a million keys, so a worker with many objects freezes them. Home processes and
        small workers keep inherited objects frozen, because a collection would copy their memory pages.
        """
        if self._full_collection.is_due:
            self._collect()
        else:
            # Garbage is young, unless a task has ended.
            gc.collect(2 if self._has_ended else 1)
            self._has_ended = False
        if self._stay:
            pa.default_memory_pool().release_unused()
        elif self._has_frozen or (self._count.is_due and self._count.run(_are_many)):
            gc.freeze()
            self._has_frozen = True

    def _collect(self) -> None:
        if self._has_frozen:
            gc.unfreeze()
        self._full_collection.run(gc.collect)
        self._has_ended = False


def _are_many() -> bool:
    """Return whether this process should freeze its objects. Visits all objects."""
    return not gc.get_freeze_count() or len(gc.get_objects()) > _MANY_OBJECTS


def _clock_of(facts: TaskInfo) -> ReplayedClock | None:
    return None if facts.clock is None else ReplayedClock(ClockLog.of_bytes(facts.clock), facts.time)


def loaded(shipped: ShippedVertex, layout: Layout) -> Vertex:
    vertex = shipped.load()
    lay_out(vertex, layout)
    return vertex


@cache
def _collect_young_objects_only() -> None:
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)


#: This process's residents.
here: Residency = Residency()
atexit.register(here.close_all)


@cache
def _close_before_leaving() -> None:
    """Close resident tasks and run exit handlers when Spark ends this worker.

    PySpark's daemon ends idle workers with ``os._exit``, which skips exit handlers.
    """
    worker, leave = os.getpid(), os._exit

    def close_and_leave(status: int) -> NoReturn:
        # Not in a child that a function has forked, and not in the middle of an epoch.
        leaves = os.getpid() == worker and threading.current_thread() is threading.main_thread()
        if leaves and not here.is_at_work:
            # In case a close() or another thread never ends.
            last_moment = threading.Timer(_CLOSING_SECONDS, leave, (status,))
            last_moment.daemon = True
            last_moment.start()
            try:
                here.close_all()
                run_exit_handlers()
            finally:
                leave(status)
        leave(status)

    os._exit = close_and_leave
