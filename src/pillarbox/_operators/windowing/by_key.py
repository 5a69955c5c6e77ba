"""Buffers columnar records, to process each key's records together, in order.

With many keys, looking up a key's state is the slowest step, because the processor waits for memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._operators.frame.keying import Keying

_ROWS = 1 << 18
_BYTES = 32 * 1024 * 1024
_PORTION = 1 << 15


class RecordsByKey(NamedTuple):
    """Records of several keys, grouped by key."""

    records: ArrowRecords
    keys: list[Any]
    ends: list[int]


class ByKeyBuffer:
    """Buffers batches of records. Mailbox thread only."""

    def __init__(self, keying: Keying) -> None:
        self._keying = keying
        self._runs: list[ArrowRecords] = []
        self._rows = 0
        self._bytes = 0

    def takes(self, records: Records) -> bool:
        """Return whether a batch has timestamps, the buffer's schema, and keys that Arrow can group."""
        columns = self._keying.columns
        if columns is None or not isinstance(records, ArrowRecords) or records.stamps is None:
            return False
        if self._runs and not self._runs[0].batch.schema.equals(records.batch.schema):
            return False
        return all(_is_groupable(self._keying.column_of(records.batch, name).type) for name in columns)

    def add(self, records: ArrowRecords) -> bool:
        self._runs.append(records)
        self._rows += len(records)
        self._bytes += int(records.batch.nbytes)
        return self._rows >= _ROWS or self._bytes >= _BYTES

    def take(self) -> ArrowRecords | None:
        runs, self._runs = self._runs, []
        self._rows = self._bytes = 0
        if len(runs) < 2:
            return runs[0] if runs else None
        batch = pa.Table.from_batches([run.batch for run in runs]).combine_chunks().to_batches()[0]
        return ArrowRecords(batch, np.concatenate([run.stamps for run in runs]))

    def grouped(self, records: ArrowRecords) -> Iterator[RecordsByKey]:
        assert self._keying.columns is not None
        order, starts = _grouping([self._keying.column_of(records.batch, name) for name in self._keying.columns])
        count = len(records)
        ends = np.append(starts[1:], count)
        first = 0
        while first < len(starts):
            begin = int(starts[first])
            last = int(np.searchsorted(ends, min(begin + _PORTION, count), "left"))
            end = int(ends[last])
            heads = ArrowRecords(records.batch.take(pa.array(order[starts[first : last + 1]])))
            portion = records.take(order[begin:end])
            yield RecordsByKey(portion, self._keying.keys_of(heads), (ends[first : last + 1] - begin).tolist())
            first = last + 1


def _is_groupable(kind: pa.DataType) -> bool:
    is_ = pa.types
    return any((is_.is_primitive(kind), is_.is_string(kind), is_.is_binary(kind), is_.is_decimal(kind)))


def _grouping(columns: list[pa.Array]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    if len(columns) == 1 and pa.types.is_integer(columns[0].type) and not columns[0].null_count:
        keys = columns[0].to_numpy()
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        return order, np.append(0, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1)
    positions, lengths = positions_by_key(columns)
    return positions, np.append(0, np.cumsum(lengths)[:-1])


def positions_by_key(columns: list[pa.Array]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the row positions, grouped by key and in order within a key, and each group's size."""
    names = [str(number) for number in range(len(columns) + 1)]
    table = pa.table([*map(with_one_zero, columns), pa.array(np.arange(len(columns[0])))], names=names)
    groups = table.group_by(names[:-1], use_threads=False).aggregate([(names[-1], "list")])
    positions = groups.column(f"{names[-1]}_list").combine_chunks()
    return positions.flatten().to_numpy(), pc.list_value_length(positions).to_numpy()


def with_one_zero(column: pa.Array) -> pa.Array:
    """Make the bits of -0.0 and 0.0 equal, and the bits of all NaNs, because Arrow groups floats by their bits."""
    kind = column.type
    if not pa.types.is_floating(kind):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(math.nan, kind), pc.add(column, pa.scalar(0.0, kind)))
