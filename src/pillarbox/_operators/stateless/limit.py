"""Limits the number of records that a stream emits."""

from __future__ import annotations

from pillarbox._elements.records import Records
from pillarbox._operators.frame.operator import OperatorContext, StreamOperator


class LimitOperator(StreamOperator):
    """Emits the first ``limit`` records of its task."""

    def __init__(self, context: OperatorContext, limit: int) -> None:
        super().__init__(context)
        self._left = limit

    @property
    def is_satisfied(self) -> bool:
        return not self._left

    def process_records(self, records: Records) -> None:
        if len(records) > self._left:
            records = records.slice(0, self._left)
        if len(records):
            self._left -= len(records)
            self.output.process_records(records)
