"""Windows of columns: partial results are kept as columns, for each pane, and merged when a window ends.

All that a subtask keeps lies under one key, the smallest whole number that the subtask owns. For each pane there is a
map of Arrow streams, by number: an epoch adds one, and now and then some become one. Windows have timers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pillarbox.elements import ArrowRecords, Records
from pillarbox.operators.columnar.panes import Panes
from pillarbox.operators.columnar.partials import ROWS, Partials
from pillarbox.operators.columnar.program import ColumnarProgram
from pillarbox.operators.keyed import KeyedOperator
from pillarbox.operators.keys import Keying
from pillarbox.operators.operator import OperatorContext
from pillarbox.operators.windowing.base_operator import LATE_RECORDS_DROPPED
from pillarbox.operators.windowing.windows import TimeWindow
from pillarbox.state import MapStateDescriptor
from pillarbox.state.key_groups import key_group, subtask_of
from pillarbox.time.timestamps import MAX_WATERMARK
from pillarbox.types import Types

__all__ = ["ColumnarOperator", "ColumnarWindowOperator", "Kept"]

# That many streams of about the same length become one.
_FEW = 4


class ColumnarOperator(KeyedOperator):
    """The common part of both kinds of windows.

    Attributes:
        kept: the partial results that are kept.
    """

    def __init__(self, context: OperatorContext, keying: Keying, program: ColumnarProgram) -> None:
        super().__init__(context, None, "", keying)
        self._lateness = program.lateness
        self._partials = Partials(program.columns, context.name)
        self._timers = self.time_services.get_internal_timer_service("window-timers", self, namespaced=True)
        self._home = home_key(context)
        self.kept: Kept = Kept(self)
        self._dropped = 0

    def snapshot_state(self, checkpoint_id: int) -> None:
        """Note in the metrics how many records of the epoch were dropped; keyed state is all that there is."""
        self.context.counters[LATE_RECORDS_DROPPED] = self._dropped
        self._dropped = 0

    def _drop(self, batch: pa.RecordBatch) -> None:
        self._dropped += pc.sum(batch.column(ROWS)).as_py() or 0

    def _emit(self, results: pa.RecordBatch, ends: int | np.ndarray[Any, Any]) -> None:
        """Emit the results of windows with these ends."""
        if results.num_rows:
            stamps = np.full(results.num_rows, ends) if isinstance(ends, int) else ends
            self.output.process_records(ArrowRecords(results, stamps - 1))

    def on_event_time(self, timestamp: int, namespace: Any) -> None:
        """Fire a window, or clean up, or both."""
        raise NotImplementedError

    def on_processing_time(self, timestamp: int, namespace: Any) -> None:
        """There are no such timers."""


class Kept:
    """The partial results of an operator, in its state: streams by number, for each place (a pane, for one)."""

    def __init__(self, operator: ColumnarOperator) -> None:
        self._operator = operator
        self._backend = operator.backend
        types = Types.LONG(), Types.PRIMITIVE_ARRAY(Types.BYTE())
        self._streams = operator.backend.get_state(MapStateDescriptor("partials", *types), namespaced=True)

    def _at(self, place: Any) -> Any:
        self._backend.select(self._operator._home, place)
        return self._streams

    def get(self, place: Any) -> list[pa.RecordBatch]:
        """Return the partial results of a place, in the order in which they were added."""
        decode = self._operator._partials.decode
        return [decode(stream) for _, stream in sorted(self._at(place).items())]

    def add(self, place: Any, batch: pa.RecordBatch, start: int) -> None:
        """Add partial results; the latest ones become one where there are many short ones.

        So what is written again, in all, is a small multiple of what was added, and a place has few streams.
        """
        partials = self._operator._partials
        streams = self._at(place)
        numbers = sorted(streams.keys())
        older: list[pa.RecordBatch] = []
        rows = batch.num_rows
        for number in reversed(numbers):
            found = partials.decode(streams.get(number))
            if found.num_rows > 2 * rows:
                break
            older.append(found)
            rows += found.num_rows
        if len(older) >= _FEW - 1:
            batch = partials.merged([*older[::-1], batch], start)
            for number in numbers[len(numbers) - len(older) :]:
                streams.remove(number)
        streams.put(numbers[-1] + 1 if numbers else 0, partials.encode(batch))

    def clear(self, place: Any) -> None:
        """Remove all that is kept for a place."""
        self._at(place).clear()

    def check(self) -> None:
        """Check that what was restored fits the program.

        Raises:
            CheckpointMismatchError: it is of other aggregates.
        """
        self._backend.set_current_key(self._operator._home)
        for place in self._backend.get_namespaces():
            streams = self._at(place)
            for number in [*streams.keys()][:1]:
                self._operator._partials.decode(streams.get(number))


def home_key(context: OperatorContext) -> int:
    """Return the key that all state of a subtask lies under: the smallest whole number that the subtask owns."""
    groups = context.max_parallelism
    return next(
        key
        for key in count()
        if subtask_of(key_group(key, groups), groups, max(1, context.parallelism)) == context.subtask
    )


class ColumnarWindowOperator(ColumnarOperator):
    """Tumbling, sliding and cumulating windows, which consist of panes."""

    def __init__(self, context: OperatorContext, keying: Keying, program: ColumnarProgram) -> None:
        super().__init__(context, keying, program)
        self._panes = Panes(program.assigner)  # type: ignore[arg-type]
        # What came in this epoch, by pane; and what came for windows that have fired.
        self._fresh: dict[int, list[pa.RecordBatch]] = {}
        self._late: dict[TimeWindow, list[pa.RecordBatch]] = {}

    def restore_state(self, state: Any) -> None:
        """Begin with what is kept."""
        self._fresh = {}
        self._late = {}
        self.kept.check()

    # -- records --

    def process_records(self, records: Records) -> None:
        """Take partial results, those of each pane together."""
        assert isinstance(records, ArrowRecords)
        if not len(records):
            return
        starts = records.stamps
        assert starts is not None
        edges = [0, *(np.flatnonzero(np.diff(starts)) + 1).tolist(), len(starts)]
        for begin, end in pairwise(edges):
            self._add(int(starts[begin]), records.batch.slice(begin, end - begin))

    def _add(self, start: int, batch: pa.RecordBatch) -> None:
        watermark = self._timers.current_watermark
        windows = self._panes.windows(start)
        alive = [window for window in windows if self._cleanup_time(window) > watermark]
        if not alive:
            if windows:
                self._drop(batch)
            return
        self._fresh.setdefault(start, []).append(batch)
        for window in alive:
            if window.end - 1 <= watermark:
                self._late.setdefault(window, []).append(batch)
            self._register(window)

    def _cleanup_time(self, window: TimeWindow) -> int:
        return min(window.end - 1 + self._lateness, MAX_WATERMARK)

    def _register(self, window: TimeWindow) -> None:
        namespace = tuple(window)
        self.backend.select(self._home, namespace)
        if window.end - 1 > self._timers.current_watermark:
            self._timers.register_event_time_timer(namespace, window.end - 1)
        if self._lateness:
            self._timers.register_event_time_timer(namespace, self._cleanup_time(window))

    # -- firing --

    def process_watermark(self, timestamp: int) -> None:
        """Fire windows again that late records came for; then those that end, and hand the watermark on."""
        self._fire_again()
        super().process_watermark(timestamp)

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Fire windows again that late records came for, and keep what came."""
        self._fire_again()
        for start, batches in self._fresh.items():
            self.kept.add(tuple(self._panes.pane(start)), self._partials.merged(batches, start), start)
        self._fresh = {}

    def on_event_time(self, timestamp: int, namespace: Any) -> None:
        """Fire the window, or clean up, or both."""
        window = TimeWindow(*namespace)
        if timestamp == window.end - 1:
            merged = self._merged(self._panes.of(window), window.start)
            if merged is not None:
                self._emit(self._partials.results(merged, *window), window.end)
        if timestamp == self._cleanup_time(window):
            for start in self._panes.last_of(window):
                self._fresh.pop(start, None)
                self.kept.clear(tuple(self._panes.pane(start)))

    def _merged(self, starts: Iterable[int], start: int) -> pa.RecordBatch | None:
        """Return the partial results of panes as one for each key; None where there are none."""
        starts = list(starts)
        parts = self._parts(starts)
        if len(parts) == 1 and self._fresh.keys().isdisjoint(starts):
            return parts[0]  # what is kept together has been merged
        return self._partials.merged(parts, start) if parts else None

    def _parts(self, starts: Iterable[int]) -> list[pa.RecordBatch]:
        """Return the partial results of panes."""
        parts: list[pa.RecordBatch] = []
        for start in starts:
            parts += self.kept.get(tuple(self._panes.pane(start)))
            parts += self._fresh.get(start, ())
        return parts

    def _fire_again(self) -> None:
        """Fire windows that have fired: the keys of the records that came since."""
        late, self._late = self._late, {}
        for window, batches in late.items():
            parts = self._parts(self._panes.of(window))
            merged, touched = self._partials.touched(parts, _among(parts, batches), window.start)
            self._emit(self._partials.results(merged.filter(pa.array(touched)), *window), window.end)


def _among(parts: Sequence[Any], chosen: Sequence[Any]) -> list[bool]:
    numbers = set(map(id, chosen))
    return [id(part) in numbers for part in parts]
