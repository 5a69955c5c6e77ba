"""Sorts out records that get no key, where the program asks for it: in front of the partitioning, which asks again.

Kafka Streams does the same of a record whose key mapper raises: its exception handler may let the stream go on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pillarbox._elements import ArrowRecords, Records
from pillarbox._errors import KeyTypeError, OperatorError, PillarboxError, TypeMismatchError
from pillarbox._operators.dead_letters.dead_letter import DeadLetters, sort_out
from pillarbox._operators.frame.collector import settled
from pillarbox._operators.frame.keying import Keying, Router
from pillarbox._operators.frame.operator import OperatorContext, StreamOperator
from pillarbox._operators.functions.basic import OutputTag

__all__ = ["KeyGuardOperator"]


class KeyGuardOperator(StreamOperator):
    """Hands on the records that have a key; others become dead letters. A columnar run stays columnar.

    A record has none where the key function raises, or where its key does not fit the declared type, or cannot be
    routed: NaN, or what has no hash.
    """

    def __init__(self, context: OperatorContext, keying: Keying, tag: OutputTag[Any]) -> None:
        super().__init__(context)
        self._keying = keying
        self._router = Router(keying, 1, 1)
        self._letters = DeadLetters(context, tag, context.side_outputs)

    def process_records(self, records: Records) -> None:
        """Look for the keys of a run; where that fails, of smaller and smaller parts, or one by one."""
        try:
            self._router.subtasks_of(records)
        except (OperatorError, KeyTypeError, TypeMismatchError):
            records = self._with_keys(records)
        if len(records):
            self.output.process_records(records)

    def _with_keys(self, records: Records) -> Records:
        """Return the records that have a key, and write the letters of the others."""
        good: list[int] = []

        def refuse(position: int, error: Exception) -> None:
            assert isinstance(error, PillarboxError)
            stamp = None if records.timestamps is None else records.timestamps[position]
            self._letters.write(_cause(error), settled(records.values[position]), None, stamp)

        # (That there is no such column is no record's fault.)
        errors = (OperatorError, KeyTypeError, TypeMismatchError)
        in_halves = self._keying.keeps_keys(records)
        for part, _ in sort_out(records, self._router.subtasks_of, errors, refuse, in_halves=in_halves):
            good += part
        if isinstance(records, ArrowRecords):
            return records.take(np.array(good, np.int64))
        stamps = records.timestamps
        values = [records.values[position] for position in good]
        return Records(values, None if stamps is None else [stamps[position] for position in good])


def _cause(error: PillarboxError) -> Exception:
    """Return what the key function raised, or else the error of the key itself.

    Raises:
        OperatorError: ``error`` itself, which is no dead letter: something else than an ``Exception`` was raised, or
            memory ran out.
    """
    if not isinstance(error, OperatorError):
        return error
    cause = error.__cause__
    if not isinstance(cause, Exception) or isinstance(cause, MemoryError):
        raise error
    return cause
