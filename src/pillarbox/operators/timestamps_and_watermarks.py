"""Assigns event time to records, and emits watermarks.

Watermarks are emitted after each run of records and at the end of an epoch, not by the clock: so an epoch that
is run again gives the same ones. Source of the behaviour: Flink's ``TimestampsAndWatermarksOperator``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pillarbox.elements import ArrowRecords, Records
from pillarbox.errors import OperatorError, ProgramError, describe, shorten, shorten_record
from pillarbox.operators.operator import StreamOperator, raise_at_record, with_context
from pillarbox.rows import Row, timestamps_ms
from pillarbox.time import NoWatermarksGenerator, WatermarkGenerator, WatermarkOutput, WatermarkStrategy, to_timestamp
from pillarbox.time.timestamps import MAX_WATERMARK, MIN_TIMESTAMP, to_millisecond

__all__ = ["TimestampsAndWatermarksOperator"]


class TimestampsAndWatermarksOperator(StreamOperator, WatermarkOutput):
    """Runs a watermark strategy. Watermarks from upstream are not heeded, except the last one."""

    def __init__(self, name: str, strategy: WatermarkStrategy, uid: str = "") -> None:
        super().__init__(name, uid)
        self.strategy = strategy

    def open(self) -> None:
        """Make the watermark generator."""
        clock = self.context.processing_time_service.relative_time_millis
        self._generator: WatermarkGenerator = with_context(
            self, "making its watermark generator", self.strategy.create_generator, clock
        )
        self._emitted = MIN_TIMESTAMP
        # None: not known. The valve downstream may remember what was said before a restart, or by another worker.
        self._idle: bool | None = None
        self._used = False

    def restore_state(self, state: Any) -> None:
        """Begin anew: what was said since is known downstream, and not here."""
        if self._used:
            self.open()

    # -- what the generator calls (its WatermarkOutput) --

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Hand on a watermark of the generator if it goes forward.

        Raises:
            ValueError: it is not a number of milliseconds.
        """
        if type(timestamp_ms) is not int or not MIN_TIMESTAMP <= timestamp_ms <= MAX_WATERMARK:
            try:
                timestamp_ms = to_millisecond(timestamp_ms)
            except ValueError as error:
                kind = type(timestamp_ms).__name__
                raise ValueError(f"{shorten(timestamp_ms)} ({kind}) is no watermark: {error}") from None
        if timestamp_ms > self._emitted:
            self._emitted = timestamp_ms
            self.mark_active()
            self.output.process_watermark(timestamp_ms)

    def mark_idle(self) -> None:
        """Hand on that nothing is to be expected here for now."""
        if not self._idle:
            self._idle = True
            self.output.process_status(True)

    def mark_active(self) -> None:
        """Hand on that records come again."""
        if self._idle is not False:
            self._idle = False
            self.output.process_status(False)

    # -- what the chain calls --

    def process_records(self, records: Records) -> None:
        """Assign timestamps to a run, hand it on, then let the generator emit."""
        if not len(records):
            return
        if isinstance(self._generator, NoWatermarksGenerator) and self.strategy.timestamp_assigner is None:
            self.output.process_records(records)
            return
        self._used = True
        if self._idle is None:
            self.mark_active()
        stamped, latest = self._stamp(records)
        if self._generator.batchable:
            self.output.process_records(stamped)
            with_context(self, "its watermark generator's on_batch()", self._generator.on_batch, latest, self)
        else:
            self._punctuated(stamped)
        self._emit_periodically()

    def _emit_periodically(self) -> None:
        with_context(self, "its watermark generator's on_periodic_emit()", self._generator.on_periodic_emit, self)

    def _punctuated(self, records: Records) -> None:
        """Show each record to a generator that may emit between two: what came before must be out by then."""
        values, timestamps = records.values, records.timestamps
        assert timestamps is not None
        pending = _Pending(self, values, timestamps)
        seen = iter(values)
        try:
            for value, timestamp in zip(seen, timestamps):
                pending.seen += 1
                self._generator.on_event(value, timestamp, pending)  # type: ignore[arg-type]
        except BaseException as error:
            where = f"operator {self.name!r}: the watermark generator"
            raise_at_record(error, where, values, seen, operator=self.name, subtask=self.context.subtask)
        pending.hand_on()

    def _stamp(self, records: Records) -> tuple[Records, int]:
        """Return the records with their timestamps, and the latest of these."""
        column = self.strategy.timestamp_column
        assigner = self.strategy.timestamp_assigner
        if column is not None:
            if isinstance(records, ArrowRecords):
                column_stamps = self._column(records, column)
                return ArrowRecords(records.batch, column_stamps), int(column_stamps.max())
            fields = [self._field(value, column) for value in records.values]
            return Records(records.values, fields), max(fields)
        if assigner is None:
            if records.timestamps is None or None in records.timestamps:
                raise ProgramError(
                    f"operator {self.name!r}: records have no timestamp: give the strategy"
                    " with_timestamp_assigner(...) a column name or a function"
                )
            return records, max(_or_none_yet(records))
        previous = _or_none_yet(records)
        values = records.values
        pending = iter(values)
        extract = assigner.extract_timestamp
        try:
            stamps = [to_timestamp(extract(value, stamp)) for value, stamp in zip(pending, previous)]
        except BaseException as error:
            where = f"operator {self.name!r}: the timestamp assigner"
            raise_at_record(error, where, values, pending, operator=self.name, subtask=self.context.subtask)
        return Records(values, stamps), max(stamps)

    def _column(self, records: ArrowRecords, column: str) -> npt.NDArray[np.int64]:
        position = records.batch.schema.get_field_index(column)
        if position < 0:
            raise ProgramError(
                f"operator {self.name!r}: there is no timestamp column {column!r}; the columns are"
                f" {', '.join(records.batch.schema.names)}"
            )
        try:
            return timestamps_ms(records.batch.column(position))
        except (TypeError, ValueError) as error:
            raise OperatorError(f"operator {self.name!r}: timestamp column {column!r}: {error}") from error

    def _field(self, value: Any, column: str) -> int:
        try:
            found = value[column] if isinstance(value, (Row, dict)) else getattr(value, column)
            return to_timestamp(found)
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            raise OperatorError(
                f"operator {self.name!r}: no timestamp in field {column!r} of the record {shorten_record(value)}:"
                f" {describe(error)}"
            ) from error

    def process_watermark(self, timestamp: int) -> None:
        """Hand on only the maximum watermark: the end of bounded input."""
        if timestamp == MAX_WATERMARK:
            self.emit_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        """Status comes from the generator here, not from upstream."""

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Let the generator emit before the epoch ends."""
        self._used = True
        self._emit_periodically()

    def begin_epoch(self) -> None:
        """Start anew: under Spark the records of another epoch come from other partitions, active ones to all."""
        self.open()
        self._idle = False


class _Pending(WatermarkOutput):
    """The part of a run that has been shown to the generator and not been handed on."""

    def __init__(
        self, operator: TimestampsAndWatermarksOperator, values: list[Any], timestamps: Sequence[int | None]
    ) -> None:
        self._operator = operator
        self._values = values
        self._timestamps = timestamps
        self._handed_on = 0
        self.seen = 0

    def hand_on(self) -> None:
        start, self._handed_on = self._handed_on, self.seen
        if start < self.seen:
            run = Records(self._values[start : self.seen], self._timestamps[start : self.seen])
            self._operator.output.process_records(run)

    def emit_watermark(self, timestamp_ms: int) -> None:
        self.hand_on()
        self._operator.emit_watermark(timestamp_ms)

    def mark_idle(self) -> None:
        self.hand_on()
        self._operator.mark_idle()

    def mark_active(self) -> None:
        self.hand_on()
        self._operator.mark_active()


def _or_none_yet(records: Records) -> list[int]:
    """Return the timestamps that records have so far, as an assigner gets them."""
    if records.timestamps is None:
        return [MIN_TIMESTAMP] * len(records)
    return [MIN_TIMESTAMP if stamp is None else stamp for stamp in records.timestamps]
