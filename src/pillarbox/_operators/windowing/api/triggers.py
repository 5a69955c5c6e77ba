"""Triggers, which decide when a window's function is called, as in Flink.

An operator uses one trigger object for all windows, so a trigger's state must be stored in the context, not in
attributes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from operator import add
from typing import Any

from pillarbox._errors import ProgramError, is_count, shorten
from pillarbox._generics import Generic, In, WindowT
from pillarbox._operators.functions.basic import check_plain
from pillarbox._operators.functions.metric_group import MetricGroup
from pillarbox._state.descriptors import ReducingStateDescriptor, ValueStateDescriptor
from pillarbox._state.state_descriptor import StateDescriptor


class TriggerResult(Enum):
    """A trigger's decision about a window."""

    CONTINUE = "nothing"
    FIRE = "call the function, keep the elements"
    PURGE = "drop the elements"
    FIRE_AND_PURGE = "call the function, then drop the elements"

    def is_fire(self) -> bool:
        """Return whether to call the window function."""
        return self is TriggerResult.FIRE or self is TriggerResult.FIRE_AND_PURGE

    def is_purge(self) -> bool:
        """Return whether to drop the window's elements."""
        return self is TriggerResult.PURGE or self is TriggerResult.FIRE_AND_PURGE


class Trigger(ABC, Generic[In, WindowT]):
    """Decides when a window's function is called and when its elements are dropped.

    Example:
        >>> class AtZero(Trigger):
        ...     def on_element(self, element, timestamp, window, ctx):
        ...         return TriggerResult.FIRE_AND_PURGE if element == 0 else TriggerResult.CONTINUE
        ...
        ...     def clear(self, window, ctx):
        ...         pass  # no state
        >>> windows = env.from_collection([3, 4, 0, 5, 0, 6]).window_all(GlobalWindows.create())
        >>> windows.trigger(AtZero()).reduce(max).execute_and_collect()
        [4, 5]
    """

    class TriggerContext(ABC):
        """Clocks, timers and state of the current window. All times are Unix times in ms."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """Return the wall-clock time."""

        @abstractmethod
        def get_current_watermark(self) -> int:
            """Return the operator's watermark, initially -2**63."""

        @abstractmethod
        def register_event_time_timer(self, time: int) -> None:
            """Call ``on_event_time`` for this window when the watermark reaches ``time``."""

        @abstractmethod
        def register_processing_time_timer(self, time: int) -> None:
            """Call ``on_processing_time`` for this window when the wall clock has passed ``time``."""

        @abstractmethod
        def delete_event_time_timer(self, time: int) -> None:
            """Delete this window's event-time timer, if it exists."""

        @abstractmethod
        def delete_processing_time_timer(self, time: int) -> None:
            """Delete this window's processing-time timer, if it exists."""

        @abstractmethod
        def get_metric_group(self) -> MetricGroup:
            """Return the group that creates the trigger's metrics."""

        @abstractmethod
        def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
            """Return a state of the current key and window."""

    class OnMergeContext(TriggerContext):
        """The context of ``on_merge``, for the merged window."""

        @abstractmethod
        def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
            """Merge a state of the merged windows into this window's state.

            Raises:
                ProgramError: the state is a value or map state, which cannot be merged.
            """

    uses_processing_time: bool | None = None
    """Whether the trigger sets processing-time timers. If None, its code is searched."""

    @abstractmethod
    def on_element(self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext, /) -> TriggerResult:
        """Decide whether to fire or purge after an element was added to the window."""

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext, /) -> TriggerResult:
        """Decide whether to fire or purge when the trigger's event-time timer fires, or at the window's end."""
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext, /) -> TriggerResult:
        """Decide whether to fire or purge when the trigger's processing-time timer fires, or at the window's end."""
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        """Return whether the trigger supports merging windows (``on_merge``)."""
        return False

    def on_merge(self, window: Any, ctx: OnMergeContext, /) -> None:
        """Transfer the trigger's state and timers from the merged windows to ``window``, which covers them."""
        raise ProgramError(f"{type(self).__name__} cannot merge windows: define can_merge() and on_merge()")

    @abstractmethod
    def clear(self, window: Any, ctx: TriggerContext, /) -> None:
        """Remove the trigger's state and timers for a window that is removed or merged into another window."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class EventTimeTrigger(Trigger):
    """Fires when the watermark reaches the end of the window, or immediately if it already has."""

    uses_processing_time: bool | None = False

    @staticmethod
    def create() -> EventTimeTrigger:
        """Return the trigger.

        Example:
            >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(int)
            >>> numbers = env.from_collection(range(5)).assign_timestamps_and_watermarks(at)
            >>> windows = numbers.window_all(TumblingEventTimeWindows.of(3))
            >>> windows.trigger(EventTimeTrigger.create()).reduce(max).execute_and_collect()
            [2, 4]
        """
        return EventTimeTrigger()

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: Trigger.TriggerContext, /
    ) -> TriggerResult:
        end = window.max_timestamp()
        if end <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(end)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Trigger.TriggerContext, /) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext, /) -> None:
        # If the merged window has already ended, the next element makes it fire.
        if window.max_timestamp() > ctx.get_current_watermark():
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: Any, ctx: Trigger.TriggerContext, /) -> None:
        ctx.delete_event_time_timer(window.max_timestamp())


class ProcessingTimeTrigger(Trigger):
    """Fires when the wall clock has passed the end of the window."""

    uses_processing_time: bool | None = True

    @staticmethod
    def create() -> ProcessingTimeTrigger:
        """Return the trigger.

        Example:
            >>> windows = env.from_collection(range(5)).window_all(TumblingProcessingTimeWindows.of("1 hour"))
            >>> windows.trigger(ProcessingTimeTrigger.create()).reduce(max).execute_and_collect()  # still open
            []
        """
        return ProcessingTimeTrigger()

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: Trigger.TriggerContext, /
    ) -> TriggerResult:
        ctx.register_processing_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Trigger.TriggerContext, /) -> TriggerResult:
        return TriggerResult.FIRE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext, /) -> None:
        if window.max_timestamp() > ctx.get_current_processing_time():
            ctx.register_processing_time_timer(window.max_timestamp())

    def clear(self, window: Any, ctx: Trigger.TriggerContext, /) -> None:
        ctx.delete_processing_time_timer(window.max_timestamp())


class NeverTrigger(Trigger):
    """Never fires. The default for global windows.

    Example:
        >>> windows = env.from_collection(range(5)).count_window_all(2)
        >>> windows.trigger(NeverTrigger()).reduce(max).execute_and_collect()
        []
    """

    uses_processing_time: bool | None = False

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: Trigger.TriggerContext, /
    ) -> TriggerResult:
        return TriggerResult.CONTINUE

    def clear(self, window: Any, ctx: Trigger.TriggerContext, /) -> None: ...


class CountTrigger(Trigger):
    """Fires after every ``window_size`` elements of a window, but not at the window's end."""

    uses_processing_time: bool | None = False

    def __init__(self, window_size: int) -> None:
        if not is_count(window_size):
            raise ProgramError(f"CountTrigger.of() takes an element count of at least 1, not {shorten(window_size)}")
        self.window_size = window_size
        self._count = ReducingStateDescriptor("count", add)

    @staticmethod
    def of(window_size: int) -> CountTrigger:
        """Return the trigger. Raises ProgramError unless the number is positive.

        Example:
            >>> windows = env.from_collection(range(5)).window_all(GlobalWindows.create())
            >>> windows.trigger(CountTrigger.of(2)).reduce(max).execute_and_collect()
            [1, 3]
        """
        return CountTrigger(window_size)

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: Trigger.TriggerContext, /
    ) -> TriggerResult:
        count = ctx.get_partitioned_state(self._count)
        count.add(1)
        if count.get() < self.window_size:
            return TriggerResult.CONTINUE
        count.clear()
        return TriggerResult.FIRE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext, /) -> None:
        ctx.merge_partitioned_state(self._count)

    def clear(self, window: Any, ctx: Trigger.TriggerContext, /) -> None:
        ctx.get_partitioned_state(self._count).clear()

    def __repr__(self) -> str:
        return f"CountTrigger.of({self.window_size})"


class DeltaTrigger(Trigger):
    """Fires when an element's distance from a reference exceeds a threshold.

    The reference is the last element that fired the window, initially the first element.
    """

    uses_processing_time: bool | None = False

    def __init__(self, threshold: float, delta_function: Callable[[Any, Any], float]) -> None:
        if not callable(delta_function):
            raise ProgramError(f"DeltaTrigger.of() takes a function of two elements, not {shorten(delta_function)}")
        check_plain(delta_function, "delta_function", asked_by="DeltaTrigger.of()")
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or threshold != threshold:
            raise ProgramError(f"DeltaTrigger.of(): the threshold must be a number, not {shorten(threshold)}")
        self.threshold = threshold
        self.delta_function = delta_function
        self._last = ValueStateDescriptor("last-element")

    @staticmethod
    def of(threshold: float, delta_function: Callable[[Any, Any], float]) -> DeltaTrigger:
        """Return a trigger that fires when ``delta_function(last, element)`` exceeds ``threshold``.

        Raises:
            ProgramError: the threshold is not a number, or the function is not callable.

        Example:
            >>> windows = env.from_collection([1, 2, 9, 10]).window_all(GlobalWindows.create())
            >>> far = DeltaTrigger.of(5, lambda last, element: abs(element - last))
            >>> windows.trigger(far).reduce(max).execute_and_collect()
            [9]
        """
        return DeltaTrigger(threshold, delta_function)

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: Trigger.TriggerContext, /
    ) -> TriggerResult:
        last = ctx.get_partitioned_state(self._last)
        before = last.value()
        if before is None:
            last.update(element)
            return TriggerResult.CONTINUE
        if self.delta_function(before, element) > self.threshold:
            last.update(element)
            return TriggerResult.FIRE
        return TriggerResult.CONTINUE

    def clear(self, window: Any, ctx: Trigger.TriggerContext, /) -> None:
        ctx.get_partitioned_state(self._last).clear()

    def __repr__(self) -> str:
        return f"DeltaTrigger.of({self.threshold})"


class PurgingTrigger(Trigger):
    """Fires like a nested trigger, and then drops the window's elements. Other state remains until the window ends."""

    def __init__(self, nested_trigger: Trigger) -> None:
        if not isinstance(nested_trigger, Trigger):
            raise ProgramError(f"PurgingTrigger.of() takes a trigger, not {shorten(nested_trigger)}")
        self.trigger = nested_trigger
        self.uses_processing_time: bool | None = nested_trigger.uses_processing_time

    @staticmethod
    def of(nested_trigger: Trigger) -> PurgingTrigger:
        """Return a trigger that fires like ``nested_trigger`` and drops the elements.

        Example:
            >>> windows = env.from_collection(range(5)).window_all(GlobalWindows.create())
            >>> windows.trigger(PurgingTrigger.of(CountTrigger.of(2))).reduce(min).execute_and_collect()
            [0, 2]
        """
        return PurgingTrigger(nested_trigger)

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: Trigger.TriggerContext, /
    ) -> TriggerResult:
        return self._purging(self.trigger.on_element(element, timestamp, window, ctx))

    def on_event_time(self, time: int, window: Any, ctx: Trigger.TriggerContext, /) -> TriggerResult:
        return self._purging(self.trigger.on_event_time(time, window, ctx))

    def on_processing_time(self, time: int, window: Any, ctx: Trigger.TriggerContext, /) -> TriggerResult:
        return self._purging(self.trigger.on_processing_time(time, window, ctx))

    def can_merge(self) -> bool:
        return self.trigger.can_merge()

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext, /) -> None:
        self.trigger.on_merge(window, ctx)

    def clear(self, window: Any, ctx: Trigger.TriggerContext, /) -> None:
        self.trigger.clear(window, ctx)

    @staticmethod
    def _purging(result: TriggerResult) -> TriggerResult:
        return TriggerResult.FIRE_AND_PURGE if result is TriggerResult.FIRE else result

    def __repr__(self) -> str:
        return f"PurgingTrigger.of({self.trigger!r})"


def asked_trigger(trigger: Trigger) -> Trigger:
    while isinstance(trigger, PurgingTrigger):
        trigger = trigger.trigger
    return trigger
