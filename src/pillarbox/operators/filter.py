"""filter: keeps the records for which the function says so."""

from __future__ import annotations

from itertools import compress
from typing import Any

from pillarbox.elements import Records
from pillarbox.operators.operator import FunctionOperator

__all__ = ["FilterOperator"]


class FilterOperator(FunctionOperator):
    """Applies ``f(value) -> bool``."""

    def __init__(self, name: str, function: Any, uid: str = "") -> None:
        super().__init__(name, function, "filter", uid)

    def process_records(self, records: Records) -> None:
        """Filter a run."""
        values = records.values
        keep = self.apply(values)
        kept = list(compress(values, keep))
        if not kept:
            return
        timestamps = records.timestamps
        self.output.process_records(Records(kept, None if timestamps is None else list(compress(timestamps, keep))))
