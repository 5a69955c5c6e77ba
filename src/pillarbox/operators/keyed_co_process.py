"""process, on two connected keyed streams: state and timers that both share.

Source of the behaviour: Flink's ``KeyedCoProcessOperator``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pillarbox.elements import Records
from pillarbox.operators.keyed_process import KeyedProcessOperator
from pillarbox.operators.keys import Keying
from pillarbox.operators.operator import OperatorContext, RecordInput

__all__ = ["KeyedCoProcessOperator"]


class KeyedCoProcessOperator(KeyedProcessOperator):
    """Applies a ``KeyedCoProcessFunction``, with the key's state at hand.

    ``process_element1`` gets the records of the first stream, ``process_element2`` those of the second, ``on_timer``
    timers. Event time is the minimum of both streams'.

    Args:
        keyings: how records of the first and of the second stream get their keys.
    """

    def __init__(self, context: OperatorContext, function: Any, keyings: tuple[Keying, Keying]) -> None:
        super().__init__(context, function, keyings[0])
        methods = (function.process_element1, function.process_element2)
        self._inputs = tuple(_KeyedInput(self, *input_of) for input_of in zip(keyings, methods))

    @property
    def inputs(self) -> Sequence[RecordInput]:
        """The inputs of the first and of the second stream."""
        return self._inputs

    def process_records(self, records: Records) -> None:
        """Refuse records that do not say of which stream they are."""
        raise AssertionError("an operator with two inputs takes records at its inputs")


class _KeyedInput:
    """One of the streams: its keys, and the method that handles its records."""

    def __init__(self, operator: KeyedCoProcessOperator, keying: Keying, method: Any) -> None:
        self._operator = operator
        self.keying = keying
        self._method = method

    def process_records(self, records: Records) -> None:
        self._operator._process(records, self.keying, self._method)
