"""The wall clock.

Follows Flink's ``SystemProcessingTimeService`` and ``ProcessingTimeServiceUtil``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from pillarbox._time.clock import ClockState
from pillarbox._time.heap_clock import HeapClock, HeapClockTimer

_log = logging.getLogger(__name__)

# Maximum wait, because locks have a limit.
_LONGEST_WAIT_S = 3600.0


def system_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def processing_time_delay(timestamp: int, now: int) -> int:
    """Return how many milliseconds after ``now`` a timer for ``timestamp`` may fire.

    A timer for *t* fires when the clock has passed *t*, because a watermark *t* also means that *t* has passed.
    """
    return timestamp - now + 1 if timestamp >= now else 0


class SystemProcessingTimeService(HeapClock):
    """The wall clock, with a daemon thread for timers that starts with the first timer.

    Callbacks run in that thread, so they must not use operators or state. In a task, callbacks only send mails. Delays
    are measured with the monotonic clock, so setting the wall clock does not change pending delays.
    """

    def __init__(
        self,
        error_handler: Callable[[BaseException], None],
        clock: Callable[[], int] = system_clock_ms,
        name: str = "pillarbox-timers",
    ) -> None:
        """Create a service. ``error_handler`` is called with callback errors, in the timer thread."""
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

    def _push(self, due: int, timer: HeapClockTimer) -> None:
        super()._push(due, timer)
        if self._thread is None:
            thread = threading.Thread(target=self._schedule, name=self._name, daemon=True)
            thread.start()
            self._thread = thread
        elif self._heap[0][2] is timer:
            self._lock.notify_all()

    def _schedule(self) -> None:
        while True:
            with self._lock:
                while True:
                    if self._state is not ClockState.ALIVE:
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
            # Without its thread, the service would stop silently.
            except BaseException as error:
                self._report(error)
            # Release the last timer.
            del timer

    def _report(self, error: BaseException) -> None:
        try:
            self._error_handler(error)
        except BaseException:
            _log.exception("the handler of timer errors raised while it handled %r", error)
