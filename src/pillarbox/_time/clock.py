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

__all__ = [
    "NeverTimer",
    "ProcessingTimeCallback",
    "ProcessingTimeService",
    "ScheduledTimer",
    "ServiceLife",
    "ServiceState",
    "TimerState",
]

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


class ServiceLife:
    """The state of a service, and how many of its callbacks are on their way.

    Args:
        lock: the service's, which guards all of this. :meth:`settle` is called without it, everything else under it.

    Attributes:
        state: the state the service is in.
        running: callbacks that have begun and not finished.
        quiesced: done when the service fires nothing any more, and none is running.
    """

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self._lock = lock
        self.state: ServiceState = ServiceState.ALIVE
        self.running = 0
        self.quiesced: Future[None] = _future_of_all()
        self._settled = False

    def close(self, state: ServiceState) -> bool:
        """Enter a state that is not ALIVE; return False, and stay, where the service is shut down already."""
        if self.state is ServiceState.SHUTDOWN:
            return False
        self.state = state
        return True

    def resume(self) -> None:
        """Go back from QUIESCED to ALIVE; no effect in another state."""
        if self.state is ServiceState.QUIESCED:
            self.state = ServiceState.ALIVE
            self.quiesced = _future_of_all()
            self._settled = False

    def settle(self) -> None:
        """Complete the future if its time has come. Not under the lock: its callbacks are called right here."""
        with self._lock:
            if self.running or self.state is ServiceState.ALIVE or self._settled:
                return
            self._settled = True
            quiesced = self.quiesced
        quiesced.set_result(None)


def _future_of_all() -> Future[None]:
    """Return a future that nobody can cancel: it is everybody's."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()
    return future
