"""filter: keeps the records for which the function says so."""

from __future__ import annotations

import inspect
from itertools import compress
from typing import Any

import numpy as np

from pillarbox._elements import Records
from pillarbox._errors import shorten
from pillarbox._operators.frame.function_operator import FunctionOperator, Pass
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext

_BOOLEANS = frozenset({bool, np.bool_})


class FilterOperator(FunctionOperator):
    """Applies ``f(value) -> bool``; with ``keying``, under the key of each record."""

    def __init__(self, context: OperatorContext, function: Any, keying: Keying | None = None) -> None:
        super().__init__(context, function, "filter", keying)

    def process_records(self, records: Records) -> None:
        """Filter a run."""
        if self.context.copier.is_off or records.is_fixed:
            keep = self._judge(records)
            kept = list(compress(records.values, keep))
        else:
            keep, kept = self._judge_each(records)
        if not kept:
            return
        timestamps = records.timestamps
        self.output.process_records(Records(kept, None if timestamps is None else list(compress(timestamps, keep))))

    def _judge(self, records: Records) -> list[bool]:
        with self.each(records, self.keying) as values:
            keep = list(map(self.call, values))
            if len(keep) < len(records):
                raise RuntimeError("the function raised StopIteration")  # which ends a map() without a word
        self._check(records.values, keep)
        return keep

    def _judge_each(self, records: Records) -> tuple[list[bool], list[Any]]:
        """Judge records that may change; return also copies of those that are kept: the function may hold them."""
        call, copied = self.call, self.context.copier.copied
        keep: list[Any] = []
        kept: list[Any] = []
        with self.each(records, self.keying) as values:
            for value in values:
                answer = call(value)
                keep.append(answer)
                if type(answer) in _BOOLEANS and answer:
                    kept.append(copied(value))
        self._check(records.values, keep)
        return keep, kept

    def _check(self, values: list[Any], keep: list[Any]) -> None:
        if not _BOOLEANS.issuperset(map(type, keep)):
            self._refuse(values, keep)

    def _refuse(self, values: list[Any], keep: list[Any]) -> None:
        """Refuse what is no bool: a coroutine or a generator is always true, and a None may be a forgotten return."""
        position = next(index for index, answer in enumerate(keep) if type(answer) not in _BOOLEANS)
        answer = keep[position]
        for each in keep:
            if inspect.iscoroutine(each):
                each.close()  # it would complain that nobody waited for it
        pending = iter(values[position + 1 :])
        kind = type(answer).__name__
        with Pass(self, values, pending, pending):
            raise TypeError(
                f"the function returned {shorten(answer)} ({kind}), not a bool: return True or False, bool(...)"
            )
