"""Windows: finite parts of a stream, as in Flink.

A window's fields identify its state and timers, so a user-defined window class must be a ``NamedTuple`` of numbers and
strings. It needs a method ``max_timestamp()``.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from pillarbox._errors import ProgramError, check_kind, shorten
from pillarbox._time.timestamp_assigner import MAX_WATERMARK
from pillarbox._unpickle import make


class Window(Protocol):
    """A window: :class:`TimeWindow`, :class:`CountWindow`, :class:`GlobalWindow`, or a user-defined class."""

    def max_timestamp(self) -> int:
        """Return the window's largest timestamp (Unix time in ms), which its results receive."""
        ...


class TimeWindow(NamedTuple):
    """A window from ``start`` (inclusive) to ``end`` (exclusive). Both are Unix times in ms.

    Example:
        >>> window = TimeWindow(0, 60_000)
        >>> window.max_timestamp()
        59999
        >>> window.intersects(TimeWindow(60_000, 90_000))  # they touch
        True
    """

    start: int
    end: int

    def max_timestamp(self) -> int:
        """Return ``end - 1``, the last millisecond."""
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Return whether the windows overlap or touch. Session windows that do are merged."""
        try:
            return self.start <= other.end and self.end >= other.start
        except (AttributeError, TypeError):
            raise _no_window(other) from None

    def cover(self, other: TimeWindow) -> TimeWindow:
        """Return the smallest window that contains both windows."""
        try:
            return TimeWindow(min(self.start, other.start), max(self.end, other.end))
        except (AttributeError, TypeError):
            raise _no_window(other) from None

    @staticmethod
    def get_window_start_with_offset(timestamp: int, offset: int, window_size: int) -> int:
        """Return the start of the tumbling window that contains ``timestamp``. All times are in milliseconds.

        Example:
            >>> TimeWindow.get_window_start_with_offset(90_000, 0, 60_000)
            60000
        """
        for argument in (timestamp, offset, window_size):
            check_kind(argument, int, "get_window_start_with_offset(): each argument", "a number of milliseconds")
        if window_size < 1:
            raise ProgramError(f"get_window_start_with_offset(): the size must be at least 1 ms, not {window_size}")
        return timestamp - (timestamp - offset) % window_size

    def __reduce__(self) -> Any:
        return make, ("TimeWindow", *self)


def _no_window(other: object) -> ProgramError:
    return ProgramError(f"a TimeWindow can be compared with a TimeWindow, not with {shorten(other)}")


class GlobalWindow(NamedTuple):
    """The window that contains everything and never ends."""

    @staticmethod
    def get() -> GlobalWindow:
        """Return the window.

        Example:
            >>> GlobalWindow.get() == GlobalWindow()
            True
        """
        return GlobalWindow()

    def max_timestamp(self) -> int:
        """Return the end of event time."""
        return MAX_WATERMARK

    def __reduce__(self) -> Any:
        return make, ("GlobalWindow",)


class CountWindow(NamedTuple):
    """A window that ends after some number of records. ``id`` numbers a key's windows from 0."""

    id: int

    def max_timestamp(self) -> int:
        """Return the end of event time, because the window does not end at a time."""
        return MAX_WATERMARK

    def __reduce__(self) -> Any:
        return make, ("CountWindow", *self)
