"""Tasks that survive in a Python worker between epochs.

A worker is a process whose one thread runs Spark tasks one after another, for subtasks that Spark chooses. So a worker
may hold any number of residents, and closes those that stay unused. The worker's main thread owns all of this; it is
the mailbox thread of all residents.
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
from typing import NoReturn, TypeVar
from weakref import WeakValueDictionary

import pyarrow as pa

from pillarbox._graph.layout import Layout, lay_out
from pillarbox._operators.budgets.ledger import BudgetScope
from pillarbox._operators.frame.shared_resources import SharedResources
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

_IDLE_SECONDS = 600.0

# Seconds that an ending worker gets to close its residents and run exit handlers.
_CLOSING_SECONDS = 10.0

# The share of processor time for full garbage collections. Not of wall-clock time: work creates cycles, and a waiting
# worker would otherwise pay in its next epoch.
_COLLECTING_SHARE = 0.01

# Below this number of objects, a full collection takes a few milliseconds.
_MANY_OBJECTS = 50_000

# More young collections than ever happen between two full collections.
_NEVER = 1_000_000_000

T = TypeVar("T", bound=StreamTask)
# The key of a resident: run, program with its layout, and subtask (-1 for a source).
_Key = tuple[str, str, Layout, int]
_log = logging.getLogger("pillarbox")


class Residency:
    """The residents of one worker.

    Args:
        clock: seconds, from any start.
        worked: the worker's processor time (seconds), from any start.
        idle: seconds until an unused resident is closed.
        stay: whether all epochs of a subtask run here, as in a home. Otherwise Spark may choose another worker each
            time.
        resting: returns a context for waits of a task's thread for mail.

    Attributes:
        is_busy: whether a Spark task uses a resident.
        closes_later: whether residents of ended runs are to be closed after that use.
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
        self._worked = worked
        self._residents: dict[_Key, StreamTask] = {}
        # Resources shared by the tasks of a vertex in one partition, as long as one of them lives.
        self._shared: WeakValueDictionary[_Key, SharedResources] = WeakValueDictionary()
        # Ordered by time: a worker may have a hundred residents, and looks up each in every epoch.
        self._last_used: dict[_Key, float] = {}
        # End and duration of the last full collection (processor time). The first can wait: the data of a cold start
        # has no cycles, and a collection of it would take as long as the start.
        self._collected_at = worked()
        self._collecting_seconds = 1.0
        # Whether a task has ended since the last collection of any kind.
        self._has_ended = False
        # Whether this process has frozen objects itself, and not only before the fork.
        self._has_frozen = False
        # Maps the residents' runs to their queries.
        self._queries: dict[str, str] = {}
        self.is_busy = False
        self.closes_later = False

    def source_task(self, shipped: ShippedVertex, facts: TaskInfo) -> SourceStreamTask:
        """Return the worker's task of a source, which serves all partitions in turn."""

        def make() -> SourceStreamTask:
            vertex = loaded(shipped, facts.layout)
            task = SourceStreamTask(vertex, 0)
            task.restore()
            return task

        return self._resident((facts.run, shipped.digest, facts.layout, -1), facts.query, make)

    def __len__(self) -> int:
        return len(self._residents)

    def has(self, shipped: ShippedVertex, subtask: int, facts: TaskInfo) -> bool:
        """Return whether a subtask's task is here."""
        return (facts.run, shipped.digest, facts.layout, subtask) in self._residents

    def task(self, shipped: ShippedVertex, subtask: int, store: ChunkStore, facts: TaskInfo) -> MultipleInputStreamTask:
        """Return a subtask's task, at the version in ``store``."""
        key = (facts.run, shipped.digest, facts.layout, subtask)

        def make() -> MultipleInputStreamTask:
            vertex = loaded(shipped, facts.layout)
            vertex.budget_scope = BudgetScope(shipped.ledger, facts.partitions or vertex.partitions)
            vertex.shared = self._shared.setdefault(
                (*key[:-1], facts.partition),
                SharedResources(stay=self._stay, resting=self._resting, query=facts.query),
            )
            return MultipleInputStreamTask(vertex, subtask, clock=_clock_of(facts))

        task = self._resident(key, facts.query, make)
        try:
            if task.restore(store):
                return task
            # It ran an epoch that Spark did not commit: drop all of it.
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
        self._collecting_seconds = 0.0  # a task and its references form a cycle
        try:
            task.close()
        except Exception:
            _log.exception("closing the operators failed %s", task.place)

    def end(self, task: StreamTask) -> None:
        """Close a finished task. Errors of ``close()`` propagate."""
        self._forget(task)
        self._has_ended = True
        task.close()

    def discard(self, task: StreamTask) -> None:
        """Drop a task that failed or has uncommitted changes."""
        self._forget(task)
        self._collecting_seconds = 0.0
        task.cancel()

    def _forget(self, task: StreamTask) -> None:
        for key, resident in list(self._residents.items()):
            if resident is task:
                del self._residents[key]
                self._last_used.pop(key, None)

    @property
    def runs(self) -> list[str]:
        """The runs with residents."""
        return list(dict.fromkeys(key[0] for key in self._residents))

    def close_run(self, run: str) -> int:
        """Close the residents of an ended run, and return their number."""
        keys = [key for key in self._residents if key[0] == run]
        for key in keys:
            self._close(key)
        self._queries.pop(run, None)
        if keys:
            self._collect()
        return len(keys)

    def close_all(self) -> None:
        """Close all residents, at an orderly end of the worker."""
        for key in list(self._residents):
            self._close(key)

    @property
    def is_at_work(self) -> bool:
        """Whether a resident's function may be running."""
        return self.is_busy or any(
            task.state in (TaskState.RESTORING, TaskState.RUNNING) for task in self._residents.values()
        )

    def spare_the_collector(self) -> None:
        """Keep garbage collections short, so that an epoch pays for the objects it touches and not for all.

        State rarely has cycles. For state that has, a full collection runs so rarely that it takes a small share of the
        work. In a home, nothing else starts one. PySpark's daemon collects after each task, which takes a second for a
        million keys, so a worker with many objects freezes them. Other workers, and homes, freeze nothing if objects
        were frozen before the fork: these would be unfrozen first, and then copied, because a collection writes into
        each.
        """
        if self._worked() - self._collected_at >= self._collecting_seconds / _COLLECTING_SHARE:
            self._collect()
        else:
            # The epoch's garbage is young. A task that has ended was created after the last call, so it is collected
            # without looking at older objects.
            gc.collect(2 if self._has_ended else 1)
            self._has_ended = False
        if self._stay:
            pa.default_memory_pool().release_unused()
        elif self._has_frozen or not gc.get_freeze_count() or len(gc.get_objects()) > _MANY_OBJECTS:
            gc.freeze()
            self._has_frozen = True

    def _collect(self) -> None:
        """Collect cycles among all objects that were not frozen before the fork."""
        began = self._worked()
        if self._has_frozen:
            gc.unfreeze()
        gc.collect()
        self._collected_at = self._worked()
        self._collecting_seconds = self._collected_at - began
        self._has_ended = False


def _clock_of(facts: TaskInfo) -> ReplayedClock | None:
    """Return a task's recorded clock, or None for the machine's clock."""
    return None if facts.clock is None else ReplayedClock(ClockLog.of_bytes(facts.clock), facts.time)


def loaded(shipped: ShippedVertex, layout: Layout) -> Vertex:
    """Load a vertex with the subtasks of the checkpoint's layout."""
    vertex = shipped.load()
    lay_out(vertex, layout)
    return vertex


@cache
def _collect_young_objects_only() -> None:
    """Leave full collections to :meth:`Residency.spare_the_collector`: they delay an epoch."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)


#: The residents of this process.
here: Residency = Residency()
atexit.register(here.close_all)


@cache
def _close_before_leaving() -> None:
    """Close residents and run exit handlers when Spark ends this worker.

    Spark closes the socket of a worker after a minute without work. PySpark's daemon then ends it by ``os._exit``,
    which runs no exit handlers.
    """
    worker, leave = os.getpid(), os._exit

    def close_and_leave(status: int) -> NoReturn:
        # Not in a child forked by a function, nor if user code exits in the middle of an epoch.
        leaves = os.getpid() == worker and threading.current_thread() is threading.main_thread()
        if leaves and not here.is_at_work:
            # For a close() that never returns, and for threads that keep running.
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
