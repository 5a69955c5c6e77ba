"""Panes: the parts into which the edges of windows cut time, so that each window is made of whole panes.

All times are epoch milliseconds. A pane is known by its start; a window by its end, where it is not of days: no two end
together then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pillarbox._operators.windowing.api.assigner import WindowAssigner
from pillarbox._operators.windowing.api.time_windows import (
    CumulativeEventTimeWindows,
    CumulativeProcessingTimeWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
)

__all__ = ["EvenPanes", "Panes", "panes_of"]


class Panes(ABC):
    """The panes of an assigner: where they start, and which windows hold them.

    Later windows neither start nor end before earlier ones.

    Attributes:
        name: what the windows are; panes of the same name are cut the same way.
        longest: the longest of the lengths that they are computed from.
    """

    name: str
    longest: int

    @abstractmethod
    def start(self, time: int) -> int:
        """Return the start of the pane that a time is in."""

    @abstractmethod
    def starts(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the starts of the panes that times are in."""

    @abstractmethod
    def windows(self, pane: int) -> Iterator[tuple[int, int]]:
        """Yield the bounds of the windows that hold a pane, in their order."""

    @abstractmethod
    def last_end(self, pane: int) -> int:
        """Return the end of the last window that holds a pane."""

    @abstractmethod
    def outside(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
        """Return which times are in no window; None: there are no such times."""


class EvenPanes(Panes):
    """Panes of windows of which no two end together: those that are not days."""

    @abstractmethod
    def end_after(self, time: int) -> int:
        """Return the first end of a window after ``time``; after a pane's start: of the first one that holds it."""

    @abstractmethod
    def window_start(self, end: int) -> int:
        """Return the start of the window that ends at ``end``."""

    def windows(self, pane: int) -> Iterator[tuple[int, int]]:
        end, last = self.end_after(pane), self.last_end(pane)
        while end <= last:
            yield self.window_start(end), end
            end = self.end_after(end)


class SlidingPanes(EvenPanes):
    """Two panes for each slide: from a window's start to the next end of one, and from there to the next start.

    Where the size is a multiple of the slide, ends are starts, and there is one.
    """

    def __init__(self, size: int, slide: int, offset: int) -> None:
        self.size = size
        self.slide = slide
        self.offset = offset
        self.longest: int = max(size, slide)
        self.name: str = f"panes of {size} ms each {slide} ms, offset {offset % slide} ms"

    def start(self, time: int) -> int:
        return time - min((time - self.offset) % self.slide, (time - self.offset - self.size) % self.slide)

    def starts(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        since_start = (times - self.offset) % self.slide
        if self.size % self.slide == 0:
            return times - since_start
        since_end = (times - self.offset - self.size) % self.slide
        starts: npt.NDArray[np.int64] = times - np.minimum(since_start, since_end)
        return starts

    def end_after(self, time: int) -> int:
        return time + self.slide - (time - self.offset - self.size) % self.slide

    def window_start(self, end: int) -> int:
        return end - self.size

    def last_end(self, pane: int) -> int:
        return pane - (pane - self.offset) % self.slide + self.size

    def outside(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
        return None if self.slide <= self.size else (times - self.offset) % self.slide >= self.size


class CumulatingPanes(EvenPanes):
    """One pane for each step."""

    def __init__(self, size: int, step: int, offset: int) -> None:
        self.size = size
        self.step = step
        self.offset = offset
        self.longest: int = size
        self.name: str = f"panes of up to {size} ms by {step} ms, offset {offset % size} ms"

    def start(self, time: int) -> int:
        return time - (time - self.offset) % self.step

    def starts(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return times - (times - self.offset) % self.step

    def end_after(self, time: int) -> int:
        return self.start(time) + self.step

    def window_start(self, end: int) -> int:
        return end - 1 - (end - 1 - self.offset) % self.size

    def last_end(self, pane: int) -> int:
        return pane - (pane - self.offset) % self.size + self.size

    def outside(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
        return None


def panes_of(assigner: WindowAssigner) -> EvenPanes | None:
    """Return the panes of an assigner's windows; None: they are not made of such.

    Days of a time zone have several lengths: a window of days is not cut.
    """
    kind = type(assigner)
    if getattr(assigner, "time_zone", None) is not None:
        return None
    if kind is SlidingEventTimeWindows or kind is SlidingProcessingTimeWindows:
        return SlidingPanes(assigner.size, assigner.slide, assigner.offset)  # type: ignore[attr-defined]
    if kind is CumulativeEventTimeWindows or kind is CumulativeProcessingTimeWindows:
        return CumulatingPanes(assigner.size, assigner.step, assigner.offset)  # type: ignore[attr-defined]
    return None
