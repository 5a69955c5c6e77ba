"""Aggregates rows before the shuffle, per key and pane (slice of time) or session."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._errors import OperatorError
from pillarbox._operators.columnar.partials import Partials
from pillarbox._operators.columnar.program import ColumnarProgram, times_of_run
from pillarbox._operators.frame.gathering import GatheringOperator
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.windowing.api.session_windows import EventTimeSessionWindows
from pillarbox._operators.windowing.panes import panes_of
from pillarbox._time.timestamp_assigner import MAX_WATERMARK

_ROWS = 1 << 19
_BYTES = 64 * 1024 * 1024
_PIECE = 1 << 16
# The last millisecond of a TIMESTAMP, which counts microseconds in 64 bits.
_MOST = (2**63 - 1) // 1000


class PreAggregateOperator(GatheringOperator):
    """Buffers an epoch's rows, and emits partial results."""

    def __init__(self, context: OperatorContext, program: ColumnarProgram) -> None:
        super().__init__(context)
        self._program = program
        self._partials = Partials(program.columns, context.name)
        self._panes = panes_of(program.assigner)
        self._buffered: list[tuple[Mapping[str, pa.Array], npt.NDArray[np.int64]]] = []
        self._rows = 0
        self._bytes = 0
        self._watermark: int | None = None
        assigner = program.assigner
        longest = assigner.gap if isinstance(assigner, EventTimeSessionWindows) else 0
        # The largest absolute time whose window bounds are valid TIMESTAMPs.
        self._farthest = _MOST - (longest if self._panes is None else self._panes.longest)

    def process_records(self, records: Records) -> None:
        if not len(records):
            return
        times = times_of_run(records, type(self._program.assigner).__name__, "the window")
        columns = self._program.columns_of(records, self.name)
        self._buffered.append((columns, times))
        self._rows += len(times)
        self._bytes += times.nbytes + sum(column.nbytes for column in columns.values())
        if self._rows >= _ROWS or self._bytes >= _BYTES:
            self.work_off()

    def work_off(self) -> None:
        if self._buffered:
            buffered, self._buffered = self._buffered, []
            self._rows = self._bytes = 0
            times = np.concatenate([times for _, times in buffered])
            self._check(times)
            names = buffered[0][0]
            columns = {name: pa.concat_arrays([columns[name] for columns, _ in buffered]) for name in names}
            batch, stamps = self._by_sessions(columns, times) if self._panes is None else self._by_panes(columns, times)
            for at in range(0, batch.num_rows, _PIECE):
                piece = stamps if stamps is None else stamps[at : at + _PIECE]
                self.output.process_records(ArrowRecords(batch.slice(at, _PIECE), piece))
        if self._watermark is not None:
            watermark, self._watermark = self._watermark, None
            super().process_watermark(watermark)

    def _check(self, times: npt.NDArray[np.int64]) -> None:
        for time in (int(times.min()), int(times.max())):
            if abs(time) > self._farthest:
                error = OperatorError(
                    f"operator {self.name!r}: a row has the time {time} (epoch ms), so the bounds of its windows"
                    f" ({self._program.assigner!r}) are no valid TIMESTAMPs: are the times in milliseconds?"
                )
                error.at(operator=self.name)
                raise error

    def _by_panes(
        self, columns: Mapping[str, pa.Array], times: npt.NDArray[np.int64]
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.int64] | None]:
        assert self._panes is not None
        outside = self._panes.outside(times)
        if outside is not None and outside.any():
            inside = pa.array(~outside)
            columns = {name: column.filter(inside) for name, column in columns.items()}
            times = times[~outside]
        if not len(times):
            return pa.RecordBatch.from_pylist([], schema=self._partials.schema), times
        batch, starts = self._partials.of_rows(columns, times, self._panes.starts(times))
        if (starts[1:] < starts[:-1]).any():
            order = np.argsort(starts, kind="stable")
            return batch.take(pa.array(order)), starts[order]
        return batch, starts

    def _by_sessions(
        self, columns: Mapping[str, pa.Array], times: npt.NDArray[np.int64]
    ) -> tuple[pa.RecordBatch, None]:
        assert isinstance(self._program.assigner, EventTimeSessionWindows)
        gap = self._program.assigner.gap
        order, keys = self._partials.by_key(columns)
        ordered = times[order]
        same = keys[1:] == keys[:-1]
        if (same & (ordered[1:] < ordered[:-1])).any():
            resort = np.lexsort((ordered, keys))
            order, ordered = order[resort], ordered[resort]
        # Rows exactly one gap apart belong to one session.
        new = np.ones(len(ordered), np.bool_)
        new[1:] = ~(same & (ordered[1:] - ordered[:-1] <= gap))
        starts = np.empty(len(times), np.int64)
        starts[order] = ordered[new][np.cumsum(new) - 1]
        return self._partials.of_rows(columns, times, starts, times + gap)[0], None

    def process_watermark(self, timestamp: int) -> None:
        self._watermark = timestamp
        if not self._buffered or timestamp == MAX_WATERMARK:
            self.work_off()
