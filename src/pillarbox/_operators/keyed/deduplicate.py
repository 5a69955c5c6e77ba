"""``deduplicate`` on a keyed stream.

Sources: Spark's ``dropDuplicatesWithinWatermark``, and deduplication in Flink SQL.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pillarbox._elements.records import Records
from pillarbox._operators.frame.function_operator import under_keys
from pillarbox._operators.frame.keyed_operator import KeyedOperator
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._state.descriptors import ValueState, ValueStateDescriptor
from pillarbox._time.internal_timer_service import VOID_NAMESPACE
from pillarbox._time.timestamp_assigner import MAX_WATERMARK
from pillarbox._types.type_information import Types


class DeduplicateOperator(KeyedOperator):
    """Emits a record unless its key is stored, and stores the key for ``within`` ms of event time.

    If a record is late by ``within`` or more, its key is not stored.
    """

    def __init__(self, context: OperatorContext, keying: Keying, within: int) -> None:
        super().__init__(context, None, "", keying)
        self._within = within
        self._timers = self.time_services.get_internal_timer_service("forget", self)
        self._forget_at: int | None = None
        self._seen: ValueState[bool] = self.backend.get_state(ValueStateDescriptor("seen", Types.BOOLEAN()))

    def process_records(self, records: Records) -> None:
        stamps = records.timestamps
        register, watermark = self._timers.register_event_time_timer, self._timers.current_watermark
        first: list[int] = []
        for position in under_keys(self.backend, self.keying.keys_of(records), iter(range(len(records)))):
            timestamp = None if stamps is None else stamps[position]
            if timestamp is None:
                raise self.no_timestamp(records.values[position], "how long to remember the record's key")
            if self._seen.value() is None or (self._forget_at is not None and timestamp > self._forget_at):
                first.append(position)
                forget_at = min(timestamp + self._within, MAX_WATERMARK)
                if forget_at <= watermark:
                    continue  # the key would hide on-time records until the next watermark fires its timer
                self._seen.update(True)
                if self.context.batch:
                    self._forget_at = forget_at
                register(VOID_NAMESPACE, forget_at)
        if len(first) == len(records):
            self.output.process_records(records)
        elif first:
            self.output.process_records(records.take(np.array(first)))

    def end_key(self) -> None:
        super().end_key()
        self._forget_at = None

    def on_event_time(self, timestamp: int, namespace: Any) -> None:
        self._seen.clear()
