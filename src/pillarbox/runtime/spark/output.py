"""The end of the plan: buffers of an output become its typed columns; task metrics become rows beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pyarrow as pa

from pillarbox.elements import ArrowRecords, TaskReport, decode
from pillarbox.graph import REPORT_TARGET

__all__ = ["REPORT_COLUMN", "REPORT_SCHEMA", "OutputDecoder"]

REPORT_COLUMN = "__pillarbox_report"
REPORT_SCHEMA = (
    "vertex STRING, uid STRING, level INT, subtask INT, epoch LONG, records_in LONG, records_out LONG, buffers_in LONG,"
    " bytes_out LONG, busy_ms LONG, idle_ms LONG, back_pressured_ms LONG, state_ms LONG, alignment_ms LONG,"
    " watermark LONG, keys LONG, event_time_timers LONG, processing_time_timers LONG, state_bytes_written LONG,"
    " state_chunks LONG, state_sync STRING, mails LONG, counters MAP<STRING, LONG>"
)


class OutputDecoder:
    """The function for ``mapInArrow``: one output's columns, and a column with a task's metrics in JSON.

    A row has either the columns or the metrics.
    """

    def __init__(self, target: int, columns: pa.Schema) -> None:
        self._target = target
        self._columns = columns
        self._schema = pa.schema([*(field.with_nullable(True) for field in columns), (REPORT_COLUMN, pa.string())])

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode Arrow batches of buffers."""
        for batch in batches:
            for target, payload in zip(batch.column(0).to_pylist(), batch.column(3)):
                yield from self.decode(target, payload.as_py())

    def decode(self, target: int, payload: bytes) -> Iterator[pa.RecordBatch]:
        """Give a buffer's rows; those of other outputs are passed over."""
        if target == self._target:
            records = decode(payload)
            assert isinstance(records, ArrowRecords)
            rows = records.batch
            yield self._batch([*rows.columns, pa.nulls(rows.num_rows, pa.string())])
        elif target == REPORT_TARGET:
            report = decode(payload)
            assert isinstance(report, TaskReport)
            nothing = [pa.nulls(1, field.type) for field in self._columns]
            yield self._batch([*nothing, pa.array([json.dumps(report.values)], pa.string())])

    def _batch(self, columns: list[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
