"""map: one record in, one out; the timestamp stays."""

from __future__ import annotations

from typing import Any

from pillarbox.elements import Records
from pillarbox.operators.operator import FunctionOperator

__all__ = ["MapOperator"]


class MapOperator(FunctionOperator):
    """Applies ``f(value) -> value``."""

    def __init__(self, name: str, function: Any, uid: str = "") -> None:
        super().__init__(name, function, "map", uid)

    def process_records(self, records: Records) -> None:
        """Map a run."""
        self.output.process_records(Records(self.apply(records.values), records.timestamps))
