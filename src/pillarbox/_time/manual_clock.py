"""A clock that a test harness or simulation sets by hand."""

from __future__ import annotations

from pillarbox._time.clock import ClockTimerState
from pillarbox._time.heap_clock import HeapClock


class ManualProcessingTimeService(HeapClock):
    """A clock that fires due timers when it is set. Follows Flink's ``TestProcessingTimeService``.

    Callbacks run in the thread that sets the clock, ordered by timestamp, then by registration. A timer for *t* fires
    at *t*. Timers that callbacks register fire in the same call if due. If a callback raises, the call raises its
    error, and the next call fires the remaining timers.
    """

    def __init__(self, current_time: int = 0) -> None:
        super().__init__()
        self._now = current_time

    def current_processing_time(self) -> int:
        return self._now

    def relative_time_millis(self) -> int:
        return self._now

    @property
    def manual(self) -> ManualProcessingTimeService:
        return self

    def set_current_time(self, timestamp: int) -> None:
        """Set the clock (Unix time in ms), even to an earlier time, and fire due timers."""
        self._now = timestamp
        while True:
            with self._lock:
                # A callback may set the clock.
                timer = self._take_due(self._now)
            if timer is None:
                return
            self._run(timer)

    def advance(self, milliseconds: int) -> None:
        if milliseconds < 0:
            raise ValueError(f"the clock cannot advance by {milliseconds} ms: to turn it back, use set_current_time()")
        self.set_current_time(self._now + milliseconds)

    def active_timer_timestamps(self) -> list[int]:
        with self._lock:
            return sorted(e[2].timestamp for e in self._heap if e[2].state is ClockTimerState.WAITING)

    def _due(self, timestamp: int) -> int:
        return timestamp
