"""What a task's clock showed in an epoch, so that the epoch can run again by the same clock.

A log has the readings whose time differs from the one before, and the timers that fired, each with how many buffers the
task had received by then. Buffers are the same when an epoch runs again, also where they come in other portions.
"""

from __future__ import annotations

import base64
import heapq
import json
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

from pillarbox._time.clock import ProcessingTimeCallback, ProcessingTimeService, ScheduledTimer, TimerState
from pillarbox._time.heap_clock import HeapTimer, HeapTimerService

# An epoch of a second has at most a thousand different readings. A log has so many entries; later ones are left out.
_ENTRIES = 4_096

# Of an entry that is no reading: timers fired.
_FIRED = -1


class ClockLog:
    """The readings and firings of one epoch, in their order. The mailbox thread writes it.

    Attributes:
        is_whole: whether it has all of them.
    """

    def __init__(self) -> None:
        # How many buffers had come, how many readings had been made (or that timers fired), and the time (epoch ms).
        self._entries: list[tuple[int, int, int]] = []
        self.is_whole: bool = True

    def read(self, buffers: int, readings: int, time: int) -> None:
        """Note a reading that differs from the one before."""
        self._add(buffers, readings, time)

    def fired(self, buffers: int, time: int) -> None:
        """Note that the timers for a time fired."""
        self._add(buffers, _FIRED, time)

    def _add(self, buffers: int, readings: int, time: int) -> None:
        if len(self._entries) < _ENTRIES:
            self._entries.append((buffers, readings, time))
        else:
            self.is_whole = False

    @property
    def readings(self) -> list[tuple[int, int, int]]:
        """Buffers that had come, readings before, and the time, of each reading that differs from the one before."""
        return [entry for entry in self._entries if entry[1] != _FIRED]

    @property
    def firings(self) -> list[tuple[int, int]]:
        """Buffers that had come, and the time of the timers that fired."""
        return [(buffers, time) for buffers, readings, time in self._entries if readings == _FIRED]

    def to_bytes(self) -> bytes:
        """Return the log as it is kept; empty, if it is."""
        if not self._entries:
            return b""
        columns: list[list[int]] = [list(column) for column in zip(*self._entries)]
        for column in (columns[0], columns[2]):
            column[1:] = [later - earlier for earlier, later in pairwise(column)]
        return zlib.compress(json.dumps([self.is_whole, *columns], separators=(",", ":")).encode(), 1)

    @staticmethod
    def of_bytes(payload: bytes) -> ClockLog:
        """Return the log that :meth:`to_bytes` has written."""
        log = ClockLog()
        if payload:
            log.is_whole, buffers, readings, times = json.loads(zlib.decompress(payload))
            for column in (buffers, times):
                for place in range(1, len(column)):
                    column[place] += column[place - 1]
            log._entries = list(zip(buffers, readings, times))
        return log

    def to_text(self, limit: int | None = None) -> str | None:
        """Return the log as text; None: it has more characters than the limit."""
        text = base64.b85encode(self.to_bytes()).decode()
        return text if limit is None or len(text) <= limit else None

    @staticmethod
    def of_text(text: str) -> ClockLog:
        """Return the log that :meth:`to_text` has written."""
        return ClockLog.of_bytes(base64.b85decode(text))


class LoggedClock(ProcessingTimeService):
    """A clock that logs what the mailbox thread reads of it.

    Args:
        inner: the clock.
        buffers: tells how many buffers the task has received in the epoch.

    Attributes:
        log: of the epoch. The mailbox thread writes it.
    """

    def __init__(self, inner: ProcessingTimeService, buffers: Callable[[], int]) -> None:
        self._inner = inner
        self._buffers = buffers
        self.log: ClockLog = ClockLog()
        self._began: int | None = None
        # The thread whose readings it has; None: no epoch has begun.
        self._thread: int | None = None
        self._readings = 0
        self._shown: int | None = None

    def begin_epoch(self) -> None:
        """Begin a new log, with the readings of the calling thread."""
        self._thread = threading.get_ident()
        self.log = ClockLog()
        self._readings, self._shown = 0, None
        self._inner.begin_epoch()

    def read_beginning(self) -> int:
        """Return the time at which the epoch begins: its first reading, or the beginning of the epoch before if later.

        The mailbox thread calls it.
        """
        now = self._inner.current_processing_time()
        self._began = now if self._began is None else max(now, self._began)
        self._log_reading(self._began)
        return self._began

    def current_processing_time(self) -> int:
        now = self._inner.current_processing_time()
        if threading.get_ident() == self._thread:
            self._log_reading(now)
        return now

    def _log_reading(self, now: int) -> None:
        if now != self._shown:
            self._shown = now
            self.log.read(self._buffers(), self._readings, now)
        self._readings += 1

    def log_firing(self, timestamp: int) -> None:
        """Note that a timer fires. The mailbox thread calls it."""
        self.log.fired(self._buffers(), timestamp)

    def relative_time_millis(self) -> int:
        return self._inner.relative_time_millis()

    def register_timer(self, timestamp: int, callback: ProcessingTimeCallback) -> ScheduledTimer:
        return self._inner.register_timer(timestamp, callback)

    def quiesce(self) -> Any:
        return self._inner.quiesce()

    def shutdown(self) -> None:
        self._inner.shutdown()


class ReplayedClock(HeapTimerService):
    """A clock that shows what a log says, and whose timers fire when they did.

    The task gets its input through :meth:`feed`, which fires them. One thread uses it: the task's.

    Args:
        log: of the epoch.
        otherwise: what the clock shows where the log says nothing (epoch ms).
        is_same_code: whether the task does what it did, so that each of its readings is the next one of the log; else a
            reading shows the time at which as many buffers had come.
    """

    def __init__(self, log: ClockLog, otherwise: int, *, is_same_code: bool = True) -> None:
        super().__init__()
        self._now = otherwise
        self._left = deque(log.readings)
        self._firings = deque(log.firings)
        self._is_same_code = is_same_code
        self._readings = 0
        self._buffers = 0
        self._has_begun = False

    def begin_epoch(self) -> None:
        self._has_begun = True

    def current_processing_time(self) -> int:
        if not self._has_begun:  # a function reads it when it is opened
            return self._now
        place, seen = (1, self._readings) if self._is_same_code else (0, self._buffers)
        while self._left and self._left[0][place] <= seen:
            self._now = self._left.popleft()[2]
        self._readings += 1
        return self._now

    def relative_time_millis(self) -> int:
        return self._now

    def feed(self, portions: Iterable[Iterable[Any]]) -> Iterator[list[Any]]:
        """Yield the buffers of the input, one by one, and nothing at all where the mails of timers are to run."""
        for portion in portions:
            for buffer in portion:
                yield from self._fire()
                self._buffers += 1
                yield [buffer]
        yield from self._fire()

    def _fire(self) -> Iterator[list[Any]]:
        while self._firings and self._firings[0][0] <= self._buffers:
            _, time = self._firings.popleft()
            timer = self._take(time)
            if timer is not None:
                self._run(timer)
                yield []

    def _take(self, time: int) -> HeapTimer | None:
        """Take the first timer for a time; None: other code has set none."""
        with self._lock:
            entry = min((each for each in self._heap if each[0] == time and not each[2].done()), default=None)
            if entry is None:
                return None
            self._heap.remove(entry)
            heapq.heapify(self._heap)
            entry[2].state = TimerState.RUNNING
            self._running += 1
            return entry[2]

    def _due(self, timestamp: int) -> int:
        return timestamp
