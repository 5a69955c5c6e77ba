"""Processing time: the clock of a task, and timers by it (T6).

Three services have one face, :class:`ProcessingTimeService`:

- :class:`SystemProcessingTimeService`: the wall clock, with one scheduler thread for each task;
- :class:`ManualProcessingTimeService`: a clock that stands still until it is set, for tests;
- :class:`ProcessingTimeServiceImpl`: an operator's view of either, whose callbacks run as mails.

All times are epoch milliseconds. Source of the behaviour: Flink's ``SystemProcessingTimeService``,
``ProcessingTimeServiceImpl``, ``ProcessingTimeServiceUtil`` and ``TestProcessingTimeService``.

A service is in one of three states. ALIVE. QUIESCED: what has not begun does not fire any more, new
timers never complete, what is running finishes. SHUTDOWN: in addition, registering raises.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum

from pillarbox.errors import shorten
from pillarbox.mailbox import RejectedExecutionError

__all__ = [
    "ManualProcessingTimeService",
    "ProcessingTimeCallback",
    "ProcessingTimeService",
    "ProcessingTimeServiceImpl",
    "ScheduledTimer",
    "ServiceState",
    "SystemProcessingTimeService",
    "processing_time_delay",
    "system_clock_ms",
]

_log = logging.getLogger(__name__)

ProcessingTimeCallback = Callable[[int], object]
"""Called with the time (epoch milliseconds) that the timer was set for; its result is ignored."""

# A timer may be set for the end of time, but no lock can wait that long.
_LONGEST_WAIT_S = 3600.0


def system_clock_ms() -> int:
    """Return the wall clock's time in epoch milliseconds."""
    return time.time_ns() // 1_000_000


def processing_time_delay(timestamp: int, now: int) -> int:
    """Return the milliseconds to wait from ``now`` before a timer for ``timestamp`` may fire.

    One more than the difference, unless the timestamp is past: a timer for *t* fires when the clock
    has passed *t*, as a watermark *t* says that nothing at *t* comes any more. (Flink's
    ``ProcessingTimeServiceUtil``.)
    """
    return timestamp - now + 1 if timestamp >= now else 0


class ServiceState(Enum):
    """The life of a processing-time service."""

    ALIVE = "alive"
    QUIESCED = "quiesced"
    SHUTDOWN = "shut down"


class ScheduledTimer(ABC):
    """The handle of a registered timer. Any thread may use it."""

    __slots__ = ()

    @abstractmethod
    def cancel(self) -> bool:
        """Keep the timer from firing, for a periodic one: from firing again.

        Returns:
            Whether that was in time: False if the timer has fired, is just firing, or was cancelled
            before.
        """

    @abstractmethod
    def cancelled(self) -> bool:
        """Return whether it was cancelled."""

    @abstractmethod
    def done(self) -> bool:
        """Return whether it is over: it has called for the last time, or was cancelled."""


class ProcessingTimeService(ABC):
    """Tells the processing time and calls back at times to come.

    Each service says in which thread callbacks run. Registering, cancelling and asking are for any
    thread.
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
        """Have ``callback(timestamp)`` called once, at that time or soon after.

        Args:
            timestamp: when, in epoch milliseconds; what is past is called at once.
            callback: gets the timestamp.

        Returns:
            The timer. In a quiesced service, one that never completes.

        Raises:
            RuntimeError: the service is shut down.
        """

    @abstractmethod
    def schedule_at_fixed_rate(
        self, callback: ProcessingTimeCallback, initial_delay: int, period: int
    ) -> ScheduledTimer:
        """Have ``callback`` called after ``initial_delay``, then every ``period`` milliseconds.

        It is called with the time that each call was due. Calls that are late are made up for. A
        callback that raises is called again at its next time.

        Raises:
            ValueError: the period is not positive, or the delay is negative.
            RuntimeError: the service is shut down.
        """

    @abstractmethod
    def schedule_with_fixed_delay(
        self, callback: ProcessingTimeCallback, initial_delay: int, period: int
    ) -> ScheduledTimer:
        """Have ``callback`` called after ``initial_delay``, then again and again.

        The next call comes ``period`` milliseconds after the end of the last; it is called with the
        time that it was due.

        Raises:
            ValueError: the period is not positive, or the delay is negative.
            RuntimeError: the service is shut down.
        """

    @abstractmethod
    def quiesce(self) -> Future[None]:
        """Let nothing fire any more. May be called again, and does not block.

        Returns:
            Done when the callbacks that were running have finished. Each call gives the same
            future.
        """

    @abstractmethod
    def shutdown(self) -> None:
        """End the service: :meth:`quiesce`, and from now on registering raises."""


class _NeverTimer(ScheduledTimer):
    """What a quiesced service gives: it never fires and never completes, unless by cancelling."""

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


class _TimerState(Enum):
    WAITING = 0
    RUNNING = 1
    DONE = 2
    CANCELLED = 3


class _HeapTimer(ScheduledTimer):
    """A timer of a :class:`_HeapTimerService`. Its fields change under the service's lock only."""

    __slots__ = ("callback", "fixed_delay", "period", "service", "state", "timestamp")

    def __init__(
        self,
        service: _HeapTimerService,
        timestamp: int,
        callback: ProcessingTimeCallback,
        period: int = 0,
        fixed_delay: bool = False,
    ) -> None:
        self.service = service
        self.timestamp = timestamp
        self.callback: ProcessingTimeCallback | None = callback
        self.period = period
        self.fixed_delay = fixed_delay
        self.state = _TimerState.WAITING

    def cancel(self) -> bool:
        return self.service._cancel(self)

    def cancelled(self) -> bool:
        return self.state is _TimerState.CANCELLED

    def done(self) -> bool:
        return self.state is _TimerState.DONE or self.state is _TimerState.CANCELLED

    def __repr__(self) -> str:
        return f"<timer at {self.timestamp} for {shorten(self.callback)}: {self.state.name.lower()}>"


class _HeapTimerService(ProcessingTimeService):
    """What the system's and the manual service share: a heap of timers, and the three states.

    ``_lock`` guards every field here and in the timers; callbacks run without it.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._state = ServiceState.ALIVE
        # (when to fire, in the unit of the subclass; order of registration; timer)
        self._heap: list[tuple[int, int, _HeapTimer]] = []
        self._sequence = 0
        # Entries in the heap whose timer was cancelled. Operators cancel most of their timeouts
        # long before their time, so such entries must not stay for long: see _cancel().
        self._dead = 0
        self._running = 0
        self._completed = False
        self._quiesced: Future[None] = Future()
        # Nobody may cancel it: it is everybody's.
        self._quiesced.set_running_or_notify_cancel()

    @property
    def state(self) -> ServiceState:
        """The state the service is in."""
        return self._state

    @property
    def num_active_timers(self) -> int:
        """The number of timers that wait for their time."""
        with self._lock:
            return len(self._heap) - self._dead

    def register_timer(self, timestamp: int, callback: ProcessingTimeCallback) -> ScheduledTimer:
        return self._register(_HeapTimer(self, timestamp, callback))

    def schedule_at_fixed_rate(
        self, callback: ProcessingTimeCallback, initial_delay: int, period: int
    ) -> ScheduledTimer:
        _check_period(initial_delay, period)
        timestamp = self.current_processing_time() + initial_delay
        return self._register(_HeapTimer(self, timestamp, callback, period))

    def schedule_with_fixed_delay(
        self, callback: ProcessingTimeCallback, initial_delay: int, period: int
    ) -> ScheduledTimer:
        _check_period(initial_delay, period)
        timestamp = self.current_processing_time() + initial_delay
        return self._register(_HeapTimer(self, timestamp, callback, period, fixed_delay=True))

    def quiesce(self) -> Future[None]:
        self._close(ServiceState.QUIESCED)
        return self._quiesced

    def shutdown(self) -> None:
        self._close(ServiceState.SHUTDOWN)

    @abstractmethod
    def _first_due(self, timer: _HeapTimer) -> int:
        """Return the heap's key for a timer that was just registered. The lock is held."""

    @abstractmethod
    def _next_due(self, timer: _HeapTimer, due: int) -> int:
        """Set a periodic timer that has just run to its next time; give its key. Under the lock."""

    def _register(self, timer: _HeapTimer) -> ScheduledTimer:
        with self._lock:
            if self._state is ServiceState.SHUTDOWN:
                raise RuntimeError("the processing-time service is shut down: no timer can be registered")
            if self._state is ServiceState.QUIESCED:
                return _NeverTimer()
            self._push(self._first_due(timer), timer)
        return timer

    def _push(self, due: int, timer: _HeapTimer) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (due, self._sequence, timer))

    def _cancel(self, timer: _HeapTimer) -> bool:
        with self._lock:
            if timer.state is _TimerState.RUNNING and timer.period:
                timer.state = _TimerState.CANCELLED
                return True
            if timer.state is not _TimerState.WAITING:
                return False
            timer.state = _TimerState.CANCELLED
            # The entry may stay in the heap for a while; what it refers to need not.
            timer.callback = None
            self._dead += 1
            # Rebuilding when half of the heap is dead costs each cancelled timer a constant time.
            if self._dead > 64 and self._dead * 2 > len(self._heap):
                self._heap = [e for e in self._heap if e[2].state is _TimerState.WAITING]
                heapq.heapify(self._heap)
                self._dead = 0
            return True

    def _skim(self) -> None:
        """Drop cancelled timers from the top of the heap. The lock is held."""
        while self._heap and self._heap[0][2].state is not _TimerState.WAITING:
            heapq.heappop(self._heap)
            self._dead -= 1

    def _take_due(self, now: int) -> tuple[int, _HeapTimer] | None:
        """Take the first timer that is due at ``now`` and mark it as running. The lock is held."""
        self._skim()
        if not self._heap or self._heap[0][0] > now:
            return None
        due, _, timer = heapq.heappop(self._heap)
        timer.state = _TimerState.RUNNING
        self._running += 1
        return due, timer

    def _run(self, due: int, timer: _HeapTimer) -> None:
        """Run a timer that was taken; what it raises comes through. Not under the lock."""
        try:
            callback = timer.callback
            assert callback is not None
            callback(timer.timestamp)
        finally:
            with self._lock:
                self._running -= 1
                if timer.state is _TimerState.RUNNING:
                    if not timer.period:
                        timer.state = _TimerState.DONE
                    elif self._state is ServiceState.ALIVE:
                        timer.state = _TimerState.WAITING
                        self._push(self._next_due(timer, due), timer)
                    else:
                        timer.state = _TimerState.CANCELLED
                if timer.state is not _TimerState.WAITING:
                    timer.callback = None
                finished = self._is_finished()
            # Outside the lock, because a future calls its callbacks right here.
            if finished:
                self._quiesced.set_result(None)

    def _close(self, state: ServiceState) -> None:
        with self._lock:
            if self._state is ServiceState.SHUTDOWN:
                return
            self._state = state
            for _, _, timer in self._heap:
                timer.state = _TimerState.CANCELLED
                timer.callback = None
            self._heap.clear()
            self._dead = 0
            self._lock.notify_all()
            finished = self._is_finished()
        if finished:
            self._quiesced.set_result(None)

    def _is_finished(self) -> bool:
        """Return True, once, when the future is to be completed. The lock is held."""
        if self._completed or self._running or self._state is ServiceState.ALIVE:
            return False
        self._completed = True
        return True


def _check_period(initial_delay: int, period: int) -> None:
    if period <= 0:
        raise ValueError(f"the period has to be at least one millisecond, not {period}")
    if initial_delay < 0:
        raise ValueError(f"the initial delay cannot be negative: {initial_delay}")


class SystemProcessingTimeService(_HeapTimerService):
    """Timers by the wall clock, called from one daemon thread that starts with the first timer.

    **Callbacks run in the scheduler thread**: they have to be short and may touch neither operators
    nor state. In a task they only post a mail, see :class:`ProcessingTimeServiceImpl`.

    How long a timer waits is settled when it is registered and measured by the monotonic clock, as
    in Flink: setting the wall clock afterwards neither hastens nor holds it up.
    """

    def __init__(
        self,
        error_handler: Callable[[BaseException], None],
        clock: Callable[[], int] = system_clock_ms,
        name: str = "pillarbox-timers",
    ) -> None:
        """Make a service.

        Args:
            error_handler: called, in the scheduler thread, with what a callback raised; a task
                fails by it.
            clock: gives the processing time in epoch milliseconds; any thread may call it.
            name: of the scheduler thread.
        """
        super().__init__()
        self._error_handler = error_handler
        self._clock = clock
        self._name = name
        self._thread: threading.Thread | None = None

    def current_processing_time(self) -> int:
        return self._clock()

    def relative_time_millis(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def await_shutdown(self, timeout: int) -> bool:
        """Shut down and wait until the running callback has finished.

        Args:
            timeout: the longest wait, in milliseconds.

        Returns:
            Whether the scheduler thread has ended in time. Asked by a callback itself: False,
            without waiting.
        """
        self.shutdown()
        thread = self._thread
        if thread is None:
            return True
        if thread is threading.current_thread():
            return False
        thread.join(timeout / 1000)
        return not thread.is_alive()

    def _first_due(self, timer: _HeapTimer) -> int:
        now = self._clock()
        # A periodic one is not bound to a timestamp, so its delay counts as it is.
        delay = max(0, timer.timestamp - now) if timer.period else processing_time_delay(timer.timestamp, now)
        return time.monotonic_ns() + delay * 1_000_000

    def _next_due(self, timer: _HeapTimer, due: int) -> int:
        if timer.fixed_delay:
            timer.timestamp = self._clock() + timer.period
            return time.monotonic_ns() + timer.period * 1_000_000
        timer.timestamp += timer.period
        return due + timer.period * 1_000_000

    def _push(self, due: int, timer: _HeapTimer) -> None:
        super()._push(due, timer)
        if self._thread is None:
            thread = threading.Thread(target=self._schedule, name=self._name, daemon=True)
            thread.start()
            self._thread = thread
        elif self._heap[0][2] is timer:
            self._lock.notify_all()

    def _schedule(self) -> None:
        """Wait for the first timer and run it, again and again: the scheduler thread."""
        while True:
            with self._lock:
                while True:
                    if self._state is not ServiceState.ALIVE:
                        return
                    taken = self._take_due(time.monotonic_ns())
                    if taken is not None:
                        break
                    if self._heap:
                        wait = (self._heap[0][0] - time.monotonic_ns()) / 1e9
                        self._lock.wait(min(max(wait, 0.0), _LONGEST_WAIT_S))
                    else:
                        self._lock.wait()
            try:
                self._run(*taken)
            # Also what is no Exception: without its thread, the service would fall silent.
            except BaseException as error:
                self._report(error)
            # Else the last timer would live on through the next wait.
            del taken

    def _report(self, error: BaseException) -> None:
        try:
            self._error_handler(error)
        except BaseException:
            _log.exception("the handler of timer errors raised while it handled %r", error)


class ManualProcessingTimeService(_HeapTimerService):
    """A clock for tests: it stands still until it is set, and setting it runs what is due.

    Callbacks run in the thread that sets the clock, in the order of their times, and for one time
    in that of their registration; those that are registered meanwhile and are due run as well. As
    in Flink's ``TestProcessingTimeService``, a timer for *t* fires at *t*, without the millisecond
    that the system's service adds; the clock shows its new time all along; and what a callback
    raises comes out of the call that set the clock (what else is due runs with the next).
    """

    def __init__(self, current_time: int = 0) -> None:
        """Make a clock that shows ``current_time`` (epoch milliseconds)."""
        super().__init__()
        self._now = current_time

    def current_processing_time(self) -> int:
        return self._now

    def relative_time_millis(self) -> int:
        return self._now

    def set_current_time(self, timestamp: int) -> None:
        """Set the clock (epoch milliseconds) and run what is due. It may go back."""
        self._now = timestamp
        while True:
            with self._lock:
                # Asked anew each time: a callback may set the clock itself.
                taken = self._take_due(self._now)
            if taken is None:
                return
            self._run(*taken)

    def advance(self, milliseconds: int) -> None:
        """Set the clock forward and run what is due.

        Raises:
            ValueError: ``milliseconds`` is negative.
        """
        if milliseconds < 0:
            raise ValueError(f"the clock cannot advance by {milliseconds} ms: use set_current_time()")
        self.set_current_time(self._now + milliseconds)

    def active_timer_timestamps(self) -> list[int]:
        """Return the times of the waiting timers, in order."""
        with self._lock:
            return sorted(e[2].timestamp for e in self._heap if e[2].state is _TimerState.WAITING)

    def _first_due(self, timer: _HeapTimer) -> int:
        return timer.timestamp

    def _next_due(self, timer: _HeapTimer, due: int) -> int:
        # A callback takes no time here: a fixed rate and a fixed delay are the same.
        timer.timestamp += timer.period
        return timer.timestamp


class _DeferredTimer(ScheduledTimer):
    """An operator's timer: on its way through the clock, then through the mailbox.

    ``fire`` runs in the clock's thread, ``__call__`` as the mail in the mailbox thread.
    """

    __slots__ = ("_callback", "_inner", "_periodic", "_service", "_state")

    def __init__(self, service: ProcessingTimeServiceImpl, callback: ProcessingTimeCallback, periodic: bool) -> None:
        self._service = service
        self._callback: ProcessingTimeCallback | None = callback
        self._periodic = periodic
        self._state = _TimerState.WAITING
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
            if self._state is _TimerState.WAITING and not self._periodic:
                self._state = _TimerState.CANCELLED
                self._callback = None

    def __call__(self, timestamp: int) -> None:
        try:
            with self._service._lock:
                callback = self._callback
                if self._state is _TimerState.CANCELLED or callback is None:
                    return
                if not self._periodic:
                    self._state = _TimerState.RUNNING
            try:
                callback(timestamp)
            finally:
                if not self._periodic:
                    self._state = _TimerState.DONE
                    self._callback = None
        finally:
            self._service._end()

    def cancel(self) -> bool:
        with self._service._lock:
            if self._state is not _TimerState.WAITING:
                return False
            self._state = _TimerState.CANCELLED
            self._callback = None
        if self._inner is not None:
            self._inner.cancel()
        return True

    def cancelled(self) -> bool:
        return self._state is _TimerState.CANCELLED

    def done(self) -> bool:
        if self._state is _TimerState.DONE or self._state is _TimerState.CANCELLED:
            return True
        # The clock below may have been closed before the timer's time came.
        return self._inner is not None and self._inner.cancelled()

    def __repr__(self) -> str:
        return f"<timer for {self}: {self._state.name.lower()}>"

    def __str__(self) -> str:
        # For the description of the mail.
        return getattr(self._callback, "__qualname__", None) or shorten(self._callback)


class ProcessingTimeServiceImpl(ProcessingTimeService):
    """An operator's processing-time service: its callbacks become its mails (T6, P6).

    It can be quiesced by itself, so that one operator of a chain is finished while timers of the
    others go on; the service below is left as it is.

    Two promises go beyond Flink's class of this name. :meth:`quiesce` counts a timer until its mail
    *has run*, not only until it was posted. And a timer whose mail still waits in the mailbox can
    be cancelled: cancelled in the mailbox thread, it never calls.
    """

    def __init__(
        self,
        inner: ProcessingTimeService,
        defer: Callable[[ProcessingTimeCallback, int], object],
    ) -> None:
        """Make the view of one operator.

        Args:
            inner: the task's service.
            defer: called in the clock's thread as ``defer(callback, timestamp)``: it has to
                arrange that ``callback(timestamp)`` is called, exactly once, in the mailbox thread,
                as a mail with the operator's priority; ``str(callback)`` names it. Where it raises,
                the timer is given up; the error goes to the error handler of ``inner``, but for
                :class:`RejectedExecutionError`: the task has ended.
        """
        self._inner = inner
        self._defer = defer
        self._lock = threading.Lock()
        self._state = ServiceState.ALIVE
        # Timers that have fired and whose mail has not run to its end yet.
        self._pending = 0
        self._completed = False
        self._quiesced: Future[None] = Future()
        self._quiesced.set_running_or_notify_cancel()

    @property
    def state(self) -> ServiceState:
        """The state of this view; that of the service below is its own."""
        return self._state

    @property
    def num_pending_callbacks(self) -> int:
        """The number of callbacks whose time has come and that have not finished."""
        return self._pending

    def current_processing_time(self) -> int:
        return self._inner.current_processing_time()

    def relative_time_millis(self) -> int:
        return self._inner.relative_time_millis()

    def register_timer(self, timestamp: int, callback: ProcessingTimeCallback) -> ScheduledTimer:
        if not self._is_alive():
            return _NeverTimer()
        timer = _DeferredTimer(self, callback, periodic=False)
        timer.attach(self._inner.register_timer(timestamp, timer.fire))
        return timer

    def schedule_at_fixed_rate(
        self, callback: ProcessingTimeCallback, initial_delay: int, period: int
    ) -> ScheduledTimer:
        _check_period(initial_delay, period)
        if not self._is_alive():
            return _NeverTimer()
        timer = _DeferredTimer(self, callback, periodic=True)
        timer.attach(self._inner.schedule_at_fixed_rate(timer.fire, initial_delay, period))
        return timer

    def schedule_with_fixed_delay(
        self, callback: ProcessingTimeCallback, initial_delay: int, period: int
    ) -> ScheduledTimer:
        """Have ``callback`` run as a mail after ``initial_delay``, then again and again.

        As in Flink, the ``period`` (milliseconds) counts from the posting of one mail to that of
        the next, not from the end of the callback.
        """
        _check_period(initial_delay, period)
        if not self._is_alive():
            return _NeverTimer()
        timer = _DeferredTimer(self, callback, periodic=True)
        timer.attach(self._inner.schedule_with_fixed_delay(timer.fire, initial_delay, period))
        return timer

    def quiesce(self) -> Future[None]:
        """Let no timer of this operator fire any more.

        Returns:
            Done when every mail that was posted has run. The mailbox thread must not block on it:
            it yields to the mailbox until it is done, or adds a callback that posts what comes
            next. If the mailbox is closed, and mails are dropped with it, it never gets done.
        """
        self._close(ServiceState.QUIESCED)
        return self._quiesced

    def resume(self) -> None:
        """Let timers fire again after :meth:`quiesce`: a task may outlive the end of its data.

        What was given up while it was quiesced stays given up. No effect unless it is quiesced.
        """
        with self._lock:
            if self._state is not ServiceState.QUIESCED:
                return
            self._state = ServiceState.ALIVE
            self._completed = False
            self._quiesced = Future()
            self._quiesced.set_running_or_notify_cancel()

    def shutdown(self) -> None:
        """:meth:`quiesce`, and from now on registering raises. The service below goes on."""
        self._close(ServiceState.SHUTDOWN)

    def _is_alive(self) -> bool:
        state = self._state
        if state is ServiceState.SHUTDOWN:
            raise RuntimeError("the operator's processing-time service is shut down")
        return state is ServiceState.ALIVE

    def _close(self, state: ServiceState) -> None:
        with self._lock:
            if self._state is not ServiceState.SHUTDOWN:
                self._state = state
            finished = self._is_finished()
        if finished:
            self._quiesced.set_result(None)

    def _begin(self) -> bool:
        with self._lock:
            if self._state is not ServiceState.ALIVE:
                return False
            self._pending += 1
            return True

    def _end(self) -> None:
        with self._lock:
            self._pending -= 1
            finished = self._is_finished()
        if finished:
            self._quiesced.set_result(None)

    def _is_finished(self) -> bool:
        """Return True, once, when the future is to be completed. The lock is held."""
        if self._completed or self._pending or self._state is ServiceState.ALIVE:
            return False
        self._completed = True
        return True
