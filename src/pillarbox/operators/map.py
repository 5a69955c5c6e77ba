"""map: one record in, one out; the timestamp stays."""

from __future__ import annotations

from typing import Any

from pillarbox.elements import Records
from pillarbox.operators.keys import Keying
from pillarbox.operators.operator import IMMUTABLE, FunctionOperator, settled

__all__ = ["MapOperator"]


class MapOperator(FunctionOperator):
    """Applies ``f(value) -> value``; with ``keying``, under the key of each record."""

    def __init__(self, name: str, function: Any, uid: str = "", keying: Keying | None = None) -> None:
        super().__init__(name, function, "map", uid, keying)

    def process_records(self, records: Records) -> None:
        """Apply the function to a run."""
        values = records.values
        call = self.call
        pending = iter(values)
        out: list[Any] = []
        append = out.append
        try:
            for value in self.under_keys(records, pending):
                result = call(value)
                # At once: the next call may change what this one gave.
                if type(result) not in IMMUTABLE:
                    try:
                        hash(result)
                    except Exception:
                        result = settled(result)
                append(result)
        except BaseException as error:
            self.failed(values, pending, error)
        self.output.process_records(Records(out, records.timestamps))
