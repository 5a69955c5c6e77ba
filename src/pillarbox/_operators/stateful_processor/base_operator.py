"""Base class of the operators that run Spark's ``StatefulProcessor`` and ``GroupState`` functions."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from pillarbox._elements import ArrowRecords, Records
from pillarbox._errors import ProgramError, failed, raise_from_user_code, shorten
from pillarbox._operators.frame.collector import emit_columns, is_from_downstream
from pillarbox._operators.frame.keyed_operator import KeyedOperator
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import MicroBatch, OperatorContext
from pillarbox._operators.stateful_processor.frames import FrameOptions
from pillarbox._operators.stateful_processor.handle import Declarations
from pillarbox._operators.stateful_processor.sorted_rows import SortedRows, without_late
from pillarbox._state.heap.timers import HeapTimers

TIME_MODES = {"none": "None", "processingtime": "ProcessingTime", "eventtime": "EventTime"}


@dataclass(frozen=True)
class ProcessorSettings:
    """A processor and its settings."""

    processor: Any
    declarations: Declarations
    time_mode: str
    key: StructType
    output: pa.Schema
    event_time: str | None = None
    frames: FrameOptions | None = None
    has_watermark: bool = False
    initial: pa.Table | None = None


class MicroBatchOperator(KeyedOperator):
    """Buffers a micro-batch's rows, and processes them key by key at its end (barrier).

    Attributes:
        kind: the name of the Spark method, and the operator's uid.
    """

    by_key = False
    drops_late = True
    kind: str
    results: Any

    def __init__(self, context: OperatorContext, settings: ProcessorSettings, keying: Keying) -> None:
        super().__init__(context, None, "", keying)
        self.settings = settings
        service = self.time_services.get_internal_timer_service("user-timers", self, by_user=True, may_run_on=True)
        assert isinstance(service.event_timers, HeapTimers)
        self.timers: HeapTimers = service.event_timers
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
        if self.settings.event_time is None or self._last is None:
            return None
        batch, watermark = self._last
        return {"watermark": watermark, "idle": None, "quiet_since": None, "silent": False, "batch": batch}

    def restore_event_time(self, state: dict[str, Any] | None) -> None:
        """Restore the watermark. After rescaling, its micro-batch is unknown."""
        self._last = None if state is None else (state.get("batch"), state["watermark"])

    def _late_watermark(self, batch: MicroBatch) -> int:
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
        if self.settings.event_time is not None and batch.number is not None:
            late = self._late_watermark(batch)
            if table is not None:
                in_time = without_late(table, self.settings.event_time, late)
                self._dropped += table.num_rows - in_time.num_rows
                table = in_time
        rows = SortedRows(table, self.keying.columns or ()) if table else None
        try:
            self._call(rows, batch)
        except BaseException as error:
            if is_from_downstream(error):
                raise
            key = self.backend.key
            what = f"operator {self.name!r} {failed(error)} with the key {shorten(key)}"
            raise_from_user_code(error, what, operator=self.name, subtask=self.context.subtask, key=key)
        finally:
            self.backend.leave_key()

    @abstractmethod
    def _call(self, rows: SortedRows | None, batch: MicroBatch) -> None: ...

    def _limit(self, batch: MicroBatch) -> int | None:
        mode = self.settings.time_mode
        if mode == "none" or self.timers.next_timestamp() is None:
            return None
        return batch.time if mode == "processingtime" else batch.watermark

    def _emit(self) -> None:
        if len(self.results):
            for batch in self.results.batches():
                emit_columns(self.output, batch)
