"""Inputs of operators with two input streams."""

from __future__ import annotations

from collections.abc import Callable

from pillarbox._elements import Records
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import StreamOperator


class StreamInput:
    """The input for one stream's records.

    Args:
        process: processes a run.
        keying: the records' keys, or None.
    """

    def __init__(self, process: Callable[[Records], None], keying: Keying | None = None) -> None:
        self.process_records = process
        self.keying = keying


class TwoInputs(StreamOperator):
    """Mix-in for operators with two inputs; the operator's other base class has the loop over a run."""

    def process_records(self, records: Records) -> None:
        """Refuse records without an input."""
        raise AssertionError("an operator with two inputs has a method for each input")
