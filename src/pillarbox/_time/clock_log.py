"""Logs a task's clock in an epoch, so that the epoch can be repeated with the same times.

The log contains each changed reading and each timer firing. The number of buffers received until then identifies the
moment, because a repeated epoch receives the same buffers.
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

from pillarbox._time.clock import ClockTimerState, ProcessingTimeCallback, ProcessingTimeService, ScheduledTimer
from pillarbox._time.heap_clock import HeapClock, HeapClockTimer

# A one-second epoch has at most a thousand different readings.
_ENTRIES = 4_096

# Marks a firing instead of a reading.
_FIRED = -1


class ClockLog:
    """Clock readings and timer firings in an epoch, in order. Mailbox thread only."""

    def __init__(self) -> None:
        # (buffers received, readings made or `_FIRED`, epoch ms).
        self._entries: list[tuple[int, int, int]] = []
        self.is_whole: bool = True

    def read(self, buffers: int, readings: int, time: int) -> None:
        self._add(buffers, readings, time)

    def fired(self, buffers: int, time: int) -> None:
        self._add(buffers, _FIRED, time)

    def _add(self, buffers: int, readings: int, time: int) -> None:
        if len(self._entries) < _ENTRIES:
            self._entries.append((buffers, readings, time))
        else:
            self.is_whole = False

    @property
    def readings(self) -> list[tuple[int, int, int]]:
        return [entry for entry in self._entries if entry[1] != _FIRED]

    @property
    def firings(self) -> list[tuple[int, int]]:
        return [(buffers, time) for buffers, readings, time in self._entries if readings == _FIRED]

    def to_bytes(self) -> bytes:
        if not self._entries:
            return b""
        columns: list[list[int]] = [list(column) for column in zip(*self._entries)]
        for column in (columns[0], columns[2]):
            column[1:] = [later - earlier for earlier, later in pairwise(column)]
        return zlib.compress(json.dumps([self.is_whole, *columns], separators=(",", ":")).encode(), 1)

    @staticmethod
    def of_bytes(payload: bytes) -> ClockLog:
        log = ClockLog()
        if payload:
            log.is_whole, buffers, readings, times = json.loads(zlib.decompress(payload))
            for column in (buffers, times):
                for index in range(1, len(column)):
                    column[index] += column[index - 1]
            log._entries = list(zip(buffers, readings, times))
        return log

    def to_text(self, limit: int | None = None) -> str | None:
        """Return the log as text, or None if it is longer than ``limit`` characters."""
        text = base64.b85encode(self.to_bytes()).decode()
        return text if limit is None or len(text) <= limit else None

    @staticmethod
    def of_text(text: str) -> ClockLog:
        return ClockLog.of_bytes(base64.b85decode(text))


class LoggedClock(ProcessingTimeService):
    """A clock that logs the readings of the mailbox thread."""

    def __init__(self, inner: ProcessingTimeService, buffers: Callable[[], int]) -> None:
        self._inner = inner
        self._buffers = buffers
        self.log: ClockLog = ClockLog()
        self._began: int | None = None
        self._thread: int | None = None
        self._readings = 0
        self._shown: int | None = None

    def begin_epoch(self) -> None:
        self._thread = threading.get_ident()
        self.log = ClockLog()
        self._readings, self._shown = 0, None
        self._inner.begin_epoch()

    def read_beginning(self) -> int:
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
        self.log.fired(self._buffers(), timestamp)

    def relative_time_millis(self) -> int:
        return self._inner.relative_time_millis()

    @property
    def manual(self) -> ProcessingTimeService | None:
        return self._inner.manual

    def register_timer(self, timestamp: int, callback: ProcessingTimeCallback) -> ScheduledTimer:
        return self._inner.register_timer(timestamp, callback)

    def quiesce(self) -> Any:
        return self._inner.quiesce()

    def shutdown(self) -> None:
        self._inner.shutdown()


class ReplayedClock(HeapClock):
    """A clock that repeats the readings and timer firings of a log. Task thread only.

    Args:
        is_same_code: whether the task will read the clock exactly as in the log. If so, readings are matched one by
            one; otherwise, by the number of buffers received until then.
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
        if not self._has_begun:  # a function reads it in open()
            return self._now
        counter, count = (1, self._readings) if self._is_same_code else (0, self._buffers)
        while self._left and self._left[0][counter] <= count:
            self._now = self._left.popleft()[2]
        self._readings += 1
        return self._now

    def relative_time_millis(self) -> int:
        return self._now

    def feed(self, portions: Iterable[Iterable[Any]]) -> Iterator[list[Any]]:
        """Yield the input buffer by buffer, and fire timers. For an empty list, the task runs only timer mails."""
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

    def _take(self, time: int) -> HeapClockTimer | None:
        with self._lock:
            entry = min((timer for timer in self._heap if timer[0] == time and not timer[2].done()), default=None)
            if entry is None:
                return None
            self._heap.remove(entry)
            heapq.heapify(self._heap)
            entry[2].state = ClockTimerState.RUNNING
            self._running += 1
            return entry[2]

    def _due(self, timestamp: int) -> int:
        return timestamp
