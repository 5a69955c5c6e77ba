"""Runs the tasks after a shuffle in batch mode, in partitions of ``mapInArrow``.

A batch is a single epoch, so no state is stored. A task is closed after its subtask's rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter

import numpy as np
import pyarrow as pa

from pillarbox._elements.buffers import Buffer
from pillarbox._operators.frame.spark_time import SparkMicroBatch
from pillarbox._runtime.shipping import ShippedVertex
from pillarbox._runtime.spark.failures import failures_in_worker
from pillarbox._runtime.spark.rows.buffer_rows import BUFFER_COLUMNS, BufferRows
from pillarbox._runtime.spark.rows.output import TaskOutput
from pillarbox._runtime.spark.tasks.level_tasks import short_lived
from pillarbox._runtime.spark.worker.worker_sockets import acknowledge_at_once


class BatchTaskHost:
    """The function for ``mapInArrow``. Its partitions contain buffers, ordered by target."""

    def __init__(
        self, vertices: dict[int, ShippedVertex], addresses: dict[int, tuple[int, int]], output: TaskOutput
    ) -> None:
        self._vertices = vertices
        self._addresses = addresses
        self._output = output

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        acknowledge_at_once()
        for buffers in self._buffers(batches):
            yield from self._output(buffers)

    def _buffers(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[Buffer]]:
        for code, portions in groupby(_portions(batches), key=itemgetter(0)):
            arrived = (buffers for _, buffers in portions)
            if code in self._addresses:
                yield from self._run(code, arrived)
            else:
                yield from arrived

    def _run(self, code: int, arrived: Iterator[list[Buffer]]) -> Iterator[list[Buffer]]:
        number, subtask = self._addresses[code]
        shipped = self._vertices[number]
        with failures_in_worker(shipped.name, subtask), short_lived(shipped.load(), subtask) as task:
            task.restore(None)
            task.chain.set_micro_batch(SparkMicroBatch(None, time.time_ns() // 1_000_000, -1))
            for buffers in task.run_epoch(arrived, None):
                yield buffers
                if task.is_satisfied:
                    task.cancel()
                    return


def _portions(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, list[Buffer]]]:
    rows = BufferRows()
    for batch in batches:
        targets = batch.column(0).to_numpy()
        breaks = np.flatnonzero(np.diff(targets)) + 1
        for start, end in zip([0, *breaks.tolist()], [*breaks.tolist(), len(targets)]):
            columns = [batch.column(index).slice(start, end - start) for index in range(len(BUFFER_COLUMNS))]
            for run in rows.portions([*(column.to_pylist() for column in columns[:-1]), _bytes_of(columns[-1])]):
                yield run[0].target, run
    rows.end()


def _bytes_of(payloads: pa.Array) -> Iterator[bytes]:
    return (payload.as_py() for payload in payloads)
