"""Merges the panes of sliding windows with two stacks, which need a constant number of merges per pane.

A window's earlier panes are the *front*, its later panes the *back*. The front is a stack with the earliest pane on
top. For each pane, it stores the merge of this pane and all later front panes. A later window pops panes. The back is a
single merge. When the front is empty, the back's panes become the front. Cumulating windows share a start, so they use
only the back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

from pillarbox._copies import copied

# A window's last panes stay out of the back while they change, if they are at most 1/8 of the window.
_UNSETTLED = 8


class TwoStacks:
    """Merges the panes of windows. Each window must start and end no earlier than the previous window.

    Args:
        merge: merges two accumulators, possibly in place.
        read: returns a pane's accumulator, which must not be changed, or None.
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
        # The front holds the panes before the middle, earliest last. The back merges the panes after it.
        self._front: list[tuple[int, Any]] = []
        self._back: Any = None
        self._middle: int | None = None
        # The end of the merged panes, the time at a window's end that stays out of the back, and the last window.
        self._end = 0
        self._unsettled = 0
        self._window = (0, 0)

    def window(self, start: int, end: int, panes: Sequence[int]) -> Any:
        """Return a window's accumulator, which the caller may change, or None if it is empty.

        ``panes`` are the starts of all panes.
        """
        front = self._front
        while front and front[-1][0] < start:
            front.pop()
        if self._middle is None:
            self._middle = self._end = start
        elif start > self._middle:
            self._middle = self._end = max(start, self._end)
            self._back = None
        first = front[-1][0] if front else self._middle
        early = self._from(start, panes[bisect_left(panes, start) : bisect_left(panes, first)])
        settled = max(self._end, end - self._unsettled)
        position = bisect_left(panes, settled)
        if self._end < settled:
            for pane in panes[bisect_left(panes, self._end) : position]:
                self._back = self._merged(self._back, self._copied(self._read(pane)))
            self._end = settled
        self._window = (start, end)
        result = self._merged(early, self._copied(self._back))
        if settled < end:
            for pane in panes[position : bisect_left(panes, end)]:
                result = self._merged(result, self._copied(self._read(pane)))
        return result

    def changed(self, pane: int) -> None:
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
        """Return the accumulator from ``start`` to the front's end, or None if there are no elements.

        ``panes`` are the starts of panes from ``start`` that the front lacks. They are added to it.
        """
        front = self._front
        result = front[-1][1] if front else None
        for pane in reversed(panes):
            accumulator = self._copied(self._read(pane))
            if accumulator is not None:
                result = self._merged(accumulator, self._copied(result))
                front.append((pane, result))
        return self._copied(front[-1][1]) if front else None

    def _merged(self, first: Any, second: Any) -> Any:
        if first is None:
            return second
        return first if second is None else self._merge(first, second)
