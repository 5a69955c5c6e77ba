"""Writes a task's output: distributes records over subtasks, and packs them into buffers.

When the queue of buffers is full, the task leaves its mailbox loop, and its caller takes the buffers. Mailbox thread
only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from pillarbox._elements.buffers import Buffer, channel_code, dumps, encode
from pillarbox._elements.elements import Element, Watermark, WatermarkStatus
from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._task.network.unpicklable import refuse_unpicklable
from pillarbox._task.vertex import VertexEdge
from pillarbox._time.timestamp_assigner import MIN_TIMESTAMP

# Smaller buffers cost more per record, larger buffers more memory.
_BUFFER_BYTES = 512 * 1024
_BUFFER_RECORDS = 2048
# One of this many records is measured. A prime, in case kinds of records alternate.
_LOOK_EACH = 61
_FIRST_LOOK = 16
# Assumed before the first measurement.
_USUAL_BYTES = 512.0
# Bound in bytes, exceeded by at most one batch of records.
_QUEUE_BYTES = 4 * 1024 * 1024


class RecordWriter:
    """Writes to all outgoing edges of a task."""

    def __init__(self, edges: list[VertexEdge]) -> None:
        self._queue: list[Buffer] = []
        self._queued_bytes = 0
        self.is_awaited: bool = False
        self.records_out: int = 0
        self.bytes_out: int = 0
        self.edges: list[_EdgeWriter] = [_EdgeWriter(self, edge) for edge in edges]

    @property
    def is_available(self) -> bool:
        return self._queued_bytes < _QUEUE_BYTES and not self.is_awaited

    def begin_epoch(self, subtask: int, epoch: int) -> None:
        """Reset the buffer counts. A source's ``subtask`` (its partition) may differ in each epoch."""
        self.records_out = 0
        self.bytes_out = 0
        for edge in self.edges:
            edge.begin_epoch(subtask, epoch)

    def send(self, target: int, channel: int, seq: int, element: Element) -> int:
        payload = encode(element)
        self._queue.append(Buffer(target, channel, seq, payload))
        self._queued_bytes += len(payload)
        self.bytes_out += len(payload)
        return len(payload)

    def broadcast(self, element: Element) -> None:
        """Send an element to every receiving subtask (not to program outputs), after pending records."""
        for edge in self.edges:
            edge.broadcast(element)

    def flush(self) -> None:
        for edge in self.edges:
            edge.flush()

    def take(self) -> list[Buffer]:
        buffers = self._queue
        self._queue = []
        self._queued_bytes = 0
        self.is_awaited = False
        return buffers


class _EdgeWriter:
    def __init__(self, writer: RecordWriter, edge: VertexEdge) -> None:
        self._writer = writer
        self._edge = edge
        self._targets = edge.targets
        self._selector = edge.partitioner.selector(len(edge.targets), edge.max_parallelism, edge.senders)
        self._to_output = edge.partitioner.to_output
        self._at_once = edge.partitioner.at_once
        self.begin_epoch(0, 0)

    def begin_epoch(self, subtask: int, epoch: int) -> None:
        self._channel = channel_code(self._edge.id, subtask)
        self._sequence = [0] * len(self._targets)
        self._selector.begin_epoch(subtask, epoch)
        self._watermark: int | None = None
        self._sent_watermark = False
        self._sent_records = False
        # A retried task must send the same buffers, so measured sizes are forgotten.
        self._pending = [_Pending() for _ in self._targets]

    def process_records(self, records: Records) -> None:
        count = len(records)
        if not count:
            return
        self._writer.records_out += count
        self._sent_records = True
        row_bytes = _row_bytes(records)
        for subtask, share in self._selector.divide(records):
            self._add(subtask, share, row_bytes)
        if self._at_once:
            self.flush()
            self._writer.is_awaited = True

    def _send(self, subtask: int, element: Element) -> int:
        sequence = self._sequence[subtask]
        self._sequence[subtask] = sequence + 1
        return self._writer.send(self._targets[subtask], self._channel, sequence, element)

    def _add(self, subtask: int, records: Records, row_bytes: float | None) -> None:
        pending = self._pending[subtask]
        if not pending.takes(records):
            self._pack(subtask)
        pending.add(records, row_bytes)
        if pending.is_full:
            self._pack(subtask)
            # A watermark can wait for a full buffer, because records may overtake it.
            if self._watermark is not None:
                self._send_watermark()

    def _pack(self, subtask: int) -> None:
        pending = self._pending[subtask]
        expected, sent = pending.size, 0
        for records in pending.drain():
            try:
                sent += self._send(subtask, records)
            except BaseException as error:
                refuse_unpicklable(error, self._edge.sender, records.values, "emits", "cannot be sent on")
        pending.learn(expected, sent)

    def flush(self) -> None:
        for subtask in range(len(self._targets)):
            self._pack(subtask)

    def process_watermark(self, timestamp: int) -> None:
        self._watermark = timestamp

    def _send_watermark(self) -> None:
        if self._watermark is not None and not self._to_output:
            self.flush()
            for subtask in range(len(self._targets)):
                self._send(subtask, Watermark(self._watermark))
            self._sent_watermark = True
        self._watermark = None

    def process_status(self, idle: bool) -> None:
        self.broadcast(WatermarkStatus(idle))

    def broadcast(self, element: Element) -> None:
        self._send_watermark()
        self.flush()
        if self._to_output:
            return
        if self._sent_records and not self._sent_watermark:
            # Records without a watermark hold back event time at all subtasks.
            self._watermark = MIN_TIMESTAMP
            self._send_watermark()
        for subtask in range(len(self._targets)):
            self._send(subtask, element)


def _row_bytes(records: Records) -> float | None:
    if isinstance(records, ArrowRecords) and all(map(pa.types.is_primitive, records.batch.schema.types)):
        return int(records.batch.nbytes) / len(records)
    return None


class _Pending:
    """Records for one target, not yet packed into a buffer: either all columnar or all not."""

    __slots__ = ("_columnar", "_count", "_looked_at", "_record_bytes", "_runs", "_share", "_unseen", "size")

    def __init__(self) -> None:
        self._runs: list[Records] = []
        self._columnar = False
        self._count = 0
        self.size: float = 0.0
        # The size of a pickled record in the last sample, and the number of records since.
        self._record_bytes = _USUAL_BYTES
        self._unseen = 0
        self._looked_at = False
        # Compression of records that are pickled together, because they share values and classes.
        self._share = 1.0

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

    def add(self, records: Records, row_bytes: float | None) -> None:
        self._columnar = isinstance(records, ArrowRecords)
        self._runs.append(records)
        self._count += len(records)
        if row_bytes is not None:
            self.size += row_bytes * len(records)
        elif isinstance(records, ArrowRecords):
            self.size += int(records.batch.nbytes)
        else:
            self._unseen += len(records)
            if self._unseen >= (_LOOK_EACH if self._looked_at else _FIRST_LOOK):
                self._look_at(records.values)
            self.size += self._record_bytes * len(records)

    def _look_at(self, values: list[Any]) -> None:
        sample = values[::_LOOK_EACH]
        try:
            self._record_bytes = len(dumps(sample)) / len(sample) * self._share
        except Exception:
            return  # packing will raise the error with the record
        if not self._looked_at:
            self._looked_at = True
            self.size = self._record_bytes * (self._count - len(values))
        self._unseen = 0

    @property
    def is_full(self) -> bool:
        return self.size >= _BUFFER_BYTES or (self._count >= _BUFFER_RECORDS and not self._columnar)

    def learn(self, expected: float, sent: int) -> None:
        if self._looked_at and expected:
            share = min(max(self._share * sent / expected, 1 / 16), 1.0)
            self._record_bytes *= share / self._share
            self._share = share

    def drain(self) -> list[Records]:
        """Remove and return all records, each item to be sent as one buffer."""
        whole, count, size = self._whole(), self._count, self.size
        self._runs = []
        self._count = 0
        self.size = 0.0
        if self._columnar or size <= 2 * _BUFFER_BYTES or count < 2:
            return whole
        (records,) = whole
        values, stamps = records.values, records.timestamps
        step = max(1, int(count * _BUFFER_BYTES / size))
        return [
            Records(values[at : at + step], None if stamps is None else stamps[at : at + step])
            for at in range(0, count, step)
        ]

    def _whole(self) -> list[Records]:
        runs = self._runs
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
