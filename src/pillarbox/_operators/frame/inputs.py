"""The inputs of operators that read two streams."""

from __future__ import annotations

from collections.abc import Callable

from pillarbox._elements import Records
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import StreamOperator


class StreamInput:
    """The input for the records of one stream.

    Args:
        process: handles a run of them.
        keying: how they get their keys; None: they have none.
    """

    def __init__(self, process: Callable[[Records], None], keying: Keying | None = None) -> None:
        self.process_records = process
        self.keying = keying


class TwoInputs(StreamOperator):
    """The part of an operator that has the inputs; another class of the operator has the loop over a run."""

    def process_records(self, records: Records) -> None:
        """Refuse records that do not say of which stream they are."""
        raise AssertionError("an operator with two inputs takes records at its inputs")
