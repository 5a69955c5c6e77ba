"""A clock that stands still until it is set: for harnesses and simulations.

Source of the behaviour: Flink's ``TestProcessingTimeService``.
"""

from __future__ import annotations

from pillarbox._time.clock import TimerState
from pillarbox._time.heap_clock import HeapTimerService


class ManualProcessingTimeService(HeapTimerService):
    """A clock that stands still until it is set, and setting it runs the timers that are due.

    Callbacks run in the thread that sets the clock, in the order of their times, and for one time
    in the order of their registration; those that are registered meanwhile and are due run as well. As
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
        """Set the clock (epoch milliseconds) and run the timers that are due. It may go back."""
        self._now = timestamp
        while True:
            with self._lock:
                # Asked again each time: a callback may set the clock itself.
                timer = self._take_due(self._now)
            if timer is None:
                return
            self._run(timer)

    def advance(self, milliseconds: int) -> None:
        """Set the clock forward and run the timers that are due.

        Raises:
            ValueError: ``milliseconds`` is negative.
        """
        if milliseconds < 0:
            raise ValueError(f"the clock cannot advance by {milliseconds} ms: use set_current_time()")
        self.set_current_time(self._now + milliseconds)

    def active_timer_timestamps(self) -> list[int]:
        """Return the times of the waiting timers, in order."""
        with self._lock:
            return sorted(e[2].timestamp for e in self._heap if e[2].state is TimerState.WAITING)

    def _due(self, timestamp: int) -> int:
        return timestamp
