"""flat_map: one record in, any number out, each with its record's timestamp."""

from __future__ import annotations

from itertools import repeat
from typing import Any

from pillarbox.elements import Records
from pillarbox.operators.operator import RUN_LIMIT, FunctionOperator

__all__ = ["FlatMapOperator"]


class FlatMapOperator(FunctionOperator):
    """Applies ``f(value) -> iterable of values``."""

    def __init__(self, name: str, function: Any, uid: str = "") -> None:
        super().__init__(name, function, "flat_map", uid)

    def process_records(self, records: Records) -> None:
        """Map a run."""
        values = records.values
        timestamps = records.timestamps
        call = self.call
        out: list[Any] = []
        out_timestamps: list[int | None] | None = None if timestamps is None else []
        pending = iter(values)
        stamps = iter(timestamps) if timestamps is not None else repeat(None)
        try:
            for value, timestamp in zip(pending, stamps):
                results = call(value)
                if results is None:
                    continue
                for result in results:
                    out.append(result)
                    if out_timestamps is not None:
                        out_timestamps.append(timestamp)
                if len(out) >= RUN_LIMIT:
                    self.output.process_records(Records(out, out_timestamps))
                    out = []
                    out_timestamps = None if timestamps is None else []
        except BaseException as error:
            self.failed(values, pending, error)
        if out:
            self.output.process_records(Records(out, out_timestamps))
