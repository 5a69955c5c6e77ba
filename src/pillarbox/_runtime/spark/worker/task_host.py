"""Runs the tasks after a shuffle in streaming mode, in ``transformWithStateInPandas``.

The grouping key is the subtask code (number), so Spark makes one call per subtask and epoch. The state log is a map
state, which Spark commits with the micro-batch. Tasks stay in home processes, or without homes in the worker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain

import pandas as pd
from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessorHandle

from pillarbox._elements.buffers import Buffer
from pillarbox._operators.frame.spark_time import SparkTime
from pillarbox._runtime.shipping import ShippedVertex
from pillarbox._runtime.spark.homes.relay import Relay, RelaySettings
from pillarbox._runtime.spark.homes.settings import MODE
from pillarbox._runtime.spark.homes.starter_connection import NoHomesError
from pillarbox._runtime.spark.rows.arrow_frame import arrow_frame
from pillarbox._runtime.spark.rows.buffer_rows import BUFFER_COLUMNS, BufferRows
from pillarbox._runtime.spark.rows.output import BATCH_TIMESTAMP, TaskOutput
from pillarbox._runtime.spark.tasks import residency
from pillarbox._runtime.spark.tasks.accumulators import collecting
from pillarbox._runtime.spark.tasks.level_tasks import LevelTasks
from pillarbox._runtime.spark.tasks.replacement import replacement_here
from pillarbox._runtime.spark.tasks.task_info import TaskInfo, TaskLayout
from pillarbox._runtime.spark.worker.executor import executor_here
from pillarbox._task.vertex import WAKE_CHANNEL

_log = logging.getLogger("pillarbox")


class _SparkChunkStore:
    """Stores a state log's chunks in a Spark map state, under the current grouping key."""

    def __init__(self, chunks: MapState) -> None:
        self._chunks = chunks
        self.is_new = True

    def get(self, number: int) -> bytes | None:
        if self.is_new and not self._chunks.containsKey((number,)):
            return None
        chunk = self._chunks.getValue((number,))
        return None if chunk is None else bytes(chunk[0])

    def put(self, number: int, value: bytes) -> None:
        self._chunks.updateValue((number,), (value,))

    def remove(self, number: int) -> None:
        self._chunks.removeKey((number,))


class TaskHost:
    """Runs the subtasks of one partition and epoch, in a worker. Pickled inside a ``Processor``."""

    def __init__(
        self,
        vertices: dict[int, ShippedVertex],
        layout: TaskLayout,
        output: TaskOutput,
        timers: bool,
        homes: RelaySettings,
        spark_time: SparkTime | None = None,
    ) -> None:
        self._vertices = vertices
        self._program = layout
        self._output = output
        self._timers = timers
        self._homes = homes
        self._follows_watermark = spark_time is not None and spark_time.time_mode == "EventTime"

    def open(self, handle: StatefulProcessorHandle, chunks: MapState) -> None:
        self._handle = handle
        self._store = _SparkChunkStore(chunks)
        self._ran: set[int] = set()
        self._facts = TaskInfo.here(self._program)._replace(executor=executor_here())
        self._replacement = replacement_here()
        self._tasks: LevelTasks | Relay | None = None
        self._fallback: str | None = None

    def close(self) -> None:
        if isinstance(self._tasks, Relay):
            self._tasks.close()

    def _decode(self, code: int) -> tuple[int, int] | None:
        address = self._program.decode(self._facts.layout, code)
        return None if address is None or address[0] not in self._vertices else address

    def run(self, code: int, rows: Iterator[pd.DataFrame], now: int, watermark: int = -1) -> Iterator[pd.DataFrame]:
        """Run an epoch of subtask number ``code``. Buffers for outputs and later shuffles are only forwarded.

        ``now`` and ``watermark`` are Unix times in ms. If Spark's timers are off, the time in ``rows`` is used instead
        of ``now``.
        """
        address = self._decode(code)
        for buffers in _buffers(rows) if address is None else self._run(code, address, rows, now, watermark):
            yield from map(arrow_frame, self._output(buffers))

    def run_on_timer(self, code: int, now: int, watermark: int = -1) -> Iterator[pd.DataFrame]:
        """Run an epoch of a subtask without input, unless the subtask has already run in this batch."""
        address = self._decode(code)
        if address is not None and code not in self._ran:
            for buffers in self._run(code, address, iter(()), now, watermark):
                yield from map(arrow_frame, self._output(buffers))

    def _run(
        self, code: int, address: tuple[int, int], rows: Iterator[pd.DataFrame], now: int, watermark: int
    ) -> Iterator[list[Buffer]]:
        self._ran.add(code)
        if not self._timers:
            now, rows = _batch_timestamp(rows)
        facts = self._facts._replace(time=now, watermark=watermark)
        buffers = _without_wakes(rows) if facts.is_last else _buffers(rows)
        if self._replacement is not None and self._replacement.is_task(self._program.program, *address):
            epoch = {"time": now, "is_last": facts.is_last, "layout": list(facts.layout)}
            self._replacement.send(epoch, (list(map(tuple, portion)) for portion in buffers), self._store)
            return
        if self._replacement is not None:
            if self._replacement.is_left_out(self._program.program, address[0]):
                return
            facts = facts._replace(clock=self._replacement.clock(self._program.program, *address))
        tasks = self._tasks_of(code)
        if isinstance(tasks, Relay):
            self._store.is_new = not tasks.has(address)
            wakes_up = yield from tasks.run_epoch(address, facts, buffers, self._store)
        else:
            self._store.is_new = not residency.here.has(self._vertices[address[0]], address[1], facts)
            with collecting():
                facts = facts._replace(fallback=self._fallback)
                wakes_up = yield from tasks.run_epoch(address, facts, buffers, self._store)
            residency.here.spare_the_collector()
        if self._timers:
            self._set_timer(wakes_up, watermark if self._follows_watermark else now)

    def _tasks_of(self, code: int) -> LevelTasks | Relay:
        if self._tasks is None:
            try:
                self._tasks = self._homes.relay(self._vertices, self._facts, code)
            except NoHomesError as error:
                self._fallback = str(error)
                _warn_once(f"tasks run in Spark's Python workers, as with {MODE}=off: {error}")
            if self._tasks is None:
                self._tasks = LevelTasks(self._vertices, residency.here)
        return self._tasks

    def _set_timer(self, wake_up: int | None, now: int) -> None:
        """Set Spark's timer to the task's next wake-up.

        Spark fires all timers up to the batch's time and then deletes them, even if they were registered again in
        between. So a timer up to that time is not registered, and its work waits for the next batch.
        """
        due = None if wake_up is None else max(wake_up, now + 1)
        present = [timestamp for timestamp in self._handle.listTimers() if timestamp >= now]
        for timestamp in present:
            if timestamp != due:
                self._handle.deleteTimer(timestamp)
        if due is not None and due not in present:
            self._handle.registerTimer(due)


@cache
def _warn_once(sentence: str) -> None:
    _log.warning("%s", sentence)


def _batch_timestamp(frames: Iterator[pd.DataFrame]) -> tuple[int, Iterator[pd.DataFrame]]:
    first = next(frames)
    return int(first[BATCH_TIMESTAMP].iloc[0]), chain((first,), frames)


def _buffers(frames: Iterable[pd.DataFrame]) -> Iterator[list[Buffer]]:
    rows = BufferRows()
    for frame in frames:
        columns = [frame[column].tolist() for column in BUFFER_COLUMNS]
        del frame  # before Spark creates the next frame
        yield from rows.portions(columns)
    rows.end()


def _without_wakes(frames: Iterable[pd.DataFrame]) -> Iterator[list[Buffer]]:
    for buffers in _buffers(frames):
        yield [buffer for buffer in buffers if buffer.channel != WAKE_CHANNEL]
