"""The common part of windows of columns behind the shuffle: the state, late rows, results.

All that a subtask keeps lies under one key, the smallest whole number that the subtask owns, in namespaces: *places*. A
place is a map of Arrow streams by number: an epoch adds one, and now and then some become one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pillarbox._elements import ArrowRecords
from pillarbox._operators.columnar.panes import columnar_panes
from pillarbox._operators.columnar.partials import ROWS, Partials
from pillarbox._operators.columnar.program import ColumnarProgram
from pillarbox._operators.frame.keyed_operator import LATE_RECORDS_DROPPED, KeyedOperator
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._state import MapStateDescriptor
from pillarbox._state.keys.key_groups import smallest_key
from pillarbox._types import Types

__all__ = ["ColumnarOperator", "home_key"]

# That many streams of about the same length become one.
_FEW = 4


class ColumnarOperator(KeyedOperator):
    """Keeps partial results, and emits the results of windows."""

    by_key = False

    def __init__(self, context: OperatorContext, keying: Keying, program: ColumnarProgram) -> None:
        super().__init__(context, None, "", keying)
        self._lateness = program.lateness
        panes = columnar_panes(program.assigner)
        self._partials = Partials(program.columns, context.name, "sessions" if panes is None else panes.name)
        self._timers = self.time_services.get_internal_timer_service("window-timers", self, namespaced=True)
        types = Types.LONG(), Types.PRIMITIVE_ARRAY(Types.BYTE())
        self._streams = self.backend.get_state(MapStateDescriptor("partials", *types), namespaced=True)
        self._home = home_key(context)
        self._dropped = 0

    def restore_state(self, state: Any) -> None:
        """Check that what was restored fits the program.

        Raises:
            CheckpointMismatchError: it is of other windows or aggregates.
        """
        for place in self._places():
            for stream in [*self._at(place).values()][:1]:
                self._partials.decode(stream)

    def snapshot_state(self, checkpoint_id: int) -> None:
        """Note in the metrics how many records of the epoch were dropped; keyed state is all that there is."""
        self.context.counters[LATE_RECORDS_DROPPED] = self._dropped
        self._dropped = 0

    def on_event_time(self, timestamp: int, namespace: Any) -> None:
        """There are no such timers, unless a subclass has some."""

    def on_processing_time(self, timestamp: int, namespace: Any) -> None:
        """There are no such timers."""

    def _drop(self, batch: pa.RecordBatch) -> None:
        """Count the rows in partial results that come too late."""
        self._dropped += pc.sum(batch.column(batch.schema.get_field_index(ROWS))).as_py() or 0

    def _emit(self, results: pa.RecordBatch, ends: int | npt.NDArray[np.int64]) -> None:
        """Emit the results of windows with these ends."""
        if results.num_rows:
            stamps = np.full(results.num_rows, ends) if isinstance(ends, int) else ends
            self.output.process_records(ArrowRecords(results, stamps - 1))

    # -- what is kept --

    def _at(self, place: Any) -> Any:
        """Return the streams of a place, by number."""
        self.backend.select(self._home, place)
        return self._streams

    def _places(self) -> list[Any]:
        """Return the places where something is kept, and the namespaces of timers."""
        self.backend.set_current_key(self._home)
        return self.backend.get_namespaces()

    def _kept(self, place: Any) -> list[pa.RecordBatch]:
        """Return the partial results of a place, in the order in which they were added."""
        return [self._partials.decode(stream) for _, stream in sorted(self._at(place).items())]

    def _keep(self, place: Any, batch: pa.RecordBatch, start: int) -> None:
        """Add partial results of one window or pane; the latest ones become one where there are many short ones.

        So what is written again, in all, is a small multiple of what was added, and a place has few streams.
        """
        streams = self._at(place)
        numbers = sorted(streams.keys())
        older: list[pa.RecordBatch] = []
        rows = batch.num_rows
        for number in reversed(numbers):
            found = self._partials.decode(streams.get(number))
            if found.num_rows > 2 * rows:
                break
            older.append(found)
            rows += found.num_rows
        if len(older) >= _FEW - 1:
            batch = self._partials.merged([*older[::-1], batch], start)
            for number in numbers[len(numbers) - len(older) :]:
                streams.remove(number)
        self._append(place, [batch])

    def _append(self, place: Any, batches: Iterable[pa.RecordBatch]) -> None:
        """Add partial results to a place."""
        streams = self._at(place)
        for number, batch in enumerate(batches, max(streams.keys(), default=-1) + 1):
            streams.put(number, self._partials.encode(batch))

    def _clear(self, place: Any) -> None:
        """Remove all that is kept at a place."""
        self._at(place).clear()


def home_key(context: OperatorContext) -> int:
    """Return the key that all state of a subtask lies under: the smallest whole number that the subtask owns."""
    return smallest_key(context.subtask, context.max_parallelism, max(1, context.parallelism))
