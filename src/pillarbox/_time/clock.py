"""The processing-time service: a clock that calls back at times to come, and its three states (T6).

All times are epoch milliseconds. Source of the behaviour: Flink's ``ProcessingTimeService`` and ``TimerService``.

A service is in one of three states. ALIVE. QUIESCED: what has not begun does not fire any more, new timers never
complete, what is running finishes. SHUTDOWN: in addition, registering raises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any

ProcessingTimeCallback = Callable[[int], object]
"""Called with the time (epoch milliseconds) that the timer was set for; its result is ignored."""


class ServiceState(Enum):
    """The life of a processing-time service."""

    ALIVE = "alive"
    QUIESCED = "quiesced"
    SHUTDOWN = "shut down"


class TimerState(Enum):
    """The life of a timer."""

    WAITING = 0
    RUNNING = 1
    DONE = 2
    CANCELLED = 3


class ScheduledTimer(ABC):
    """The handle of a registered timer. Any thread may use it."""

    __slots__ = ()

    @abstractmethod
    def cancel(self) -> bool:
        """Keep the timer from firing.

        Returns:
            Whether that was in time: False if the timer has fired, is just firing, or was cancelled before.
        """

    @abstractmethod
    def cancelled(self) -> bool:
        """Return whether it was cancelled."""

    @abstractmethod
    def done(self) -> bool:
        """Return whether it is over: it has fired, or was cancelled."""


class NeverTimer(ScheduledTimer):
    """A timer of a quiesced service: it never fires and never completes, unless by cancelling."""

    __slots__ = ("_cancelled",)

    def __init__(self) -> None:
        self._cancelled = False

    def cancel(self) -> bool:
        before, self._cancelled = self._cancelled, True
        return not before

    def cancelled(self) -> bool:
        return self._cancelled

    def done(self) -> bool:
        return self._cancelled


class ProcessingTimeService(ABC):
    """Tells the processing time and calls back at times to come.

    Each service says in which thread callbacks run. Registering, cancelling and asking are for any thread.
    """

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the processing time in epoch milliseconds."""

    def begin_epoch(self) -> None:
        """Take note that the task begins an epoch, which may log its readings. The mailbox thread calls it."""

    @abstractmethod
    def relative_time_millis(self) -> int:
        """Return milliseconds since whenever, by a clock that nobody sets: for how long something takes.

        Only differences within one process mean anything. (Flink's ``RelativeClock``.)
        """

    @abstractmethod
    def register_timer(self, timestamp: int, callback: ProcessingTimeCallback) -> ScheduledTimer:
        """Call ``callback(timestamp)`` once, at that time or soon after.

        Args:
            timestamp: when, in epoch milliseconds; if it is past, at once.
            callback: gets the timestamp.

        Returns:
            The timer. In a quiesced service, one that never completes.

        Raises:
            RuntimeError: the service is shut down.
        """

    @abstractmethod
    def quiesce(self) -> Future[None]:
        """Let nothing fire any more. May be called again, and does not block.

        Returns:
            Done when the callbacks that were running have finished. Each call returns the same future.
        """

    @abstractmethod
    def shutdown(self) -> None:
        """End the service: :meth:`quiesce`, and from now on registering raises."""


class ClosableService(ProcessingTimeService):
    """A service's state, and how many of its callbacks are on their way.

    Args:
        lock: guards all of this.
    """

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self._lock = lock
        self._state = ServiceState.ALIVE
        # Callbacks that have begun and not finished.
        self._running = 0
        # Done when the service fires nothing any more, and none is running.
        self._quiesced: Future[None] = _future_of_all()
        self._settled = False

    @property
    def state(self) -> ServiceState:
        """The state the service is in."""
        return self._state

    def quiesce(self) -> Future[None]:
        self._close(ServiceState.QUIESCED)
        return self._quiesced

    def shutdown(self) -> None:
        self._close(ServiceState.SHUTDOWN)

    def _close(self, state: ServiceState) -> None:
        """Enter a state that is not ALIVE, unless the service is shut down already."""
        with self._lock:
            if self._state is not ServiceState.SHUTDOWN:
                self._state = state
                self._closed()
        self._settle()

    def _closed(self) -> None:
        """Give up what waits. The lock is held."""

    def _end(self) -> None:
        """Take note that a callback has finished."""
        with self._lock:
            self._running -= 1
        self._settle()

    def _settle(self) -> None:
        """Complete the future if its time has come. Not under the lock: its callbacks are called right here."""
        with self._lock:
            if self._running or self._state is ServiceState.ALIVE or self._settled:
                return
            self._settled = True
            quiesced = self._quiesced
        quiesced.set_result(None)

    def _reopen(self) -> None:
        """Go back from QUIESCED to ALIVE; no effect in another state."""
        with self._lock:
            if self._state is ServiceState.QUIESCED:
                self._state = ServiceState.ALIVE
                self._quiesced = _future_of_all()
                self._settled = False


def _future_of_all() -> Future[None]:
    """Return a future that nobody can cancel: it is everybody's."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()
    return future
