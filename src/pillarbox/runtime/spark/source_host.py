"""Level 0 on Spark: a source's task in a partition of ``mapInArrow``."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator

import pyarrow as pa

from pillarbox.elements import ArrowRecords, Buffer, Records
from pillarbox.runtime.shipping import ShippedVertex
from pillarbox.runtime.spark import residency
from pillarbox.runtime.spark.failures import failures_in_worker

__all__ = ["BUFFER_SCHEMA", "SourceHost", "buffers_to_arrow"]

BUFFER_SCHEMA = "target LONG, channel LONG, seq LONG, payload BINARY"
_ARROW_SCHEMA = pa.schema(
    [("target", pa.int64()), ("channel", pa.int64()), ("seq", pa.int64()), ("payload", pa.binary())]
)


def buffers_to_arrow(buffers: list[Buffer]) -> pa.RecordBatch:
    """Return buffers as an Arrow batch."""
    columns = zip(*buffers)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, _ARROW_SCHEMA.types)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)


class SourceHost:
    """The function for ``mapInArrow``.

    Args:
        bounded: whether the DataFrame is a batch one: its end is the end of event time.
        columns: the names that the columns have for functions; None: rows are pickled records of a collection.
    """

    def __init__(self, shipped: ShippedVertex, *, bounded: bool, columns: list[str] | None) -> None:
        self._shipped = shipped
        self._bounded = bounded
        self._columns = columns

    def buffers(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[Buffer]]:
        """Run the epoch of this partition."""
        from pyspark import TaskContext

        context = TaskContext.get()
        batch_id = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        subtask = context.partitionId() if context is not None else 0
        with failures_in_worker(self._shipped.name, subtask):
            task = residency.here.source_task(self._shipped)
            try:
                yield from task.run_epoch(
                    self._records(batches),
                    subtask=subtask,
                    checkpoint_id=int(batch_id) if batch_id is not None else 0,
                    bounded=self._bounded,
                )
            except BaseException:
                residency.here.discard(task)
                raise

    def _records(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Records]:
        for batch in batches:
            if self._columns is None:
                yield Records([pickle.loads(value) for value in batch.column(0).to_pylist()])
            elif batch.num_rows:
                yield ArrowRecords(batch.rename_columns(self._columns))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the epoch of this partition, buffers as Arrow batches."""
        for buffers in self.buffers(batches):
            if buffers:
                yield buffers_to_arrow(buffers)
