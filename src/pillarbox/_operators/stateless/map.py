"""map: one record in, one out; the timestamp stays."""

from __future__ import annotations

from itertools import islice
from typing import Any

from pillarbox._copies import FIXED, TUPLES
from pillarbox._elements import Records
from pillarbox._operators.frame.collector import FIRST_LOOK, hand_on, next_look
from pillarbox._operators.frame.function_operator import FunctionOperator
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext


class MapOperator(FunctionOperator):
    """Applies ``f(value) -> value``; with ``keying``, under the key of each record."""

    def __init__(self, context: OperatorContext, function: Any, keying: Keying | None = None) -> None:
        super().__init__(context, function, "map", keying)

    def process_records(self, records: Records) -> None:
        """Apply the function to a run."""
        call, emitted = self.call, self.context.copier.emitted
        timestamps = records.timestamps
        out: list[Any] = []
        done = 0
        look = FIRST_LOOK
        with self.each(records, self.keying) as values:
            while look:
                append = out.append
                for value in islice(values, look - len(out)):
                    result = call(value)
                    # Copied at once: the next call may change it.
                    kind = type(result)
                    if kind in TUPLES:
                        for field in result:
                            if type(field) not in FIXED:
                                result = emitted(result)
                                break
                    elif kind not in FIXED:
                        result = emitted(result)
                    append(result)
                if len(out) < look:
                    break
                look = next_look(out)
                if not look:
                    end = done + len(out)
                    hand_on(self.output, out, None if timestamps is None else timestamps[done:end])
                    out, done, look = [], end, FIRST_LOOK
        if out:
            rest = timestamps if not done or timestamps is None else timestamps[done:]
            self.output.process_records(Records(out, rest))
