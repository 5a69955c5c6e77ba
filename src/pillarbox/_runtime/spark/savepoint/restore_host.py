"""Converts a savepoint's tables to the new subtasks' state logs, in a query's first epoch.

Spark passes ``initialState`` rows by grouping key. Each subtask gets its rows of the tables as Arrow batches, then its
operator state.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessorHandle

from pillarbox._errors import CheckpointMismatchError
from pillarbox._operators.frame.spark_time import SparkTime
from pillarbox._rows import batch_from_bytes, batch_to_bytes
from pillarbox._runtime.savepoint_stores import as_it_is, classes_of
from pillarbox._runtime.shipping import ShippedVertex
from pillarbox._runtime.spark.failures import failures_in_worker
from pillarbox._runtime.spark.homes.relay import RelaySettings
from pillarbox._runtime.spark.rows.output import TaskOutput
from pillarbox._runtime.spark.tasks.level_tasks import short_lived
from pillarbox._runtime.spark.tasks.residency import loaded
from pillarbox._runtime.spark.tasks.task_info import TaskLayout
from pillarbox._runtime.spark.worker.task_host import TaskHost
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.savepoint.log_builder import build_log
from pillarbox._state.savepoint.manifest import FileDigest, OperatorTable
from pillarbox._state.savepoint.own_state import OwnState
from pillarbox._state.savepoint.table import Table

#: A level's state rows: subtask code (number), kind (0 for a share of the table, `COMMON`, `LAST`) and payload.
STATE_SCHEMA = "target LONG, number LONG, payload BINARY"
COMMON = 1
LAST = 2
_FIELDS = pa.schema([("target", pa.int64()), ("number", pa.int64()), ("payload", pa.binary())])

# Rows that are routed together.
_ROUTED_ROWS = 1 << 14
# A share is sent when it reaches the first size, all shares when they reach the second size.
_SHARE_BYTES = 2 * 1024 * 1024
_WAITING_BYTES = 32 * 1024 * 1024


class RestoreRouter:
    """Distributes an operator's table over the new subtasks. An input row has a file's path and content."""

    def __init__(
        self,
        table: OperatorTable,
        codes: list[int],
        max_parallelism: int,
        shipped: ShippedVertex,
        files: Mapping[str, FileDigest],
    ) -> None:
        self._table = table
        self._files = files
        self._codes = codes
        self._max_parallelism = max_parallelism
        self._shipped = shipped

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield each subtask's part of the savepoint in few large rows, because Spark is slow with small rows."""
        loads = classes_of(self._shipped.load())
        table = Table(self._table)
        shares = _Shares(self._codes)
        for batch in _rows_of_files(batches, self._files):
            for subtask, share in table.route(batch, len(self._codes), self._max_parallelism, loads):
                yield from shares.add(subtask, share)
        yield from shares.end()


class _Shares:
    def __init__(self, codes: list[int]) -> None:
        self._codes = codes
        self._waiting: defaultdict[int, list[pa.RecordBatch]] = defaultdict(list)
        self._bytes: Counter[int] = Counter()

    def add(self, subtask: int, share: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._waiting[subtask].append(share)
        self._bytes[subtask] += share.nbytes
        if self._bytes[subtask] >= _SHARE_BYTES:
            yield self._row(subtask)
        elif self._bytes.total() >= _WAITING_BYTES:
            yield from self.end()

    def end(self) -> Iterator[pa.RecordBatch]:
        for subtask in [*self._waiting]:
            yield self._row(subtask)

    def _row(self, subtask: int) -> pa.RecordBatch:
        del self._bytes[subtask]
        row = [self._codes[subtask]], [0], [batch_to_bytes(pa.concat_batches(self._waiting.pop(subtask)))]
        return pa.RecordBatch.from_arrays([pa.array(*column) for column in zip(row, _FIELDS.types)], schema=_FIELDS)


def _rows_of_files(batches: Iterable[pa.RecordBatch], digests: Mapping[str, FileDigest]) -> Iterator[pa.RecordBatch]:
    """Read the files' rows with Arrow, which is many times faster than Spark."""
    for batch in batches:
        for path, content in zip(batch.column("path").to_pylist(), batch.column("content")):
            digest = FileDigest(len(content.as_buffer()), hashlib.sha256(content.as_buffer()).hexdigest())
            if digest != digests.get(path.rsplit("/", 1)[1]):
                raise CheckpointMismatchError(
                    f"savepoint file {path} is damaged: restore it from a backup, or use another savepoint"
                )
            file = pq.ParquetFile(pa.BufferReader(content.as_buffer()), coerce_int96_timestamp_unit="us")
            yield from file.iter_batches(_ROUTED_ROWS)


class RestoringHost(TaskHost):
    """Restores the state of tasks, in an epoch without input."""

    def __init__(
        self,
        vertices: dict[int, ShippedVertex],
        layout: TaskLayout,
        output: TaskOutput,
        timers: bool,
        homes: RelaySettings,
        tables: dict[int, OperatorTable],
        spark_time: SparkTime | None = None,
    ) -> None:
        super().__init__(vertices, layout, output, timers, homes, spark_time)
        self._tables = tables

    def open(self, handle: StatefulProcessorHandle, chunks: MapState) -> None:
        super().open(handle, chunks)
        self._arrived: defaultdict[int, list[bytes]] = defaultdict(list)
        # State shared by several subtasks.
        self._common: dict[int, bytes] = {}

    def take_state(self, code: int, rows: pd.DataFrame, now: int, watermark: int) -> None:
        last: bytes | None = None
        for number, payload in zip(rows["number"], rows["payload"]):
            if number == LAST:
                last = bytes(payload)
            elif number == COMMON:
                self._common[code] = bytes(payload)
            else:
                self._arrived[code].append(bytes(payload))
        # Frees memory: Spark retains a subtask's frames until the last frame.
        rows.drop(rows.index, inplace=True)
        if last is not None:
            self._restore(code, last, watermark if self._follows_watermark else now)

    def _restore(self, code: int, last: bytes, now: int) -> None:
        address = self._decode(code)
        assert address is not None
        number, subtask = address
        shipped = self._vertices[number]
        with failures_in_worker(shipped.name, subtask):
            vertex = loaded(shipped, self._facts.layout)
            own: OwnState = pickle.loads(last)
            common = self._common.pop(code, None)
            if common is not None:
                own.row.update(pickle.loads(common))
            shares = (batch_from_bytes(payload) for payload in _drained(self._arrived.pop(code, [])))
            table, log = Table(self._tables[number]), MemoryChunkStore()
            build_log(log, table, vertex.log_identity(subtask), shares, own, as_it_is())
            # Detects state that does not fit. The query later creates its own tasks.
            with short_lived(vertex, subtask) as task:
                task.restore(log)
                wakes_up = task.next_wake_up
        for chunk, content in log.chunks.items():
            self._store.put(chunk, content)
        if self._timers and wakes_up is not None:
            # The timer fires in a later batch, because this batch's output is not used.
            self._handle.registerTimer(max(wakes_up, now + 1))


def _drained(payloads: list[bytes]) -> Iterator[bytes]:
    payloads.reverse()
    while payloads:
        yield payloads.pop()
