"""Base class of columnar window operators, which run after the shuffle."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pillarbox._elements.records import ArrowRecords
from pillarbox._operators.columnar.all_keys_state import AllKeysState, streams_to_merge
from pillarbox._operators.columnar.partials import ROWS, Partials
from pillarbox._operators.columnar.program import ColumnarProgram
from pillarbox._operators.frame.keyed_operator import KeyedOperator
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.windowing.panes import panes_of
from pillarbox._state.descriptors import MapStateDescriptor
from pillarbox._types.type_information import Types


class ColumnarOperator(KeyedOperator):
    """Stores partial results, and emits the results of windows that fire."""

    by_key = False
    drops_late = True

    def __init__(self, context: OperatorContext, keying: Keying, program: ColumnarProgram) -> None:
        super().__init__(context, None, "", keying)
        self._lateness = program.lateness
        panes = panes_of(program.assigner)
        self._partials = Partials(program.columns, context.name, "sessions" if panes is None else panes.name)
        self._timers = self.time_services.get_internal_timer_service("window-timers", self, namespaced=True)
        types = Types.LONG(), Types.PRIMITIVE_ARRAY(Types.BYTE())
        self._state = AllKeysState(context, self.backend, MapStateDescriptor("partials", *types))

    def restore_state(self, state: Any) -> None:
        for address in self._state.addresses():
            for stream in [*self._state.at(address).values()][:1]:
                self._partials.decode(stream)

    def _drop(self, batch: pa.RecordBatch) -> None:
        self._dropped += pc.sum(batch.column(batch.schema.get_field_index(ROWS))).as_py() or 0

    def _emit(self, results: pa.RecordBatch, ends: int | npt.NDArray[np.int64]) -> None:
        if results.num_rows:
            stamps = np.full(results.num_rows, ends) if isinstance(ends, int) else ends
            self.output.process_records(ArrowRecords(results, stamps - 1))

    def _stored(self, address: Any) -> list[pa.RecordBatch]:
        return [self._partials.decode(stream) for _, stream in sorted(self._state.at(address).items())]

    def _store(self, address: Any, batch: pa.RecordBatch, start: int) -> None:
        streams = self._state.at(address)
        numbers = sorted(streams.keys())
        stored = (self._partials.decode(streams.get(number)) for number in reversed(numbers))
        older: list[pa.RecordBatch] = streams_to_merge(stored, batch.num_rows)
        if older:
            batch = self._partials.merged([*older[::-1], batch], start)
            for number in numbers[len(numbers) - len(older) :]:
                streams.remove(number)
        self._append(address, [batch])

    def _append(self, address: Any, batches: Iterable[pa.RecordBatch]) -> None:
        streams = self._state.at(address)
        for number, batch in enumerate(batches, max(streams.keys(), default=-1) + 1):
            streams.put(number, self._partials.encode(batch))

    def _clear(self, address: Any) -> None:
        self._state.at(address).clear()
