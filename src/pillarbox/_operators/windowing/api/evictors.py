"""Evictors, which remove elements from a window, as in Flink.

A window with an evictor stores all elements and their timestamps, even if its function is incremental.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

from pillarbox._errors import ProgramError, is_count, shorten
from pillarbox._operators.functions.basic import check_plain
from pillarbox._time.duration import DurationLike, positive_millis
from pillarbox._unpickle import make


class TimestampedValue(NamedTuple):
    """An element of a window.

    Attributes:
        timestamp: Unix time in ms, or None.
    """

    value: Any
    timestamp: int | None

    def __reduce__(self) -> Any:
        return make, ("TimestampedValue", *self)


class Evictor(ABC):
    """Removes elements from a window, before or after the window function.

    Example:
        >>> class WithoutSmallest(Evictor):
        ...     def evict_before(self, elements, window, ctx):
        ...         elements.remove(min(elements))
        ...
        ...     def evict_after(self, elements, window, ctx):
        ...         pass
        >>> windows = env.from_collection([5, 1, 7]).count_window_all(3)
        >>> windows.evictor(WithoutSmallest()).reduce(min).execute_and_collect()
        [5]
    """

    class EvictorContext(ABC):
        """The evictor's clocks."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """Return the wall-clock time (Unix time in ms)."""

        @abstractmethod
        def get_current_watermark(self) -> int:
            """Return the operator's watermark, initially -2**63."""

    @abstractmethod
    def evict_before(self, elements: list[TimestampedValue], window: Any, ctx: EvictorContext, /) -> None:
        """Remove elements from the list before the window function runs."""

    @abstractmethod
    def evict_after(self, elements: list[TimestampedValue], window: Any, ctx: EvictorContext, /) -> None:
        """Remove elements from the list after the window function has run."""


class _OneSided(Evictor):
    def __init__(self, do_evict_after: bool) -> None:
        self._after = do_evict_after

    def evict_before(self, elements: list[TimestampedValue], window: Any, ctx: Evictor.EvictorContext, /) -> None:
        if not self._after:
            self._evict(elements)

    def evict_after(self, elements: list[TimestampedValue], window: Any, ctx: Evictor.EvictorContext, /) -> None:
        if self._after:
            self._evict(elements)

    @abstractmethod
    def _evict(self, elements: list[TimestampedValue]) -> None: ...


class CountEvictor(_OneSided):
    """Keeps the last ``max_count`` elements."""

    def __init__(self, max_count: int, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        if not is_count(max_count, 0):
            raise ProgramError(f"CountEvictor.of() takes an element count of at least 0, not {shorten(max_count)}")
        self.max_count = max_count

    @staticmethod
    def of(max_count: int, do_evict_after: bool = False) -> CountEvictor:
        """Return the evictor. Raises ProgramError for a negative number.

        Example:
            >>> windows = env.from_collection([1, 2, 3, 4]).count_window_all(4)
            >>> windows.evictor(CountEvictor.of(2)).reduce(min).execute_and_collect()
            [3]
        """
        return CountEvictor(max_count, do_evict_after)

    def _evict(self, elements: list[TimestampedValue]) -> None:
        del elements[: max(0, len(elements) - self.max_count)]


class TimeEvictor(_OneSided):
    """Keeps the elements within a time span before the latest element."""

    def __init__(self, window_size: DurationLike, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        self.window_size: int = positive_millis(window_size, "TimeEvictor.of(): the window size")

    @staticmethod
    def of(window_size: DurationLike, do_evict_after: bool = False) -> TimeEvictor:
        """Return an evictor that removes an element if the latest element is at least ``window_size`` newer.

        Example:
            >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(int)
            >>> windows = env.from_collection([1, 2, 5, 6]).assign_timestamps_and_watermarks(at).count_window_all(4)
            >>> windows.evictor(TimeEvictor.of(2)).reduce(min).execute_and_collect()
            [5]
        """
        return TimeEvictor(window_size, do_evict_after)

    def _evict(self, elements: list[TimestampedValue]) -> None:
        # Elements without timestamps stay, as in Flink.
        if not elements or elements[0].timestamp is None:
            return
        latest = max(element.timestamp for element in elements if element.timestamp is not None)
        limit = latest - self.window_size
        elements[:] = [element for element in elements if element.timestamp is None or element.timestamp > limit]


class DeltaEvictor(_OneSided):
    """Keeps the elements whose distance to the last element is less than a threshold."""

    def __init__(
        self, threshold: float, delta_function: Callable[[Any, Any], float], do_evict_after: bool = False
    ) -> None:
        super().__init__(do_evict_after)
        if not callable(delta_function):
            raise ProgramError(f"DeltaEvictor.of() takes a function of two elements, not {shorten(delta_function)}")
        check_plain(delta_function, "delta_function", asked_by="DeltaEvictor.of()")
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or threshold != threshold:
            raise ProgramError(f"DeltaEvictor.of(): the threshold must be a number, not {shorten(threshold)}")
        self.threshold = threshold
        self.delta_function = delta_function

    @staticmethod
    def of(threshold: float, delta_function: Callable[[Any, Any], float], do_evict_after: bool = False) -> DeltaEvictor:
        """Return an evictor that removes elements whose ``delta_function(element, last)`` reaches the threshold.

        Raises:
            ProgramError: the threshold is not a number, or the function is not callable.

        Example:
            >>> windows = env.from_collection([1, 20, 3, 4]).count_window_all(4)
            >>> near = DeltaEvictor.of(5, lambda element, last: abs(last - element))
            >>> windows.evictor(near).reduce(max).execute_and_collect()
            [4]
        """
        return DeltaEvictor(threshold, delta_function, do_evict_after)

    def _evict(self, elements: list[TimestampedValue]) -> None:
        if elements:
            last = elements[-1].value
            # An element whose distance is NaN stays.
            elements[:] = [
                element for element in elements if not self.delta_function(element.value, last) >= self.threshold
            ]
