"""Base class of the system clock and the manual clock: a heap of timers."""

from __future__ import annotations

import heapq
import threading
from abc import abstractmethod

from pillarbox._errors import shorten
from pillarbox._time.clock import (
    ClockState,
    ClockTimerState,
    ClosableClock,
    NeverTimer,
    ProcessingTimeCallback,
    ScheduledTimer,
)


class HeapClockTimer(ScheduledTimer):
    """A timer of a :class:`HeapClock`, guarded by the service's lock."""

    __slots__ = ("callback", "service", "state", "timestamp")

    def __init__(self, service: HeapClock, timestamp: int, callback: ProcessingTimeCallback) -> None:
        self.service: HeapClock = service
        self.timestamp: int = timestamp
        self.callback: ProcessingTimeCallback = callback
        self.state: ClockTimerState = ClockTimerState.WAITING

    def end(self, state: ClockTimerState) -> None:
        self.state = state
        self.callback = _nothing

    def cancel(self) -> bool:
        return self.service._cancel(self)

    def cancelled(self) -> bool:
        return self.state is ClockTimerState.CANCELLED

    def done(self) -> bool:
        return self.state is ClockTimerState.DONE or self.state is ClockTimerState.CANCELLED

    def __repr__(self) -> str:
        return f"<timer at {self.timestamp} for {shorten(self.callback)}: {self.state.name.lower()}>"


class HeapClock(ClosableClock):
    """A clock with a heap of timers. ``_lock`` guards all fields. Callbacks run without it."""

    def __init__(self) -> None:
        self._lock: threading.Condition = threading.Condition()
        super().__init__(self._lock)
        # (due time in the subclass's unit, order of registration, timer).
        self._heap: list[tuple[int, int, HeapClockTimer]] = []
        self._sequence = 0
        # Number of cancelled timers in the heap. Operators cancel most timeouts early.
        self._dead = 0

    @property
    def num_active_timers(self) -> int:
        with self._lock:
            return len(self._heap) - self._dead

    def register_timer(self, timestamp: int, callback: ProcessingTimeCallback) -> ScheduledTimer:
        timer = HeapClockTimer(self, timestamp, callback)
        with self._lock:
            if self._state is ClockState.SHUTDOWN:
                raise RuntimeError("the processing-time service is shut down: no timer can be registered")
            if self._state is ClockState.QUIESCED:
                return NeverTimer()
            self._push(self._due(timestamp), timer)
        return timer

    @abstractmethod
    def _due(self, timestamp: int) -> int:
        """Return a new timer's due time, which orders the heap. The caller must hold the lock."""

    def _push(self, due: int, timer: HeapClockTimer) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (due, self._sequence, timer))

    def _cancel(self, timer: HeapClockTimer) -> bool:
        with self._lock:
            if timer.state is not ClockTimerState.WAITING:
                return False
            timer.end(ClockTimerState.CANCELLED)
            self._dead += 1
            # Rebuilding when half of the heap is dead takes constant time per cancelled timer.
            if self._dead > 64 and self._dead * 2 > len(self._heap):
                self._heap = [e for e in self._heap if e[2].state is ClockTimerState.WAITING]
                heapq.heapify(self._heap)
                self._dead = 0
            return True

    def _skim(self) -> None:
        while self._heap and self._heap[0][2].state is not ClockTimerState.WAITING:
            heapq.heappop(self._heap)
            self._dead -= 1

    def _take_due(self, now: int) -> HeapClockTimer | None:
        self._skim()
        if not self._heap or self._heap[0][0] > now:
            return None
        timer = heapq.heappop(self._heap)[2]
        timer.state = ClockTimerState.RUNNING
        self._running += 1
        return timer

    def _run(self, timer: HeapClockTimer) -> None:
        try:
            timer.callback(timer.timestamp)
        finally:
            with self._lock:
                timer.end(ClockTimerState.DONE)
            self._end()

    def _closed(self) -> None:
        for _, _, timer in self._heap:
            timer.end(ClockTimerState.CANCELLED)
        self._heap.clear()
        self._dead = 0
        self._lock.notify_all()


def _nothing(timestamp: int) -> None: ...
