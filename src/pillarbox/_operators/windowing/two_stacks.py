"""Two stacks: what panes are for each window that slides over them, with a constant number of merges for a pane.

The panes of a window are the panes of the *front*, then the panes of the *back*. The front has the result from each
of its panes to its last one, the earliest on top: a window that begins later takes some off. The back has one result of
all its panes. When the front is used up, the back becomes the front. So each pane is merged once into the back and
once in the front, and each window merges one of the front with that of the back.

Where windows begin together, as cumulating ones do, there is only the back, and one merge for a window.

A pane that changes makes stale its stack's results that have it in them, and no others: these are merged again with the
next window. Where panes change that are not far from the end, which late records see to, the last ones stay out of the
back from then on, and are merged for each window: those may change for nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

from pillarbox._copies import copied

# The last panes stay out of the back where they are at most this part of a window.
_UNSETTLED = 8


class TwoStacks:
    """The results of windows that end one after the other, and do not begin before those that were.

    Args:
        merge: returns one accumulator of two, and may change both.
        read: returns the accumulator of a pane, which is the state's and not to be changed; None: it is empty.
        copied: returns an accumulator that stays as it is, whatever is done to the given one.
    """

    __slots__ = ("_back", "_copied", "_end", "_front", "_merge", "_middle", "_read", "_unsettled", "_window")

    def __init__(
        self,
        merge: Callable[[Any, Any], Any],
        read: Callable[[int], Any],
        copied: Callable[[Any], Any] = copied,
    ) -> None:
        self._merge = merge
        self._copied = copied
        self._read = read
        # The front has the panes before the middle, its earliest one last; the back the result of the panes after it.
        self._front: list[tuple[int, Any]] = []
        self._back: Any = None
        self._middle: int | None = None
        # How far panes have been merged; how long before the end of a window they are left out; the last window.
        self._end = 0
        self._unsettled = 0
        self._window = (0, 0)

    def window(self, start: int, end: int, panes: Sequence[int]) -> Any:
        """Return the accumulator of a window, which is the caller's; None: it is empty.

        Args:
            panes: the starts of all panes that there are, in their order.
        """
        front = self._front
        while front and front[-1][0] < start:
            front.pop()
        if self._middle is None:
            self._middle = self._end = start
        elif start > self._middle:
            # The front is used up: the back becomes the front.
            self._middle = self._end = max(start, self._end)
            self._back = None
        first = front[-1][0] if front else self._middle
        early = self._from(start, panes[bisect_left(panes, start) : bisect_left(panes, first)])
        settled = max(self._end, end - self._unsettled)
        place = bisect_left(panes, settled)
        if self._end < settled:
            for pane in panes[bisect_left(panes, self._end) : place]:
                self._back = self._merged(self._back, self._copied(self._read(pane)))
            self._end = settled
        self._window = (start, end)
        result = self._merged(early, self._copied(self._back))
        if settled < end:
            for pane in panes[place : bisect_left(panes, end)]:
                result = self._merged(result, self._copied(self._read(pane)))
        return result

    def changed(self, pane: int) -> None:
        """Take note that a pane was added, or is another than it was."""
        if self._middle is None or pane >= self._end:
            return
        if pane >= self._middle:
            self._back = None
            self._end = self._middle
        else:
            front = self._front
            while front and front[-1][0] <= pane:
                front.pop()
        start, end = self._window
        if end - pane <= (end - start) // _UNSETTLED:
            self._unsettled = max(self._unsettled, end - pane)

    def _from(self, start: int, panes: Sequence[int]) -> Any:
        """Return the accumulator from a start to the end of the front, which is the caller's; None: it is empty.

        Args:
            panes: those from the start on that are before the front: they are put onto it.
        """
        front = self._front
        result = front[-1][1] if front else None
        for pane in reversed(panes):
            accumulator = self._copied(self._read(pane))
            if accumulator is not None:
                result = self._merged(accumulator, self._copied(result))
                front.append((pane, result))
        return self._copied(front[-1][1]) if front else None

    def _merged(self, one: Any, other: Any) -> Any:
        """Return one accumulator of two, of which either may be None."""
        if one is None:
            return other
        return one if other is None else self._merge(one, other)
