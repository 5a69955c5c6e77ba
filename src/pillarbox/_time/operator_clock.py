"""An operator's view of its task's clock: callbacks become the operator's mails (T6, P6).

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
    """An operator's timer: on its way through the clock, then through the mailbox.

    ``fire`` runs in the clock's thread, ``__call__`` as the mail in the mailbox thread.
    """

    __slots__ = ("_callback", "_inner", "_service", "_state")

    def __init__(self, service: ProcessingTimeServiceImpl, callback: ProcessingTimeCallback) -> None:
        self._service = service
        self._callback: ProcessingTimeCallback | None = callback
        self._state = TimerState.WAITING
        self._inner: ScheduledTimer | None = None

    def attach(self, inner: ScheduledTimer) -> None:
        # Nobody can cancel before that: nobody has been given this timer yet.
        self._inner = inner

    def fire(self, timestamp: int) -> None:
        service = self._service
        if not service._begin():
            self._give_up()
            return
        try:
            service._defer(self, timestamp)
        except RejectedExecutionError:
            # The task has ended: nobody waits for its timers any more.
            self._give_up()
            service._end()
        except BaseException:
            self._give_up()
            service._end()
            raise

    def _give_up(self) -> None:
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
        # The clock below may have been closed before the timer's time came.
        return self._inner is not None and self._inner.cancelled()

    def __repr__(self) -> str:
        return f"<timer for {self}: {self._state.name.lower()}>"

    def __str__(self) -> str:
        # For the description of the mail.
        return getattr(self._callback, "__qualname__", None) or shorten(self._callback)


class ProcessingTimeServiceImpl(ClosableService):
    """An operator's processing-time service: its callbacks become its mails.

    It can be quiesced by itself, so that one operator of a chain is finished while timers of the
    others continue; its state is its own, and the service below is left as it is.

    Two promises go beyond Flink's class of this name. :meth:`quiesce` counts a timer until its mail
    *has run*, not only until it was posted. And a timer whose mail still waits in the mailbox can
    be cancelled: cancelled in the mailbox thread, it never calls.
    """

    def __init__(
        self,
        inner: ProcessingTimeService,
        defer: Callable[[ProcessingTimeCallback, int], object],
        firing: Callable[[int], object] = lambda timestamp: None,
    ) -> None:
        """Make the view of one operator.

        Args:
            inner: the task's service.
            defer: called in the clock's thread as ``defer(callback, timestamp)``: it has to
                arrange that ``callback(timestamp)`` is called, exactly once, in the mailbox thread,
                as a mail with the operator's priority; ``str(callback)`` names it. Where it raises,
                the timer is given up; the error goes to the error handler of ``inner``, but for
                :class:`RejectedExecutionError`: the task has ended.
            firing: called with the time of a timer before it calls back, in the mailbox thread.
        """
        # These count as running: timers that have fired and whose mail has not run to its end yet.
        super().__init__(threading.Lock())
        self._inner = inner
        self._defer = defer
        self._firing = firing

    def current_processing_time(self) -> int:
        return self._inner.current_processing_time()

    def relative_time_millis(self) -> int:
        return self._inner.relative_time_millis()

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
        """Let no timer of this operator fire any more.

        Returns:
            Done when every mail that was posted has run. The mailbox thread must not block on it:
            it yields to the mailbox until it is done, or adds a callback that posts what comes
            next. If the mailbox is closed, and mails are dropped with it, it never gets done.
        """
        return super().quiesce()

    def resume(self) -> None:
        """Let timers fire again after :meth:`quiesce`: a task may outlive the end of its data.

        Timers that were given up while it was quiesced stay given up. No effect unless it is quiesced.
        """
        self._reopen()

    def _begin(self) -> bool:
        with self._lock:
            if self._state is not ServiceState.ALIVE:
                return False
            self._running += 1
            return True
