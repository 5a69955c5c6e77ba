"""Stream elements (records, watermarks, barriers) and the buffers that hold them.

A *buffer* holds one encoded element, such as a batch of records, for one target subtask. Its first byte identifies the
kind of element.
"""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import cloudpickle

from pillarbox._copies import are_fixed
from pillarbox._errors import ExchangeError, OperatorError, describe
from pillarbox._rows import Row, row_class, rows_from_arrow

TIMESTAMP_COLUMN = "__pillarbox_timestamp"

# A channel number has the sending subtask in this many low bits, and the edge in the bits above.
_SUBTASK_BITS = 20


def channel_code(edge: int, subtask: int) -> int:
    """Combine an edge's index at its receiver and the sending subtask into a channel number."""
    return edge << _SUBTASK_BITS | subtask


def edge_of_channel(channel: int) -> int:
    return channel >> _SUBTASK_BITS


def subtask_of_channel(channel: int) -> int:
    return channel & ((1 << _SUBTASK_BITS) - 1)


class Records:
    """A batch of consecutive records of a stream, processed in one call.

    Attributes:
        timestamps: a list of event times (Unix time in ms, or None), or None if no record has an event time.
    """

    __slots__ = ("_is_fixed", "timestamps", "values")

    values: list[Any]
    timestamps: Sequence[int | None] | None

    def __init__(self, values: list[Any], timestamps: Sequence[int | None] | None = None) -> None:
        self.values = values
        self.timestamps = timestamps
        self._is_fixed: bool | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_fixed(self) -> bool:
        if self._is_fixed is None:
            self._is_fixed = are_fixed(self.values)
        return self._is_fixed

    def choose(self, chosen: Sequence[bool]) -> Records:
        timestamps = self.timestamps
        stamps = None if timestamps is None else list(compress(timestamps, chosen))
        records = Records(list(compress(self.values, chosen)), stamps)
        records._is_fixed = self._is_fixed or None
        return records

    def copied(self, copied: Callable[[Any], Any]) -> Records:
        """Return these records with copied values, or ``self`` if the values are immutable."""
        return self if self.is_fixed else Records(list(map(copied, self.values)), self.timestamps)

    def slice(self, start: int, stop: int) -> Records:
        timestamps = self.timestamps
        return Records(self.values[start:stop], None if timestamps is None else timestamps[start:stop])

    def take(self, indices: npt.NDArray[np.int64]) -> Records:
        values, timestamps, positions = self.values, self.timestamps, indices.tolist()
        stamps = None if timestamps is None else list(map(timestamps.__getitem__, positions))
        return Records(list(map(values.__getitem__, positions)), stamps)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} values)"


class ArrowRecords(Records):
    """A columnar batch of records. Rows become Python objects when a function first reads them.

    ``stamps`` are the rows' timestamps (Unix time in ms), or None.
    """

    __slots__ = ("_timestamps", "_values", "batch", "stamps")

    def __init__(self, batch: pa.RecordBatch, stamps: npt.NDArray[np.int64] | None = None) -> None:
        self.batch: Any = batch
        self.stamps: Any | None = stamps
        self._values: list[Any] | None = None
        self._timestamps: list[int | None] | None = None
        self._is_fixed: bool | None = None

    @property
    def values(self) -> list[Any]:  # type: ignore[override]
        if self._values is None:
            self._values = list(rows_from_arrow(self.batch))
        return self._values

    @property
    def timestamps(self) -> list[int | None] | None:  # type: ignore[override]
        if self._timestamps is None and self.stamps is not None:
            self._timestamps = self.stamps.tolist()
        return self._timestamps

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @property
    def is_fixed(self) -> bool:
        if self._is_fixed is None:
            self._is_fixed = not any(pa.types.is_nested(field.type) for field in self.batch.schema)
        return self._is_fixed

    def copied(self, copied: Callable[[Any], Any]) -> ArrowRecords:
        """Return records with the same columns but separate Python rows, or ``self`` if the values are immutable."""
        return self if self.is_fixed else ArrowRecords(self.batch, self.stamps)

    def take(self, indices: npt.NDArray[np.int64]) -> ArrowRecords:
        return ArrowRecords(self.batch.take(pa.array(indices)), None if self.stamps is None else self.stamps[indices])

    def slice(self, start: int, stop: int) -> ArrowRecords:
        return ArrowRecords(
            self.batch.slice(start, stop - start), None if self.stamps is None else self.stamps[start:stop]
        )


def pickled_records(batch: pa.RecordBatch) -> Records:
    return Records([pickle.loads(value) for value in batch.column(0).to_pylist()])


@dataclass(frozen=True)
class Watermark:
    """The assertion that no later record has a timestamp of at most ``timestamp`` (Unix time in ms)."""

    timestamp: int


@dataclass(frozen=True)
class WatermarkStatus:
    """A channel's status: idle or active. The downstream watermark ignores idle channels."""

    idle: bool


@dataclass(frozen=True)
class Barrier:
    """The end of an epoch in a channel. ``checkpoint_id`` is the epoch number: Spark's batch id, if known."""

    checkpoint_id: int


@dataclass(frozen=True)
class EndOfData:
    """The end of a bounded channel."""


@dataclass(frozen=True)
class TaskReport:
    """The metrics of one task for one epoch. Durations are in ms, times are Unix times in ms.

    Attributes:
        vertex: names of the task's operators.
        uid: the first operator's uid, or ``""`` for a source.
        level: number of shuffles between the sources and the task.
        subtask: the subtask's index; for a source, the partition.
        busy_ms: the epoch's time minus ``idle_ms``, ``back_pressured_ms`` and ``state_ms``.
        idle_ms: time waiting for input.
        back_pressured_ms: time waiting for the output to be consumed.
        state_ms: time for syncing and writing the state.
        alignment_ms: time from the first barrier to the last.
        counters: counters of the operators and of the user's functions, by ``uid.name``.
        buffers_in: buffers received. For a source, this field and the fields below are None, unless their description
            mentions sources.
        keys: number of keys with state or timers. With many columnar windows, the number of keys in the largest window.
        next_wake_up: when the task next has work even without input, or None.
        unfinished: whether requests are carried into the next epoch.
        state_bytes: the approximate serialized size of the state.
        mailbox_latency_ms: the longest wait of the latest ten probes in the mailbox, or None unless measured
            (``measure_mailbox_latency``). Also set for sources.
        state_sync: ``"in step"`` if the task's state already had the store's version, ``"loaded"`` if it read the
            state from the store.
        state_format: ``"plain"`` for plain data of declared types, ``"pickle: "`` and the reason, or None without
            state.
        gauges: the other metrics of the user's functions, by ``uid.name``.
        rate_limited_ms: how long an async function's next requests waited for a rate limit, or None without a limit.
        broadcast_in: number of broadcast records among the received records. Each subtask receives every broadcast
            record.
        process: pid of the process that ran the task: a home process (long-lived process of a state partition) or a
            Spark Python worker.
        attempt: the Spark task's attempt number, from 0, or None outside of Spark.
        process_bytes: resident memory of that process (Linux), including pages that home processes share.
        number: the vertex's number in the program, or -1 if unknown.
        started: when the epoch began in the task.
        operators: records in and out of each operator of the chain, from the head.
        held_by: [vertex, subtask] of the sender that holds the task's watermark back, or None. The subtask is -1 for a
            source without records in the epoch.
        event_times: [smallest, largest, source position of the largest timestamp's record] of the timestamps that the
            task assigned in the epoch, or None. A position is ``{"topic", "partition", "offset"}`` for Kafka,
            ``{"file"}`` for files, otherwise ``{}``.
        key_sample: the number of sampled records, and the most frequent keys in the sample (as text) with their counts.
            None if the stream has no keys or few records.
        versions: Python and package versions of the process. Only set in the task's first epoch in a process.
        private_bytes: memory of the process (Linux) without shared pages.
        executor: pid of the process's executor (a JVM), or None if unknown.
        memory_limit: memory limit (bytes) of the container, or None. Set in the same epoch as ``versions``.
        home_restarts: number of home processes started for this epoch because their predecessors ended, hung or were
            lost.
        home_cold_starts: number of home processes that began without the query's state, as in the task's first epoch.
        home_adoptions: number of home processes that a new starter (the process that starts them) took over from an
            ended starter.
        fallback: why the task ran in a Spark Python worker instead of its home process, or None.
        program: name of the program in Spark's metrics, set when the progress is read.
        hot_keys: maps the uid of each async keyed function to the key (as text) that the most records waited for. The
            counter ``longest_key`` counts these records. None if no record waited.
    """

    vertex: str
    uid: str
    level: int
    subtask: int
    epoch: int
    records_in: int
    records_out: int
    bytes_out: int
    mails: int
    busy_ms: int
    idle_ms: int
    back_pressured_ms: int
    state_ms: int
    alignment_ms: int
    counters: dict[str, int] = field(default_factory=dict)
    buffers_in: int | None = None
    watermark: int | None = None
    keys: int | None = None
    event_time_timers: int | None = None
    processing_time_timers: int | None = None
    next_wake_up: int | None = None
    unfinished: bool | None = None
    state_bytes: int | None = None
    state_bytes_written: int | None = None
    state_chunks: int | None = None
    state_sync: str | None = None
    state_format: str | None = None
    mailbox_latency_ms: int | None = None
    gauges: dict[str, float] = field(default_factory=dict)
    rate_limited_ms: int | None = None
    broadcast_in: int | None = None
    host: str | None = None
    process: int | None = None
    attempt: int | None = None
    process_tasks: int | None = None
    process_bytes: int | None = None
    number: int = -1
    started: int = 0
    operators: list[list[int]] | None = None
    held_by: list[int] | None = None
    event_times: list[Any] | None = None
    key_sample: list[Any] | None = None
    versions: dict[str, str] | None = None
    private_bytes: int | None = None
    executor: int | None = None
    memory_limit: int | None = None
    home_restarts: int = 0
    home_cold_starts: int = 0
    home_adoptions: int = 0
    fallback: str | None = None
    program: str = ""
    hot_keys: dict[str, str] | None = None

    @property
    def is_source(self) -> bool:
        """Whether the task runs a source, and so has neither state nor timers."""
        return self.level == 0

    @property
    def timers(self) -> int | None:
        """Total number of timers on both clocks, or None for a source."""
        return None if self.is_source else (self.event_time_timers or 0) + (self.processing_time_timers or 0)

    @property
    def total_ms(self) -> int:
        return self.busy_ms + self.idle_ms + self.back_pressured_ms + self.state_ms

    def __repr__(self) -> str:
        return metrics_repr(self, vars(self))


# Field defaults. For a field without a default, this is MISSING, which equals no value.
_DEFAULTS = [
    default_field.default if default_field.default_factory is MISSING else default_field.default_factory()
    for default_field in fields(TaskReport)
]


def text_of_report(report: TaskReport) -> str:
    """Return a report's values as a JSON array. New fields of ``TaskReport`` must be added at its end.

    Trailing default values are omitted to save memory: Spark keeps a hundred progress events per query.
    """
    values = list(vars(report).values())
    while values[-1] == _DEFAULTS[len(values) - 1]:
        values.pop()
    return json.dumps(values, separators=(",", ":"))


def report_of_text(text: str) -> TaskReport:
    """Parse a report, ignoring fields of later versions."""
    return TaskReport(*json.loads(text)[: len(fields(TaskReport))])


def metrics_repr(report: Any, values: dict[str, Any]) -> str:
    shown = ", ".join(f"{name}={value!r}" for name, value in values.items() if value or name in ("subtask", "epoch"))
    return f"{type(report).__name__}({shown})"


Element = Records | Watermark | WatermarkStatus | Barrier | EndOfData | TaskReport


class Buffer(NamedTuple):
    """A payload for one subtask or output.

    Attributes:
        target: the number that identifies the receiving subtask or output.
        seq: index of the buffer among the epoch's buffers from this channel to this target.
    """

    target: int
    channel: int
    seq: int
    payload: bytes


_ARROW, _PICKLED, _ROWS = b"A", b"P", b"R"
_WATERMARK, _STATUS, _BARRIER, _END, _REPORT = b"W", b"S", b"B", b"E", b"M"
_INT64 = struct.Struct("<q")
# Alignment for Arrow's kernels.
_ALIGNED = 8


class ByValueError(Exception):
    """A class or function cannot be pickled by name."""


def dumps(value: Any) -> bytes:
    """Pickle a value. Classes that other processes cannot import are pickled by value."""
    try:
        return pickle.dumps(value, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError):
        by_value: bytes = cloudpickle.dumps(value, protocol=5)  # type: ignore[no-untyped-call]
        return by_value


def dumps_by_name(value: Any) -> bytes:
    """Pickle a value for a checkpoint, with classes and functions by name, or raise ByValueError."""
    try:
        return pickle.dumps(value, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        try:
            cloudpickle.dumps(value, protocol=5)  # type: ignore[no-untyped-call]
        except Exception:
            raise error from None
        raise ByValueError(describe(error)) from error


def encode(element: Element) -> bytes:
    if isinstance(element, ArrowRecords):
        return _encode_arrow(element)
    if isinstance(element, Records):
        return _encode_values(element)
    if isinstance(element, Watermark):
        return _WATERMARK + _INT64.pack(element.timestamp)
    if isinstance(element, WatermarkStatus):
        return _STATUS + (b"\x01" if element.idle else b"\x00")
    if isinstance(element, Barrier):
        return _BARRIER + _INT64.pack(element.checkpoint_id)
    if isinstance(element, EndOfData):
        return _END
    return _REPORT + dumps(vars(element))


def _encode_arrow(records: ArrowRecords) -> bytes:
    batch = records.batch
    if records.stamps is not None:
        batch = batch.append_column(TIMESTAMP_COLUMN, pa.array(records.stamps))
    sink = pa.BufferOutputStream()
    sink.write(_ARROW.ljust(_ALIGNED, b"\0"))
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _encode_values(records: Records) -> bytes:
    values, timestamps = records.values, records.timestamps
    # Rows pickle several times slower than tuples.
    if values and isinstance(values[0], Row) and len(set(map(type, values))) == 1:
        return _ROWS + dumps((values[0]._fields, list(map(tuple, values)), timestamps))
    return _PICKLED + dumps((values, timestamps))


def decode(payload: bytes) -> Element:
    tag = payload[:1]
    if tag == _ARROW:
        batch = pa.ipc.open_stream(pa.py_buffer(payload).slice(_ALIGNED)).read_next_batch()
        stamps = None
        if batch.schema.names[-1:] == [TIMESTAMP_COLUMN]:
            position = batch.num_columns - 1
            stamps = batch.column(position).to_numpy()
            batch = batch.remove_column(position)
        return ArrowRecords(batch, stamps)
    body = memoryview(payload)[1:]
    if tag == _ROWS:
        fields, tuples, timestamps = pickle.loads(body)
        return Records(list(map(row_class(fields), tuples)), timestamps)
    if tag == _PICKLED:
        try:
            return Records(*pickle.loads(body))
        except Exception as error:
            raise OperatorError(
                f"an emitted value cannot be unpickled: {describe(error)}. Emit plain data, or define __reduce__() in"
                " its class"
            ) from error
    if tag == _WATERMARK:
        return Watermark(_INT64.unpack(body)[0])
    if tag == _STATUS:
        return WatermarkStatus(body[0] == 1)
    if tag == _BARRIER:
        return Barrier(*_INT64.unpack(body))
    if tag == _END:
        return EndOfData()
    if tag == _REPORT:
        return TaskReport(**pickle.loads(body))
    raise ExchangeError(f"a buffer starts with the unknown tag {tag!r}: use the same pillarbox version on all workers")
