"""Converts tasks' output to Arrow batches for Spark.

A row with a task's metrics sets only the metrics column.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

import pyarrow as pa

from pillarbox._elements.buffers import Buffer, decode
from pillarbox._elements.records import ArrowRecords
from pillarbox._elements.task_report import TaskReport, text_of_report
from pillarbox._rows import batch_of
from pillarbox._runtime.spark.rows.buffer_rows import BUFFER_COLUMNS, as_rows, in_portions
from pillarbox._task.vertex import REPORT_TARGET

# Column with the batch's time, because Spark passes the time only to levels with timers.
BATCH_TIMESTAMP = "batch_timestamp"


class TaskOutput(ABC):
    """Converts a task's output to Arrow batches, in a worker."""

    def __call__(self, buffers: Iterable[Buffer]) -> Iterator[pa.RecordBatch]:
        # Each Arrow batch has a cost, so batches contain many buffers.
        for portion in in_portions(buffers):
            yield from self._batches(portion)

    @abstractmethod
    def _batches(self, buffers: list[Buffer]) -> Iterator[pa.RecordBatch]: ...


class BufferOutput(TaskOutput):
    """Converts buffers to rows, for the tasks after the next shuffle."""

    def __init__(self, report: str | None) -> None:
        self._has_reports = report is not None
        self._names = [*BUFFER_COLUMNS] if report is None else [*BUFFER_COLUMNS, report]

    def _batches(self, buffers: list[Buffer]) -> Iterator[pa.RecordBatch]:
        sent = [buffer for buffer in buffers if buffer.target != REPORT_TARGET]
        reports = pa.array(list(_reports(buffers)) if self._has_reports else [], pa.string())
        if not sent and not len(reports):
            return
        columns = as_rows(sent)
        if self._has_reports:
            reports = pa.concat_arrays([pa.nulls(len(columns[0]), pa.string()), reports])
            if (more := len(reports) - len(columns[0])) > 0:
                columns = [pa.concat_arrays([column, pa.nulls(more, column.type)]) for column in columns]
            columns.append(reports)
        yield pa.RecordBatch.from_arrays(columns, names=self._names)


class ColumnOutput(TaskOutput):
    """Converts output records to typed columns.

    If there is only one output, its columns are top-level; otherwise, each output is a struct column.

    Args:
        outputs: (name, columns) of each output, by target number.
    """

    def __init__(self, outputs: dict[int, tuple[str, pa.Schema]], report: str | None) -> None:
        self._report = report
        self._outputs = outputs
        self._nested = len(outputs) > 1
        fields: list[pa.Field] = []
        for name, columns in outputs.values():
            nullable = [field.with_nullable(True) for field in columns]
            fields += [pa.field(name, pa.struct(nullable))] if self._nested else nullable
        self._schema = pa.schema(fields if report is None else [*fields, (report, pa.string())])

    def _batches(self, buffers: list[Buffer]) -> Iterator[pa.RecordBatch]:
        batches = [self._decoded(buffer) for buffer in buffers if buffer.target in self._outputs]
        if self._report is not None:
            reports = pa.array(list(_reports(buffers)), pa.string())
            if len(reports):
                batches.append(batch_of(self._schema, len(reports), {self._report: reports}))
        if len(batches) > 1:
            batches = pa.Table.from_batches(batches).combine_chunks().to_batches()
        yield from batches

    def _decoded(self, buffer: Buffer) -> pa.RecordBatch:
        records = decode(buffer.payload)
        assert isinstance(records, ArrowRecords)
        rows = records.batch
        columns = dict(zip(rows.schema.names, rows.columns))
        if self._nested:
            name = self._outputs[buffer.target][0]
            kind = self._schema.field(name).type
            columns = {name: pa.StructArray.from_arrays(rows.columns, fields=list(kind))}
        return batch_of(self._schema, rows.num_rows, columns)


def _reports(buffers: Iterable[Buffer]) -> Iterator[str]:
    for buffer in buffers:
        if buffer.target == REPORT_TARGET:
            report = decode(buffer.payload)
            assert isinstance(report, TaskReport)
            yield text_of_report(report)
