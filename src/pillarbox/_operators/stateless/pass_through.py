"""An operator that hands everything on: the head of a source's chain, the end of a stream of Python objects."""

from __future__ import annotations

from pillarbox._elements import Records
from pillarbox._operators.frame.operator import OperatorFactory, StreamOperator


class PassThroughOperator(StreamOperator):
    """Hands on what it gets."""

    def process_records(self, records: Records) -> None:
        """Hand on a run."""
        self.output.process_records(records)


PASS_THROUGH = OperatorFactory(PassThroughOperator)
