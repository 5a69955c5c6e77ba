"""The levels behind a shuffle on Spark: tasks in ``transformWithStateInPandas``.

The grouping key is the subtask's code, so Spark calls once per subtask and epoch, with that subtask's buffers. The
state log is a map state of Spark's, which commits it with the micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import pandas as pd
from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessorHandle

from pillarbox._elements import Buffer
from pillarbox._runtime.shipping import ShippedVertex
from pillarbox._runtime.spark import residency
from pillarbox._runtime.spark.arrow_frame import arrow_frame
from pillarbox._runtime.spark.buffer_rows import BUFFER_COLUMNS, BufferRows
from pillarbox._runtime.spark.failures import failures_in_worker
from pillarbox._runtime.spark.layouts import ProgramLayout
from pillarbox._runtime.spark.output import BATCH_TIMESTAMP, Output
from pillarbox._task import MultipleInputStreamTask
from pillarbox._task.vertex import WAKE_CHANNEL

__all__ = ["TaskHost"]


class _SparkChunkStore:
    """The state log's chunks in a map state of Spark's, under the current grouping key.

    Attributes:
        is_new: whether the worker has no task of this key yet, so values may not be there. Spark logs a warning for
            each value that it is asked for and does not have.
    """

    def __init__(self, chunks: MapState) -> None:
        self._chunks = chunks
        self.is_new = True

    def get(self, number: int) -> bytes | None:
        if self.is_new and not self._chunks.containsKey((number,)):
            return None
        found = self._chunks.getValue((number,))
        return None if found is None else bytes(found[0])

    def put(self, number: int, value: bytes) -> None:
        self._chunks.updateValue((number,), (value,))

    def remove(self, number: int) -> None:
        self._chunks.removeKey((number,))


class TaskHost:
    """Runs the subtasks of one level. A ``Processor`` takes it to the worker, for one partition and epoch.

    Args:
        vertices: those of the level, by number.
        layout: by which the subtasks are found.
        timers: whether to keep a timer of Spark's at the earliest of the task's own.
    """

    def __init__(self, vertices: dict[int, ShippedVertex], layout: ProgramLayout, output: Output, timers: bool) -> None:
        self._vertices = vertices
        self._program = layout
        self._output = output
        self._timers = timers

    def open(self, handle: StatefulProcessorHandle, chunks: MapState) -> None:
        """Take the state of the partition's grouping keys."""
        self._handle = handle
        self._store = _SparkChunkStore(chunks)
        self._ran: set[int] = set()
        self._layout = self._program.current()

    def _place(self, code: int) -> tuple[int, int] | None:
        """Return vertex and subtask of a code; None: it is on a later level, or no subtask's."""
        place = self._program.place(self._layout, code)
        return None if place is None or place[0] not in self._vertices else place

    def run(self, code: int, rows: Iterator[pd.DataFrame], now: int) -> Iterator[pd.DataFrame]:
        """Run a subtask's epoch; buffers for a later level, or for the end, pass through.

        Args:
            now: the batch timestamp (epoch ms), where the query has timers; else the rows have it.
        """
        place = self._place(code)
        for buffers in _buffers(rows) if place is None else self._run(code, place, rows, now):
            yield from map(arrow_frame, self._output(buffers))

    def run_on_timer(self, code: int, now: int) -> Iterator[pd.DataFrame]:
        """Run an epoch without input, unless the subtask has had one in this batch."""
        place = self._place(code)
        if place is not None and code not in self._ran:
            for buffers in self._run(code, place, iter(()), now):
                yield from map(arrow_frame, self._output(buffers))

    def _run(self, code: int, place: tuple[int, int], rows: Iterator[pd.DataFrame], now: int) -> Iterator[list[Buffer]]:
        self._ran.add(code)
        number, subtask = place
        if not self._timers:
            now, rows = _batch_timestamp(rows)
        with failures_in_worker(self._vertices[number].name, subtask):
            vertex = self._vertices[number]
            self._store.is_new = not residency.here.has(vertex, subtask, self._layout)
            task = residency.here.task(vertex, subtask, self._store, self._layout)
            last = residency.drains()
            try:
                yield from task.run_epoch(_sent(rows) if last else _buffers(rows), self._store, now, last=last)
                if self._timers:
                    self._set_timer(task, now)
                residency.here.spare_the_collector()
            except BaseException:
                residency.here.discard(task)
                raise

    def _set_timer(self, task: MultipleInputStreamTask, now: int) -> None:
        """Let Spark call again when the task has something to do.

        Spark goes by the batch's time: in this batch it calls for all timers before that, and deletes each of them
        after the call, also where it was registered again meanwhile. So they are left to Spark, and work that is due by
        the worker's clock, or was not yet although Spark called for it, is a matter of the next batch.
        """
        wake_up = task.next_wake_up
        wanted = None if wake_up is None else max(wake_up, now + 1)
        present = [timestamp for timestamp in self._handle.listTimers() if timestamp >= now]
        for timestamp in present:
            if timestamp != wanted:
                self._handle.deleteTimer(timestamp)
        if wanted is not None and wanted not in present:
            self._handle.registerTimer(wanted)


def _batch_timestamp(frames: Iterator[pd.DataFrame]) -> tuple[int, Iterator[pd.DataFrame]]:
    """Return the batch timestamp that the rows have, and all rows. There are some: Spark has called for their sake."""
    first = next(frames)
    return int(first[BATCH_TIMESTAMP].iloc[0]), chain((first,), frames)


def _buffers(frames: Iterable[pd.DataFrame]) -> Iterator[list[Buffer]]:
    rows = BufferRows()
    for frame in frames:
        yield list(rows.take([frame[column].tolist() for column in BUFFER_COLUMNS]))
    rows.end()


def _sent(frames: Iterable[pd.DataFrame]) -> Iterator[list[Buffer]]:
    """Return the buffers of the last epoch, without those that only wake a subtask."""
    for buffers in _buffers(frames):
        yield [buffer for buffer in buffers if buffer.channel != WAKE_CHANNEL]
