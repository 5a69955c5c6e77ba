"""Session windows, which merge when they overlap, as in Flink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from pillarbox._errors import ProgramError, shorten
from pillarbox._operators.functions.basic import check_plain
from pillarbox._operators.windowing.api.assigner import (
    EventTimeAssigner,
    MergeCallback,
    MergingWindowAssigner,
    ProcessingTimeAssigner,
    TimedAssigner,
    WindowAssigner,
)
from pillarbox._operators.windowing.api.windows import TimeWindow
from pillarbox._time.duration import DurationLike, positive_millis
from pillarbox._time.timestamp_assigner import MAX_WATERMARK


class SessionWindowTimeGapExtractor(ABC):
    """Computes an element's session gap.

    Example:
        >>> class Gap(SessionWindowTimeGapExtractor):
        ...     def extract(self, element):
        ...         return 5_000 if element == "buy" else 60_000
        >>> EventTimeSessionWindows.with_dynamic_gap(Gap()).assign_windows("buy", 90_000, None)
        [TimeWindow(start=90000, end=95000)]
    """

    @abstractmethod
    def extract(self, element: Any, /) -> int:
        """Return the gap (ms), a positive number."""


GapExtractor: TypeAlias = SessionWindowTimeGapExtractor | Callable[[Any], int]


class SessionWindows(TimedAssigner, MergingWindowAssigner):
    """Base class of session window assigners. A session ends after a gap without elements."""

    @abstractmethod
    def _gap(self, element: Any) -> int: ...

    def assign_windows(
        self, element: Any, timestamp: int | None, context: WindowAssigner.WindowAssignerContext, /
    ) -> list[TimeWindow]:
        time = self._time(timestamp, context)
        end = time + self._gap(element)
        if end > MAX_WATERMARK:
            raise ValueError(
                f"its session would end at {end}, beyond 2**63 - 1: its timestamp is {time}, but timestamps are"
                " milliseconds since 1970: filter out such records"
            )
        return [TimeWindow(time, end)]

    def merge_windows(self, windows: Iterable[TimeWindow], callback: MergeCallback, /) -> None:
        group: list[TimeWindow] = []
        cover: TimeWindow | None = None
        for window in sorted(windows):
            if cover is not None and cover.intersects(window):
                group.append(window)
                cover = cover.cover(window)
                continue
            if cover is not None and len(group) > 1:
                callback.merge(group, cover)
            group, cover = [window], window
        if cover is not None and len(group) > 1:
            callback.merge(group, cover)


def merges_overlapping(assigner: MergingWindowAssigner[Any, Any]) -> bool:
    return type(assigner).merge_windows is SessionWindows.merge_windows


class _FixedGap(SessionWindows):
    def __init__(self, gap: DurationLike) -> None:
        self.gap: int = positive_millis(gap, f"{type(self).__name__}.with_gap(): the gap")

    def _gap(self, element: Any) -> int:
        return self.gap

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.gap} ms)"


class _DynamicGap(SessionWindows):
    def __init__(self, extractor: GapExtractor) -> None:
        extract = getattr(extractor, "extract", extractor)
        if not callable(extract):
            raise ProgramError(
                f"{type(self).__name__}: with_dynamic_gap() takes a function or a SessionWindowTimeGapExtractor, not"
                f" {shorten(extractor)}"
            )
        check_plain(extractor, "extract", asked_by="with_dynamic_gap()")
        self.extractor = extractor
        self._extract: Callable[[Any], int] = extract

    def _gap(self, element: Any) -> int:
        return positive_millis(self._extract(element), f"{self!r}: the gap that the function returned")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shorten(self.extractor)})"


class EventTimeSessionWindows(EventTimeAssigner, _FixedGap):
    """Assigns elements to event-time sessions. Elements of a key that are at most a gap apart share a session."""

    @staticmethod
    def with_gap(size: DurationLike) -> EventTimeSessionWindows:
        """Return an assigner of sessions that end after ``size`` (at least 1 ms) without elements.

        Example:
            >>> EventTimeSessionWindows.with_gap("30 seconds").assign_windows("click", 90_000, None)
            [TimeWindow(start=90000, end=120000)]
        """
        return EventTimeSessionWindows(size)

    @staticmethod
    def with_dynamic_gap(extractor: GapExtractor) -> DynamicEventTimeSessionWindows:
        """Return an assigner of sessions with a per-element gap in milliseconds.

        Example:
            >>> sessions = EventTimeSessionWindows.with_dynamic_gap(lambda click: 1_000 * len(click))
            >>> sessions.assign_windows("buy", 90_000, None)
            [TimeWindow(start=90000, end=93000)]
        """
        return DynamicEventTimeSessionWindows(extractor)


class ProcessingTimeSessionWindows(ProcessingTimeAssigner, _FixedGap):
    """Assigns elements to processing-time sessions."""

    @staticmethod
    def with_gap(size: DurationLike) -> ProcessingTimeSessionWindows:
        """Return an assigner of sessions that end after ``size`` (at least 1 ms) without elements.

        Example:
            >>> ProcessingTimeSessionWindows.with_gap("30 seconds").is_event_time()
            False
        """
        return ProcessingTimeSessionWindows(size)

    @staticmethod
    def with_dynamic_gap(extractor: GapExtractor) -> DynamicProcessingTimeSessionWindows:
        """Return an assigner of sessions with a per-element gap in milliseconds.

        Example:
            >>> ProcessingTimeSessionWindows.with_dynamic_gap(lambda click: 1_000 * len(click)).is_event_time()
            False
        """
        return DynamicProcessingTimeSessionWindows(extractor)


class DynamicEventTimeSessionWindows(EventTimeAssigner, _DynamicGap):
    """Assigns elements to event-time sessions with a per-element gap."""

    @staticmethod
    def with_dynamic_gap(extractor: GapExtractor) -> DynamicEventTimeSessionWindows:
        """Return an assigner of sessions with a per-element gap in milliseconds.

        Example:
            >>> DynamicEventTimeSessionWindows.with_dynamic_gap(len).assign_windows("buy", 90_000, None)
            [TimeWindow(start=90000, end=90003)]
        """
        return DynamicEventTimeSessionWindows(extractor)


class DynamicProcessingTimeSessionWindows(ProcessingTimeAssigner, _DynamicGap):
    """Assigns elements to processing-time sessions with a per-element gap."""

    @staticmethod
    def with_dynamic_gap(extractor: GapExtractor) -> DynamicProcessingTimeSessionWindows:
        """Return an assigner of sessions with a per-element gap in milliseconds.

        Example:
            >>> DynamicProcessingTimeSessionWindows.with_dynamic_gap(lambda click: 5_000).is_event_time()
            False
        """
        return DynamicProcessingTimeSessionWindows(extractor)
