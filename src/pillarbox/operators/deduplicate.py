"""deduplicate, on a keyed stream: the first record of a key passes, others are dropped for a while.

Source of the idea: Spark's ``dropDuplicatesWithinWatermark``, and deduplication in Flink's SQL.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pillarbox.elements import ArrowRecords, Records
from pillarbox.errors import OperatorError, shorten_record
from pillarbox.operators.keys import Keying
from pillarbox.operators.operator import StreamOperator
from pillarbox.state import ValueState, ValueStateDescriptor
from pillarbox.time.internal_timer_service import VOID_NAMESPACE

__all__ = ["DeduplicateOperator"]


class DeduplicateOperator(StreamOperator):
    """Emits a record unless one with its key was emitted less than ``within`` milliseconds of event time before."""

    def __init__(self, name: str, keying: Keying, within: int, uid: str = "") -> None:
        super().__init__(name, uid)
        self.keying = keying
        self.within = within

    def open(self) -> None:
        """Declare the state, and get the timer service."""
        backend, time_services = self.context.backend, self.context.time_services
        assert backend is not None and time_services is not None, "a keyed operator stands at the head of its vertex"
        self._backend = backend
        self._time_services = time_services
        self._timers = time_services.get_internal_timer_service("forget", self)
        self._seen: ValueState[bool] = backend.get_state(ValueStateDescriptor("seen"))

    def process_records(self, records: Records) -> None:
        """Hand on those of a run that are the first of their key. A columnar run stays columnar."""
        stamps = records.timestamps
        first: list[int] = []
        for position, key in enumerate(self.keying.keys_of(records)):
            timestamp = None if stamps is None else stamps[position]
            if timestamp is None:
                raise OperatorError(
                    f"operator {self.name!r}: the record {shorten_record(records.values[position])} has no timestamp,"
                    " so it is not known for how long to remember its key: put assign_timestamps_and_watermarks(...)"
                    " before key_by(...)"
                )
            self._backend.set_current_key(key)
            if self._seen.value() is None:
                self._seen.update(True)
                self._timers.register_event_time_timer(VOID_NAMESPACE, timestamp + self.within)
                first.append(position)
        if len(first) == len(records):
            self.output.process_records(records)
        elif first and isinstance(records, ArrowRecords):
            self.output.process_records(records.take(np.array(first)))
        elif first:
            assert stamps is not None
            values = records.values
            self.output.process_records(Records([values[n] for n in first], [stamps[n] for n in first]))

    def process_watermark(self, timestamp: int) -> None:
        """Forget the keys whose time is over, then hand the watermark on."""
        self._time_services.advance_watermark(timestamp)
        super().process_watermark(timestamp)

    def on_event_time(self, timestamp: int, namespace: Any) -> None:
        """Forget the current key."""
        self._seen.clear()

    def on_processing_time(self, timestamp: int, namespace: Any) -> None:
        """There are no such timers."""
        raise AssertionError("deduplicate sets no processing-time timers")
