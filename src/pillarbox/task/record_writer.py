"""The way out of a task: spreads records over subtasks and packs them into buffers.

The queue of packed buffers is bounded: above the bound the writer is not available, the task stops its input
and leaves its loop, and whoever runs the task takes the buffers. Only the mailbox thread may touch a writer.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pillarbox.elements import ArrowRecords, Buffer, Element, Records, Watermark, WatermarkStatus, dumps, encode
from pillarbox.errors import raise_from_user_code, shorten_record
from pillarbox.operators.keys import Router
from pillarbox.task.vertex import Edge
from pillarbox.time.timestamps import MIN_TIMESTAMP

__all__ = ["RecordWriter"]

# A buffer is packed at about this many bytes. Smaller ones cost more per record, larger ones more memory.
_BUFFER_BYTES = 512 * 1024
_BUFFER_RECORDS = 32768
# The queue may hold this many bytes, and what one run of records adds to them.
_QUEUE_BYTES = 4 * 1024 * 1024


class RecordWriter:
    """All edges of one task.

    Attributes:
        records_out: records sent in this epoch.
        bytes_out: payload bytes sent in this epoch.
    """

    def __init__(self, edges: list[Edge], channel: int) -> None:
        self._channel = channel
        self._queue: list[Buffer] = []
        self._queued_bytes = 0
        self._sequence: dict[int, int] = {}
        self.records_out = 0
        self.bytes_out = 0
        self.edges = [_EdgeWriter(self, edge) for edge in edges]

    @property
    def is_available(self) -> bool:
        """Whether there is room for more."""
        return self._queued_bytes < _QUEUE_BYTES

    def begin_epoch(self, channel: int) -> None:
        """Count anew; a source task may be another partition of its source in each epoch."""
        self._channel = channel
        self._sequence = {}
        self.records_out = 0
        self.bytes_out = 0
        for edge in self.edges:
            edge.begin_epoch()

    def send(self, target: int, element: Element) -> None:
        """Pack one element for one target."""
        payload = encode(element)
        sequence = self._sequence.get(target, 0)
        self._sequence[target] = sequence + 1
        self._queue.append(Buffer(target, self._channel, sequence, payload))
        self._queued_bytes += len(payload)
        self.bytes_out += len(payload)

    def broadcast(self, element: Element) -> None:
        """Pack what is pending, then one element for every subtask downstream; outputs get records only."""
        for edge in self.edges:
            edge.broadcast(element)

    def flush(self) -> None:
        """Pack what is pending."""
        for edge in self.edges:
            edge.flush()

    def take(self) -> list[Buffer]:
        """Give the packed buffers; the writer is available again."""
        taken = self._queue
        self._queue = []
        self._queued_bytes = 0
        return taken


class _EdgeWriter:
    """One edge; the input of the operator that sends to it."""

    def __init__(self, writer: RecordWriter, edge: Edge) -> None:
        self._writer = writer
        self._targets = edge.targets
        self._sender = edge.sender
        self._is_output = edge.keying is None
        self._router = None
        if edge.keying is not None:
            self._router = Router(edge.keying, len(edge.targets), edge.max_parallelism)
        self._pending = [_Pending() for _ in edge.targets]
        self.begin_epoch()

    def begin_epoch(self) -> None:
        self._watermark: int | None = None
        self._sent_watermark = False
        self._sent_records = False

    def process_records(self, records: Records) -> None:
        count = len(records)
        if not count:
            return
        self._writer.records_out += count
        self._sent_records = True
        # Also where there is one subtask: a key that cannot be routed is refused at any parallelism.
        subtasks = None if self._router is None else self._router.subtasks_of(records)
        if subtasks is None or len(self._targets) == 1:
            self._add(0, records)
        else:
            self._scatter(records, np.asarray(subtasks))

    def _scatter(self, records: Records, subtasks: npt.NDArray[np.int64]) -> None:
        order = np.argsort(subtasks, kind="stable")
        ends = np.cumsum(np.bincount(subtasks, minlength=len(self._targets))).tolist()
        if isinstance(records, ArrowRecords):
            taken = records.take(order)
            start = 0
            for subtask, end in enumerate(ends):
                if end > start:
                    self._add(subtask, taken.slice(start, end))
                start = end
            return
        positions = order.tolist()
        values = list(map(records.values.__getitem__, positions))
        timestamps = records.timestamps
        if timestamps is not None:
            timestamps = list(map(timestamps.__getitem__, positions))
        start = 0
        for subtask, end in enumerate(ends):
            if end > start:
                stamps = None if timestamps is None else timestamps[start:end]
                self._add(subtask, Records(values[start:end], stamps))
            start = end

    def _add(self, subtask: int, records: Records) -> None:
        pending = self._pending[subtask]
        if not pending.takes(records):
            self._pack(subtask)
        pending.add(records)
        if pending.is_full:
            self._pack(subtask)
            # A watermark may be overtaken by records, never overtake one: so it can wait for a buffer to fill.
            if self._watermark is not None:
                self._send_watermark()

    def _pack(self, subtask: int) -> None:
        for records in self._pending[subtask].drain():
            payloads = self._writer.bytes_out
            try:
                self._writer.send(self._targets[subtask], records)
            except BaseException as error:
                self._refuse(records, error)
            self._pending[subtask].learn(len(records), self._writer.bytes_out - payloads)

    def _refuse(self, records: Records, error: BaseException) -> NoReturn:
        """Raise the error that names the record that cannot be pickled."""
        for value in records.values:
            try:
                dumps(value)
            except BaseException:
                what = f"operator {self._sender!r} emits the record {shorten_record(value)}, which cannot be sent"
                advice = " on (connections, locks, generators and the like stay in the function that made them)"
                raise_from_user_code(error, what + advice, operator=self._sender, record=value)
        raise error

    def flush(self) -> None:
        for subtask in range(len(self._targets)):
            self._pack(subtask)

    def process_watermark(self, timestamp: int) -> None:
        self._watermark = timestamp

    def _send_watermark(self) -> None:
        if self._watermark is not None and not self._is_output:
            self.flush()
            for target in self._targets:
                self._writer.send(target, Watermark(self._watermark))
            self._sent_watermark = True
        self._watermark = None

    def process_status(self, idle: bool) -> None:
        self.broadcast(WatermarkStatus(idle))

    def broadcast(self, element: Element) -> None:
        self._send_watermark()
        self.flush()
        if self._is_output:
            return
        if self._sent_records and not self._sent_watermark:
            # Records without any watermark hold back event time, also at subtasks that got none of them.
            self._watermark = MIN_TIMESTAMP
            self._send_watermark()
        for target in self._targets:
            self._writer.send(target, element)


class _Pending:
    """Records of one target that are not packed yet: runs of one kind, columnar or not."""

    __slots__ = ("_columnar", "_count", "_record_bytes", "_runs", "_size")

    def __init__(self) -> None:
        self._runs: list[Records] = []
        self._columnar = False
        self._count = 0
        self._size = 0
        # What a pickled record takes, learnt from the last buffer.
        self._record_bytes = 64.0

    def takes(self, records: Records) -> bool:
        if not self._runs:
            return True
        columnar = isinstance(records, ArrowRecords)
        if columnar != self._columnar:
            return False
        first = self._runs[0]
        if isinstance(first, ArrowRecords) and isinstance(records, ArrowRecords):
            return bool(first.batch.schema.equals(records.batch.schema)) and (
                (first.stamps is None) == (records.stamps is None)
            )
        return (first.timestamps is None) == (records.timestamps is None)

    def add(self, records: Records) -> None:
        self._columnar = isinstance(records, ArrowRecords)
        self._runs.append(records)
        self._count += len(records)
        if isinstance(records, ArrowRecords):
            self._size += int(records.batch.nbytes)

    @property
    def is_full(self) -> bool:
        if self._columnar:
            return self._size >= _BUFFER_BYTES
        return self._count >= min(_BUFFER_BYTES / self._record_bytes, _BUFFER_RECORDS)

    def learn(self, count: int, size: int) -> None:
        self._record_bytes = max(1.0, size / max(1, count))

    def drain(self) -> list[Records]:
        runs, self._runs = self._runs, []
        self._count = self._size = 0
        if len(runs) <= 1:
            return runs
        if self._columnar:
            table = pa.Table.from_batches([run.batch for run in runs]).combine_chunks()  # type: ignore[attr-defined]
            stamps = None
            if runs[0].stamps is not None:  # type: ignore[attr-defined]
                stamps = np.concatenate([run.stamps for run in runs])  # type: ignore[attr-defined]
            return [ArrowRecords(table.to_batches()[0], stamps)]
        values = [value for run in runs for value in run.values]
        timestamps = None
        if runs[0].timestamps is not None:
            timestamps = [stamp for run in runs for stamp in run.timestamps or ()]
        return [Records(values, timestamps)]
