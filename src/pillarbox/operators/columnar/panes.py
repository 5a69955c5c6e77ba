"""Panes: the stretches of event time that the windows of an assigner are made of.

A pane is in some windows as a whole, and in no other: a tumbling window is one, and a sliding one consists of several.
So rows are aggregated once for each pane, and panes for each window. All times are epoch milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

import numpy as np
import numpy.typing as npt

from pillarbox.operators.windowing.assigner import WindowAssigner
from pillarbox.operators.windowing.time_windows import (
    CumulativeEventTimeWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from pillarbox.operators.windowing.window_starts import Milliseconds
from pillarbox.operators.windowing.windows import TimeWindow

__all__ = ["Panes"]

_Tiled = TumblingEventTimeWindows | SlidingEventTimeWindows | CumulativeEventTimeWindows


class Panes:
    """The panes of tumbling, sliding or cumulating windows."""

    def __init__(self, assigner: _Tiled) -> None:
        self._assigner = assigner
        self._line = assigner._line
        self._size = assigner.size
        if isinstance(assigner, SlidingEventTimeWindows):
            self._slide = assigner.slide
            self._length = gcd(assigner.size, assigner.slide)
        elif isinstance(assigner, CumulativeEventTimeWindows):
            self._slide = assigner.size
            self._length = assigner.step
        else:
            self._slide = self._length = assigner.size

    @staticmethod
    def has(assigner: WindowAssigner) -> bool:
        """Tell whether the windows of an assigner consist of panes."""
        return type(assigner) in (TumblingEventTimeWindows, SlidingEventTimeWindows, CumulativeEventTimeWindows)

    def starts(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the start of the pane that each time is in."""
        line = self._line
        if isinstance(line, Milliseconds):
            return times - (times - line.offset) % self._length
        # Local midnights between the first time and the last one.
        latest = int(times.max())
        edges = [line.start(int(times.min()), self._length)]
        while (following := line.plus(edges[-1], self._length)) <= latest:
            edges.append(following)
        found = np.array(edges, np.int64)
        return found[np.searchsorted(found, times, "right") - 1]

    def pane(self, start: int) -> TimeWindow:
        """Return the pane with this start."""
        return TimeWindow(start, self._line.plus(start, self._length))

    def windows(self, start: int) -> list[TimeWindow]:
        """Return the windows that a pane is in, the one that ends first first."""
        line = self._line
        windows: list[TimeWindow] = []
        first = line.start(start, self._slide)
        if isinstance(self._assigner, CumulativeEventTimeWindows):
            ends = (line.plus(first, length) for length in range(self._length, self._size + 1, self._length))
            return [TimeWindow(first, end) for end in ends if end > start]
        while (end := line.plus(first, self._size)) > start:
            windows.append(TimeWindow(first, end))
            first = line.plus(first, -self._slide)
        return windows[::-1]

    def of(self, window: TimeWindow) -> Iterator[int]:
        """Return the starts of a window's panes."""
        start = window.start
        while start < window.end:
            yield start
            start = self._line.plus(start, self._length)

    def last_of(self, window: TimeWindow) -> list[int]:
        """Return the starts of the panes that are in no later window."""
        if isinstance(self._assigner, CumulativeEventTimeWindows):
            following = window.end if window.end == self._line.plus(window.start, self._size) else window.start
        else:
            following = self._line.plus(window.start, self._slide)
        return [start for start in self.of(window) if start < following]
