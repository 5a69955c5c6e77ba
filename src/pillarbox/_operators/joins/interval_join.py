"""``interval_join``, which pairs records of two keyed streams that have equal keys and close event times.

Source: Flink's ``IntervalJoinOperator``, which drops a record when the watermark reaches its last possible partner's
time. Here, the watermark must have passed that time, because a partner with exactly that time is not late.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple

from pillarbox._elements.records import Records
from pillarbox._operators.frame.collector import Collector
from pillarbox._operators.frame.contexts import EmittingContext
from pillarbox._operators.frame.function_operator import FunctionPass
from pillarbox._operators.frame.inputs import TwoInputs
from pillarbox._operators.frame.keyed_operator import KeyedOperator
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.functions.joins import ProcessJoinFunction
from pillarbox._operators.functions.output_tag import OutputTag
from pillarbox._state.descriptors import MapState, MapStateDescriptor
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._time.internal_timer_service import VOID_NAMESPACE
from pillarbox._time.timestamp_assigner import MAX_WATERMARK

_MANY = 32
# Records may stay up to 1/8 of their interval longer than needed, so that many keys have timers at equal times, which
# is cheap.
_PART = 8
_TIME = itemgetter(0)


class Interval(NamedTuple):
    """Inclusive bounds on the right record's time minus the left record's time (ms)."""

    lower: int
    upper: int


class IntervalJoinContext(EmittingContext, ProcessJoinFunction.Context):
    """The context of the current pair of records."""

    left: int = 0
    right: int = 0

    def __init__(self, collector: Collector, backend: KeyedStateBackend) -> None:
        super().__init__(collector)
        self._backend = backend

    def get_left_timestamp(self) -> int:
        return self.left

    def get_right_timestamp(self) -> int:
        return self.right

    def get_current_key(self) -> Any:
        return self._backend.key


class _Side:
    """One stream's stored records, by event time."""

    def __init__(self, operator: IntervalJoinOperator, name: str, keying: Keying, reach: Interval) -> None:
        self._operator = operator
        self._backend = operator.backend
        self.keying = keying
        self.lower: int = reach.lower
        self.upper: int = reach.upper
        self.wait: int = max(reach.upper, 0) + 1
        self.state: MapState[int, Sequence[Any]] = self._backend.get_state(MapStateDescriptor(name))
        self.late: OutputTag | None = None
        # Sorted event times of each key with many records, rebuilt after a restart.
        self._ordered: dict[Any, list[int]] = {}

    def process_records(self, records: Records) -> None:
        self._operator.process_run(records, self)

    def store(self, value: Any, timestamp: int) -> None:
        state = self.state
        values = state.get(timestamp)
        if values is None:
            state.put(timestamp, (value,))
            ordered = self._ordered.get(self._backend.key)
            if ordered is not None:
                insort(ordered, timestamp)
        elif type(values) is list:
            values.append(value)
            state.put(timestamp, values)
        else:
            state.put(timestamp, [*values, value])

    def between(self, first: int, last: int) -> list[tuple[int, Sequence[Any]]]:
        items = self.state.items()
        if len(items) < _MANY:
            near = [item for item in items if first <= item[0] <= last]
            if len(near) > 1:
                near.sort(key=_TIME)
            return near
        ordered = self._in_order()
        times = ordered[bisect_left(ordered, first) : bisect_right(ordered, last)]
        return [(time, self.state[time]) for time in times]

    def drop(self, watermark: int) -> int | None:
        """Drop records that can no longer match. Return the watermark that next drops a record, or None."""
        state, times = self.state, self._in_order()
        over = len(times) if watermark == MAX_WATERMARK else bisect_left(times, watermark - self.wait + 1)
        if over == len(times):
            state.clear()
        else:
            for time in times[:over]:
                state.remove(time)
        del times[:over]
        if len(times) < _MANY:
            self._ordered.pop(self._backend.key, None)
        return self.timer_for(times[0]) if times else None

    def _in_order(self) -> list[int]:
        key = self._backend.key
        ordered = self._ordered.get(key)
        if ordered is None:
            ordered = sorted(self.state.keys())
            if len(ordered) >= _MANY:
                self._ordered[key] = ordered
        return ordered

    def timer_for(self, time: int) -> int:
        return self._operator.rounded_up(time + self.wait)


class IntervalJoinOperator(TwoInputs, KeyedOperator):
    """Applies a ``ProcessJoinFunction`` to each pair of records with close event times."""

    own_states: Collection[str] = ("left", "right")
    drops_late = True

    def __init__(
        self,
        context: OperatorContext,
        function: Any,
        keyings: tuple[Keying, Keying],
        interval: Interval,
        late_tags: tuple[OutputTag | None, OutputTag | None] = (None, None),
    ) -> None:
        super().__init__(context, function, "process_element", keyings[0])
        self._timers = self.time_services.get_internal_timer_service("buffers", self)
        self._ctx = IntervalJoinContext(self._collector, self.backend)
        self._left = _Side(self, "left", keyings[0], interval)
        self._right = _Side(self, "right", keyings[1], Interval(-interval.upper, -interval.lower))
        self._left.late, self._right.late = late_tags
        self._inputs = self._left, self._right
        self._step = max(1, max(interval.upper - interval.lower, interval.upper, -interval.lower) // _PART)

    def rounded_up(self, time: int) -> int:
        return min(time + -time % self._step, MAX_WATERMARK)

    def process_run(self, records: Records, side: _Side) -> None:
        backend, watermark = self.backend, self._timers.current_watermark
        rows = backend.rows
        values = records.values
        keys = side.keying.keys_of(records)
        pending = iter(values)
        stamps = iter(records.timestamps) if records.timestamps is not None else repeat(None)
        other = self._right if side is self._left else self._left
        lower, upper, wait, partners = side.lower, side.upper, side.wait, other.state
        first_timer = self._timers.event_timers.first_of_key
        with FunctionPass(self, values, pending, pending):
            for value, key, timestamp in zip(pending, keys, stamps):
                if timestamp is None:
                    raise self.no_timestamp(value, "which records it matches")
                if timestamp < watermark:
                    self.take_late(value, timestamp, side.late)
                    continue
                backend.row = rows[key]
                backend.key = key
                if not partners.is_empty():
                    near = other.between(timestamp + lower, timestamp + upper)
                    if near:
                        self._join(value, timestamp, near, side)
                timer = first_timer()
                if timer is None or timestamp + wait < timer:
                    self._set_timer(side.timer_for(timestamp), timer)
                side.store(value, timestamp)
        self._collector.flush()

    def _set_timer(self, timestamp: int, present: int | None) -> None:
        if present is not None:
            if timestamp >= present:
                return
            self._timers.delete_event_time_timer(VOID_NAMESPACE, present)
        self._timers.register_event_time_timer(VOID_NAMESPACE, timestamp)

    def _join(self, value: Any, timestamp: int, near: Sequence[tuple[int, Sequence[Any]]], side: _Side) -> None:
        call, ctx, collect = self.call, self._ctx, self._collector.collect
        is_left = side is self._left
        for time, partners in near:
            later = ctx.current = max(timestamp, time)
            ctx.left, ctx.right = (timestamp, time) if is_left else (time, timestamp)
            for partner in partners:
                results = call(value, partner, ctx) if is_left else call(partner, value, ctx)
                if results is not None:
                    collect(results, later)

    def on_event_time(self, timestamp: int, namespace: Any) -> None:
        watermark = self._timers.current_watermark
        times = [time for side in (self._left, self._right) if (time := side.drop(watermark)) is not None]
        if times:
            self._set_timer(min(times), self._timers.event_timers.first_of_key())
