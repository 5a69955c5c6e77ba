"""Assigns event time to records, and emits watermarks. Source: Flink's ``TimestampsAndWatermarksOperator``.

Watermarks are emitted after each batch of records and at the end of an epoch, so a repeated epoch emits the same
watermarks. After a shuffle, the last watermark, the status and the last record's arrival time are stored, so that a
subtask becomes idle at the same time in any worker. A source's idleness is measured in the receiving task
(:class:`~pillarbox._task.network.input_gate.InputGate`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._errors import OperatorError, ProgramError, describe, shorten_record
from pillarbox._operators.dead_letters.dead_letter import DeadLetters, sort_out
from pillarbox._operators.frame.operator import Input, OperatorContext, StreamOperator
from pillarbox._operators.frame.user_code import raise_at_record, with_context
from pillarbox._operators.functions.basic import check_interface_plain
from pillarbox._operators.functions.output_tag import OutputTag
from pillarbox._rows import Row, timestamps_ms
from pillarbox._time.timestamp_assigner import MAX_WATERMARK, MIN_TIMESTAMP, to_timestamp
from pillarbox._time.watermark_generators import (
    MonotoneWatermarkOutput,
    NoWatermarksGenerator,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarksWithIdleness,
)
from pillarbox._time.watermark_strategy import WatermarkStrategy


def status_said_anew(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of an event-time state that makes the operator emit its idle status again."""
    return {**state, "idle": None, "silent": False} if state.get("idle") else {**state}


class TimestampsAndWatermarksOperator(StreamOperator):
    """Runs a watermark strategy. Ignores upstream watermarks, except the maximum watermark, which ends the input.

    Args:
        tag: the side output for records without a valid timestamp, or None to fail the task.
    """

    def __init__(
        self, context: OperatorContext, strategy: WatermarkStrategy, tag: OutputTag[Any] | None = None
    ) -> None:
        super().__init__(context)
        self.strategy = strategy
        self._letters = None if tag is None else DeadLetters(context, tag, context.side_outputs)
        self._generator: WatermarkGenerator = NoWatermarksGenerator()
        self._watermarks = MonotoneWatermarkOutput(self.output, zone=context.zone)
        self._used = False
        self._times: _EventTimes | None = None

    def open(self) -> None:
        self._start_over(idle=None)

    def begin_epoch(self) -> None:
        self._start_over(idle=False)

    def _start_over(self, *, idle: bool | None, last: int = MIN_TIMESTAMP) -> None:
        context = self.context
        if not context.batch:
            self._generator = with_context(context, "creating its watermark generator", self._new_generator)
        self._watermarks = MonotoneWatermarkOutput(self.output, idle=idle, last=last, zone=context.zone)
        self._used = False

    def _new_generator(self) -> WatermarkGenerator:
        generator = self.strategy.create_generator(self.context.epoch_time)
        inner = generator.generator if isinstance(generator, WatermarksWithIdleness) else generator
        check_interface_plain(inner, WatermarkGenerator, asked_by="for_generator()")
        return generator

    @property
    def _idleness(self) -> WatermarksWithIdleness | None:
        generator = self._generator
        counts = self.strategy.idle_timeout is not None and self.context.epoch_time is not None
        return generator if counts and isinstance(generator, WatermarksWithIdleness) else None

    @property
    def next_wake_up(self) -> int | None:
        return None if self._idleness is None else self._idleness.idle_at

    def snapshot_event_time(self) -> dict[str, Any] | None:
        state = {"watermark": self._watermarks.last, "idle": self._watermarks.is_idle}
        return state if self._idleness is None else {**state, **self._idleness.snapshot()}

    def restore_event_time(self, state: dict[str, Any] | None) -> None:
        """Restore the last emitted watermark. The generator restarts empty, but no lower watermark is emitted."""
        if state is not None:
            self._start_over(idle=state["idle"], last=state["watermark"])
            if self._idleness is not None:
                self._idleness.restore(state)
        elif self._used:
            # An earlier version's checkpoint does not contain the status of the valve downstream.
            self._start_over(idle=None)

    def process_records(self, records: Records) -> None:
        if not len(records):
            return
        if isinstance(self._generator, NoWatermarksGenerator) and self.strategy.timestamp_assigner is None:
            self.output.process_records(records)
            return
        self._used = True
        if self._watermarks.is_idle is None:
            self._watermarks.mark_active()
        result = self._stamp(records) if self._letters is None else self._sorted_out(records, self._letters)
        if result is None:
            return
        stamped, latest = result
        self._times = _EventTimes.of(stamped, latest, self._times)
        if self._generator.batchable:
            self.output.process_records(stamped)
            what = "its watermark generator's on_batch()"
            with_context(self.context, what, self._generator.on_batch, latest, self._watermarks)
        else:
            self._punctuated(stamped)
        self._emit_periodically()

    def take_event_times(self) -> list[Any] | None:
        """Return [smallest timestamp, largest timestamp, source position of the record with the largest timestamp]."""
        times, self._times = self._times, None
        return None if times is None else [times.earliest, times.latest, times.location]

    def _emit_periodically(self) -> None:
        what = "its watermark generator's on_periodic_emit()"
        with_context(self.context, what, self._generator.on_periodic_emit, self._watermarks)

    def _punctuated(self, records: Records) -> None:
        values, timestamps = records.values, records.timestamps
        assert timestamps is not None
        pending = _Pending(self.output, self._watermarks, values, timestamps)
        seen = iter(values)
        try:
            for value, timestamp in zip(seen, timestamps):
                pending.seen += 1
                self._generator.on_event(value, timestamp, pending)  # type: ignore[arg-type]
        except BaseException as error:
            where = f"operator {self.name!r}: the watermark generator"
            raise_at_record(error, where, values, seen, operator=self.name, subtask=self.context.subtask)
        pending.emit()

    def _stamp(self, records: Records) -> tuple[Records, int]:
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
                    f"operator {self.name!r}: records have no timestamps: call with_timestamp_assigner(...) on the"
                    " strategy, with a column name or a function"
                )
            return records, max(_or_none_yet(records))
        previous = _or_none_yet(records)
        values = records.values
        pending = iter(values)
        extract, zone = assigner.extract_timestamp, self.context.zone
        try:
            stamps = [
                to_timestamp(extract(value, stamp), zone, assigner, value) for value, stamp in zip(pending, previous)
            ]
        except BaseException as error:
            where = f"operator {self.name!r}: the timestamp assigner"
            raise_at_record(error, where, values, pending, operator=self.name, subtask=self.context.subtask)
        return Records(values, stamps), max(stamps)

    def _sorted_out(self, records: Records, letters: DeadLetters) -> tuple[Records, int] | None:
        has_column = self.strategy.timestamp_column is not None
        if has_column:
            try:
                return self._stamp(records)
            except OperatorError:
                pass
        good: list[int] = []
        stamps: list[int | None] = []
        latest = MIN_TIMESTAMP
        for part, (stamped, last) in sort_out(records, self._stamp, (OperatorError,), letters, in_halves=has_column):
            assert stamped.timestamps is not None
            good += part
            stamps += stamped.timestamps
            latest = max(latest, last)
        if not good:
            return None
        remaining = records.take(np.array(good, np.int64))
        if isinstance(remaining, ArrowRecords) and has_column:
            return ArrowRecords(remaining.batch, np.array(stamps, np.int64)), latest
        return Records(remaining.values, stamps), latest

    def _column(self, records: ArrowRecords, column: str) -> npt.NDArray[np.int64]:
        position = records.batch.schema.get_field_index(column)
        if position < 0:
            raise ProgramError(
                f"operator {self.name!r}: there is no timestamp column {column!r}; the columns are"
                f" {', '.join(records.batch.schema.names)}"
            )
        try:
            return timestamps_ms(records.batch.column(position), self.context.zone)
        except (TypeError, ValueError) as error:
            raise OperatorError(f"operator {self.name!r}: timestamp column {column!r}: {error}") from error

    def _field(self, value: Any, column: str) -> int:
        try:
            timestamp = value[column] if isinstance(value, (Row, dict)) else getattr(value, column)
            return to_timestamp(timestamp, self.context.zone)
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            raise OperatorError(
                f"operator {self.name!r}: no timestamp in field {column!r} of the record {shorten_record(value)}:"
                f" {describe(error)}"
            ) from error

    def process_watermark(self, timestamp: int) -> None:
        if timestamp == MAX_WATERMARK:
            self._watermarks.emit_watermark(timestamp)

    def process_status(self, idle: bool) -> None: ...

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        self._used = True
        self._emit_periodically()


class _EventTimes(NamedTuple):
    """The smallest and largest event time of records (Unix time in ms)."""

    earliest: int
    latest: int
    location: dict[str, Any]

    @staticmethod
    def of(records: Records, latest: int, before: _EventTimes | None) -> _EventTimes:
        columns = records.stamps if isinstance(records, ArrowRecords) else None
        if columns is not None:
            earliest = int(columns.min())
        else:
            assert records.timestamps is not None
            earliest = min(records.timestamps)  # type: ignore[type-var, assignment]
        if before is not None and before.latest >= latest:
            return before._replace(earliest=min(before.earliest, earliest))
        position = int(columns.argmax()) if columns is not None else records.timestamps.index(latest)  # type: ignore[union-attr]
        return _EventTimes(
            earliest if before is None else min(before.earliest, earliest), latest, _location_of(records, position)
        )


# Columns with a record's position in Spark's Kafka source and in files.
_KAFKA = ("topic", "partition", "offset")
_METADATA, _FILE = "_metadata", "file_path"


def _location_of(records: Records, position: int) -> dict[str, Any]:
    if isinstance(records, ArrowRecords):
        batch = records.batch
        names = batch.schema.names
        values = {
            name: batch.column(names.index(name))[position].as_py()
            for name in (*_KAFKA, _METADATA, _FILE)
            if name in names
        }
    else:
        record = records.values[position]
        fields = record if isinstance(record, dict) else getattr(record, "_fields", ())
        values = {
            name: record[name] if isinstance(record, (Row, dict)) else getattr(record, name)
            for name in (*_KAFKA, _METADATA, _FILE)
            if name in fields
        }
    if all(name in values for name in _KAFKA):
        return {name: values[name] for name in _KAFKA}
    metadata = values.get(_METADATA)
    file = values.get(_FILE)
    if metadata is not None:
        file = metadata.get(_FILE) if isinstance(metadata, dict) else getattr(metadata, _FILE, None)
    return {} if file is None else {"file": str(file)}


class _Pending(WatermarkOutput):
    def __init__(
        self, output: Input, watermarks: WatermarkOutput, values: list[Any], timestamps: Sequence[int | None]
    ) -> None:
        self._output = output
        self._watermarks = watermarks
        self._values = values
        self._timestamps = timestamps
        self._emitted = 0
        self.seen = 0

    def emit(self) -> None:
        start, self._emitted = self._emitted, self.seen
        if start < self.seen:
            run = Records(self._values[start : self.seen], self._timestamps[start : self.seen])
            self._output.process_records(run)

    def emit_watermark(self, timestamp_ms: int) -> None:
        self.emit()
        self._watermarks.emit_watermark(timestamp_ms)

    def mark_idle(self) -> None:
        self.emit()
        self._watermarks.mark_idle()

    def mark_active(self) -> None:
        self.emit()
        self._watermarks.mark_active()


def _or_none_yet(records: Records) -> list[int]:
    if records.timestamps is None:
        return [MIN_TIMESTAMP] * len(records)
    return [MIN_TIMESTAMP if stamp is None else stamp for stamp in records.timestamps]
