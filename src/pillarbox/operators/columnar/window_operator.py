"""Tumbling, sliding and cumulating windows of columns: partial results are kept for each pane, and merged for a window.

The place of a pane's partial results is its start. Windows have timers, under their bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from pillarbox.elements import ArrowRecords, Records
from pillarbox.operators.columnar.columnar_operator import ColumnarOperator
from pillarbox.operators.columnar.panes import TumblingPanes, columnar_panes
from pillarbox.operators.columnar.program import ColumnarProgram
from pillarbox.operators.keys import Keying
from pillarbox.operators.operator import OperatorContext
from pillarbox.operators.windowing.two_stacks import TwoStacks
from pillarbox.operators.windowing.windows import TimeWindow
from pillarbox.time.timestamps import MAX_WATERMARK

__all__ = ["ColumnarWindowOperator"]


class ColumnarWindowOperator(ColumnarOperator):
    """Windows that consist of panes."""

    def __init__(self, context: OperatorContext, keying: Keying, program: ColumnarProgram) -> None:
        super().__init__(context, keying, program)
        panes = columnar_panes(program.assigner)
        assert panes is not None
        self._panes = panes
        # The starts of panes that have partial results; those of this epoch; and what came for windows that have fired.
        self._starts: set[int] = set()
        self._fresh: dict[int, list[pa.RecordBatch]] = {}
        self._late: dict[TimeWindow, list[pa.RecordBatch]] = {}
        self._stacks = self._new_stacks()

    def _new_stacks(self) -> TwoStacks | None:
        """Return the merged panes of the windows to come; tumbling windows need none."""
        if isinstance(self._panes, TumblingPanes):
            return None

        def merge(one: pa.RecordBatch, other: pa.RecordBatch) -> pa.RecordBatch:
            return self._partials.merged([one, other], None)

        return TwoStacks(merge, self._merged, lambda batch: batch)

    def restore_state(self, state: Any) -> None:
        """Begin with what is kept."""
        super().restore_state(state)
        self._starts = {place for place in self._places() if isinstance(place, int)}
        self._fresh = {}
        self._late = {}
        self._stacks = self._new_stacks()

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
        if self._cleanup_time(self._panes.last_end(start)) <= watermark:
            self._drop(batch)
            return
        self._fresh.setdefault(start, []).append(batch)
        self._starts.add(start)
        if self._stacks is not None and self._stacks.end is not None and start < self._stacks.end:
            self._stacks = self._new_stacks()
        for window in self._windows(start):
            if self._cleanup_time(window.end) > watermark:
                if window.end - 1 <= watermark:
                    self._late.setdefault(window, []).append(batch)
                self._register(window)

    def _windows(self, start: int) -> Iterator[TimeWindow]:
        """Return the windows that a pane is in."""
        end, last = self._panes.end_after(start), self._panes.last_end(start)
        while end <= last:
            yield TimeWindow(self._panes.window_start(end), end)
            end = self._panes.end_after(end)

    def _cleanup_time(self, end: int) -> int:
        return min(end - 1 + self._lateness, MAX_WATERMARK)

    def _register(self, window: TimeWindow) -> None:
        namespace = tuple(window)
        self.backend.select(self._home, namespace)
        if window.end - 1 > self._timers.current_watermark:
            self._timers.register_event_time_timer(namespace, window.end - 1)
        if self._lateness:
            self._timers.register_event_time_timer(namespace, self._cleanup_time(window.end))

    # -- firing --

    def process_watermark(self, timestamp: int) -> None:
        """Fire windows again that late records came for; then those that end, and hand the watermark on."""
        self._fire_again()
        super().process_watermark(timestamp)

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Fire windows again that late records came for, and keep what came."""
        self._fire_again()
        for start, batches in self._fresh.items():
            self._keep(start, self._partials.merged(batches, start), start)
        self._fresh = {}

    def on_event_time(self, timestamp: int, namespace: Any) -> None:
        """Fire the window, or clean up, or both."""
        window = TimeWindow(*namespace)
        if timestamp == window.end - 1:
            if self._stacks is None:
                merged = self._merged(window.start)
            else:
                merged = self._stacks.window(*window, sorted(self._starts))
            if merged is not None:
                self._emit(self._partials.results(merged, *window), window.end)
        if timestamp == self._cleanup_time(window.end):
            for start in [start for start in self._starts if self._panes.last_end(start) <= window.end]:
                self._starts.discard(start)
                self._fresh.pop(start, None)
                self._clear(start)

    def _merged(self, start: int) -> pa.RecordBatch | None:
        """Return the partial results of a pane as one for each key; None where there are none."""
        parts = self._parts(start)
        if len(parts) == 1 and start not in self._fresh:
            return parts[0]  # what is kept together has been merged
        return self._partials.merged(parts, start) if parts else None

    def _parts(self, start: int) -> list[pa.RecordBatch]:
        return [*self._kept(start), *self._fresh.get(start, ())]

    def _fire_again(self) -> None:
        """Fire windows that have fired: the keys of the records that came since."""
        late, self._late = self._late, {}
        for window, batches in late.items():
            starts = sorted(start for start in self._starts if window.start <= start < window.end)
            parts = [part for start in starts for part in self._parts(start)]
            came = set(map(id, batches))
            merged, touched = self._partials.touched(parts, [id(part) in came for part in parts], window.start)
            self._emit(self._partials.results(merged.filter(pa.array(touched)), *window), window.end)
