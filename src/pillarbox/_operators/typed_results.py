"""The outputs of operators whose results have a declared type: results are converted to it before they are handed on.

In PyFlink a serializer of the type does that: behind it a result of a ROW has the names of its columns, FLOAT has 32
bits, and a value that does not fit fails the job.
"""

from __future__ import annotations

from typing import Any

from pillarbox._elements import Records
from pillarbox._errors import TypeMismatchError
from pillarbox._operators.operator import Discard, Input
from pillarbox._operators.sinks import ColumnsOperator
from pillarbox._types import TypeInformation, converter

__all__ = ["typed"]


class _TypedOutput:
    """Converts results; watermarks and the rest go by."""

    def __init__(self, output: Input, declared: TypeInformation[Any], operator: str) -> None:
        self._output = output
        self._operator = operator
        self._convert = converter(declared, f"operator {operator!r}: a result")
        self.process_watermark = output.process_watermark
        self.process_status = output.process_status

    def process_records(self, records: Records) -> None:
        """Convert a run, and hand it on."""
        convert, pending = self._convert, iter(records.values)
        converted: list[Any] = []
        try:
            # One by one, so that the record that does not fit is known.
            converted.extend(map(convert, pending))
        except TypeMismatchError as error:
            error.at(operator=self._operator, record=records.values[len(converted)])
            raise
        self._output.process_records(Records(converted, records.timestamps))


def typed(output: Input, declared: TypeInformation[Any] | None, operator: str) -> Input:
    """Return an output that converts results to a declared type; ``output`` itself where nothing is to be converted.

    Columns of a DataFrame are made of results as they are: these are converted there.

    Args:
        operator: the operator's name, for errors.
    """
    if declared is None or isinstance(output, (ColumnsOperator, Discard)):
        return output
    return _TypedOutput(output, declared, operator)
