"""An operator's view of its task's clock, which runs callbacks as mails of the operator.

Follows Flink's ``ProcessingTimeServiceImpl``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from pillarbox._errors import shorten
from pillarbox._time.clock import (
    ClockState,
    ClockTimerState,
    ClosableClock,
    NeverTimer,
    ProcessingTimeCallback,
    ProcessingTimeService,
    ScheduledTimer,
)
from pillarbox.mailbox import RejectedExecutionError


class _DeferredTimer(ScheduledTimer):
    """An operator's timer.

    ``fire`` runs in the clock's thread, ``__call__`` as a mail in the mailbox thread.
    """

    __slots__ = ("_callback", "_inner", "_service", "_state")

    def __init__(self, service: ProcessingTimeServiceImpl, callback: ProcessingTimeCallback) -> None:
        self._service = service
        self._callback: ProcessingTimeCallback | None = callback
        self._state = ClockTimerState.WAITING
        self._inner: ScheduledTimer | None = None

    def attach(self, inner: ScheduledTimer) -> None:
        # No caller has a handle yet.
        self._inner = inner

    def fire(self, timestamp: int) -> None:
        service = self._service
        if not service._begin():
            self._drop()
            return
        try:
            service._defer(self, timestamp)
        except RejectedExecutionError:
            # The task has ended.
            self._drop()
            service._end()
        except BaseException:
            self._drop()
            service._end()
            raise

    def _drop(self) -> None:
        with self._service._lock:
            if self._state is ClockTimerState.WAITING:
                self._state = ClockTimerState.CANCELLED
                self._callback = None

    def __call__(self, timestamp: int) -> None:
        try:
            with self._service._lock:
                callback = self._callback
                if self._state is ClockTimerState.CANCELLED or callback is None:
                    return
                self._state = ClockTimerState.RUNNING
            try:
                self._service._firing(timestamp)
                callback(timestamp)
            finally:
                self._state = ClockTimerState.DONE
                self._callback = None
        finally:
            self._service._end()

    def cancel(self) -> bool:
        with self._service._lock:
            if self._state is not ClockTimerState.WAITING:
                return False
            self._state = ClockTimerState.CANCELLED
            self._callback = None
        if self._inner is not None:
            self._inner.cancel()
        return True

    def cancelled(self) -> bool:
        return self._state is ClockTimerState.CANCELLED

    def done(self) -> bool:
        if self._state is ClockTimerState.DONE or self._state is ClockTimerState.CANCELLED:
            return True
        # The clock may already have been closed.
        return self._inner is not None and self._inner.cancelled()

    def __repr__(self) -> str:
        return f"<timer for {self}: {self._state.name.lower()}>"

    def __str__(self) -> str:
        return getattr(self._callback, "__qualname__", None) or shorten(self._callback)


class ProcessingTimeServiceImpl(ClosableClock):
    """An operator's processing-time service.

    Each service can be quiesced separately, so that the operators of a chain finish one after the other. Unlike in
    Flink, :meth:`quiesce` also waits for timer mails, and the mailbox thread can cancel a timer whose mail is waiting.
    """

    def __init__(
        self,
        inner: ProcessingTimeService,
        defer: Callable[[ProcessingTimeCallback, int], object],
        firing: Callable[[int], object] = lambda timestamp: None,
    ) -> None:
        """Create an operator's view of the clock ``inner``.

        The clock's thread calls ``defer(callback, timestamp)``, which must send a mail that has the operator's priority
        and calls ``callback(timestamp)``. If ``defer`` raises, the timer is dropped, and the error is passed to the
        error handler of ``inner``. A :class:`RejectedExecutionError`, which means that the task has ended, is ignored.
        ``firing`` is called with a timer's timestamp before the callback.
        """
        # Until its mail has run, a timer counts as running.
        super().__init__(threading.Lock())
        self._inner = inner
        self._defer = defer
        self._firing = firing

    def current_processing_time(self) -> int:
        return self._inner.current_processing_time()

    def relative_time_millis(self) -> int:
        return self._inner.relative_time_millis()

    @property
    def manual(self) -> ProcessingTimeService | None:
        return self._inner.manual

    def register_timer(self, timestamp: int, callback: ProcessingTimeCallback) -> ScheduledTimer:
        state = self._state
        if state is ClockState.SHUTDOWN:
            raise RuntimeError("the operator's processing-time service is shut down")
        if state is ClockState.QUIESCED:
            return NeverTimer()
        timer = _DeferredTimer(self, callback)
        timer.attach(self._inner.register_timer(timestamp, timer.fire))
        return timer

    def quiesce(self) -> Future[None]:
        """Stop firing this operator's timers. The future is done when all their mails have run.

        The mailbox thread must not block on it.
        """
        return super().quiesce()

    def resume(self) -> None:
        """Undo :meth:`quiesce`. Timers that were dropped in the meantime stay dropped."""
        self._reopen()

    def _begin(self) -> bool:
        with self._lock:
            if self._state is not ClockState.ALIVE:
                return False
            self._running += 1
            return True
