"""Columnar session windows, which merge a key's partial sessions that overlap or touch.

All open sessions are in one batch in memory. Each epoch appends the changed sessions to the state. A later session
replaces the stored sessions that it overlaps. There are no timers: each watermark checks all sessions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._operators.columnar.columnar_operator import ColumnarOperator
from pillarbox._operators.columnar.partials import END, START
from pillarbox._operators.columnar.program import ColumnarProgram
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._time.timestamp_assigner import MIN_TIMESTAMP

_ADDRESS = "sessions"
# The state is rewritten when its rows exceed twice the open sessions plus _SLACK, or its batches reach _MOST.
_SLACK = 1 << 13
_MOST = 256
_PIECE = 1 << 16

_Masks = npt.NDArray[np.bool_]
_Numbers = npt.NDArray[np.int64]


class ColumnarSessionOperator(ColumnarOperator):
    """The operator of columnar event-time sessions with a fixed gap."""

    def __init__(self, context: OperatorContext, keying: Keying, program: ColumnarProgram) -> None:
        super().__init__(context, keying, program)
        self._open: pa.RecordBatch | None = None
        self._arrived: list[pa.RecordBatch] = []
        self._changed: list[pa.RecordBatch] = []
        self._rows = 0
        self._fired = MIN_TIMESTAMP

    def process_records(self, records: Records) -> None:
        assert isinstance(records, ArrowRecords)
        if len(records):
            self._arrived.append(records.batch)

    def process_watermark(self, timestamp: int) -> None:
        self._absorb()
        self._sessions()
        self._fired = self._timers.current_watermark
        super().process_watermark(timestamp)

    def flush(self) -> None:
        watermark = self._timers.current_watermark
        sessions = self._sessions()
        last = _column(sessions, END) - 1
        self._fire(sessions, (last > self._fired) & (last <= watermark))
        self._open = _chosen(sessions, ~self._over(sessions, watermark))

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        self._absorb()
        if not self._changed:
            return
        sessions = self._sessions()
        changed, self._changed = _together(self._changed), []
        changed = _chosen(changed, ~self._over(changed, self._timers.current_watermark))
        if not changed.num_rows:
            return
        self._rows += changed.num_rows
        if self._rows > 2 * sessions.num_rows + _SLACK or len(self._state.at(_ADDRESS).keys()) >= _MOST:
            self._clear(_ADDRESS)
            self._rows = sessions.num_rows
            changed = sessions
        self._append(_ADDRESS, [changed.slice(at, _PIECE) for at in range(0, changed.num_rows, _PIECE)])

    def _sessions(self) -> pa.RecordBatch:
        if self._open is None:
            self._open = self._restored(self._stored(_ADDRESS))
        return self._open

    def _over(self, sessions: pa.RecordBatch, watermark: int) -> _Masks:
        # Not end + lateness, which might exceed 64 bits.
        over: _Masks = _column(sessions, END) - 1 <= max(watermark - self._lateness, MIN_TIMESTAMP)
        return over

    def _fire(self, sessions: pa.RecordBatch, chosen: _Masks) -> None:
        fired = _chosen(sessions, chosen)
        ends = _column(fired, END)
        self._emit(self._partials.results(fired, _column(fired, START), ends), ends)

    def _absorb(self) -> None:
        if not self._arrived:
            return
        arrived = _together(self._arrived)
        self._arrived = []
        watermark = self._timers.current_watermark
        sessions, rest = self._partials.split(self._sessions(), arrived)
        both = _together([sessions, arrived])
        marks = np.arange(both.num_rows) >= sessions.num_rows
        merged, touched = self._partials.merged_by(both, self._numbered(both), marks)
        over = self._over(merged, watermark)
        # Stored sessions are not over, so a merged session that is over contains only late rows.
        self._drop(_chosen(merged, over))
        self._changed.append(_chosen(merged, touched & ~over))
        ended = _column(merged, END) - 1 <= watermark
        self._fire(merged, touched & ended & ~over)
        self._open = _together([rest, _chosen(merged, ~over)])

    def _numbered(self, sessions: pa.RecordBatch) -> _Numbers:
        order, keys = self._partials.by_key(dict(zip(sessions.schema.names, sessions.columns)))
        starts, ends = _column(sessions, START)[order], _column(sessions, END)[order]
        resort = np.lexsort((starts, keys))
        order, starts, ends = order[resort], starts[resort], ends[resort]
        covered = _running_maximum(keys, ends)
        new = np.ones(len(order), np.bool_)
        new[1:] = (keys[1:] != keys[:-1]) | (starts[1:] > covered[:-1])
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.cumsum(new) - 1
        return numbers

    def _restored(self, stored: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        self._rows = sum(batch.num_rows for batch in stored)
        if not stored:
            return self._nothing()
        sessions = _together(stored)
        # Of overlapping open sessions, only the last is valid, because they had merged when it was stored.
        sessions = _chosen(sessions, ~self._over(sessions, self._timers.current_watermark))
        numbers = self._numbered(sessions)
        latest = np.zeros(len(numbers), np.int64)
        latest[numbers] = np.arange(len(numbers))
        return sessions.take(pa.array(latest[: int(numbers.max(initial=-1)) + 1]))

    def _nothing(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], schema=self._partials.schema)


def _column(sessions: pa.RecordBatch, name: str) -> _Numbers:
    numbers: _Numbers = sessions.column(sessions.schema.get_field_index(name)).to_numpy()
    return numbers


def _chosen(batch: pa.RecordBatch, chosen: _Masks) -> pa.RecordBatch:
    return batch if chosen.all() else batch.filter(pa.array(chosen))


def _together(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    filled = [batch for batch in batches if batch.num_rows] or batches[:1]
    return filled[0] if len(filled) == 1 else pa.concat_batches(filled)


def _running_maximum(keys: _Numbers, values: _Numbers) -> _Numbers:
    if not len(values):
        return values
    least = int(values.min())
    span = int(values.max()) - least + 1
    if (int(keys[-1]) + 1) * span < 2**62:
        return np.maximum.accumulate(values - least + keys * span) - keys * span + least
    ranked, ranks = np.unique(values, return_inverse=True)
    maximum: _Numbers = ranked[np.maximum.accumulate(ranks + keys * len(ranked)) - keys * len(ranked)]
    return maximum
