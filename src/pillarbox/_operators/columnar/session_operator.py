"""Sessions of columns: partial sessions of a key that overlap or touch are merged, by sorting.

In memory there is one batch of all open sessions; an epoch merges the sessions of the keys that came. In the state,
all lies at one place: each epoch adds the sessions that it changed, as they are now. So the latest of those that
overlap holds; and where one is over, by the watermark, it has been removed. When there are many more rows than open
sessions, these take their place. There are no timers: with each watermark all sessions are looked at, as columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pillarbox._elements import ArrowRecords, Records
from pillarbox._operators.columnar.columnar_operator import ColumnarOperator
from pillarbox._operators.columnar.partials import END, START
from pillarbox._operators.columnar.program import ColumnarProgram
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._time.timestamps import MIN_TIMESTAMP

_PLACE = "sessions"
# Open sessions take the place of what was added when that is twice as many rows and this, or so many batches.
_SLACK = 1 << 13
_MOST = 256
# They are kept in batches of this many.
_PIECE = 1 << 16

_Masks = npt.NDArray[np.bool_]
_Numbers = npt.NDArray[np.int64]


class ColumnarSessionOperator(ColumnarOperator):
    """Sessions of event time with one gap for all."""

    def __init__(self, context: OperatorContext, keying: Keying, program: ColumnarProgram) -> None:
        super().__init__(context, keying, program)
        self._open: pa.RecordBatch | None = None
        self._came: list[pa.RecordBatch] = []
        # The sessions that this epoch changed, as they became; and how many rows are kept.
        self._changed: list[pa.RecordBatch] = []
        self._rows = 0
        self._fired = MIN_TIMESTAMP

    def process_records(self, records: Records) -> None:
        """Take partial sessions."""
        assert isinstance(records, ArrowRecords)
        if len(records):
            self._came.append(records.batch)

    def process_watermark(self, timestamp: int) -> None:
        """Merge what came, fire the sessions that end, and hand the watermark on."""
        self._absorb()
        self._sessions()  # those that are not over by the watermark so far
        self._fired = self._timers.current_watermark
        super().process_watermark(timestamp)

    def flush(self) -> None:
        """Fire the sessions that have ended by the watermark that has come."""
        watermark = self._timers.current_watermark
        sessions = self._sessions()
        last = _column(sessions, END) - 1
        self._fire(sessions, (last > self._fired) & (last <= watermark))
        self._open = _chosen(sessions, ~self._over(sessions, watermark))

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Merge what came, and keep the sessions that changed."""
        self._absorb()
        if not self._changed:
            return
        sessions = self._sessions()
        changed, self._changed = _together(self._changed), []
        changed = _chosen(changed, ~self._over(changed, self._timers.current_watermark))
        if not changed.num_rows:
            return
        self._rows += changed.num_rows
        if self._rows > 2 * sessions.num_rows + _SLACK or len(self._state.at(_PLACE).keys()) >= _MOST:
            self._clear(_PLACE)
            self._rows = sessions.num_rows
            changed = sessions
        self._append(_PLACE, [changed.slice(at, _PIECE) for at in range(0, changed.num_rows, _PIECE)])

    def _sessions(self) -> pa.RecordBatch:
        """Return the sessions that are open: not over, by the watermark."""
        if self._open is None:
            self._open = self._restored(self._kept(_PLACE))
        return self._open

    def _over(self, sessions: pa.RecordBatch, watermark: int) -> _Masks:
        """Return which sessions are over, beyond the allowed lateness."""
        # (The sum of an end and a lateness may have more than 64 bits.)
        over: _Masks = _column(sessions, END) - 1 <= max(watermark - self._lateness, MIN_TIMESTAMP)
        return over

    def _fire(self, sessions: pa.RecordBatch, chosen: _Masks) -> None:
        fired = _chosen(sessions, chosen)
        ends = _column(fired, END)
        self._emit(self._partials.results(fired, _column(fired, START), ends), ends)

    # -- merging --

    def _absorb(self) -> None:
        """Merge what came into the open sessions; those that have ended already fire at once."""
        if not self._came:
            return
        came = _together(self._came)
        self._came = []
        watermark = self._timers.current_watermark
        # Sessions of other keys stay as they are.
        sessions, rest = self._partials.apart(self._sessions(), came)
        both = _together([sessions, came])
        marks = np.arange(both.num_rows) >= sessions.num_rows
        merged, touched = self._partials.merged_by(both, self._numbered(both), marks)
        over = self._over(merged, watermark)
        # (No open session is over, so all that is in such came too late.)
        self._drop(_chosen(merged, over))
        self._changed.append(_chosen(merged, touched & ~over))
        ended = _column(merged, END) - 1 <= watermark
        self._fire(merged, touched & ended & ~over)
        self._open = _together([rest, _chosen(merged, ~over)])

    def _numbered(self, sessions: pa.RecordBatch) -> _Numbers:
        """Return the number of the merged session that each partial one belongs to."""
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

    def _restored(self, kept: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """Return the sessions that are open, of all that were kept one after the other."""
        self._rows = sum(batch.num_rows for batch in kept)
        if not kept:
            return self._nothing()
        found = _together(kept)
        # Of those that are not over, all that overlap were one session when the latest of them was kept.
        found = _chosen(found, ~self._over(found, self._timers.current_watermark))
        numbers = self._numbered(found)
        latest = np.zeros(len(numbers), np.int64)
        latest[numbers] = np.arange(len(numbers))
        return found.take(pa.array(latest[: int(numbers.max(initial=-1)) + 1]))

    def _nothing(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], schema=self._partials.schema)


def _column(sessions: pa.RecordBatch, name: str) -> _Numbers:
    numbers: _Numbers = sessions.column(sessions.schema.get_field_index(name)).to_numpy()
    return numbers


def _chosen(batch: pa.RecordBatch, chosen: _Masks) -> pa.RecordBatch:
    return batch if chosen.all() else batch.filter(pa.array(chosen))


def _together(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return batches as one."""
    filled = [batch for batch in batches if batch.num_rows] or batches[:1]
    return filled[0] if len(filled) == 1 else pa.concat_batches(filled)


def _running_maximum(keys: _Numbers, values: _Numbers) -> _Numbers:
    """Return the greatest value so far of each key; ``keys`` ascend from 0 on."""
    if not len(values):
        return values
    least = int(values.min())
    span = int(values.max()) - least + 1
    if (int(keys[-1]) + 1) * span < 2**62:
        return np.maximum.accumulate(values - least + keys * span) - keys * span + least
    ranked, ranks = np.unique(values, return_inverse=True)
    found: _Numbers = ranked[np.maximum.accumulate(ranks + keys * len(ranked)) - keys * len(ranked)]
    return found
