"""Triggers that fire repeatedly while a window is open, as in Flink."""

from __future__ import annotations

from typing import Any

from pillarbox._errors import ProgramError
from pillarbox._operators.windowing.api.triggers import Trigger, TriggerResult
from pillarbox._state.descriptors import ReducingStateDescriptor
from pillarbox._time.duration import DurationLike, positive_millis
from pillarbox._time.timestamp_assigner import MAX_WATERMARK


class _ContinuousTrigger(Trigger):
    _by_clock: bool

    def __init__(self, interval: DurationLike) -> None:
        self.interval: int = positive_millis(interval, f"{type(self).__name__}.of(): the interval")
        # The next time to fire. A merged window keeps the earliest.
        self._next = ReducingStateDescriptor("fire-time", min)

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext, /) -> None:
        # Timers of merged windows have been deleted.
        ctx.merge_partitioned_state(self._next)
        pending = ctx.get_partitioned_state(self._next).get()
        if pending is not None:
            (ctx.register_processing_time_timer if self._by_clock else ctx.register_event_time_timer)(pending)

    def clear(self, window: Any, ctx: Trigger.TriggerContext, /) -> None:
        pending = ctx.get_partitioned_state(self._next)
        time = pending.get()
        if time is not None:
            (ctx.delete_processing_time_timer if self._by_clock else ctx.delete_event_time_timer)(time)
            pending.clear()

    def _after(self, time: int) -> int:
        return time - time % self.interval + self.interval

    def __repr__(self) -> str:
        return f"{type(self).__name__}.of({self.interval} ms)"


class ContinuousEventTimeTrigger(_ContinuousTrigger):
    """Fires at multiples of an event-time interval (from 1970) and at the end of the window.

    A window first fires at the multiple after its first element. At the end of the data, a window fires at each
    remaining multiple, but a global window only at the next multiple and at its end. Times before 1970 are rounded down
    to a multiple, as in PyFlink; Flink in Java rounds them up.
    """

    uses_processing_time: bool | None = False
    _by_clock = False

    @staticmethod
    def of(interval: DurationLike) -> ContinuousEventTimeTrigger:
        """Return a trigger that fires every ``interval`` (at least 1 ms) of event time.

        Example:
            >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(int)
            >>> numbers = env.from_collection(range(5)).assign_timestamps_and_watermarks(at)
            >>> windows = numbers.window_all(TumblingEventTimeWindows.of(5))
            >>> windows.trigger(ContinuousEventTimeTrigger.of(2)).reduce(max).execute_and_collect()
            [4, 4]
        """
        return ContinuousEventTimeTrigger(interval)

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: Trigger.TriggerContext, /
    ) -> TriggerResult:
        end = window.max_timestamp()
        if end <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(end)
        pending = ctx.get_partitioned_state(self._next)
        if pending.get() is None:
            if timestamp is None:
                raise ProgramError(
                    f"{self!r} got an element without a timestamp: put assign_timestamps_and_watermarks(...) before"
                    " the window"
                )
            self._register(self._after(timestamp), window, ctx, pending)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Trigger.TriggerContext, /) -> TriggerResult:
        if time == window.max_timestamp():
            return TriggerResult.FIRE
        pending = ctx.get_partitioned_state(self._next)
        if pending.get() != time:
            return TriggerResult.CONTINUE
        pending.clear()
        if not ctx.get_current_watermark() == window.max_timestamp() == MAX_WATERMARK:
            self._register(time + self.interval, window, ctx, pending)
        return TriggerResult.FIRE

    def clear(self, window: Any, ctx: Trigger.TriggerContext, /) -> None:
        super().clear(window, ctx)
        ctx.delete_event_time_timer(window.max_timestamp())

    def _register(self, time: int, window: Any, ctx: Trigger.TriggerContext, pending: Any) -> None:
        time = min(time, window.max_timestamp())
        pending.add(time)
        ctx.register_event_time_timer(time)


class ContinuousProcessingTimeTrigger(_ContinuousTrigger):
    """Fires at multiples of a wall-clock interval until the window ends."""

    uses_processing_time: bool | None = True
    _by_clock = True

    @staticmethod
    def of(interval: DurationLike) -> ContinuousProcessingTimeTrigger:
        """Return a trigger that fires every ``interval`` (at least 1 ms) of processing time.

        Example:
            >>> windows = env.from_collection(range(5)).window_all(GlobalWindows.create())
            >>> windows.trigger(ContinuousProcessingTimeTrigger.of("1 hour")).reduce(max).execute_and_collect()
            []
        """
        return ContinuousProcessingTimeTrigger(interval)

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: Trigger.TriggerContext, /
    ) -> TriggerResult:
        pending = ctx.get_partitioned_state(self._next)
        if pending.get() is None:
            now = ctx.get_current_processing_time()
            self._register(now, self._after(now), window, ctx, pending)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Trigger.TriggerContext, /) -> TriggerResult:
        pending = ctx.get_partitioned_state(self._next)
        if pending.get() != time:
            return TriggerResult.CONTINUE
        pending.clear()
        self._register(time, time + self.interval, window, ctx, pending)
        return TriggerResult.FIRE

    def _register(self, now: int, time: int, window: Any, ctx: Trigger.TriggerContext, pending: Any) -> None:
        # The window's end may precede the next multiple.
        if now < window.max_timestamp() < time:
            time = window.max_timestamp()
        pending.add(time)
        ctx.register_processing_time_timer(time)
