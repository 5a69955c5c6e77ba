"""``process`` on a stream without keys."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

from pillarbox._elements.records import Records
from pillarbox._operators.frame.contexts import ReadOnlyTimerService, TimedContext
from pillarbox._operators.frame.function_operator import FunctionOperator
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._time.timestamp_assigner import MIN_TIMESTAMP


class ProcessOperator(FunctionOperator):
    """Applies ``process_element(value, ctx)``."""

    def __init__(self, context: OperatorContext, function: Any) -> None:
        super().__init__(context, function, "process_element")
        self._clocks = ReadOnlyTimerService(context)
        self._ctx: Any = TimedContext(self._collector, self._clocks)

    def process_records(self, records: Records) -> None:
        self.process_run(records, None, self.call)

    def process_run(self, records: Records, keying: Keying | None, call: Callable[..., Any]) -> None:
        process_each(self, records, call, self._ctx)

    def begin_epoch(self) -> None:
        self._clocks.watermark = MIN_TIMESTAMP

    def process_watermark(self, timestamp: int) -> None:
        self._clocks.watermark = timestamp
        super().process_watermark(timestamp)

    def snapshot_event_time(self) -> dict[str, Any] | None:
        watermark = self._clocks.watermark
        return None if watermark == MIN_TIMESTAMP else {"watermark": watermark}

    def restore_event_time(self, state: dict[str, Any] | None) -> None:
        self._clocks.watermark = MIN_TIMESTAMP if state is None else state["watermark"]


def process_each(operator: FunctionOperator, records: Records, call: Callable[..., Any], ctx: Any) -> None:
    collector = operator._collector
    stamps = iter(records.timestamps) if records.timestamps is not None else repeat(None)
    with operator.each(records, None, timeless=records.timestamps is None) as values:
        for value, timestamp in zip(values, stamps):
            ctx.current = timestamp
            results = call(value, ctx)
            if results is not None:
                collector.collect(results, timestamp)
    collector.flush()
