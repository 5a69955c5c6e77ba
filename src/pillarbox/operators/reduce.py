"""reduce, on a keyed stream: a rolling fold that emits the new value after every record."""

from __future__ import annotations

from typing import Any

from pillarbox.elements import Records
from pillarbox.operators.keys import Keying
from pillarbox.operators.operator import FunctionOperator, settled
from pillarbox.state import ValueState, ValueStateDescriptor

__all__ = ["ReduceOperator"]


class ReduceOperator(FunctionOperator):
    """Applies ``f(previous, value) -> value`` per key; the first record of a key is emitted as it is."""

    keying: Keying

    def __init__(self, name: str, function: Any, keying: Keying, uid: str = "") -> None:
        super().__init__(name, function, "reduce", uid, keying)

    def open(self) -> None:
        """Declare the state and open the user's function."""
        assert self.context.backend is not None, "a keyed operator stands at the head of its vertex"
        self._state: ValueState[Any] = self.context.backend.get_state(ValueStateDescriptor("reduced"))
        super().open()

    def process_records(self, records: Records) -> None:
        """Fold the records of a run into the state of their keys."""
        backend = self.context.backend
        assert backend is not None
        call, state = self.call, self._state
        values = records.values
        pending = iter(values)
        out: list[Any] = []
        try:
            for value, key in zip(pending, self.keying.keys_of(records)):
                backend.set_current_key(key)
                previous = state.value()
                reduced = value if previous is None else call(previous, value)
                state.update(reduced)
                out.append(settled(reduced))
        except BaseException as error:
            self.failed(values, pending, error)
        self.output.process_records(Records(out, records.timestamps))
