"""Buffers, and the encoding of elements.

A *buffer* holds one encoded element, such as a batch of records, for one target subtask. Its first byte identifies the
kind of element.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import cloudpickle

from pillarbox._elements.elements import Barrier, Element, EndOfData, Watermark, WatermarkStatus
from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._elements.task_report import TaskReport
from pillarbox._errors import ExchangeError, OperatorError, describe
from pillarbox._rows import Row, row_class

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
