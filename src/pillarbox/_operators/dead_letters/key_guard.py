"""Removes records without a valid key before they reach the partitioner, which computes the keys a second time."""

from __future__ import annotations

from typing import Any

import numpy as np

from pillarbox._elements.records import Records
from pillarbox._errors import KeyTypeError, OperatorError, TypeMismatchError
from pillarbox._operators.dead_letters.dead_letter import DeadLetters, sort_out
from pillarbox._operators.frame.keying import Keying, KeyingRouter
from pillarbox._operators.frame.operator import OperatorContext, StreamOperator
from pillarbox._operators.functions.output_tag import OutputTag


class KeyGuardOperator(StreamOperator):
    """Forwards records with a valid key. Other records become dead letters. Columnar records stay columnar.

    A key is invalid if the key function raises, if the key does not have the declared type, or if it cannot be assigned
    to a subtask (NaN or an unhashable value).
    """

    def __init__(self, context: OperatorContext, keying: Keying, tag: OutputTag[Any]) -> None:
        super().__init__(context)
        self._keying = keying
        self._router = KeyingRouter(keying, 1, 1)
        self._letters = DeadLetters(context, tag, context.side_outputs)

    def process_records(self, records: Records) -> None:
        try:
            self._router.subtasks_of(records)
        except (OperatorError, KeyTypeError, TypeMismatchError):
            records = self._with_keys(records)
        if len(records):
            self.output.process_records(records)

    def _with_keys(self, records: Records) -> Records:
        # A missing column fails the task.
        errors = (OperatorError, KeyTypeError, TypeMismatchError)
        in_halves = self._keying.keeps_keys(records)
        parts = sort_out(records, self._router.subtasks_of, errors, self._letters, in_halves=in_halves)
        return records.take(np.array([position for part, _ in parts for position in part], np.int64))
