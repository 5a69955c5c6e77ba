"""The first epoch of a query that starts from a savepoint: the tables become the logs of the new subtasks.

Spark hands the rows of ``initialState`` to a stateful operator in its first micro-batch, by grouping key. Here they
are Arrow batches of an operator's table, each the share of one subtask, and after them what the subtask keeps besides.
When that has come, all has: the subtask's log is written, and its task restored from it, as at any cold start. So what
does not fit the program is found before the query's own first epoch.
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
from pillarbox._operators.frame.operator import SparkTime
from pillarbox._rows import batch_from_bytes, batch_to_bytes
from pillarbox._runtime.savepoint_stores import as_it_is, classes_of
from pillarbox._runtime.shipping import ShippedVertex
from pillarbox._runtime.spark.failures import failures_in_worker
from pillarbox._runtime.spark.homes.relay import Homes
from pillarbox._runtime.spark.rows.output import Output
from pillarbox._runtime.spark.tasks.level_tasks import short_lived
from pillarbox._runtime.spark.tasks.residency import loaded
from pillarbox._runtime.spark.tasks.task_facts import ProgramLayout
from pillarbox._runtime.spark.worker.task_host import TaskHost
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.savepoint.log_builder import build_log
from pillarbox._state.savepoint.manifest import FileDigest, OperatorTable
from pillarbox._state.savepoint.own_state import OwnState
from pillarbox._state.savepoint.table import Table

#: Rows of state on their way into a level, which come in the order of their numbers: the subtask's code; shares of its
#: table (0), what it has in common with other subtasks, or the last row; pickled.
STATE_SCHEMA = "target LONG, number LONG, payload BINARY"
COMMON = 1
LAST = 2
_FIELDS = pa.schema([("target", pa.int64()), ("number", pa.int64()), ("payload", pa.binary())])

# So many rows of a file are routed together.
_ROUTED_ROWS = 1 << 14
# A subtask's share is sent at this many bytes; all shares are sent when together they have reached the second number.
_SHARE_BYTES = 2 * 1024 * 1024
_WAITING_BYTES = 32 * 1024 * 1024


class Router:
    """Deals out the rows of an operator's table to the new subtasks: from its files, each a row of path and content.

    Args:
        codes: the code of each of them.
        shipped: their vertex, with the classes that keys may be of.
        files: what each file of the table has to be, by its name.
    """

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
        """Return the shares of all subtasks: few of them and large, as each is a row for Spark."""
        loads = classes_of(self._shipped.load())
        table = Table(self._table)
        shares = _Shares(self._codes)
        for batch in _rows_of_files(batches, self._files):
            for subtask, share in table.route(batch, len(self._codes), self._max_parallelism, loads):
                yield from shares.add(subtask, share)
        yield from shares.end()


class _Shares:
    """The shares of subtasks, which wait until they are large."""

    def __init__(self, codes: list[int]) -> None:
        self._codes = codes
        self._waiting: defaultdict[int, list[pa.RecordBatch]] = defaultdict(list)
        self._bytes: Counter[int] = Counter()

    def add(self, subtask: int, share: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take a share, and return what is to be sent."""
        self._waiting[subtask].append(share)
        self._bytes[subtask] += share.nbytes
        if self._bytes[subtask] >= _SHARE_BYTES:
            yield self._taken(subtask)
        elif self._bytes.total() >= _WAITING_BYTES:
            yield from self.end()

    def end(self) -> Iterator[pa.RecordBatch]:
        """Return all shares that wait."""
        for subtask in [*self._waiting]:
            yield self._taken(subtask)

    def _taken(self, subtask: int) -> pa.RecordBatch:
        del self._bytes[subtask]
        row = [self._codes[subtask]], [0], [batch_to_bytes(pa.concat_batches(self._waiting.pop(subtask)))]
        return pa.RecordBatch.from_arrays([pa.array(*each) for each in zip(row, _FIELDS.types)], schema=_FIELDS)


def _rows_of_files(batches: Iterable[pa.RecordBatch], wanted: Mapping[str, FileDigest]) -> Iterator[pa.RecordBatch]:
    """Return the rows of files: Arrow reads them many times as fast as Spark, which makes a row of each.

    Raises:
        CheckpointMismatchError: a file is not as it was written.
    """
    for batch in batches:
        for path, content in zip(batch.column("path").to_pylist(), batch.column("content")):
            found = FileDigest(len(content.as_buffer()), hashlib.sha256(content.as_buffer()).hexdigest())
            if found != wanted.get(path.rsplit("/", 1)[1]):
                raise CheckpointMismatchError(f"the file {path} of the savepoint is not as it was written")
            file = pq.ParquetFile(pa.BufferReader(content.as_buffer()), coerce_int96_timestamp_unit="us")
            yield from file.iter_batches(_ROUTED_ROWS)


class RestoringHost(TaskHost):
    """Runs the subtasks of one level in the first epoch, which has no input.

    Args:
        tables: by the number of the vertex, the table that its subtasks take, with the slots that these have.
    """

    def __init__(
        self,
        vertices: dict[int, ShippedVertex],
        layout: ProgramLayout,
        output: Output,
        timers: bool,
        homes: Homes,
        tables: dict[int, OperatorTable],
        spark_time: SparkTime | None = None,
    ) -> None:
        super().__init__(vertices, layout, output, timers, homes, spark_time)
        self._tables = tables

    def open(self, handle: StatefulProcessorHandle, chunks: MapState) -> None:
        """Take the state of the partition's grouping keys."""
        super().open(handle, chunks)
        self._arrived: defaultdict[int, list[bytes]] = defaultdict(list)
        # The state that a subtask has in common with others, by its code.
        self._common: dict[int, bytes] = {}

    def take_state(self, code: int, rows: pd.DataFrame, now: int, watermark: int) -> None:
        """Take rows of a subtask's state, which may come in any number of frames."""
        last: bytes | None = None
        for number, payload in zip(rows["number"], rows["payload"]):
            if number == LAST:
                last = bytes(payload)
            elif number == COMMON:
                self._common[code] = bytes(payload)
            else:
                self._arrived[code].append(bytes(payload))
        # Spark keeps the frames of a subtask until all of them have been here.
        rows.drop(rows.index, inplace=True)
        if last is not None:
            self._restore(code, last, watermark if self._follows_watermark else now)

    def _restore(self, code: int, last: bytes, now: int) -> None:
        place = self._place(code)
        assert place is not None
        number, subtask = place
        shipped = self._vertices[number]
        with failures_in_worker(shipped.name, subtask):
            vertex = loaded(shipped, self._facts.layout)
            own: OwnState = pickle.loads(last)
            common = self._common.pop(code, None)
            if common is not None:
                own.row.update(pickle.loads(common))
            shares = (batch_from_bytes(payload) for payload in _taken(self._arrived.pop(code, [])))
            table, log = Table(self._tables[number]), MemoryChunkStore()
            build_log(log, table, vertex.log_identity(subtask), shares, own, as_it_is())
            # State that does not fit the program has to be found now; the query itself has homes of its own.
            with short_lived(vertex, subtask) as task:
                task.restore(log)
                wakes_up = task.next_wake_up
        for chunk, content in log.chunks.items():
            self._store.put(chunk, content)
        if self._timers and wakes_up is not None:
            # Not in this batch: what timers emit is no output of the query yet.
            self._handle.registerTimer(max(wakes_up, now + 1))


def _taken(payloads: list[bytes]) -> Iterator[bytes]:
    """Return payloads, none of which is kept."""
    payloads.reverse()
    while payloads:
        yield payloads.pop()
