"""Columnar tumbling, sliding and cumulating windows, which merge the partial results of panes.

Partial results are stored by the start of their pane. A firing timer only marks its window as due. After a watermark's
last timer, all due windows fire, and the partial results of small windows are merged in one pass.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._operators.columnar.columnar_operator import ColumnarOperator
from pillarbox._operators.columnar.program import ColumnarProgram
from pillarbox._operators.columnar.stacks import ColumnStacks
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.windowing.api.windows import TimeWindow
from pillarbox._operators.windowing.panes import panes_of
from pillarbox._time.timestamp_assigner import MAX_WATERMARK, MIN_TIMESTAMP

# Up to this many partial results, windows fire together and panes are stored together. Windows and panes with more than
# `_ALONE` are processed alone.
_TOGETHER = 1 << 16
_ALONE = 1 << 12

T = TypeVar("T")


class ColumnarWindowOperator(ColumnarOperator):
    """The operator of columnar windows that consist of panes (slices of time)."""

    def __init__(self, context: OperatorContext, keying: Keying, program: ColumnarProgram) -> None:
        super().__init__(context, keying, program)
        panes = panes_of(program.assigner)
        assert panes is not None
        self._panes = panes
        # Starts of panes with partial results, starts of panes whose windows have timers, this epoch's batches by
        # pane start, and late batches by window that has fired.
        self._starts: set[int] = set()
        self._timed: set[int] = set()
        self._fresh: dict[int, list[pa.RecordBatch]] = {}
        self._late: dict[TimeWindow, list[pa.RecordBatch]] = {}
        self._stacks = None if panes.tumbling else ColumnStacks(self._partials, self._merged)
        # Windows that end at the current watermark, and the latest end of windows to remove.
        self._due: list[TimeWindow] = []
        self._over = MIN_TIMESTAMP

    def restore_state(self, state: Any) -> None:
        super().restore_state(state)
        self._starts = {address for address in self._state.addresses() if isinstance(address, int)}

    def process_records(self, records: Records) -> None:
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
        if self._cleanup_time(self._panes.last_end(start)) <= watermark:
            self._drop(batch)
            return
        self._fresh.setdefault(start, []).append(batch)
        self._starts.add(start)
        if self._stacks is not None:
            self._stacks.changed(start)
        timed = start in self._timed
        self._timed.add(start)
        for window in map(TimeWindow._make, self._panes.windows(start)):
            if timed and window.end - 1 > watermark:
                break  # this and later windows have their timers
            if self._cleanup_time(window.end) > watermark:
                if window.end - 1 <= watermark:
                    self._late.setdefault(window, []).append(batch)
                if not timed:
                    self._register(window)

    def _cleanup_time(self, end: int) -> int:
        return min(end - 1 + self._lateness, MAX_WATERMARK)

    def _register(self, window: TimeWindow) -> None:
        namespace = tuple(window)
        self._state.at(namespace)
        if window.end - 1 > self._timers.current_watermark:
            self._timers.register_event_time_timer(namespace, window.end - 1)
        if self._lateness:
            self._timers.register_event_time_timer(namespace, self._cleanup_time(window.end))

    def process_watermark(self, timestamp: int) -> None:
        self._fire_again()
        super().process_watermark(timestamp)

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        self._fire_again()
        fresh, self._fresh = self._fresh, {}
        for some in _portions(fresh.items()):
            if len(some) == 1:
                ((start, batches),) = some
                self._store(start, self._partials.merged(batches, start), start)
                continue
            starts = [start for start, _ in some]
            merged, numbers = self._partials.merged_apart([parts for _, parts in some], starts)
            edges = np.searchsorted(numbers, np.arange(len(starts) + 1)).tolist()
            for start, (begin, end) in zip(starts, pairwise(edges)):
                self._store(start, merged.slice(begin, end - begin), start)

    def on_event_time(self, timestamp: int, namespace: Any) -> None:
        window = TimeWindow(*namespace)
        if timestamp == window.end - 1:
            self._due.append(window)
        if timestamp >= self._cleanup_time(window.end):  # later if another program version set the timer
            self._over = max(self._over, window.end)

    def flush(self) -> None:
        # If a time zone omits a day, two days have the same end.
        due, self._due = sorted(self._due, key=_order), []
        if len(due) == 1:
            self._fire(due[0])
        elif due:
            self._fire_all(due)
        over, self._over = self._over, MIN_TIMESTAMP
        if over == MIN_TIMESTAMP:
            return
        for start in [start for start in self._starts if self._panes.last_end(start) <= over]:
            self._starts.discard(start)
            self._timed.discard(start)
            self._fresh.pop(start, None)
            self._clear(start)

    def _fire_all(self, windows: Iterable[TimeWindow]) -> None:
        panes: dict[int, list[pa.RecordBatch]] = {}
        ordered = sorted(self._starts)

        def parts_of(window: TimeWindow) -> list[pa.RecordBatch]:
            parts = []
            for start in _within(window, ordered):
                if start not in panes:
                    panes[start] = self._parts(start)
                parts += panes[start]
            return parts

        for some in _portions((window, parts_of(window)) for window in windows):
            if len(some) == 1:
                self._fire(some[0][0])
                continue
            fired = [window for window, _ in some]
            merged, numbers = self._partials.merged_apart([parts for _, parts in some], [start for start, _ in fired])
            starts, ends = (np.array(bounds, np.int64)[numbers] for bounds in zip(*fired))
            self._emit(self._partials.results(merged, starts, ends), ends)

    def _fire(self, window: TimeWindow) -> None:
        if self._stacks is None:
            merged = self._merged(window.start)
        else:
            merged = self._stacks.window(*window, sorted(self._starts))
        if merged is not None:
            self._emit(self._partials.results(merged, *window), window.end)

    def _merged(self, start: int) -> pa.RecordBatch | None:
        parts = self._parts(start)
        if len(parts) == 1 and start not in self._fresh:
            return parts[0]
        return self._partials.merged(parts, start) if parts else None

    def _parts(self, start: int) -> list[pa.RecordBatch]:
        return [*self._stored(start), *self._fresh.get(start, ())]

    def _fire_again(self) -> None:
        late, self._late = self._late, {}
        ordered = sorted(self._starts) if late else []
        for window, batches in late.items():
            parts = [part for start in _within(window, ordered) for part in self._parts(start)]
            late_parts = set(map(id, batches))
            marks = [id(part) in late_parts for part in parts]
            parts = self._partials.of_keys(parts, batches)
            merged, touched = self._partials.touched(parts, marks, window.start)
            self._emit(self._partials.results(merged.filter(pa.array(touched)), *window), window.end)


def _order(window: TimeWindow) -> tuple[int, int]:
    return window.end, window.start


def _within(window: TimeWindow, starts: Sequence[int]) -> Sequence[int]:
    return starts[bisect_left(starts, window.start) : bisect_left(starts, window.end)]


def _portions(
    parts: Iterable[tuple[T, Sequence[pa.RecordBatch]]],
) -> Iterator[list[tuple[T, Sequence[pa.RecordBatch]]]]:
    together: list[tuple[T, Sequence[pa.RecordBatch]]] = []
    total = 0
    for part in parts:
        rows = sum(batch.num_rows for batch in part[1])
        if together and (total + rows > _TOGETHER or rows > _ALONE):
            yield together
            together, total = [], 0
        if rows > _ALONE:
            yield [part]
        elif rows:
            together.append(part)
            total += rows
    if together:
        yield together
