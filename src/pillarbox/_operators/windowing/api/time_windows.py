"""Tumbling, sliding and cumulating windows, as in Flink.

Windows start at multiples of a length from 1970 in UTC or, with a time zone, at local midnight, plus an offset.
"""

from __future__ import annotations

from typing import Any

from pillarbox._errors import ProgramError
from pillarbox._operators.windowing.api.assigner import (
    EventTimeAssigner,
    ProcessingTimeAssigner,
    TimedAssigner,
    WindowAssigner,
)
from pillarbox._operators.windowing.api.window_starts import (
    DayWindowStarts,
    MillisecondWindowStarts,
    line,
    offset_millis,
)
from pillarbox._operators.windowing.api.windows import TimeWindow
from pillarbox._time.duration import DurationLike, positive_millis


class FixedTimeWindows(TimedAssigner):
    """Base class of assigners of fixed-length windows.

    Args:
        lengths: maps names (for error messages) to lengths (ms). The first is the largest window size. The last is the
            interval between consecutive window ends.
        offset: added to each window start (ms).

    Attributes:
        tumbles: whether the windows are adjacent.
        cumulates: whether windows with different ends share a start.
    """

    tumbles: bool = False
    cumulates: bool = False

    def __init__(self, lengths: dict[str, DurationLike], offset: DurationLike, time_zone: str | None) -> None:
        name = f"{type(self).__name__}.of()"
        millis = {what: positive_millis(length, f"{name}: the {what}") for what, length in lengths.items()}
        self.size: int = next(iter(millis.values()))
        self.ends_every: int = [*millis.values()][-1]
        if self.cumulates and self.size % self.ends_every:
            raise ProgramError(
                f"{name}: max_size must be a multiple of step, but {self.size} ms is not a multiple of"
                f" {self.ends_every} ms"
            )
        self.starts_every: int = self.size if self.cumulates else self.ends_every
        self.offset: int = offset_millis(name, offset, self.starts_every)
        self.time_zone = time_zone
        self.line: MillisecondWindowStarts | DayWindowStarts = line(name, self.offset, time_zone, millis)


class _Tumbling(FixedTimeWindows):
    tumbles: bool = True

    def __init__(self, size: DurationLike, offset: DurationLike = 0, time_zone: str | None = None) -> None:
        super().__init__({"size": size}, offset, time_zone)

    def assign_windows(
        self, element: Any, timestamp: int | None, context: WindowAssigner.WindowAssignerContext, /
    ) -> list[TimeWindow]:
        start = self.line.start(self._time(timestamp, context), self.size)
        return [TimeWindow(start, self.line.plus(start, self.size, self.size))]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size} ms)"


class TumblingEventTimeWindows(EventTimeAssigner, _Tumbling):
    """Assigns elements to adjacent event-time windows of one length."""

    @staticmethod
    def of(size: DurationLike, offset: DurationLike = 0, *, time_zone: str | None = None) -> TumblingEventTimeWindows:
        """Return an assigner of adjacent event-time windows.

        Args:
            size: length of a window, at least 1 ms.
            offset: windows start at multiples of ``size`` (from 1970 in UTC) plus this offset, which must be shorter
                than ``size`` and may be negative.
            time_zone: for windows of whole days, the time zone of midnight, such as ``"Europe/Berlin"``. A day may have
                23 or 25 hours.

        Raises:
            ProgramError: a length is invalid, or the time zone is unknown.

        Example:
            >>> TumblingEventTimeWindows.of("1 minute").assign_windows("click", 90_000, None)
            [TimeWindow(start=60000, end=120000)]
        """
        return TumblingEventTimeWindows(size, offset, time_zone)


class TumblingProcessingTimeWindows(ProcessingTimeAssigner, _Tumbling):
    """Assigns elements to adjacent processing-time windows of one length."""

    @staticmethod
    def of(
        size: DurationLike, offset: DurationLike = 0, *, time_zone: str | None = None
    ) -> TumblingProcessingTimeWindows:
        """Return an assigner of adjacent processing-time windows.

        Arguments are as in :class:`TumblingEventTimeWindows`.

        Example:
            >>> TumblingProcessingTimeWindows.of("1 minute").is_event_time()
            False
        """
        return TumblingProcessingTimeWindows(size, offset, time_zone)


class _Sliding(FixedTimeWindows):
    def __init__(
        self, size: DurationLike, slide: DurationLike, offset: DurationLike = 0, time_zone: str | None = None
    ) -> None:
        super().__init__({"size": size, "slide": slide}, offset, time_zone)
        self.slide: int = self.ends_every

    def assign_windows(
        self, element: Any, timestamp: int | None, context: WindowAssigner.WindowAssignerContext, /
    ) -> list[TimeWindow]:
        bounds = self.line.windows(self._time(timestamp, context), self.size, self.slide)
        return [TimeWindow(start, end) for start, end in bounds]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size} ms, {self.slide} ms)"


class SlidingEventTimeWindows(EventTimeAssigner, _Sliding):
    """Assigns elements to event-time windows of one length, which start at multiples of a slide and may overlap."""

    @staticmethod
    def of(
        size: DurationLike, slide: DurationLike, offset: DurationLike = 0, *, time_zone: str | None = None
    ) -> SlidingEventTimeWindows:
        """Return an assigner of overlapping event-time windows.

        Other arguments are as in :class:`TumblingEventTimeWindows`.

        Args:
            slide: time between the starts of two windows. If it exceeds ``size``, elements between windows are dropped.
            offset: windows start at multiples of ``slide`` (from 1970 in UTC) plus this offset, which must be shorter
                than ``slide`` and may be negative.

        Example:
            >>> SlidingEventTimeWindows.of("2 minutes", "1 minute").assign_windows("click", 90_000, None)
            [TimeWindow(start=60000, end=180000), TimeWindow(start=0, end=120000)]
        """
        return SlidingEventTimeWindows(size, slide, offset, time_zone)


class SlidingProcessingTimeWindows(ProcessingTimeAssigner, _Sliding):
    """Assigns elements to processing-time windows, like :class:`SlidingEventTimeWindows`."""

    @staticmethod
    def of(
        size: DurationLike, slide: DurationLike, offset: DurationLike = 0, *, time_zone: str | None = None
    ) -> SlidingProcessingTimeWindows:
        """Return an assigner of overlapping processing-time windows.

        Arguments are as in :class:`SlidingEventTimeWindows`.

        Example:
            >>> SlidingProcessingTimeWindows.of("1 hour", "1 minute").is_event_time()
            False
        """
        return SlidingProcessingTimeWindows(size, slide, offset, time_zone)


class _Cumulative(FixedTimeWindows):
    cumulates: bool = True

    def __init__(
        self, max_size: DurationLike, step: DurationLike, offset: DurationLike = 0, time_zone: str | None = None
    ) -> None:
        super().__init__({"largest size": max_size, "step": step}, offset, time_zone)
        self.step: int = self.ends_every

    def assign_windows(
        self, element: Any, timestamp: int | None, context: WindowAssigner.WindowAssignerContext, /
    ) -> list[TimeWindow]:
        time = self._time(timestamp, context)
        starts = self.line
        start = starts.start(time, self.size)
        # A day that the time zone omits has equal start and end.
        lengths = range(self.step, self.size + 1, self.step)
        ends = dict.fromkeys(starts.plus(start, length, self.size) for length in lengths)
        return [TimeWindow(start, end) for end in ends if end > time]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size} ms, {self.step} ms)"


class CumulativeEventTimeWindows(EventTimeAssigner, _Cumulative):
    """Assigns elements to event-time windows with a common start and growing lengths (Flink SQL's ``CUMULATE``)."""

    @staticmethod
    def of(
        max_size: DurationLike, step: DurationLike, offset: DurationLike = 0, *, time_zone: str | None = None
    ) -> CumulativeEventTimeWindows:
        """Return an assigner of cumulating event-time windows.

        Other arguments are as in :class:`TumblingEventTimeWindows`.

        Args:
            max_size: length of the longest window, a multiple of ``step``.
            step: length of the shortest window, at least 1 ms. Each window is a step longer than the previous window.
            offset: windows start at multiples of ``max_size`` (from 1970 in UTC) plus this offset, which must be
                shorter than ``max_size`` and may be negative.

        Example:
            >>> CumulativeEventTimeWindows.of("3 minutes", "1 minute").assign_windows("click", 90_000, None)
            [TimeWindow(start=0, end=120000), TimeWindow(start=0, end=180000)]
        """
        return CumulativeEventTimeWindows(max_size, step, offset, time_zone)


class CumulativeProcessingTimeWindows(ProcessingTimeAssigner, _Cumulative):
    """Assigns elements to processing-time windows, like :class:`CumulativeEventTimeWindows`."""

    @staticmethod
    def of(
        max_size: DurationLike, step: DurationLike, offset: DurationLike = 0, *, time_zone: str | None = None
    ) -> CumulativeProcessingTimeWindows:
        """Return an assigner of cumulating processing-time windows.

        Arguments are as in :class:`CumulativeEventTimeWindows`.

        Example:
            >>> CumulativeProcessingTimeWindows.of("1 day", "1 hour").is_event_time()
            False
        """
        return CumulativeProcessingTimeWindows(max_size, step, offset, time_zone)
