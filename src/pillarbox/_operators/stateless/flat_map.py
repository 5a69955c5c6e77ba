"""flat_map: one record in, any number out, each with its record's timestamp."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

from pillarbox._elements import Records
from pillarbox._operators.frame.collector import (
    FIRST_LOOK,
    IMMUTABLE,
    RUN_LIMIT,
    USUAL_RESULTS,
    check_results,
    hand_on,
    next_look,
    settled,
)
from pillarbox._operators.frame.function_operator import FunctionOperator
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext


class FlatMapOperator(FunctionOperator):
    """Applies ``f(value) -> iterable of values``; with ``keying``, under the key of each record."""

    def __init__(self, context: OperatorContext, function: Any, keying: Keying | None = None) -> None:
        super().__init__(context, function, "flat_map", keying)

    def process_records(self, records: Records) -> None:
        """Apply the function to a run."""
        self.process_run(records, self.keying, self.call)

    def process_run(self, records: Records, keying: Keying | None, call: Callable[..., Any]) -> None:
        """Apply ``call`` to a run, each record under its key."""
        timestamps = records.timestamps
        out: list[Any] = []
        out_timestamps: list[int | None] | None = None if timestamps is None else []
        look = FIRST_LOOK
        stamps = iter(timestamps) if timestamps is not None else repeat(None)
        with self.each(records, keying) as values:
            for value, timestamp in zip(values, stamps):
                results = call(value)
                if results is None:
                    continue
                if type(results) not in USUAL_RESULTS:
                    check_results(results)
                left = look - len(out)
                for result in results:
                    if type(result) not in IMMUTABLE:
                        try:
                            hash(result)
                        except Exception:
                            result = settled(result)  # noqa: PLW2901
                    out.append(result)
                    if out_timestamps is not None:
                        out_timestamps.append(timestamp)
                    left -= 1
                    if not left:
                        look = next_look(out, RUN_LIMIT)
                        if not look:
                            hand_on(self.output, out, out_timestamps)
                            out, out_timestamps = [], None if timestamps is None else []
                            look = FIRST_LOOK
                        left = look - len(out)
        if out:
            self.output.process_records(Records(out, out_timestamps))
