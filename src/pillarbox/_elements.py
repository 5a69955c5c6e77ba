"""The elements of streams: records, watermarks, barriers; and the buffers that hold them.

A *buffer* is one binary payload that holds many stream elements and is addressed to one target subtask. Its
first byte tells its content. Elements of one channel keep their order: ``seq`` counts up per channel and target.
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
from pillarbox._errors import ExchangeError, describe
from pillarbox._rows import Row, row_class, rows_from_arrow

TIMESTAMP_COLUMN = "__pillarbox_timestamp"

# A channel's number holds the sending subtask in its lowest bits, above them the edge.
_SUBTASK_BITS = 20


def channel_code(edge: int, subtask: int) -> int:
    """Return the number of a channel: of an edge, as its receiver knows it, and of a sending subtask."""
    return edge << _SUBTASK_BITS | subtask


def edge_of_channel(channel: int) -> int:
    """Return the edge that a channel belongs to, as its receiver knows it."""
    return channel >> _SUBTASK_BITS


def subtask_of_channel(channel: int) -> int:
    """Return the sending subtask of a channel."""
    return channel & ((1 << _SUBTASK_BITS) - 1)


class Records:
    """A run of stream records: ``values`` and, where they have one, their event-time ``timestamps``.

    Attributes:
        values: the records, any Python objects.
        timestamps: epoch milliseconds, one for each value (None for a record without), or None when no record
            has one.
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
        """Whether no value can change."""
        if self._is_fixed is None:
            self._is_fixed = are_fixed(self.values)
        return self._is_fixed

    def choose(self, chosen: Sequence[bool]) -> Records:
        """Return the records for which ``chosen`` is true."""
        timestamps = self.timestamps
        stamps = None if timestamps is None else list(compress(timestamps, chosen))
        records = Records(list(compress(self.values, chosen)), stamps)
        records._is_fixed = self._is_fixed or None
        return records

    def copied(self, copied: Callable[[Any], Any]) -> Records:
        """Return the records with copies of their values; the records themselves if no value can change."""
        return self if self.is_fixed else Records(list(map(copied, self.values)), self.timestamps)

    def slice(self, start: int, stop: int) -> Records:
        """Return the records from ``start`` to before ``stop``."""
        timestamps = self.timestamps
        return Records(self.values[start:stop], None if timestamps is None else timestamps[start:stop])

    def take(self, indices: npt.NDArray[np.int64]) -> Records:
        """Return the records at ``indices``, in that order."""
        values, timestamps, positions = self.values, self.timestamps, indices.tolist()
        stamps = None if timestamps is None else list(map(timestamps.__getitem__, positions))
        return Records(list(map(values.__getitem__, positions)), stamps)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} values)"


class ArrowRecords(Records):
    """A run of records that no Python function has touched yet: it stays columnar until one asks for values.

    Attributes:
        batch: the columns.
        stamps: epoch milliseconds as int64, one for each row, or None.
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
        """Whether no value can change: a list or map in a row can."""
        if self._is_fixed is None:
            self._is_fixed = not any(pa.types.is_nested(field.type) for field in self.batch.schema)
        return self._is_fixed

    def copied(self, copied: Callable[[Any], Any]) -> ArrowRecords:
        """Return the records with rows of their own, each decoded again; the records themselves if none can change."""
        return self if self.is_fixed else ArrowRecords(self.batch, self.stamps)

    def take(self, indices: npt.NDArray[np.int64]) -> ArrowRecords:
        """Return the rows at ``indices``, in that order."""
        return ArrowRecords(self.batch.take(pa.array(indices)), None if self.stamps is None else self.stamps[indices])

    def slice(self, start: int, stop: int) -> ArrowRecords:
        """Return the rows from ``start`` to before ``stop``, without copying."""
        return ArrowRecords(
            self.batch.slice(start, stop - start), None if self.stamps is None else self.stamps[start:stop]
        )


def pickled_records(batch: pa.RecordBatch) -> Records:
    """Return the records of a collection, which are pickled in the first column."""
    return Records([pickle.loads(value) for value in batch.column(0).to_pylist()])


@dataclass(frozen=True)
class Watermark:
    """No record with a timestamp of at most ``timestamp`` (epoch ms) is expected any more."""

    timestamp: int


@dataclass(frozen=True)
class WatermarkStatus:
    """Whether a channel takes part in the downstream watermark: an idle one does not hold it back."""

    idle: bool


@dataclass(frozen=True)
class Barrier:
    """Ends a channel's share of an epoch.

    Attributes:
        checkpoint_id: the number of the epoch as the sender counts it (Spark's batch id where that is known).
    """

    checkpoint_id: int


@dataclass(frozen=True)
class EndOfData:
    """A bounded channel has given its last record and its last watermark."""


@dataclass(frozen=True)
class TaskReport:
    """The metrics of one task for one epoch. Times are in milliseconds; points in time are epoch milliseconds.

    Attributes:
        vertex: names of the task's operators.
        uid: the uid of its first operator; empty for a source.
        level: how many shuffles it is away from the sources.
        subtask: which parallel instance it is; of a source, the partition.
        epoch: number of the epoch.
        records_in: records that came in.
        records_out: records that were sent.
        bytes_out: bytes of the buffers that were sent.
        mails: mails that were run.
        busy_ms: time in none of the next three states.
        idle_ms: time without input: the task waits for it.
        back_pressured_ms: time in which the output was not taken.
        state_ms: time for bringing the state to the store's version, and for writing it.
        alignment_ms: time from the first barrier to the last.
        counters: the operators' own counts, and the counts of the user's functions, by ``uid.name``.
        buffers_in: buffers that came in. This and what follows: None for a source.
        watermark: the task's event time.
        keys: keys with state or timers; if windows fold more than 100,000 accumulators, the keys of the largest window.
        event_time_timers: event-time timers of all keys.
        processing_time_timers: processing-time timers of all keys.
        next_wake_up: when there is something to do even without input; None: never.
        unfinished: whether requests are carried into the next epoch.
        state_bytes: the approximate size of the state when it is written.
        state_bytes_written: what this epoch wrote of it.
        state_chunks: chunks of the state log.
        mailbox_latency_ms: the longest that one of the latest ten probes waited for its turn in the mailbox; also for a
            source. None: no probe has run, or the program asks for none (``measure_mailbox_latency``).
        state_sync: how the task stood to the store's version: ``"in step"``, or ``"loaded"``: it was created again.
        state_format: ``"plain"``, where state is plain data of declared types; or ``"pickle: "`` and the reason. None:
            there is no state, or (in a batch) it is written nowhere.
        gauges: the other metrics of the user's functions, by ``uid.name``.
        rate_limited_ms: time in which the next request of an async function waited for a rate limit; None: there is no
            rate limit.
        broadcast_in: how many of ``records_in`` were broadcast: each subtask gets all of them.
        host: the machine that the task ran on.
        process: the number of its process there: a home, or a Python worker of Spark's.
        attempt: which attempt of Spark's task ran it, from 0; None where no task of Spark's did.
        process_tasks: how many tasks live in that process.
        process_bytes: the resident memory of that process (Linux), of which homes share some with each other.
        number: the number of its vertex in the program; -1: it is not known.
        started: when the task began the epoch (epoch ms).
        operators: for each operator of the chain, the head first, how many records came in and went out.
        held_by: the vertex and the subtask whose watermark is the lowest, and so holds the task's; the subtask is -1 if
            it is a source that had no records in the epoch. None: nothing holds it.
        event_times: the smallest and the largest timestamp that the task has given to records of the epoch, and the
            place of the record with the largest one: ``{"topic", "partition", "offset"}`` of Kafka or ``{"file"}``, and
            ``{}`` where the records do not tell. None: it has given none.
        key_sample: how many records of the epoch were sampled, and the most frequent keys among them (as text), each
            with the number of its records in the sample. None: it has no keys, or few records.
        versions: of Python and of packages in its process, in the first epoch of the task there; None: in later ones.
        private_bytes: the memory of its process (Linux) without pages that other processes have, too, such as those
            that homes share. So a sum over processes counts no page twice.
        executor: the number of the process of its executor, a JVM; None: it is not known.
        memory_limit: bytes that all processes of its container may use, in the first epoch of the task there. None: in
            later ones, or there is no limit.
        home_restarts: homes that were started for this epoch because the home before ended, hung or was lost.
        home_cold_starts: homes that had nothing of the run: the task's first epoch in the executor, or the first after
            its partition has moved there.
        home_adoptions: homes that a new starter took over from one that had ended.
        fallback: why the task ran in a Python worker of Spark's although it should have a home; None: it had one, or
            should have none.
        program: the name that the metrics of its program are observed under, which whoever reads the progress sets.
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

    @property
    def is_source(self) -> bool:
        """Whether it is a task before the first shuffle, which has neither state nor timers."""
        return self.level == 0

    @property
    def timers(self) -> int | None:
        """Timers of all keys, of both clocks; None for a source."""
        return None if self.is_source else (self.event_time_timers or 0) + (self.processing_time_timers or 0)

    @property
    def total_ms(self) -> int:
        """How long it took."""
        return self.busy_ms + self.idle_ms + self.back_pressured_ms + self.state_ms

    def __repr__(self) -> str:
        return told(self, vars(self))


# The default of each field; of those without one, an object that no value equals.
_DEFAULTS = [each.default if each.default_factory is MISSING else each.default_factory() for each in fields(TaskReport)]


def text_of_report(report: TaskReport) -> str:
    """Return the values of a report as JSON, in the order of the fields, which gains fields at its end and loses none.

    Spark logs the reports of all tasks with each progress, and keeps a hundred of these for each query, so defaults
    at the end are left out.
    """
    values = list(vars(report).values())
    while values[-1] == _DEFAULTS[len(values) - 1]:
        values.pop()
    return json.dumps(values, separators=(",", ":"))


def report_of_text(text: str) -> TaskReport:
    """Return the report that a text is of, perhaps one of a later version with more fields."""
    return TaskReport(*json.loads(text)[: len(fields(TaskReport))])


def told(report: Any, values: dict[str, Any]) -> str:
    """Return the text of metrics, without those that are None, 0, False or empty."""
    shown = ", ".join(f"{name}={value!r}" for name, value in values.items() if value or name in ("subtask", "epoch"))
    return f"{type(report).__name__}({shown})"


Element = Records | Watermark | WatermarkStatus | Barrier | EndOfData | TaskReport


class Buffer(NamedTuple):
    """One payload on its way to one subtask.

    Attributes:
        target: the code of the receiving subtask or output.
        channel: the sending subtask: unique in the program.
        seq: position in the order of this channel to this target within the epoch, from 0.
        payload: the encoded element.
    """

    target: int
    channel: int
    seq: int
    payload: bytes


_ARROW, _PICKLED, _ROWS = b"A", b"P", b"R"
_WATERMARK, _STATUS, _BARRIER, _END, _REPORT = b"W", b"S", b"B", b"E", b"M"
_INT64 = struct.Struct("<q")
# Columns begin at a multiple of this many bytes, as Arrow's functions on them want it.
_ALIGNED = 8


class ByValueError(Exception):
    """A class or a function cannot be pickled by its name; the message says which."""


def dumps(value: Any) -> bytes:
    """Pickle a value; classes and functions that cannot be imported elsewhere go along by value."""
    try:
        return pickle.dumps(value, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError):
        by_value: bytes = cloudpickle.dumps(value, protocol=5)  # type: ignore[no-untyped-call]
        return by_value


def dumps_by_name(value: Any) -> bytes:
    """Pickle a value for a checkpoint: its classes and functions are read by name, also by other versions of Python.

    Raises:
        ByValueError: something in it has no name by which it can be imported: it would come back as another thing.
    """
    try:
        return pickle.dumps(value, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        try:
            cloudpickle.dumps(value, protocol=5)  # type: ignore[no-untyped-call]
        except Exception:
            raise error from None
        raise ByValueError(describe(error)) from error


def encode(element: Element) -> bytes:
    """Return the payload of an element."""
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
    # A Row pickles through its constructor, several times slower than the plain tuple that it is.
    if values and isinstance(values[0], Row) and len(set(map(type, values))) == 1:
        return _ROWS + dumps((values[0]._fields, list(map(tuple, values)), timestamps))
    return _PICKLED + dumps((values, timestamps))


def decode(payload: bytes) -> Element:
    """Return the element of a payload.

    Raises:
        ExchangeError: the payload's tag is unknown.
    """
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
        return Records(*pickle.loads(body))
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
    raise ExchangeError(f"a buffer starts with the unknown tag {tag!r}: do all workers run the same pillarbox?")
