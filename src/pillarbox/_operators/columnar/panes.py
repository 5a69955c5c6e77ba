"""The panes that rows are aggregated by: those of sliding and cumulating windows; a tumbling window is one itself.

All times are epoch milliseconds.
"""

from __future__ import annotations

from math import gcd

import numpy as np
import numpy.typing as npt

from pillarbox._operators.windowing.assigner import WindowAssigner
from pillarbox._operators.windowing.panes import Panes, panes_of
from pillarbox._operators.windowing.time_windows import (
    CumulativeEventTimeWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from pillarbox._operators.windowing.window_starts import Days

__all__ = ["TumblingPanes", "columnar_panes"]


class TumblingPanes(Panes):
    """Each window is one pane."""

    def __init__(self, size: int, offset: int) -> None:
        self.name: str = f"windows of {size} ms, offset {offset % size} ms"
        self.longest: int = size
        self._size = size
        self._offset = offset

    def start(self, time: int) -> int:
        return time - (time - self._offset) % self._size

    def starts(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return times - (times - self._offset) % self._size

    def end_after(self, time: int) -> int:
        return self.start(time) + self._size

    def window_start(self, end: int) -> int:
        return end - self._size

    def last_end(self, pane: int) -> int:
        return pane + self._size

    def outside(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
        return None


class DayPanes(Panes):
    """Days of a time zone, which may have 23 or 25 hours; windows have ``size`` of them, and start each ``slide``."""

    def __init__(self, days: Days, size: int, slide: int, length: int, *, cumulates: bool = False) -> None:
        self.name: str = f"panes of {length} ms of {size} ms each {slide} ms, offset {days.offset} ms, {days.zone}"
        self.longest: int = max(size, slide)
        self._days = days
        self._size = size
        self._slide = slide
        self._length = length
        self._cumulates = cumulates

    def start(self, time: int) -> int:
        return self._days.start(time, self._length)

    def starts(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        # All starts between the first time and the last one.
        latest = int(times.max())
        found = [self.start(int(times.min()))]
        while (following := self._days.plus(found[-1], self._length, self._length)) <= latest:
            found.append(following)
        edges = np.array(found, np.int64)
        starts: npt.NDArray[np.int64] = edges[np.searchsorted(edges, times, "right") - 1]
        return starts

    def end_after(self, time: int) -> int:
        end = self._days.plus(self.start(time), self._length, self._length)
        while not self._ends(end):
            end = self._days.plus(end, self._length, self._length)
        return end

    def _ends(self, end: int) -> bool:
        """Tell whether a window ends there."""
        start = self.window_start(end)
        return self._cumulates or self._days.start(start, self._slide) == start

    def window_start(self, end: int) -> int:
        if self._cumulates:
            return self._days.start(end - 1, self._size)
        return self._days.plus(end, -self._size, self._length)

    def last_end(self, pane: int) -> int:
        return self._days.plus(self._days.start(pane, self._slide), self._size, self._slide)

    def outside(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
        if self._slide <= self._size:
            return None
        return np.array([self.last_end(int(start)) <= start for start in self.starts(times)], np.bool_)


def columnar_panes(assigner: WindowAssigner) -> Panes | None:
    """Return the panes that windows of event time consist of; None: they are not of a kind that does."""
    kind = type(assigner)
    if kind not in (TumblingEventTimeWindows, SlidingEventTimeWindows, CumulativeEventTimeWindows):
        return None
    found = panes_of(assigner)
    if found is not None:
        return found
    line = assigner._line  # type: ignore[attr-defined]
    if isinstance(assigner, TumblingEventTimeWindows):
        if isinstance(line, Days):
            return DayPanes(line, assigner.size, assigner.size, assigner.size)
        return TumblingPanes(assigner.size, assigner.offset)
    if isinstance(assigner, SlidingEventTimeWindows):
        return DayPanes(line, assigner.size, assigner.slide, gcd(assigner.size, assigner.slide))
    assert isinstance(assigner, CumulativeEventTimeWindows)
    return DayPanes(line, assigner.size, assigner.size, assigner.step, cumulates=True)
