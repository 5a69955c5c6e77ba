"""Processing-time services: clocks with timers.

All times are Unix times in ms. A service is ALIVE, QUIESCED (no timer fires, but running callbacks finish) or SHUTDOWN
(in addition, registering a timer raises). Follows Flink's ``ProcessingTimeService``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any

ProcessingTimeCallback = Callable[[int], object]
"""Called with the timer's timestamp (epoch milliseconds)."""


class ClockState(Enum):
    """State of a processing-time service."""

    ALIVE = "alive"
    QUIESCED = "quiesced"
    SHUTDOWN = "shut down"


class ClockTimerState(Enum):
    """State of a timer."""

    WAITING = 0
    RUNNING = 1
    DONE = 2
    CANCELLED = 3


class ScheduledTimer(ABC):
    """A registered timer. Thread-safe."""

    __slots__ = ()

    @abstractmethod
    def cancel(self) -> bool:
        """Cancel the timer. Return False if it has already fired or been cancelled."""

    @abstractmethod
    def cancelled(self) -> bool: ...

    @abstractmethod
    def done(self) -> bool: ...


class NeverTimer(ScheduledTimer):
    """A timer of a quiesced service. It never fires."""

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
    """A clock with timers.

    Thread-safe, unless a method states otherwise. Implementations document which thread runs callbacks.
    """

    @abstractmethod
    def current_processing_time(self) -> int: ...

    def begin_epoch(self) -> None:
        """Notify a clock that logs readings of a new epoch. Mailbox thread only."""

    @abstractmethod
    def relative_time_millis(self) -> int:
        """Return monotonic time (ms), for durations within one process (Flink's ``RelativeClock``)."""

    @property
    def manual(self) -> ProcessingTimeService | None:
        """The manual clock behind this service, which event loops also use, or None."""
        return None

    @abstractmethod
    def register_timer(self, timestamp: int, callback: ProcessingTimeCallback) -> ScheduledTimer:
        """Call ``callback(timestamp)`` once, at ``timestamp`` or soon after.

        Args:
            timestamp: Unix time in ms. If it is in the past, the timer fires immediately.

        Returns:
            The timer. In a quiesced service, it never fires.

        Raises:
            RuntimeError: the service is shut down.
        """

    @abstractmethod
    def quiesce(self) -> Future[None]:
        """Stop firing timers, without blocking.

        Returns:
            A future that is done when all running callbacks have finished. Each call returns the same future.
        """

    @abstractmethod
    def shutdown(self) -> None:
        """Stop firing timers, as :meth:`quiesce` does, and refuse new timers."""


class ClosableClock(ProcessingTimeService):
    """Base class with a service's state and number of running callbacks, guarded by ``lock``."""

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self._lock = lock
        self._state = ClockState.ALIVE
        self._running = 0
        # Done when the service is closed and no callback is running.
        self._quiesced: Future[None] = _future_of_all()
        self._settled = False

    @property
    def state(self) -> ClockState:
        return self._state

    def quiesce(self) -> Future[None]:
        self._close(ClockState.QUIESCED)
        return self._quiesced

    def shutdown(self) -> None:
        self._close(ClockState.SHUTDOWN)

    def _close(self, state: ClockState) -> None:
        with self._lock:
            if self._state is not ClockState.SHUTDOWN:
                self._state = state
                self._closed()
        self._settle()

    def _closed(self) -> None: ...

    def _end(self) -> None:
        with self._lock:
            self._running -= 1
        self._settle()

    def _settle(self) -> None:
        """Complete the future if no callback is running. Call without the lock, because the future has callbacks."""
        with self._lock:
            if self._running or self._state is ClockState.ALIVE or self._settled:
                return
            self._settled = True
            quiesced = self._quiesced
        quiesced.set_result(None)

    def _reopen(self) -> None:
        with self._lock:
            if self._state is ClockState.QUIESCED:
                self._state = ClockState.ALIVE
                self._quiesced = _future_of_all()
                self._settled = False


def _future_of_all() -> Future[None]:
    """Return a future that counts as running, so it cannot be cancelled."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()
    return future
