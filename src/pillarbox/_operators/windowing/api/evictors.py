"""Evictors, which remove elements from a window. Source of the behaviour: Flink's evictors.

A window with an evictor stores all of its elements with their timestamps, also for an incremental function.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

from pillarbox._errors import ProgramError, is_count, shorten
from pillarbox._time.duration import DurationLike, positive_millis
from pillarbox._unpickle import make


class TimestampedValue(NamedTuple):
    """An element of a window.

    Attributes:
        value: the element.
        timestamp: its timestamp in epoch milliseconds, or None.
    """

    value: Any
    timestamp: int | None

    def __reduce__(self) -> Any:
        return make, ("TimestampedValue", *self)


class Evictor(ABC):
    """Removes elements from a window, before or after its function is called.

    Example:
        >>> class WithoutSmallest(Evictor):
        ...     def evict_before(self, elements, window, ctx):
        ...         elements.remove(min(elements, key=lambda element: element.value))
        ...
        ...     def evict_after(self, elements, window, ctx):
        ...         pass
        >>> numbers = env.from_collection([5, 1, 7]).key_by(lambda n: "all").count_window(3)
        >>> numbers.evictor(WithoutSmallest()).reduce(lambda a, b: a + b).execute_and_collect()
        [12]
    """

    class EvictorContext(ABC):
        """The context of an evictor: the clocks."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """Return the wall clock's time, in epoch milliseconds."""

        @abstractmethod
        def get_current_watermark(self) -> int:
            """Return the operator's watermark: -2**63 before the first one."""

    @abstractmethod
    def evict_before(self, elements: list[TimestampedValue], window: Any, ctx: EvictorContext, /) -> None:
        """Remove elements from the list before the window's function is called."""

    @abstractmethod
    def evict_after(self, elements: list[TimestampedValue], window: Any, ctx: EvictorContext, /) -> None:
        """Remove elements from the list after the window's function was called."""


class _OneSided(Evictor):
    """Evicts by one rule, either before or after the function."""

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
    """Retains the last elements, up to a number."""

    def __init__(self, max_count: int, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        if not is_count(max_count, 0):
            raise ProgramError(f"CountEvictor.of() takes a number of elements, not {shorten(max_count)}")
        self.max_count = max_count

    @staticmethod
    def of(max_count: int, do_evict_after: bool = False) -> CountEvictor:
        """Return an evictor that retains the last ``max_count`` elements.

        Raises:
            ProgramError: a number below 0.

        Example:
            >>> numbers = env.from_collection([1, 2, 3, 4]).key_by(lambda n: "all")
            >>> windows = numbers.window(GlobalWindows.create()).trigger(CountTrigger.of(4))
            >>> windows.evictor(CountEvictor.of(2)).reduce(lambda a, b: a + b).execute_and_collect()
            [7]
        """
        return CountEvictor(max_count, do_evict_after)

    def _evict(self, elements: list[TimestampedValue]) -> None:
        del elements[: max(0, len(elements) - self.max_count)]


class TimeEvictor(_OneSided):
    """Retains the elements of a time span that ends with the latest element."""

    def __init__(self, window_size: DurationLike, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        self.window_size: int = positive_millis(window_size, "TimeEvictor.of(): the window size")

    @staticmethod
    def of(window_size: DurationLike, do_evict_after: bool = False) -> TimeEvictor:
        """Return an evictor that removes elements that are at least ``window_size`` older than the latest.

        Raises:
            ProgramError: a size below one millisecond.

        Example:
            >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n: n * 1_000)
            >>> stamped = env.from_collection([1, 2, 5, 6]).assign_timestamps_and_watermarks(at)
            >>> numbers = stamped.key_by(lambda n: "all")
            >>> windows = numbers.window(GlobalWindows.create()).trigger(CountTrigger.of(4))
            >>> windows.evictor(TimeEvictor.of("2 seconds")).reduce(lambda a, b: a + b).execute_and_collect()
            [11]
        """
        return TimeEvictor(window_size, do_evict_after)

    def _evict(self, elements: list[TimestampedValue]) -> None:
        # As in Flink: without timestamps nothing is removed.
        if not elements or elements[0].timestamp is None:
            return
        latest = max(element.timestamp for element in elements if element.timestamp is not None)
        limit = latest - self.window_size
        elements[:] = [element for element in elements if element.timestamp is None or element.timestamp > limit]


class DeltaEvictor(_OneSided):
    """Retains the elements whose distance to the last one is below a threshold."""

    def __init__(
        self, threshold: float, delta_function: Callable[[Any, Any], float], do_evict_after: bool = False
    ) -> None:
        super().__init__(do_evict_after)
        if not callable(delta_function):
            raise ProgramError(f"DeltaEvictor.of() takes a function of two elements, not {shorten(delta_function)}")
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or threshold != threshold:
            raise ProgramError(f"DeltaEvictor.of(): the threshold must be a number, not {shorten(threshold)}")
        self.threshold = threshold
        self.delta_function = delta_function

    @staticmethod
    def of(threshold: float, delta_function: Callable[[Any, Any], float], do_evict_after: bool = False) -> DeltaEvictor:
        """Return an evictor that removes elements with ``delta_function(element, last)`` of at least the threshold.

        Raises:
            ProgramError: the threshold is not a number, or the function is not callable.

        Example:
            >>> numbers = env.from_collection([1, 20, 3, 4]).key_by(lambda n: "all")
            >>> windows = numbers.window(GlobalWindows.create()).trigger(CountTrigger.of(4))
            >>> near = DeltaEvictor.of(5, lambda element, last: abs(last - element))
            >>> windows.evictor(near).reduce(lambda a, b: a + b).execute_and_collect()
            [8]
        """
        return DeltaEvictor(threshold, delta_function, do_evict_after)

    def _evict(self, elements: list[TimestampedValue]) -> None:
        if elements:
            last = elements[-1].value
            # (NaN is not at least the threshold: the element stays.)
            elements[:] = [
                element for element in elements if not self.delta_function(element.value, last) >= self.threshold
            ]
