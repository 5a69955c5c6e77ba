"""``reduce`` on a keyed stream. Emits the new value after every record or, in batch mode, only a key's last value.

Source: Flink's ``StreamGroupedReduceOperator`` and ``BatchGroupedReduceOperator``. In batch mode, results have the last
record's timestamp; in Flink, they have the timestamp 2**63 - 1.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from itertools import islice
from typing import Any

from pillarbox._elements.records import Records
from pillarbox._operators.frame.function_operator import FunctionPass
from pillarbox._operators.frame.keyed_operator import KeyedOperator
from pillarbox._operators.frame.keyed_run import KeyedRun
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.keyed.field_aggregation import FieldAggregation
from pillarbox._operators.stateless.typed_results import TypedReduce
from pillarbox._state.descriptors import ValueState, ValueStateDescriptor
from pillarbox._types.type_information import TypeInformation

_MANY = 1024


class ReduceOperator(KeyedOperator):
    """Applies ``f(previous, value) -> value`` per key. Emits a key's first record unchanged.

    A field aggregation checks that record's field, because a wrong type would make all later records fail.
    """

    own_states: Collection[str] = ("reduced",)

    def __init__(
        self, context: OperatorContext, function: Any, keying: Keying, declared: TypeInformation[Any] | None = None
    ) -> None:
        super().__init__(context, function, "reduce", keying)
        where = f"operator {self.name!r}: a result"
        self._fold = self.call if declared is None else TypedReduce(self.call, declared, where)
        self._state: ValueState[Any] = self.backend.get_state(ValueStateDescriptor("reduced"))
        self._checks_first = isinstance(function, FieldAggregation)
        self._has_value = False
        self._timestamp: int | None = None
        self._final = Records([], [])

    def process_records(self, records: Records) -> None:
        fold, state, copied = self._fold_one, self._state, self.context.copier.copied
        out: list[Any] = []
        with self.each(records, self.keying) as values:
            for value in values:
                reduced = fold(state.value(), value)
                state.update(reduced)
                out.append(copied(reduced))
        if not self.context.batch:
            self.output.process_records(Records(out, records.timestamps))
        elif len(records):
            self._has_value = True
            self._timestamp = None if records.timestamps is None else records.timestamps[-1]

    def _fold_one(self, previous: Any, value: Any) -> Any:
        if previous is None:
            if self._checks_first:
                self._fold(value, value)
            return value
        reduced = self._fold(previous, value)
        if reduced is None:
            raise TypeError("the reduce function returned None, which would drop the reduced value: return the result")
        return reduced

    def process_key_by_key(self, run: KeyedRun) -> None:
        """Reduce sorted records. Only a key that continues in the next batch needs state."""
        backend, state, fold = self.backend, self._state, self._fold_one
        values, timestamps = run.records.values, run.records.timestamps
        pending = iter(values)
        user_code = FunctionPass(self, values, pending, pending)
        for key, start, end, ended in run.stretches():
            if start < end:
                with user_code:
                    backend.set_current_key(key)
                    state.update(reduce(fold, islice(pending, end - start), state.value()))
                self._has_value = True
                self._timestamp = None if timestamps is None else timestamps[end - 1]
            if ended:
                self.end_key()
                backend.drop_keys()

    def end_key(self) -> None:
        super().end_key()
        if not self._has_value:
            return
        self._has_value = False
        self._final.values.append(self.context.copier.copied(self._state.value()))
        self._final.timestamps.append(self._timestamp)  # type: ignore[union-attr]
        if len(self._final) >= _MANY:
            self.end_input()

    def end_input(self) -> None:
        final, self._final = self._final, Records([], [])
        if len(final):
            self.output.process_records(final)
