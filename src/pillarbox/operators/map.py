"""map: one record in, one out; the timestamp stays."""

from __future__ import annotations

from typing import Any

from pillarbox.elements import Records
from pillarbox.errors import PillarboxError
from pillarbox.operators.operator import FunctionOperator

__all__ = ["MapOperator"]


class MapOperator(FunctionOperator):
    """Applies ``f(value) -> value``."""

    def __init__(self, name: str, function: Any, uid: str = "") -> None:
        super().__init__(name, function, "map", uid)

    def process_records(self, records: Records) -> None:
        """Map a run."""
        values = records.values
        pending = iter(values)
        try:
            mapped = list(map(self.call, pending))
        except PillarboxError:
            raise
        except Exception as error:
            raise self.failure(values, pending, error) from error
        self.output.process_records(Records(mapped, records.timestamps))
