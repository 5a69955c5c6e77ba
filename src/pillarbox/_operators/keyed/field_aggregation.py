"""``sum``, ``min``, ``max``, ``min_by`` and ``max_by`` on a keyed stream.

Source: Flink's ``SumAggregator`` and ``ComparableAggregator``.
"""

from __future__ import annotations

import copy
import dataclasses
from decimal import Context, Decimal, Inexact, InvalidOperation, localcontext
from typing import Any, Literal

from pillarbox._errors import ProgramError, shorten
from pillarbox._operators.functions.basic import ReduceFunction
from pillarbox._rows import Row

_NO_NUMBERS = (str, bytes, tuple, list)
# For exact sums of decimals. A thread's own context rounds.
_EXACT = Context(prec=1000, traps=[Inexact, InvalidOperation])

Method = Literal["sum", "min", "max", "min_by", "max_by"]


class FieldAggregation(ReduceFunction[Any]):
    """Aggregates a key's records by one field.

    ``sum``, ``min`` and ``max`` return the key's first record, with the aggregated value in the field. ``min_by`` and
    ``max_by`` return the first record with the extreme value. NaN is greater than all numbers, as in Flink and Spark.

    Args:
        field: the field's position (in tuples and rows) or name (in rows, dicts and objects). Any other record counts
            as its own field 0.
    """

    def __init__(self, method: Method, field: int | str) -> None:
        is_position = type(field) is int and field >= 0
        if not is_position and not (type(field) is str and field):
            raise ProgramError(f"{method}() takes a field's position (from 0) or name, not {shorten(field)}")
        self._method = method
        self._field = field
        self._better = _is_greater if method.startswith("max") else _is_less

    @property
    def name(self) -> str:
        return f"{self._method}({self._field!r})"

    def reduce(self, value1: Any, value2: Any, /) -> Any:
        result, other = self._get(value1), self._get(value2)
        if self._method == "sum":
            if isinstance(result, _NO_NUMBERS):
                raise TypeError(f"sum({self._field!r}): {shorten(result)} is not a number")
            return self._set(value1, _plus(result, other))
        if not self._better(other, result):
            return value1
        return value2 if self._method.endswith("_by") else self._set(value1, other)

    def _get(self, record: Any) -> Any:
        field = self._field
        if isinstance(field, int):
            if isinstance(record, (tuple, list)):
                if field < len(record):
                    return record[field]
                raise LookupError(f"{self._method}({field}): the record has {len(record)} fields, counted from 0")
            if field == 0:
                return record
            raise LookupError(f"{self._method}({field}): the record has no positions: pass a field's name")
        if isinstance(record, (Row, dict)):
            return record[field]
        if isinstance(record, (tuple, list)) and not hasattr(record, "_fields"):
            kind = type(record).__name__
            raise LookupError(
                f"{self._method}({field!r}): a {kind} has no field names: pass a field's position, from 0"
            )
        return getattr(record, field)

    def _set(self, record: Any, value: Any) -> Any:
        field = self._field
        if isinstance(record, tuple):
            position = field if isinstance(field, int) else type(record)._fields.index(field)  # type: ignore[attr-defined]
            changed = (*record[:position], value, *record[position + 1 :])
            make = getattr(type(record), "_make", None)
            return changed if make is None else make(changed)
        if isinstance(record, (list, dict)):
            fields: Any = record.copy()
            fields[field] = value
            return fields
        if isinstance(field, int):
            return value
        if dataclasses.is_dataclass(record) and not isinstance(record, type):
            return dataclasses.replace(record, **{field: value})
        changed_object = copy.copy(record)
        setattr(changed_object, field, value)
        return changed_object


def _plus(a: Any, b: Any) -> Any:
    if isinstance(a, Decimal) or isinstance(b, Decimal):
        with localcontext(_EXACT):
            return a + b
    return a + b


def _is_greater(a: Any, b: Any) -> Any:
    if b != b:
        return False
    return a != a or a > b


def _is_less(a: Any, b: Any) -> Any:
    if a != a:
        return False
    return b != b or a < b
