"""The levels after a shuffle on Spark: tasks in ``transformWithStateInPandas``.

The grouping key is the subtask's code, so Spark calls once per subtask and epoch, with that subtask's buffers. The
state log is a map state of Spark's, which commits it with the micro-batch. The tasks themselves live in homes (see
``homes``), or, where there are none, in the worker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain

import pandas as pd
from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessorHandle

from pillarbox._elements import Buffer
from pillarbox._operators.frame.operator import SparkTime
from pillarbox._runtime.shipping import ShippedVertex
from pillarbox._runtime.spark.homes.keeper import NoHomesError
from pillarbox._runtime.spark.homes.relay import Homes, Relay
from pillarbox._runtime.spark.homes.settings import MODE
from pillarbox._runtime.spark.rows.arrow_frame import arrow_frame
from pillarbox._runtime.spark.rows.buffer_rows import BUFFER_COLUMNS, BufferRows
from pillarbox._runtime.spark.rows.output import BATCH_TIMESTAMP, Output
from pillarbox._runtime.spark.tasks import residency
from pillarbox._runtime.spark.tasks.accumulators import collecting
from pillarbox._runtime.spark.tasks.level_tasks import LevelTasks
from pillarbox._runtime.spark.tasks.replacement import replacement_here
from pillarbox._runtime.spark.tasks.task_facts import ProgramLayout, TaskFacts
from pillarbox._runtime.spark.worker.executor import executor_here
from pillarbox._task.vertex import WAKE_CHANNEL

_log = logging.getLogger("pillarbox")


class _SparkChunkStore:
    """The state log's chunks in a map state of Spark's, under the current grouping key.

    Attributes:
        is_new: whether the subtask has no task yet, so chunks may be missing. Spark logs a warning for each missing
            chunk whose value it is asked for, and to ask whether there is one takes as long as to read it.
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
        vertices: the vertices of the level, by number.
        layout: by which the subtasks are found.
        timers: whether to keep a timer of Spark's at the earliest of the task's own.
        homes: where the tasks live.
        spark_time: the time of an operator that follows Spark's; None: there is none.
    """

    def __init__(
        self,
        vertices: dict[int, ShippedVertex],
        layout: ProgramLayout,
        output: Output,
        timers: bool,
        homes: Homes,
        spark_time: SparkTime | None = None,
    ) -> None:
        self._vertices = vertices
        self._program = layout
        self._output = output
        self._timers = timers
        self._homes = homes
        self._follows_watermark = spark_time is not None and spark_time.time_mode == "EventTime"

    def open(self, handle: StatefulProcessorHandle, chunks: MapState) -> None:
        """Take the state of the partition's grouping keys."""
        self._handle = handle
        self._store = _SparkChunkStore(chunks)
        self._ran: set[int] = set()
        self._facts = TaskFacts.here(self._program)._replace(executor=executor_here())
        self._replacement = replacement_here()
        # Where the subtasks of this task of Spark's live, which all lie in one state partition.
        self._tasks: LevelTasks | Relay | None = None
        # Why they live in this worker although a home is wanted.
        self._fallback: str | None = None

    def close(self) -> None:
        """Let the home go."""
        if isinstance(self._tasks, Relay):
            self._tasks.close()

    def _place(self, code: int) -> tuple[int, int] | None:
        """Return vertex and subtask of a code; None: it is on a later level, or no subtask's."""
        place = self._program.place(self._facts.layout, code)
        return None if place is None or place[0] not in self._vertices else place

    def run(self, code: int, rows: Iterator[pd.DataFrame], now: int, watermark: int = -1) -> Iterator[pd.DataFrame]:
        """Run a subtask's epoch; buffers for a later level, or for the end, pass through.

        Args:
            now: the batch timestamp (epoch ms), where the query has timers; else the rows have it.
            watermark: Spark's watermark (epoch ms).
        """
        place = self._place(code)
        for buffers in _buffers(rows) if place is None else self._run(code, place, rows, now, watermark):
            yield from map(arrow_frame, self._output(buffers))

    def run_on_timer(self, code: int, now: int, watermark: int = -1) -> Iterator[pd.DataFrame]:
        """Run an epoch without input, unless the subtask has had one in this batch."""
        place = self._place(code)
        if place is not None and code not in self._ran:
            for buffers in self._run(code, place, iter(()), now, watermark):
                yield from map(arrow_frame, self._output(buffers))

    def _run(
        self, code: int, place: tuple[int, int], rows: Iterator[pd.DataFrame], now: int, watermark: int
    ) -> Iterator[list[Buffer]]:
        self._ran.add(code)
        if not self._timers:
            now, rows = _batch_timestamp(rows)
        facts = self._facts._replace(time=now, watermark=watermark)
        buffers = _sent(rows) if facts.is_last else _buffers(rows)
        if self._replacement is not None and self._replacement.is_task(self._program.program, *place):
            told = {"time": now, "is_last": facts.is_last, "layout": list(facts.layout)}
            self._replacement.send(told, self._store, buffers)
            return
        if self._replacement is not None:
            if self._replacement.is_left_out(self._program.program, place[0]):
                return
            facts = facts._replace(clock=self._replacement.clock(self._program.program, *place))
        tasks = self._tasks_of(code)
        if isinstance(tasks, Relay):
            self._store.is_new = not tasks.has(place)
            wakes_up = yield from tasks.run_epoch(place, facts, buffers, self._store)
        else:
            self._store.is_new = not residency.here.has(self._vertices[place[0]], place[1], facts)
            with collecting():
                facts = facts._replace(fallback=self._fallback)
                wakes_up = yield from tasks.run_epoch(place, facts, buffers, self._store)
            residency.here.spare_the_collector()
        if self._timers:
            self._set_timer(wakes_up, watermark if self._follows_watermark else now)

    def _tasks_of(self, code: int) -> LevelTasks | Relay:
        """Return where the subtasks of a code's state partition live."""
        if self._tasks is None:
            try:
                self._tasks = self._homes.relay(self._vertices, self._facts, code)
            except NoHomesError as error:
                self._fallback = str(error)
                _say_once(f"tasks live in Spark's Python workers, as with {MODE}=off: {error}")
            if self._tasks is None:
                self._tasks = LevelTasks(self._vertices, residency.here)
        return self._tasks

    def _set_timer(self, wake_up: int | None, now: int) -> None:
        """Let Spark call again when the task has something to do.

        Args:
            now: the batch's time, by the clock that Spark's timers follow.

        Spark goes by the batch's time: in this batch it calls for all timers before that, and deletes each of them
        after the call, also where it was registered again meanwhile. So they are left to Spark, and work that is due by
        the worker's clock, or was not yet although Spark called for it, is a matter of the next batch.
        """
        wanted = None if wake_up is None else max(wake_up, now + 1)
        present = [timestamp for timestamp in self._handle.listTimers() if timestamp >= now]
        for timestamp in present:
            if timestamp != wanted:
                self._handle.deleteTimer(timestamp)
        if wanted is not None and wanted not in present:
            self._handle.registerTimer(wanted)


@cache
def _say_once(sentence: str) -> None:
    _log.warning("%s", sentence)


def _batch_timestamp(frames: Iterator[pd.DataFrame]) -> tuple[int, Iterator[pd.DataFrame]]:
    """Return the batch timestamp that the rows have, and all rows. There are some: Spark has called for their sake."""
    first = next(frames)
    return int(first[BATCH_TIMESTAMP].iloc[0]), chain((first,), frames)


def _buffers(frames: Iterable[pd.DataFrame]) -> Iterator[list[Buffer]]:
    rows = BufferRows()
    for frame in frames:
        columns = [frame[column].tolist() for column in BUFFER_COLUMNS]
        del frame  # Spark makes the next one before the loop gets it
        yield from rows.portions(columns)
    rows.end()


def _sent(frames: Iterable[pd.DataFrame]) -> Iterator[list[Buffer]]:
    """Return the buffers of the last epoch, without those that only wake a subtask."""
    for buffers in _buffers(frames):
        yield [buffer for buffer in buffers if buffer.channel != WAKE_CHANNEL]
