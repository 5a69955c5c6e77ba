"""Two stacks: what panes are for each window that slides over them, with a constant number of merges for a pane.

The panes of a window are those of the *front*, and behind them those of the *back*. The front has the result from each
of its panes to its last one, the earliest on top: a window that begins later takes some off. The back has one result of
all its panes. When the front is used up, the back becomes the front. So each pane is merged once into the back and
once in the front, and each window merges one of the front with that of the back.

Where windows begin together, as cumulating ones do, there is only the back, and one merge for a window.
"""

from __future__ import annotations

import copy
import datetime
import decimal
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

from pillarbox.operators.collector import IMMUTABLE

__all__ = ["TwoStacks", "copied"]

_ATOMS = IMMUTABLE | {complex, decimal.Decimal, datetime.date, datetime.datetime, datetime.time, datetime.timedelta}


def copied(value: Any) -> Any:
    """Return a value that stays as it is, whatever is done to the given one."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is list:
        if _ATOMS.issuperset(map(type, value)):
            return value.copy()
    elif isinstance(value, tuple):
        # (Rows and named tuples have no attributes beside their fields.)
        if _ATOMS.issuperset(map(type, value)) and not getattr(value, "__dict__", None):
            return value
    elif kind is dict and _ATOMS.issuperset(map(type, value.values())):
        return value.copy()
    return copy.deepcopy(value)


class TwoStacks:
    """The results of windows that end one after the other, and do not begin before those that were.

    Args:
        merge: returns one accumulator of two, and may change both.
        read: returns the accumulator of a pane, which is the state's and not to be changed; None: it is empty.
        copied: returns an accumulator that stays as it is, whatever is done to the given one.

    Attributes:
        end: how far panes have been merged: a pane before it that changes makes all of this stale.
    """

    __slots__ = ("_back", "_copied", "_front", "_merge", "_read", "_result", "end")

    def __init__(
        self,
        merge: Callable[[Any, Any], Any],
        read: Callable[[int], Any],
        copied: Callable[[Any], Any] = copied,
    ) -> None:
        self._merge = merge
        self._copied = copied
        self._read = read
        self._front: list[tuple[int, Any]] = []
        self._back: list[int] = []
        self._result: Any = None  # of the back
        self.end: int | None = None

    def window(self, start: int, end: int, panes: Sequence[int]) -> Any:
        """Return the accumulator of a window, which is the caller's; None: it is empty.

        Args:
            panes: the starts of all panes that there are, in their order.
        """
        front = self._front
        while front and front[-1][0] < start:
            front.pop()
        if not front and self._back and self._back[0] < start:
            self._turn(start)
        first = start if self.end is None or self.end < start else self.end
        for pane in panes[bisect_left(panes, first) : bisect_left(panes, end)]:
            self._push(pane)
        self.end = end
        late = self._result
        if not front:
            return self._copied(late)
        early = self._copied(front[-1][1])
        return early if late is None else self._merge(early, self._copied(late))

    def _push(self, pane: int) -> None:
        """Put a pane onto the back."""
        accumulator = self._copied(self._read(pane))
        if accumulator is not None:
            self._result = accumulator if self._result is None else self._merge(self._result, accumulator)
            self._back.append(pane)

    def _turn(self, start: int) -> None:
        """Make the back the front, without the panes before ``start``."""
        back = self._back
        result = None
        for pane in reversed(back[bisect_left(back, start) :]):
            accumulator = self._copied(self._read(pane))
            if accumulator is not None:
                result = accumulator if result is None else self._merge(accumulator, self._copied(result))
                self._front.append((pane, result))
        self._back = []
        self._result = None
