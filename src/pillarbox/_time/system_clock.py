"""The wall clock, with one scheduler thread for each task.

Source of the behaviour: Flink's ``SystemProcessingTimeService`` and ``ProcessingTimeServiceUtil``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from pillarbox._time.clock import ServiceState
from pillarbox._time.heap_clock import HeapTimer, HeapTimerService

_log = logging.getLogger(__name__)

# A timer may be set for the end of time, but no lock can wait that long.
_LONGEST_WAIT_S = 3600.0


def system_clock_ms() -> int:
    """Return the wall clock's time in epoch milliseconds."""
    return time.time_ns() // 1_000_000


def processing_time_delay(timestamp: int, now: int) -> int:
    """Return the milliseconds to wait from ``now`` before a timer for ``timestamp`` may fire.

    One more than the difference, unless the timestamp is past: a timer for *t* fires when the clock has passed *t*, as
    a watermark *t* says that nothing at *t* comes any more.
    """
    return timestamp - now + 1 if timestamp >= now else 0


class SystemProcessingTimeService(HeapTimerService):
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
            error_handler: called, in the scheduler thread, with the error of a callback; a task
                fails by it.
            clock: returns the processing time in epoch milliseconds; any thread may call it.
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

    def _due(self, timestamp: int) -> int:
        return time.monotonic_ns() + processing_time_delay(timestamp, self._clock()) * 1_000_000

    def _push(self, due: int, timer: HeapTimer) -> None:
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
                    timer = self._take_due(time.monotonic_ns())
                    if timer is not None:
                        break
                    if self._heap:
                        wait = (self._heap[0][0] - time.monotonic_ns()) / 1e9
                        self._lock.wait(min(max(wait, 0.0), _LONGEST_WAIT_S))
                    else:
                        self._lock.wait()
            try:
                self._run(timer)
            # Also errors that are no Exception: without its thread, the service would fall silent.
            except BaseException as error:
                self._report(error)
            # Else the last timer would live on through the next wait.
            del timer

    def _report(self, error: BaseException) -> None:
        try:
            self._error_handler(error)
        except BaseException:
            _log.exception("the handler of timer errors raised while it handled %r", error)
