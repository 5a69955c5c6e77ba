"""``in_event_time_order`` on a keyed stream.

Source: Flink SQL's sort by rowtime (``RowTimeSortOperator``).
"""

from __future__ import annotations

from typing import Any

from pillarbox._elements.records import Records
from pillarbox._operators.frame.collector import RUN_LIMIT
from pillarbox._operators.frame.function_operator import under_keys
from pillarbox._operators.frame.keyed_operator import KeyedOperator
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._state.descriptors import MapState, MapStateDescriptor
from pillarbox._time.internal_timer_service import VOID_NAMESPACE


class InEventTimeOrderOperator(KeyedOperator):
    """Buffers each key's records until the watermark reaches their timestamp. Drops late records."""

    drops_late = True

    def __init__(self, context: OperatorContext, keying: Keying) -> None:
        super().__init__(context, None, "", keying)
        self._timers = self.time_services.get_internal_timer_service("order", self)
        self._waiting: MapState[int, list[Any]] = self.backend.get_state(MapStateDescriptor("waiting"))
        self._due: list[Any] = []
        self._due_at: list[int | None] = []

    def process_records(self, records: Records) -> None:
        waiting, timers = self._waiting, self._timers
        values = records.values
        stamps = records.timestamps or [None] * len(values)
        keys = self.keying.keys_of(records)
        for value, timestamp in under_keys(self.backend, keys, zip(values, stamps)):
            if timestamp is None:
                raise self.no_timestamp(value, "where it belongs in the order")
            if timestamp <= timers.current_watermark:
                self.take_late(value, timestamp, None)
                continue
            of_that_time = waiting.get(timestamp)
            if of_that_time is None:
                of_that_time = []
                timers.register_event_time_timer(VOID_NAMESPACE, timestamp)
            of_that_time.append(value)
            waiting.put(timestamp, of_that_time)

    def on_event_time(self, timestamp: int, namespace: Any) -> None:
        due = self._waiting.get(timestamp)
        assert due is not None, "each timestamp has a timer"
        self._waiting.remove(timestamp)
        self._due += due
        self._due_at += [timestamp] * len(due)
        if len(self._due) >= RUN_LIMIT:
            self.flush()

    def flush(self) -> None:
        if self._due:
            due = Records(self._due, self._due_at)
            self._due, self._due_at = [], []
            self.output.process_records(due)
