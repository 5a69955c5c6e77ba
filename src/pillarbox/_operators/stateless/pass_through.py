"""The head of a source's chain, or a sink for Python objects."""

from __future__ import annotations

from pillarbox._elements.records import Records
from pillarbox._operators.frame.operator import OperatorFactory, StreamOperator


class PassThroughOperator(StreamOperator):
    """Forwards its input."""

    def process_records(self, records: Records) -> None:
        self.output.process_records(records)


PASS_THROUGH = OperatorFactory(PassThroughOperator)
