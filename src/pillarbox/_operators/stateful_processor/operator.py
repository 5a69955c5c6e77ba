"""The operator of a ``StatefulProcessor``, with Spark's order of events.

In each micro-batch, a new copy of the processor receives the rows, then expired timers in time order, and is closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
from pyspark.sql.types import StructType

from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._errors import ProgramError, failed, raise_from_user_code, shorten
from pillarbox._operators.frame.captured import CapturedObject, load
from pillarbox._operators.frame.collector import RUN_LIMIT, emit_columns, is_from_downstream
from pillarbox._operators.frame.keyed_operator import KeyedOperator
from pillarbox._operators.frame.keying import Keying, KeyingRouter
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.frame.spark_time import SparkMicroBatch
from pillarbox._operators.stateful_processor.frames import FrameOptions, FrameResults, SortedFrames
from pillarbox._operators.stateful_processor.handle import HandleDeclarations, TaskProcessorHandle
from pillarbox._operators.stateful_processor.sorted_rows import RowResults, SortedRows, values_of, without_late
from pillarbox._operators.stateful_processor.value_codec import row_maker, struct_codec
from pillarbox._state.heap.timers import HeapTimers

_drain = deque[Any](maxlen=0).extend
TIME_MODES = {"none": "None", "processingtime": "ProcessingTime", "eventtime": "EventTime"}


@dataclass(frozen=True)
class ProcessorSettings:
    """A processor and its settings.

    Attributes:
        watermark: the column with a watermark, or None.
        initial: the rows for ``handleInitialState``, and their key's columns.
    """

    processor: Any
    declarations: HandleDeclarations
    time_mode: str
    key: StructType
    output: pa.Schema
    watermark: str | None = None
    frames: FrameOptions | None = None
    initial: tuple[pa.Table, tuple[str, ...]] | None = None


def event_time_state(batch: int | None, watermark: int) -> dict[str, Any]:
    """Return the state of an operator that last ran in micro-batch ``batch``, or in an unknown micro-batch."""
    return {"watermark": watermark, "idle": None, "quiet_since": None, "silent": False, "batch": batch}


class StatefulProcessorOperator(KeyedOperator):
    """Calls a ``StatefulProcessor`` with PySpark rows or pandas frames.

    Buffers a micro-batch's rows, and processes them key by key at its end (barrier).

    Attributes:
        kind: the name of the Spark method, and the operator's uid.
        keeps_types: whether frames have the columns' types. Otherwise, pandas infers types from values.
    """

    by_key = False
    drops_late = True
    kind: str = "transformWithState"
    keeps_types: bool = False

    def __init__(self, context: OperatorContext, settings: ProcessorSettings, keying: Keying) -> None:
        super().__init__(context, None, "", keying)
        self.settings = settings
        self._pickled = CapturedObject(settings.processor).payload
        frames = settings.frames
        self.results: Any = RowResults(settings.output) if frames is None else FrameResults(settings.output, frames)
        service = self.time_services.get_internal_timer_service("user-timers", self, by_user=True, may_run_on=True)
        assert isinstance(service.event_timers, HeapTimers)
        self.timers: HeapTimers = service.event_timers
        self._handle = TaskProcessorHandle(settings.time_mode, settings.declarations, self.backend, self.timers)
        # As in Spark, the times in a timer's key are in the session's zone if the key's rows are frames.
        zone = None if frames is None else pa.lib.string_to_tzinfo(frames.zone)
        self._decode_key = struct_codec(settings.key, zone=zone).decode
        self._make_key = row_maker(tuple(settings.key.names))
        self._rows: list[pa.RecordBatch] = []
        self._last: tuple[int | None, int] | None = None
        self._has_run = False

    def process_records(self, records: Records) -> None:
        assert isinstance(records, ArrowRecords), "rows of a DataFrame come as columns"
        self._rows.append(records.batch)

    def process_watermark(self, timestamp: int) -> None:
        self.output.process_watermark(timestamp)

    @property
    def next_wake_up(self) -> int | None:
        return None if self.settings.time_mode == "none" else self.timers.next_timestamp()

    def finish(self) -> None:
        self._run()
        self._has_run = True

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        if not self._has_run:
            self._run()
        self._has_run = False

    def snapshot_event_time(self) -> dict[str, Any] | None:
        return None if self._last is None else event_time_state(*self._last)

    def restore_event_time(self, state: dict[str, Any] | None) -> None:
        """Restore the watermark. After rescaling, the micro-batch that reached it is unknown."""
        self._last = None if state is None else (state.get("batch"), state["watermark"])

    def _late_watermark(self, batch: SparkMicroBatch) -> int:
        """Return the watermark that decides which rows are late: the previous micro-batch's, as in Spark.

        Return 0 in the first micro-batch, and the current watermark if the operator did not run in the previous
        micro-batch.
        """
        last, self._last = self._last, (batch.number, batch.watermark)
        if last is None:
            return 0
        return last[1] if last[0] is None or last[0] + 1 == batch.number else batch.watermark

    def _run(self) -> None:
        batches, self._rows = self._rows, []
        batch = self.context.micro_batch
        if batch is None:
            raise ProgramError(
                f"operator {self.name!r} uses Spark's watermark, which recordings do not contain, so it cannot be"
                " replayed: test its processor with pillarbox.testing.TwsTester"
            )
        table = pa.Table.from_batches(batches) if batches else None
        column = self.settings.watermark if self.settings.time_mode == "eventtime" else None
        if column is not None and batch.number is not None:
            late = self._late_watermark(batch)
            if table is not None:
                in_time = without_late(table, column, late)
                self._dropped += table.num_rows - in_time.num_rows
                table = in_time
        rows = SortedRows(table, self.settings.key.names) if table else None
        try:
            self._call(load(self._pickled), rows, batch)
        except BaseException as error:
            if is_from_downstream(error):
                raise
            key = self.backend.key
            what = f"operator {self.name!r} {failed(error)} with the key {shorten(key)}"
            raise_from_user_code(error, what, operator=self.name, subtask=self.context.subtask, key=key)
        finally:
            self.backend.leave_key()

    def _call(self, program: Any, rows: SortedRows | None, batch: SparkMicroBatch) -> None:
        self._handle.initialize(program.init)
        times = TimerValues(-1, -1)
        if self.settings.time_mode != "none":
            times = TimerValues(batch.time, batch.watermark)
        if batch.number in (None, 0):
            self._handle_initial_state(program, times)
        self._handle_rows(program.handleInputRows, rows, times)
        self._handle_timers(program, batch, times)
        self._emit()
        program.close()

    def _handle_initial_state(self, processor: Any, times: TimerValues) -> None:
        if self.settings.initial is None:
            return
        table, names = self.settings.initial
        keying, context = Keying(names[0] if len(names) == 1 else names, self.name), self.context
        router = KeyingRouter(keying, context.parallelism, context.max_parallelism)
        for batch in table.combine_chunks().to_batches():
            own = np.asarray(router.subtasks_of(ArrowRecords(batch))) == context.subtask
            if own.any():
                rows = SortedRows(pa.Table.from_batches([batch]).filter(pa.array(own)), names)
                owners = keying.keys_of(ArrowRecords(rows.keys))
                for owner, (shown_key, states) in zip(owners, self._groups(rows, names)):
                    self.backend.set_current_key(owner)
                    for state in states:
                        processor.handleInitialState(shown_key, state, times)

    def _handle_timers(self, processor: Any, batch: SparkMicroBatch, times: TimerValues) -> None:
        """Call the processor for expired timers. Timers set in these calls fire in a later micro-batch."""
        for timestamp, key in self._due(batch):
            self.backend.set_current_key(key)
            shown_key = self._make_key(self._decode_key(key if len(self.settings.key) > 1 else (key,)))
            info = ExpiredTimerInfo(timestamp)
            self._take(processor.handleExpiredTimer(key=shown_key, timerValues=times, expiredTimerInfo=info))
            # Even if the processor has registered the timer again, as in Spark.
            self.timers.delete(timestamp)

    def _handle_rows(self, call: Callable[[Any, Any, Any], Any], rows: SortedRows | None, times: Any) -> None:
        if rows is None:
            return
        results, backend = self.results, self.backend
        table, take = backend.rows, results.take
        keys = self.keying.keys_of(ArrowRecords(rows.keys))
        for key, (shown_key, own) in zip(keys, self._groups(rows, self.settings.key.names)):
            backend.row = table[key]
            backend.key = key
            take(call(shown_key, own, times))
            _drain(own)
            if len(results) >= RUN_LIMIT:
                self._emit()

    def _groups(self, rows: SortedRows, key: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], Iterator[Any]]]:
        """Return each key, as the program sees it, and its rows or frames."""
        options = self.settings.frames
        if options is not None:
            frames = SortedFrames(rows, options, keeps_types=self.keeps_types)
            keys = options.keys(rows.keys.select(key), keeps_types=self.keeps_types)
            return zip(keys, map(frames.of_key, rows.starts.tolist(), rows.counts))
        pending = rows.rows()
        keys = zip(*[values_of(rows.keys.column(name)) for name in key])
        return zip(keys, (islice(pending, count) for count in rows.counts))

    def _due(self, batch: SparkMicroBatch) -> list[tuple[int, Any]]:
        """Return the expired timers (timestamp, key) in time order. The caller deletes them."""
        mode = self.settings.time_mode
        if mode == "none":
            return []
        return self.timers.due(batch.time if mode == "processingtime" else batch.watermark)

    def _take(self, emitted: Iterable[Any]) -> None:
        self.results.take(emitted)
        if len(self.results) >= RUN_LIMIT:
            self._emit()

    def _emit(self) -> None:
        if len(self.results):
            for batch in self.results.batches():
                emit_columns(self.output, batch)
