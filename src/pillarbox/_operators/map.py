"""map: one record in, one out; the timestamp stays."""

from __future__ import annotations

from typing import Any

from pillarbox._elements import Records
from pillarbox._operators.collector import IMMUTABLE, settled
from pillarbox._operators.function_operator import FunctionOperator
from pillarbox._operators.keys import Keying
from pillarbox._operators.operator import OperatorContext

__all__ = ["MapOperator"]


class MapOperator(FunctionOperator):
    """Applies ``f(value) -> value``; with ``keying``, under the key of each record."""

    def __init__(self, context: OperatorContext, function: Any, keying: Keying | None = None) -> None:
        super().__init__(context, function, "map", keying)

    def process_records(self, records: Records) -> None:
        """Apply the function to a run."""
        call = self.call
        out: list[Any] = []
        append = out.append
        with self.each(records, self.keying) as values:
            for value in values:
                result = call(value)
                # At once: the next call may change the result of this one.
                if type(result) not in IMMUTABLE:
                    try:
                        hash(result)
                    except Exception:
                        result = settled(result)
                append(result)
        self.output.process_records(Records(out, records.timestamps))
