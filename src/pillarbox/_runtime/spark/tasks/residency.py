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
from pillarbox._runtime.spark.tasks.task_facts import TaskFacts
from pillarbox._state.chunks.store import ChunkStore
from pillarbox._task.lifecycle import TaskState
from pillarbox._task.multiple_input_stream_task import MultipleInputStreamTask
from pillarbox._task.source_stream_task import SourceStreamTask
from pillarbox._task.stream_task import StreamTask
from pillarbox._task.vertex import Vertex
from pillarbox._time.clock_log import ClockLog, ReplayedClock

_LET_GO_AFTER_SECONDS = 600.0

# How long a worker that is let go may take to close its residents, and for the exit handlers of functions.
_LEAVE_WITHIN_SECONDS = 10.0

# Of the worker's processor time, at most this part goes into looking for cycles among all objects. Not of the wall
# clock: cycles come of work; a worker that only waits makes none, and would look for them in its next epoch.
_COLLECTING = 0.01

# A worker with fewer objects of its own leaves them to the collector, which looks at so many in some milliseconds.
_MANY_OBJECTS = 50_000

# So many collections of young objects are never between two of Python's own full collections.
_NEVER = 1_000_000_000

T = TypeVar("T", bound=StreamTask)
# The run of a query, what the program is known by with its layout, and the subtask; -1 is a source.
_Place = tuple[str, str, Layout, int]
_log = logging.getLogger("pillarbox")


class Residency:
    """The residents of one worker, by run, program (with its layout) and subtask.

    Args:
        clock: seconds, from any start.
        worked: the processor time of this worker (seconds), from any start.
        idle: how long a resident stays that nobody asks for (seconds).
        stay: whether all epochs of a subtask run here, as in a home; else Spark gives each to any of several workers.
        resting: returns a context in which a task's thread waits for mail.

    Attributes:
        is_busy: whether a task of Spark's uses a resident.
        closes_later: whether residents of runs that have ended are to be closed when it does not any more.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        worked: Callable[[], float] = time.process_time,
        *,
        idle: float = _LET_GO_AFTER_SECONDS,
        stay: bool = False,
        resting: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._clock = clock
        self._idle = idle
        self._stay = stay
        self._resting = resting
        self._worked = worked
        self._residents: dict[_Place, StreamTask] = {}
        # Resources that the tasks of a vertex in one partition share: as long as one of them lives.
        self._shared: WeakValueDictionary[_Place, SharedResources] = WeakValueDictionary()
        # In the order of these times: a worker may have a hundred residents, and asks for each in every epoch.
        self._last_used: dict[_Place, float] = {}
        # When the last full collection ended, and how long it took (processor time). The first one can wait: what a
        # cold start has read has no cycles, and looking at it would take as long as that did.
        self._collected_at = worked()
        self._collecting_took = 1.0
        # Whether a task has ended since the last collection of any kind.
        self._has_ended = False
        # Whether objects of this process have been frozen here, and not only before it was forked.
        self._has_frozen = False
        # The queries of the runs that there are residents of.
        self._queries: dict[str, str] = {}
        self.is_busy = False
        self.closes_later = False

    def source_task(self, shipped: ShippedVertex, facts: TaskFacts) -> SourceStreamTask:
        """Return the worker's task of a source: one serves all partitions, in turn."""

        def make() -> SourceStreamTask:
            vertex = loaded(shipped, facts.layout)
            task = SourceStreamTask(vertex, 0)
            task.restore()
            return task

        return self._resident((facts.run, shipped.digest, facts.layout, -1), facts.query, make)

    def __len__(self) -> int:
        return len(self._residents)

    def has(self, shipped: ShippedVertex, subtask: int, facts: TaskFacts) -> bool:
        """Return whether the task of a subtask is here."""
        return (facts.run, shipped.digest, facts.layout, subtask) in self._residents

    def task(
        self, shipped: ShippedVertex, subtask: int, store: ChunkStore, facts: TaskFacts
    ) -> MultipleInputStreamTask:
        """Return the task of a subtask, at the version in ``store``."""
        place = (facts.run, shipped.digest, facts.layout, subtask)

        def make() -> MultipleInputStreamTask:
            vertex = loaded(shipped, facts.layout)
            vertex.budget_scope = BudgetScope(shipped.ledger, facts.partitions or vertex.partitions)
            vertex.shared = self._shared.setdefault(
                (*place[:-1], facts.partition), SharedResources(stay=self._stay, resting=self._resting)
            )
            return MultipleInputStreamTask(vertex, subtask, clock=_clock_of(facts))

        task = self._resident(place, facts.query, make)
        try:
            if task.restore(store):
                return task
            # It went through an epoch here that Spark did not commit: nothing of it may stay.
            self.discard(task)
            task = self._resident(place, facts.query, make)
            if not task.restore(store):
                raise AssertionError("a new task has nothing that could differ from the store")
            return task
        except BaseException:
            self.discard(task)
            raise

    def _resident(self, place: _Place, query: str, make: Callable[[], T]) -> T:
        now = self._clock()
        self._last_used.pop(place, None)
        while self._last_used:
            oldest, used = next(iter(self._last_used.items()))
            if now - used <= self._idle:
                break
            self._close(oldest)
        task = self._residents.get(place)
        if task is None:
            if self._stay:
                _collect_young_objects_only()
            else:
                _close_before_leaving()
            self._close_older_runs(place[0], query)
            task = self._residents[place] = make()
        self._last_used[place] = now
        return task  # type: ignore[return-value]

    def _close_older_runs(self, run: str, query: str) -> None:
        runs = set(self.runs)
        for older in [older for older, of_query in self._queries.items() if of_query == query and older != run]:
            self.close_run(older)
        self._queries = {each: of_query for each, of_query in self._queries.items() if each in runs}
        if query and run:
            self._queries[run] = query

    def _close(self, place: _Place) -> None:
        task = self._residents.pop(place)
        self._last_used.pop(place, None)
        self._collecting_took = 0.0  # a task and what it refers to are a cycle
        try:
            task.close()
        except Exception:
            _log.exception("closing the operators failed %s", task.place)

    def end(self, task: StreamTask) -> None:
        """Close a task whose work is done; what ``close()`` raises is raised."""
        self._forget(task)
        self._has_ended = True
        task.close()

    def discard(self, task: StreamTask) -> None:
        """Drop a task that failed, or holds changes that were not committed."""
        self._forget(task)
        self._collecting_took = 0.0
        task.cancel()

    def _forget(self, task: StreamTask) -> None:
        for place, resident in list(self._residents.items()):
            if resident is task:
                del self._residents[place]
                self._last_used.pop(place, None)

    @property
    def runs(self) -> list[str]:
        """The runs of queries that there are residents of."""
        return list(dict.fromkeys(place[0] for place in self._residents))

    def close_run(self, run: str) -> int:
        """Close the residents of a run that has ended, and return how many there were."""
        places = [place for place in self._residents if place[0] == run]
        for place in places:
            self._close(place)
        self._queries.pop(run, None)
        if places:
            self._collect()
        return len(places)

    def close_all(self) -> None:
        """End all residents, when the worker ends in good order."""
        for place in list(self._residents):
            self._close(place)

    @property
    def is_at_work(self) -> bool:
        """Whether a function of a resident may be running."""
        return self.is_busy or any(
            task.state in (TaskState.RESTORING, TaskState.RUNNING) for task in self._residents.values()
        )

    def spare_the_collector(self) -> None:
        """Keep collections short: an epoch must not cost what exists, but what it touches.

        State has no cycles as a rule, and needs no collector. For state with cycles, there is a full collection from
        time to time: so rarely that it takes a small share of the work. In a home, nothing else starts one. PySpark's
        daemon starts one after each task, which takes a second for a million keys: a worker with many objects freezes
        them. Other workers and homes freeze nothing, if objects were frozen before they were forked: unfrozen, those
        would no longer be shared, since the next collection writes into each of them.
        """
        if self._worked() - self._collected_at >= self._collecting_took / _COLLECTING:
            self._collect()
        else:
            # Objects that the epoch left behind are young, and need not be kept until then. A task that has ended was
            # made after the last of these calls, so that it can be collected without a look at older objects.
            gc.collect(2 if self._has_ended else 1)
            self._has_ended = False
        if self._stay:
            pa.default_memory_pool().release_unused()
        elif self._has_frozen or not gc.get_freeze_count() or len(gc.get_objects()) > _MANY_OBJECTS:
            gc.freeze()
            self._has_frozen = True

    def _collect(self) -> None:
        """Look for cycles among all objects but those that were frozen before this process was forked."""
        began = self._worked()
        if self._has_frozen:
            gc.unfreeze()
        gc.collect()
        self._collected_at = self._worked()
        self._collecting_took = self._collected_at - began
        self._has_ended = False


def _clock_of(facts: TaskFacts) -> ReplayedClock | None:
    """Return the clock that a task goes by; None: the machine's."""
    return None if facts.clock is None else ReplayedClock(ClockLog.of_bytes(facts.clock), facts.time)


def loaded(shipped: ShippedVertex, layout: Layout) -> Vertex:
    """Return a vertex with the subtasks that it has by the layout of the checkpoint."""
    vertex = shipped.load()
    lay_out(vertex, layout)
    return vertex


@cache
def _collect_young_objects_only() -> None:
    """Leave full collections to :meth:`Residency.spare_the_collector`: one in an epoch delays it."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)


#: The residents of this process.
here: Residency = Residency()
atexit.register(here.close_all)


@cache
def _close_before_leaving() -> None:
    """Close residents, and run exit handlers, when Spark lets this worker go.

    Spark closes the socket of a worker that was idle for a minute. PySpark's daemon then ends it by ``os._exit``, which
    runs no exit handlers.
    """
    worker, leave = os.getpid(), os._exit

    def close_and_leave(status: int) -> NoReturn:
        # Not in a process that a function has forked, nor where user code leaves in the middle of an epoch.
        mine = os.getpid() == worker and threading.current_thread() is threading.main_thread()
        if mine and not here.is_at_work:
            # Also where a function's close() never returns, or left a thread that does not.
            last_moment = threading.Timer(_LEAVE_WITHIN_SECONDS, leave, (status,))
            last_moment.daemon = True
            last_moment.start()
            try:
                here.close_all()
                run_exit_handlers()
            finally:
                leave(status)
        leave(status)

    os._exit = close_and_leave
