"""``flat_map``: emits any number of values per record, with the record's timestamp."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

from pillarbox._elements.records import Records
from pillarbox._operators.frame.function_operator import FunctionOperator
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext


class FlatMapOperator(FunctionOperator):
    """Applies ``f(value) -> iterable of values``."""

    def __init__(self, context: OperatorContext, function: Any, keying: Keying | None = None) -> None:
        super().__init__(context, function, "flat_map", keying)

    def process_records(self, records: Records) -> None:
        self.process_run(records, self.keying, self.call)

    def process_run(self, records: Records, keying: Keying | None, call: Callable[..., Any]) -> None:
        stamps = iter(records.timestamps) if records.timestamps is not None else repeat(None)
        collect = self._collector.collect
        with self.each(records, keying) as values:
            for value, timestamp in zip(values, stamps):
                results = call(value)
                if results is not None:
                    collect(results, timestamp)
        self._collector.flush()
