"""Panes: slices of time between window boundaries. Each window consists of whole panes.

All times are Unix times in ms. A pane is identified by its start and, except in `DayPanes`, a window by its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from pillarbox._operators.windowing.api.assigner import WindowAssigner, is_built_in
from pillarbox._operators.windowing.api.time_windows import FixedTimeWindows
from pillarbox._operators.windowing.api.window_starts import DayWindowStarts

_NO_CLOCK: Any = None


class EvenPanes:
    """The panes of all windows except day windows.

    Window starts and ends are pane boundaries. If every window end is also a window start, all panes have the same
    length; otherwise, they have two alternating lengths.

    Attributes:
        name: describes the windows. Panes with equal names have the same boundaries.
    """

    def __init__(self, assigner: FixedTimeWindows, name: str) -> None:
        self._size = assigner.size
        self._starts_every = assigner.starts_every
        self._ends_every = assigner.ends_every
        self._start = assigner.offset
        self._end = assigner.offset + assigner.size
        self.name: str = f"{name}, offset {assigner.offset % assigner.starts_every} ms"
        self.longest: int = max(self._size, self._starts_every)
        self.tumbling: bool = assigner.tumbles

    def start(self, time: int) -> int:
        return time - min((time - self._start) % self._starts_every, (time - self._end) % self._ends_every)

    def starts(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        since_end = (times - self._end) % self._ends_every
        if self._size % self._ends_every == 0:
            return times - since_end
        starts: npt.NDArray[np.int64] = times - np.minimum((times - self._start) % self._starts_every, since_end)
        return starts

    def end_after(self, time: int) -> int:
        """Return the first window end after ``time``. A pane that starts at ``time`` is in that window."""
        return time + self._ends_every - (time - self._end) % self._ends_every

    def window_start(self, end: int) -> int:
        return end - self._size + (self._end - end) % self._starts_every

    def windows(self, pane: int) -> Iterator[tuple[int, int]]:
        end, last = self.end_after(pane), self.last_end(pane)
        while end <= last:
            yield self.window_start(end), end
            end = self.end_after(end)

    def last_end(self, pane: int) -> int:
        return pane - (pane - self._start) % self._starts_every + self._size

    def outside(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
        return None if self._starts_every <= self._size else (times - self._start) % self._starts_every >= self._size


class DayPanes:
    """Panes of one or more days in a time zone, for event time. A day may have 23 or 25 hours, or be skipped.

    A window contains a pane if it contains the pane's start.
    """

    def __init__(self, assigner: FixedTimeWindows, days: DayWindowStarts) -> None:
        self._assigner = assigner
        self._days = days
        # Length of a pane (ms) if all its days have 24 hours.
        self._length = gcd(assigner.size, assigner.ends_every)
        self.name: str = f"panes of {self._length} ms of {assigner!r}, offset {days.offset} ms, {days.zone}"
        self.longest: int = max(assigner.size, assigner.starts_every)
        self.tumbling: bool = assigner.tumbles

    def starts(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self._days.starts(times, self._length)

    def windows(self, pane: int) -> Iterator[tuple[int, int]]:
        yield from sorted(self._assigner.assign_windows(None, pane, _NO_CLOCK))

    def last_end(self, pane: int) -> int:
        return max((end for _, end in self.windows(pane)), default=pane)

    def outside(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
        if self._assigner.starts_every <= self._assigner.size:
            return None
        return np.array([self.last_end(int(start)) <= start for start in self.starts(times)], np.bool_)


def panes_of(assigner: WindowAssigner) -> EvenPanes | DayPanes | None:
    if not isinstance(assigner, FixedTimeWindows) or not is_built_in(assigner):
        return None
    if isinstance(assigner.line, DayWindowStarts):
        return DayPanes(assigner, assigner.line)
    name = f"panes of {assigner.size} ms each {assigner.starts_every} ms"
    if assigner.cumulates:
        name = f"panes of up to {assigner.size} ms by {assigner.ends_every} ms"
    elif assigner.tumbles:
        name = f"windows of {assigner.size} ms"
    return EvenPanes(assigner, name)
