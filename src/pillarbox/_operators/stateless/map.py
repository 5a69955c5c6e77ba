"""``map``: emits one value per record, with the record's timestamp."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from pillarbox._copies import FIXED, TUPLES
from pillarbox._elements.records import Records
from pillarbox._operators.frame.collector import FIRST_LOOK, emit_run, next_look
from pillarbox._operators.frame.function_operator import FunctionOperator
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.frame.pure_functions import is_pure


class MapOperator(FunctionOperator):
    """Applies ``f(value) -> value``."""

    def __init__(self, context: OperatorContext, function: Any, keying: Keying | None = None) -> None:
        super().__init__(context, function, "map", keying)
        self._is_pure = is_pure(self.call)

    def process_records(self, records: Records) -> None:
        call = self.call
        shares_nothing = self.context.copier.is_off or (self._is_pure and records.is_fixed)
        timestamps = records.timestamps
        out: list[Any] = []
        done = 0
        look = FIRST_LOOK
        with self.each(records, self.keying) as values:
            while look:
                if shares_nothing:
                    out += map(call, islice(values, look - len(out)))
                else:
                    self._call_each(islice(values, look - len(out)), out)
                if len(out) < look:
                    break
                look = next_look(out)
                if not look:
                    end = done + len(out)
                    emit_run(self.output, out, None if timestamps is None else timestamps[done:end])
                    out, done, look = [], end, FIRST_LOOK
            if done + len(out) < len(records):
                raise RuntimeError("the function raised StopIteration")
        if out:
            rest = timestamps if not done or timestamps is None else timestamps[done:]
            self.output.process_records(Records(out, rest))

    def _call_each(self, values: Iterable[Any], out: list[Any]) -> None:
        """Apply the function to values, and copy each mutable result before the next call."""
        call, emitted, append = self.call, self.context.copier.emitted, out.append
        for value in values:
            result = call(value)
            kind = type(result)
            if kind in TUPLES:
                for field in result:
                    if type(field) not in FIXED:
                        result = emitted(result)
                        break
            elif kind not in FIXED:
                result = emitted(result)
            append(result)
