"""Inputs of operators with two streams."""

from __future__ import annotations

from collections.abc import Callable

from pillarbox._elements.records import Records
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import StreamOperator


class OperatorInput:
    """One input of an operator with several inputs."""

    def __init__(self, process: Callable[[Records], None], keying: Keying | None = None) -> None:
        self.process_records = process
        self.keying = keying


class TwoInputs(StreamOperator):
    """A mix-in for operators with two inputs. Another base class must process the records."""

    def process_records(self, records: Records) -> None:
        raise AssertionError("an operator with two inputs has a method for each input")
