"""Base class of operators with keyed state and event-time timers."""

from __future__ import annotations

from typing import Any

from pillarbox._elements.records import Records
from pillarbox._errors import OperatorError, shorten_record
from pillarbox._operators.frame.function_operator import FunctionOperator, keyed_context
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.functions.metric_group import LATE_RECORDS_DROPPED
from pillarbox._operators.functions.output_tag import OutputTag
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._time.batch_timer_service import BatchTimeServiceManager
from pillarbox._time.internal_timer_service import InternalTimeServiceManager


class KeyedOperator(FunctionOperator):
    """An operator with keyed state and possibly timers."""

    keying: Keying
    drops_late: bool = False

    def __init__(self, context: OperatorContext, function: Any, method: str, keying: Keying) -> None:
        super().__init__(context, function, method, keying)
        keyed = keyed_context(context)
        self.backend: KeyedStateBackend = keyed.backend
        self.time_services: InternalTimeServiceManager = keyed.timers
        self._dropped = 0

    def process_watermark(self, timestamp: int) -> None:
        self.time_services.advance_watermark(timestamp)
        self.flush()
        super().process_watermark(timestamp)

    def end_key(self) -> None:
        self.fire_at_the_end()
        self.flush()

    def fire_at_the_end(self) -> None:
        assert isinstance(self.time_services, BatchTimeServiceManager)
        self.time_services.end_key()

    def on_event_time(self, timestamp: int, namespace: Any) -> None:
        raise AssertionError(f"operator {self.name!r} has no event-time timers")

    def on_processing_time(self, timestamp: int, namespace: Any) -> None:
        raise AssertionError(f"operator {self.name!r} has no processing-time timers")

    def snapshot_state(self, checkpoint_id: int) -> None:
        if self.drops_late:
            self.context.counters[LATE_RECORDS_DROPPED] = self._dropped
            self._dropped = 0

    def no_timestamp(self, value: Any, unknown: str) -> OperatorError:
        return OperatorError(
            f"operator {self.name!r}: the record {shorten_record(value)} has no timestamp, so it is not known"
            f" {unknown}: put assign_timestamps_and_watermarks(...) before key_by(...)"
        )

    def take_late(self, value: Any, timestamp: int, tag: OutputTag[Any] | None) -> None:
        if tag is None:
            self._dropped += 1
        else:
            self._collector.collect_side(tag, value, timestamp)

    def take_late_run(self, records: Records, tag: OutputTag[Any] | None) -> None:
        if tag is None:
            self._dropped += len(records)
        elif tag.tag_id in self.side_outputs:
            self.side_outputs[tag.tag_id].process_records(records)
