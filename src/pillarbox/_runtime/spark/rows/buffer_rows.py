"""Converts buffers to Spark rows for a shuffle, and back.

A row has at most `_ROW_BYTES`, so Spark's limit of rows per Arrow batch also limits its bytes. Checking Spark's own
limit of bytes would take a third of the transfer time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pillarbox._elements.buffers import Buffer
from pillarbox._errors import ExchangeError
from pillarbox._graph.program import Program
from pillarbox._graph.transformations import DataFrameSource
from pillarbox._runtime.spark.session.spark_names import BATCH_BYTES, BATCH_ROWS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUFFER_SCHEMA = "target LONG, channel LONG, seq LONG, part LONG, parts LONG, payload BINARY"
_NUMBERS = ("target", "channel", "seq", "part", "parts")
BUFFER_COLUMNS = (*_NUMBERS, "payload")

# Maximum bytes of a row, and maximum rows of an Arrow batch.
_ROW_BYTES = 4096
_MOST_ROWS = 10_000
# With up to this many fixed-width columns, a batch stays within Spark's default limit of bytes.
_NARROW = 400

# Bytes of buffers that a task or an Arrow batch takes at a time. Spark provides up to 40 MiB, which a home process
# would hold twice.
PORTION_BYTES = 4 * 1024 * 1024

_UNBOUNDED = str(2**31 - 1)


def as_rows(buffers: Sequence[Buffer]) -> list[pa.Array]:
    payloads = [buffer.payload for buffer in buffers]
    lengths = np.fromiter(map(len, payloads), np.int64, len(payloads))
    parts = np.maximum(1, -(-lengths // _ROW_BYTES))
    part = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    starts = np.repeat(np.cumsum(lengths) - lengths, parts) + part * _ROW_BYTES
    ends = np.append(starts, lengths.sum()).astype(np.int32)
    content = pa.py_buffer(b"".join(payloads))
    numbers = [np.repeat(np.array([buffer[index] for buffer in buffers], np.int64), parts) for index in range(3)]
    return [
        *map(pa.array, (*numbers, part, np.repeat(parts, parts))),
        pa.Array.from_buffers(pa.binary(), len(part), [None, pa.py_buffer(ends), content]),
    ]


def in_portions(buffers: Iterable[Buffer]) -> Iterator[list[Buffer]]:
    portion: list[Buffer] = []
    size = 0
    for buffer in buffers:
        portion.append(buffer)
        size += len(buffer.payload)
        if size >= PORTION_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


class BufferRows:
    """Reassembles buffers from rows that arrive in any order."""

    def __init__(self) -> None:
        # Incomplete buffers.
        self._begun: dict[tuple[int, int, int, int], dict[int, bytes]] = {}

    def take(self, columns: Sequence[Iterable[int | bytes]]) -> Iterator[Buffer]:
        """Add rows, given as columns, and yield the buffers that are now complete."""
        begun = self._begun
        for target, channel, seq, part, parts, payload in zip(*columns):
            if parts == 1:
                yield Buffer(target, channel, seq, payload)
                continue
            where = target, channel, seq, parts
            pieces = begun.setdefault(where, {})
            if part in pieces:
                raise ExchangeError(f"row {part} of buffer {seq} of channel {channel} arrived twice")
            pieces[part] = payload
            if len(pieces) == parts:
                del begun[where]
                yield Buffer(target, channel, seq, b"".join(map(pieces.__getitem__, range(parts))))

    def portions(self, columns: Sequence[Iterable[int | bytes]]) -> Iterator[list[Buffer]]:
        return in_portions(self.take(columns))

    def end(self) -> None:
        for (_, channel, seq, parts), pieces in self._begun.items():
            raise ExchangeError(
                f"buffer {seq} of channel {channel} is incomplete: {len(pieces)} of {parts} rows arrived"
            )


def batch_settings(spark: SparkSession, present: Mapping[str, str], *, are_narrow: bool) -> dict[str, str]:
    needed: dict[str, str] = {}
    if not 0 < int(spark.conf.get(BATCH_ROWS) or 0) <= _MOST_ROWS:
        needed[BATCH_ROWS] = str(_MOST_ROWS)
    if BATCH_BYTES not in present and are_narrow:
        needed[BATCH_BYTES] = _UNBOUNDED
    return needed


def has_narrow_rows(program: Program) -> bool:
    from pyspark.sql.types import BooleanType, DateType, NumericType, TimestampNTZType, TimestampType

    fixed = (BooleanType, DateType, NumericType, TimestampNTZType, TimestampType)
    schemas: list[Any] = [
        source.dataframe.schema.fields for source in program.sources.values() if isinstance(source, DataFrameSource)
    ]
    return all(
        len(fields) <= _NARROW and all(isinstance(field.dataType, fixed) for field in fields) for fields in schemas
    )
