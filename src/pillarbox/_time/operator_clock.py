"""An operator's view of its task's clock: callbacks run as the operator's mails (T6, P6).

Source of the behaviour: Flink's ``ProcessingTimeServiceImpl``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from pillarbox._errors import shorten
from pillarbox._time.clock import (
    ClosableService,
    NeverTimer,
    ProcessingTimeCallback,
    ProcessingTimeService,
    ScheduledTimer,
    ServiceState,
    TimerState,
)
from pillarbox.mailbox import RejectedExecutionError


class _DeferredTimer(ScheduledTimer):
    """An operator's timer, which passes through the clock and then through the mailbox.

    ``fire`` runs in the clock's thread, ``__call__`` as a mail in the mailbox thread.
    """

    __slots__ = ("_callback", "_inner", "_service", "_state")

    def __init__(self, service: ProcessingTimeServiceImpl, callback: ProcessingTimeCallback) -> None:
        self._service = service
        self._callback: ProcessingTimeCallback | None = callback
        self._state = TimerState.WAITING
        self._inner: ScheduledTimer | None = None

    def attach(self, inner: ScheduledTimer) -> None:
        # Before this call, no caller has a handle that could cancel.
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
            if self._state is TimerState.WAITING:
                self._state = TimerState.CANCELLED
                self._callback = None

    def __call__(self, timestamp: int) -> None:
        try:
            with self._service._lock:
                callback = self._callback
                if self._state is TimerState.CANCELLED or callback is None:
                    return
                self._state = TimerState.RUNNING
            try:
                self._service._firing(timestamp)
                callback(timestamp)
            finally:
                self._state = TimerState.DONE
                self._callback = None
        finally:
            self._service._end()

    def cancel(self) -> bool:
        with self._service._lock:
            if self._state is not TimerState.WAITING:
                return False
            self._state = TimerState.CANCELLED
            self._callback = None
        if self._inner is not None:
            self._inner.cancel()
        return True

    def cancelled(self) -> bool:
        return self._state is TimerState.CANCELLED

    def done(self) -> bool:
        if self._state is TimerState.DONE or self._state is TimerState.CANCELLED:
            return True
        # The clock may have been closed before the timer was due.
        return self._inner is not None and self._inner.cancelled()

    def __repr__(self) -> str:
        return f"<timer for {self}: {self._state.name.lower()}>"

    def __str__(self) -> str:
        # The mail's description.
        return getattr(self._callback, "__qualname__", None) or shorten(self._callback)


class ProcessingTimeServiceImpl(ClosableService):
    """An operator's processing-time service: its callbacks run as the operator's mails.

    It can be quiesced alone, so that one operator of a chain finishes while timers of the others continue.

    It promises more than Flink's class of this name: :meth:`quiesce` waits until a timer's mail *has run*, not only
    until it was posted. And a timer whose mail waits can be cancelled, in the mailbox thread for certain.
    """

    def __init__(
        self,
        inner: ProcessingTimeService,
        defer: Callable[[ProcessingTimeCallback, int], object],
        firing: Callable[[int], object] = lambda timestamp: None,
    ) -> None:
        """Create the view of one operator.

        Args:
            inner: the task's clock.
            defer: called in the clock's thread as ``defer(callback, timestamp)``. It must post a mail with the
                operator's priority that calls ``callback(timestamp)`` in the mailbox thread; ``str(callback)``
                describes it. If it raises, the timer is dropped, and the error handler of ``inner`` gets the error,
                except for
                :class:`RejectedExecutionError`: the task has ended.
            firing: called in the mailbox thread with a timer's timestamp, before the callback.
        """
        # A timer counts as running from the moment it fires until its mail has run.
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
        if state is ServiceState.SHUTDOWN:
            raise RuntimeError("the operator's processing-time service is shut down")
        if state is ServiceState.QUIESCED:
            return NeverTimer()
        timer = _DeferredTimer(self, callback)
        timer.attach(self._inner.register_timer(timestamp, timer.fire))
        return timer

    def quiesce(self) -> Future[None]:
        """Stop firing this operator's timers.

        Returns:
            Done when every posted mail has run. The mailbox thread must not block on it: it yields to the mailbox, or
                adds a callback. If the mailbox is closed and drops mails, the future never completes.
        """
        return super().quiesce()

    def resume(self) -> None:
        """Fire timers again after :meth:`quiesce`, since a task may outlive the end of its data.

        Timers that were dropped while it was quiesced stay dropped. No effect in another state.
        """
        self._reopen()

    def _begin(self) -> bool:
        with self._lock:
            if self._state is not ServiceState.ALIVE:
                return False
            self._running += 1
            return True
