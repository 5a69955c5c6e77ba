"""The panes that rows are aggregated by: those of sliding and cumulating windows; a tumbling window is one itself.

All times are epoch milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from pillarbox._operators.windowing.api.assigner import WindowAssigner
from pillarbox._operators.windowing.api.time_windows import (
    CumulativeEventTimeWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from pillarbox._operators.windowing.api.window_starts import Days
from pillarbox._operators.windowing.panes import EvenPanes, Panes, panes_of

__all__ = ["TumblingPanes", "columnar_panes"]


class TumblingPanes(EvenPanes):
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
    """Days of a time zone, some together: they may have 23 or 25 hours, and a day that was left out has none.

    Args:
        assigner: the windows: those that hold a pane are those that hold its start.
        days: where days start.
        length: of how many milliseconds the days of a pane would be, if all had 24 hours.
    """

    def __init__(self, assigner: _OfDays, days: Days, length: int) -> None:
        self.name: str = f"panes of {length} ms of {assigner!r}, offset {days.offset} ms, {days.zone}"
        slide = assigner.slide if isinstance(assigner, SlidingEventTimeWindows) else 0
        self.longest: int = max(assigner.size, slide)
        self._has_gaps = slide > assigner.size
        self._assigner = assigner
        self._days = days
        self._length = length

    def start(self, time: int) -> int:
        return self._days.start(time, self._length)

    def starts(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self._days.starts(times, self._length)

    def windows(self, pane: int) -> Iterator[tuple[int, int]]:
        yield from sorted(self._assigner.assign_windows(None, pane, _NO_CLOCK))

    def last_end(self, pane: int) -> int:
        return max((end for _, end in self.windows(pane)), default=pane)

    def outside(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
        if not self._has_gaps:
            return None
        return np.array([self.last_end(int(start)) <= start for start in self.starts(times)], np.bool_)


_OfDays = TumblingEventTimeWindows | SlidingEventTimeWindows | CumulativeEventTimeWindows
# Windows of event time ask for no clock.
_NO_CLOCK: Any = None


def columnar_panes(assigner: WindowAssigner) -> Panes | None:
    """Return the panes that windows of event time consist of; None: they are not of a kind that does."""
    kind = type(assigner)
    if kind not in (TumblingEventTimeWindows, SlidingEventTimeWindows, CumulativeEventTimeWindows):
        return None
    found = panes_of(assigner)
    if found is not None:
        return found
    if isinstance(assigner, TumblingEventTimeWindows):
        if isinstance(assigner.line, Days):
            return DayPanes(assigner, assigner.line, assigner.size)
        return TumblingPanes(assigner.size, assigner.offset)
    if isinstance(assigner, SlidingEventTimeWindows):
        length = gcd(assigner.size, assigner.slide)
    else:
        assert isinstance(assigner, CumulativeEventTimeWindows)
        length = assigner.step
    assert isinstance(assigner.line, Days)  # the others have even panes
    return DayPanes(assigner, assigner.line, length)
