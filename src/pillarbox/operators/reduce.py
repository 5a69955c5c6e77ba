"""reduce, on a keyed stream: a rolling fold that emits the new value after every record."""

from __future__ import annotations

from typing import Any

from pillarbox.elements import Records
from pillarbox.operators.collector import settled
from pillarbox.operators.keyed import KeyedOperator
from pillarbox.operators.keys import Keying
from pillarbox.operators.operator import OperatorContext
from pillarbox.state import ValueState, ValueStateDescriptor

__all__ = ["ReduceOperator"]


class ReduceOperator(KeyedOperator):
    """Applies ``f(previous, value) -> value`` per key; the first record of a key is emitted as it is."""

    own_states = ("reduced",)

    def __init__(self, context: OperatorContext, function: Any, keying: Keying) -> None:
        super().__init__(context, function, "reduce", keying)
        self._state: ValueState[Any] = self.backend.get_state(ValueStateDescriptor(*self.own_states))

    def process_records(self, records: Records) -> None:
        """Fold the records of a run into the state of their keys."""
        call, state = self.call, self._state
        out: list[Any] = []
        with self.each(records, self.keying) as values:
            for value in values:
                previous = state.value()
                reduced = value if previous is None else call(previous, value)
                state.update(reduced)
                out.append(settled(reduced))
        self.output.process_records(Records(out, records.timestamps))
