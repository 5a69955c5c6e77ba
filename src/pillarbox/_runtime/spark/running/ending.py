"""Ends queries between two epochs, so that every epoch is committed.

``query.stop()`` would interrupt the running epoch. Instead, the driver changes the query's state, which Spark checks
before each epoch. Spark checks the state again after planning an epoch, and would drop the planned epoch. So the driver
changes the state after this second check, under the lock that the query's thread takes at an epoch's beginning and end.
Under Spark Connect, the state is inaccessible, so the epoch is interrupted, and repeated in a separate query.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pillarbox._errors import describe
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.session.queries import execution_of, pinned_jvm
from pillarbox._runtime.spark.starting.closing import close_started
from pillarbox._runtime.spark.starting.start import changes_refused
from pillarbox._runtime.spark.starting.started import find

if TYPE_CHECKING:
    from pillarbox._runtime.spark.session.writer import WriterStart
    from pillarbox._runtime.spark.starting.started import StartedQuery

_log = logging.getLogger("pillarbox")

_LOOK_EVERY = 0.05
# Maximum wait for a query's lock (milliseconds), and maximum time of holding it (seconds).
_LOCK = 500
_HOLD = 0.2
# Spark's methods in the stack of a query's thread while it waits for its trigger or for input, begins an epoch, runs
# jobs, or waits for the lock.
_WAITS_FOR_TRIGGER = ".waitTillTime("
_SLEEPS = "java.lang.Thread.sleep("
_BEGINS = ".constructNextBatch("
_RUNS_JOBS = re.compile(r"\.SQLExecution\$\.\S+\(.*\n.*\.MicroBatchExecution\.")
_WAITS_FOR_LOCK = ".withProgressLocked("


def end_query(started: StartedQuery, has_time: Callable[[], bool]) -> bool:
    """End a query after the running epoch, or during it if time runs out. Thread-safe.

    Returns whether all epochs are committed. If not, the next start repeats the last epoch.
    """
    query: Any = started.query
    with started.held():
        if not end_between_epochs(query, has_time):
            query.stop()
            return False
        if query.exception() is not None:
            return False
        return started.checkpoint is None or finish_epoch(started.start, has_time)


def end_between_epochs(query: Any, has_time: Callable[[], bool]) -> bool:
    """End a query after the running epoch. Returns False on timeout."""
    gate, seen = EndingGate(query), _batch(query)
    while gate.is_running:
        if gate.exists:
            # With a closed gate, a query ends by itself unless it sleeps until its next trigger.
            is_time = gate.close() and gate.is_asleep
        else:
            # An epoch that has just begun takes the least time to repeat.
            is_time = not query.status["isTriggerActive"] or _batch(query) != seen
        if is_time:
            query.stop()
            return True
        if not has_time():
            gate.open()
            return False
        time.sleep(_LOOK_EVERY)
    gate.mark_ended()
    return True


def finish_epoch(start: WriterStart, has_time: Callable[[], bool]) -> bool:
    """Run the uncommitted epoch, if any. Returns whether all epochs are committed."""
    half = Checkpoint(start.spark, str(start.checkpoint)).uncommitted_epoch
    if half is None:
        return True
    _log.info("checkpoint %s: finishing epoch %d", start.checkpoint, half)
    return run_one_epoch(start, has_time) is not None


def run_one_epoch(start: WriterStart, has_time: Callable[[], bool]) -> Any:
    """Run one epoch and return its query, or None on timeout."""
    with start.one_batch(), changes_refused():
        query: Any = start.run()
    has_ended = query.awaitTermination(_LOOK_EVERY)
    while not has_ended and has_time():
        has_ended = query.awaitTermination(_LOOK_EVERY)
    if not has_ended:
        query.stop()
    started = find(query)
    if started is not None:
        close_started(started)
    return query if has_ended else None


def _batch(query: Any) -> int | None:
    progress = query.lastProgress
    return None if progress is None else int(progress["batchId"])


class EndingGate:
    """A gate between the epochs of a query. While it is closed, no epoch begins.

    Needs a classic session, because it uses Spark's private methods. While the gate is closed, ``isActive`` is False
    even if an epoch is running. Use it in one thread only, because the JVM's locks belong to threads.
    """

    def __init__(self, query: Any) -> None:
        self._query = query
        self._open: Any = None
        self._closed: Any = None
        self.exists = False
        execution = execution_of(query)
        if execution is None:
            return
        try:
            self._java: Any = pinned_jvm()
            self._thread = execution.queryExecutionThread()
            self._thread.isAlive()
            self._state = execution.state()
            self._lock = execution.awaitProgressLock()
            self._lock.isLocked()
            self._logs = execution.offsetLog(), execution.commitLog()
            self.exists = True
        except Exception as error:  # an unknown version of Spark
            _log.warning("query %s cannot be paused between two epochs: %s", query.id, describe(error))

    @property
    def is_running(self) -> bool:
        return bool(self._thread.isAlive()) if self.exists else bool(self._query.isActive)

    @property
    def is_asleep(self) -> bool:
        return _WAITS_FOR_TRIGGER in self.stack()

    def close(self) -> bool:
        """Block new epochs. Returns False if an epoch is just beginning; if so, call again."""
        if self._open is not None:
            return True
        state = self._state.get()
        kind = state.getClass()
        name = str(kind.getName())
        if name.endswith(".TERMINATED$"):
            return True
        if not name.endswith(".ACTIVE$"):
            return False
        other = kind.getClassLoader().loadClass(name.removesuffix("ACTIVE$") + "TERMINATED$")
        self._closed = other.getField("MODULE$").get(None)
        if not self._lock.tryLock(_LOCK, self._java.java.util.concurrent.TimeUnit.MILLISECONDS):
            return False
        # Under the lock, the query's thread neither begins an epoch nor checks the state.
        try:
            begun = self.has_begun()
            # Spark does not check the state of a planned epoch again before the epoch's end.
            if (begun and not _RUNS_JOBS.search(self.stack())) or not self._state.compareAndSet(state, self._closed):
                return False
            if begun or self._will_look():
                self._open = state
            else:
                self._state.compareAndSet(self._closed, state)
            return self._open is not None
        finally:
            self._lock.unlock()

    def _will_look(self) -> bool:
        until = time.monotonic() + _HOLD
        while time.monotonic() < until:
            stack = self.stack()
            if _BEGINS in stack:
                break
            if not self.is_running or any(word in stack for word in (_WAITS_FOR_TRIGGER, _SLEEPS, _WAITS_FOR_LOCK)):
                return True
        return False

    def has_begun(self) -> bool:
        begun, committed = (str(log.getLatestBatchId().toString()) for log in self._logs)
        return begun != committed

    def stack(self) -> str:
        # Gets the whole stack in one call to Java.
        trace = self._java.java.lang.Exception()
        trace.setStackTrace(self._thread.getStackTrace())
        text = self._java.java.io.StringWriter()
        trace.printStackTrace(self._java.java.io.PrintWriter(text))
        return str(text.toString())

    def open(self) -> None:
        if self._open is not None:
            self._state.compareAndSet(self._closed, self._open)
            time.sleep(_LOOK_EVERY)
            self.mark_ended()

    def mark_ended(self) -> None:
        """Set an ended query's state to ended, because the gate may have reset it."""
        if self._closed is not None and not self.is_running:
            self._state.set(self._closed)
