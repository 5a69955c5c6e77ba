"""Ending a query between two epochs, so that none is begun and not committed.

``query.stop()`` interrupts the epoch that runs: the next start runs it again, with all of its requests, and nothing
that needs a whole checkpoint is accepted before that. But Spark looks at the query's state before each epoch, which is
how ``availableNow`` ends by itself. So the driver changes that state, and the running epoch completes. Spark looks once
more when it has planned an epoch, and then drops it. So the driver changes the state only where the query's thread is
past that second look: it holds the lock that the thread takes when it begins an epoch and when it has ended one. Where
the state is out of reach (Spark Connect), an epoch that was interrupted is run once more by itself.
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
from pillarbox._runtime.spark.starting.start import changes_refused

if TYPE_CHECKING:
    from pillarbox._runtime.spark.session.writer import Start
    from pillarbox._runtime.spark.starting.started import StartedQuery

_log = logging.getLogger("pillarbox")

# How often a query that is to end is looked at (seconds).
_LOOK_EVERY = 0.05
# How long the driver waits for the lock of a query (milliseconds), and holds it until it sees where the query's thread
# is (seconds).
_LOCK = 500
_HOLD = 0.2
# Methods of Spark's, as they are in the stack of a query's thread: it waits for the time of its next trigger; waits
# before it looks for input again; begins an epoch if there is input; runs the jobs of one; waits for the lock.
_WAITS_FOR_TRIGGER = ".waitTillTime("
_SLEEPS = "java.lang.Thread.sleep("
_BEGINS = ".constructNextBatch("
_RUNS_JOBS = re.compile(r"\.SQLExecution\$\.\S+\(.*\n.*\.MicroBatchExecution\.")
_WAITS_FOR_LOCK = ".withProgressLocked("


def end_query(started: StartedQuery, has_time: Callable[[], bool]) -> bool:
    """End a query after the running epoch, or, where there is no time for that, at once. Any thread.

    Args:
        has_time: whether there still is time.

    Returns:
        Whether it is between two epochs, so that the checkpoint is whole. If not, the next start runs the epoch that
        was begun again.
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
    """End a query after the running epoch; return whether there was time for that. If not, the query continues."""
    gate, seen = Gate(query), _batch(query)
    while gate.is_running:
        if gate.exists:
            # Where it is closed, the query's thread ends by itself, unless it sleeps until its next trigger.
            is_time = gate.close() and gate.is_asleep
        else:
            # An epoch that has just ended leaves the least to be done again.
            is_time = not query.status["isTriggerActive"] or _batch(query) != seen
        if is_time:
            query.stop()
            return True
        if not has_time():
            gate.open()
            return False
        time.sleep(_LOOK_EVERY)
    gate.tell_end()
    return True


def finish_epoch(start: Start, has_time: Callable[[], bool]) -> bool:
    """Run an epoch to its end that was begun, if there is one; return whether there is none any more."""
    half = Checkpoint(start.spark, str(start.checkpoint)).uncommitted_epoch
    if half is None:
        return True
    _log.info("checkpoint %s: finishing epoch %d", start.checkpoint, half)
    return run_one_epoch(start, has_time) is not None


def run_one_epoch(start: Start, has_time: Callable[[], bool]) -> Any:
    """Start a query for one epoch, and wait for its end; return that query, or None where time ran out."""
    with start.one_batch(), changes_refused():
        query: Any = start.run()
    while not query.awaitTermination(_LOOK_EVERY):
        if not has_time():
            query.stop()
            return None
    return query


def _batch(query: Any) -> int | None:
    progress = query.lastProgress
    return None if progress is None else int(progress["batchId"])


class Gate:
    """The place between two epochs of a query, which can be closed: then no other epoch begins.

    In a classic session, the query's state and its lock are at hand, by methods of Spark's that are none of its API:
    while it is closed, ``isActive`` is false, and ``awaitTermination`` with a time is true, though an epoch may still
    run. Where Spark does not have them, there is no gate. One thread uses it: a lock in the JVM belongs to the thread
    there that serves this one.

    Attributes:
        exists: whether it can be closed.
    """

    def __init__(self, query: Any) -> None:
        self._query = query
        # Its state before this closed it; None: it did not.
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
        except Exception as error:  # another Spark than those that are known
            _log.warning("query %s cannot be held between two epochs: %s", query.id, describe(error))

    @property
    def is_running(self) -> bool:
        """Whether the query has not ended."""
        return bool(self._thread.isAlive()) if self.exists else bool(self._query.isActive)

    @property
    def is_asleep(self) -> bool:
        """Whether the query's thread waits for the time of its next trigger."""
        return _WAITS_FOR_TRIGGER in self.stack()

    def close(self) -> bool:
        """Let no other epoch begin; return whether none will. If not, ask again: an epoch is beginning."""
        if self._open is not None:
            return True
        state = self._state.get()
        kind = state.getClass()
        name = str(kind.getName())
        if name.endswith(".TERMINATED$"):  # it ends by itself
            return True
        if not name.endswith(".ACTIVE$"):  # it is not ready to begin an epoch
            return False
        other = kind.getClassLoader().loadClass(name.removesuffix("ACTIVE$") + "TERMINATED$")
        self._closed = other.getField("MODULE$").get(None)
        if not self._lock.tryLock(_LOCK, self._java.java.util.concurrent.TimeUnit.MILLISECONDS):
            return False
        # While this holds the lock, the query's thread neither begins an epoch nor comes from the end of one to the
        # look at its state.
        try:
            begun = self.has_begun()
            # An epoch whose jobs run is planned, and so Spark does not look at the state any more before its end.
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
        """Whether the thread, which is between two epochs, looks at the state before it begins another epoch."""
        until = time.monotonic() + _HOLD
        while time.monotonic() < until:
            stack = self.stack()
            if _BEGINS in stack:
                break  # it has looked before, and waits for the lock
            if not self.is_running or any(word in stack for word in (_WAITS_FOR_TRIGGER, _SLEEPS, _WAITS_FOR_LOCK)):
                return True
        return False

    def has_begun(self) -> bool:
        """Whether there is an epoch that has begun and is not committed."""
        begun, committed = (str(log.getLatestBatchId().toString()) for log in self._logs)
        return begun != committed

    def stack(self) -> str:
        """Return the methods in which the query's thread is; none where it has ended."""
        # An exception writes all of it at once; each of its methods would be a request.
        trace = self._java.java.lang.Exception()
        trace.setStackTrace(self._thread.getStackTrace())
        text = self._java.java.io.StringWriter()
        trace.printStackTrace(self._java.java.io.PrintWriter(text))
        return str(text.toString())

    def open(self) -> None:
        """Let epochs begin again, unless the query has ended meanwhile."""
        if self._open is not None:
            self._state.compareAndSet(self._closed, self._open)
            time.sleep(_LOOK_EVERY)
            self.tell_end()

    def tell_end(self) -> None:
        """Have the query's state say that it has ended, if it has.

        Its thread says so itself, but a gate that is opened, or closed in vain, at that moment puts the state back.
        """
        if self._closed is not None and not self.is_running:
            self._state.set(self._closed)
