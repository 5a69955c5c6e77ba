"""``filter``: emits the records for which the function returns True."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from pillarbox._elements.records import Records
from pillarbox._errors import shorten
from pillarbox._operators.frame.function_operator import FunctionOperator, FunctionPass
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext

_BOOLEANS = frozenset({bool, np.bool_})


class FilterOperator(FunctionOperator):
    """Applies ``f(value) -> bool``."""

    def __init__(self, context: OperatorContext, function: Any, keying: Keying | None = None) -> None:
        super().__init__(context, function, "filter", keying)

    def process_records(self, records: Records) -> None:
        is_shared = not (self.context.copier.is_off or records.is_fixed)
        passed = self._judge_each(records) if is_shared else records.choose(self._judge(records))
        if len(passed):
            self.output.process_records(passed)

    def _judge(self, records: Records) -> list[bool]:
        with self.each(records, self.keying) as values:
            keep = list(map(self.call, values))
            if len(keep) < len(records):
                raise RuntimeError("the function raised StopIteration, which only iterators may raise")
        self._check(records.values, keep)
        return keep

    def _judge_each(self, records: Records) -> Records:
        """Filter mutable records, copying each immediately, because the function may change it later."""
        call, copied = self.call, self.context.copier.copied
        values: list[Any] = []
        keep: list[Any] = []
        with self.each(records, self.keying) as pending:
            for value in pending:
                answer = call(value)
                keep.append(answer)
                values.append(copied(value) if type(answer) in _BOOLEANS and answer else None)
        self._check(records.values, keep)
        return Records(values, records.timestamps).choose(keep)

    def _check(self, values: list[Any], keep: list[Any]) -> None:
        if not _BOOLEANS.issuperset(map(type, keep)):
            self._refuse(values, keep)

    def _refuse(self, values: list[Any], keep: list[Any]) -> None:
        """Raise if a result is not a bool. A coroutine would count as true, and None may mean a missing ``return``."""
        position = next(index for index, answer in enumerate(keep) if type(answer) not in _BOOLEANS)
        answer = keep[position]
        for result in keep:
            if inspect.iscoroutine(result):
                result.close()
        pending = iter(values[position + 1 :])
        kind = type(answer).__name__
        with FunctionPass(self, values, pending, pending):
            raise TypeError(f"the function returned {shorten(answer)} ({kind}), not a bool: return True or False")
