"""Outputs that convert results to a declared type before emitting them.

As in PyFlink, ROW values become named rows, FLOAT values are rounded to 32 bits, and a value of another type fails the
job. If a Spark schema is declared, tuples become named rows, and values are not converted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from pillarbox._elements.records import Records
from pillarbox._errors import TypeMismatchError, shorten
from pillarbox._operators.frame.operator import Input, OperatorDiscard
from pillarbox._operators.stateless.sinks import ColumnSinkOperator
from pillarbox._rows import row_class
from pillarbox._types.conversion import value_converter
from pillarbox._types.row_shapes import returned_tuple
from pillarbox._types.type_information import TypeInformation

_ONE_VALUE = frozenset({str, bytes, int, float, bool})


class _TypedOutput:
    def __init__(self, output: Input, declared: TypeInformation[Any], operator: str) -> None:
        self._output = output
        self._operator = operator
        self._convert = value_converter(declared, f"operator {operator!r}: a result")
        self.process_watermark = output.process_watermark
        self.process_status = output.process_status

    def process_records(self, records: Records) -> None:
        convert, pending = self._convert, iter(records.values)
        converted: list[Any] = []
        try:
            converted.extend(map(convert, pending))
        except TypeMismatchError as error:
            error.at(operator=self._operator, record=records.values[len(converted)])
            raise
        self._output.process_records(Records(converted, records.timestamps))


class _NamedOutput:
    def __init__(self, output: Input, names: tuple[str, ...], operator: str) -> None:
        self._output = output
        self._operator = operator
        self._names = names
        self._make, self._size = row_class(names), len(names)
        self.process_watermark = output.process_watermark
        self.process_status = output.process_status

    def process_records(self, records: Records) -> None:
        make, size = self._make, self._size
        if size > 1 and not _ONE_VALUE.isdisjoint(map(type, records.values)):
            self._refuse(next(value for value in records.values if type(value) in _ONE_VALUE))
        named = [make(value) if type(value) is tuple and len(value) == size else value for value in records.values]
        self._output.process_records(Records(named, records.timestamps))

    def _refuse(self, value: Any) -> NoReturn:
        names = ", ".join(self._names)
        kind = type(value).__name__
        error = TypeMismatchError(
            f"operator {self._operator!r}: a result is declared as {names}, but the value {shorten(value)} does not"
            f" fit: it is of type {kind}{returned_tuple(self._names)}; give a tuple or dict of ({names})"
        )
        error.at(operator=self._operator, record=value)
        raise error


class TypedReduce:
    """A reduce function whose results are converted to the declared type."""

    def __init__(self, function: Callable[[Any, Any], Any], declared: TypeInformation[Any], where: str) -> None:
        self._parts = function, declared, where
        self._function = function
        self._convert = value_converter(declared, where)

    def __call__(self, value1: Any, value2: Any) -> Any:
        result = self._function(value1, value2)
        return result if type(result) is type(value2) else self._convert(result)

    def __reduce__(self) -> Any:
        return TypedReduce, self._parts


def typed(output: Input, declared: TypeInformation[Any] | tuple[str, ...] | None, operator: str) -> Input:
    """Wrap an output to convert results to ``declared`` (a type or column names), if necessary."""
    if declared is None or isinstance(output, OperatorDiscard):
        return output
    if isinstance(output, ColumnSinkOperator) and (isinstance(declared, tuple) or output.encoder.is_of(declared)):
        return output
    return (
        _NamedOutput(output, declared, operator)
        if isinstance(declared, tuple)
        else _TypedOutput(output, declared, operator)
    )
