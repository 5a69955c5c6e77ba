"""Records in batch mode's order: by key hash, then by time.

Columnar rows stay columnar if their keys are columns and no function has read them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import repeat
from operator import ne
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pillarbox._elements.buffers import decode, dumps, encode
from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._operators.frame.keying import Keying
from pillarbox._task.network.spool import Extent, Spool
from pillarbox._time.timestamp_assigner import MIN_TIMESTAMP

_POSITION_BITS = np.uint64(32)
_POSITION = np.uint64((1 << 32) - 1)

#: A block of sorted records: the extent of the records, and the extent of their keys and hashes.
Block = tuple[Extent, Extent]


class SortedPortion(NamedTuple):
    """Records with their sort keys.

    Attributes:
        keys: the key of each record, or None if the keys are columns and all records are from one input.
        times: the timestamps, with the smallest possible value for a record without a timestamp.
    """

    keying: Keying
    indexes: npt.NDArray[np.int32]
    records: Records
    keys: list[Any] | None
    hashes: npt.NDArray[np.uint64]
    times: npt.NDArray[np.int64]

    @staticmethod
    def of(
        keying: Keying, index: int, records: Records, keys: list[Any] | None, hashes: npt.NDArray[np.uint64]
    ) -> SortedPortion:
        indexes = np.full(len(records), index, np.int32)
        return SortedPortion(keying, indexes, records, keys, hashes, _times_of(records))

    def __len__(self) -> int:
        return len(self.hashes)

    def slice(self, start: int, end: int) -> SortedPortion:
        return SortedPortion(
            self.keying,
            self.indexes[start:end],
            self.records.slice(start, end),
            None if self.keys is None else self.keys[start:end],
            self.hashes[start:end],
            self.times[start:end],
        )

    def all_keys(self) -> list[Any]:
        return self.keying.keys_of(self.records) if self.keys is None else self.keys

    def keys_at(self, positions: list[int]) -> list[Any]:
        if self.keys is not None:
            return list(map(self.keys.__getitem__, positions))
        assert isinstance(self.records, ArrowRecords)
        columns = ArrowRecords(self.records.batch.select(self.keying.columns))
        return self.keying.keys_of(columns.take(np.array(positions)))

    def changes(self) -> npt.NDArray[np.bool_]:
        """Return, for each record from the second on, whether its key may differ from the previous record's."""
        if self.keys is None and isinstance(self.records, ArrowRecords) and self.keying.columns is not None:
            columns = [self.keying.column_of(self.records.batch, name) for name in self.keying.columns]
            if not any(column.null_count or pa.types.is_nested(column.type) for column in columns):
                different = [pc.not_equal(column[1:], column[:-1]) for column in columns]
                changes: npt.NDArray[np.bool_] = reduce(pc.or_, different).to_numpy(zero_copy_only=False)
                return changes
        keys = self.all_keys()
        return np.fromiter(map(ne, keys[1:], keys), np.bool_, len(keys) - 1)

    def in_order(self) -> SortedPortion:
        """Return a sorted copy. Records with equal hash and time keep their order."""
        order = _order(self.hashes, self.times)
        keys = None if self.keys is None else list(map(self.keys.__getitem__, order.tolist()))
        indexes, hashes, times = self.indexes[order], self.hashes[order], self.times[order]
        return SortedPortion(self.keying, indexes, self.records.take(order), keys, hashes, times)


def _times_of(records: Records) -> npt.NDArray[np.int64]:
    if isinstance(records, ArrowRecords) and records.stamps is not None:
        times: npt.NDArray[np.int64] = records.stamps
        return times
    if records.timestamps is None:
        return np.full(len(records), MIN_TIMESTAMP)
    return np.array([MIN_TIMESTAMP if stamp is None else stamp for stamp in records.timestamps], np.int64)


def _order(hashes: npt.NDArray[np.uint64], times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the result of ``np.lexsort((times, hashes))``, twice as fast."""
    by_time = None if (times[1:] >= times[:-1]).all() else np.argsort(times, kind="stable")
    hashes = hashes if by_time is None else hashes[by_time]
    numbers = np.sort(hashes << _POSITION_BITS | np.arange(len(hashes), dtype=np.uint64))
    order: npt.NDArray[np.int64] = (numbers & _POSITION).astype(np.int64)
    return order if by_time is None else by_time[order]


def together(parts: Sequence[SortedPortion]) -> SortedPortion:
    if len(parts) == 1:
        return parts[0]
    keys: list[Any] | None = None
    records: Records | None = _columns_together(parts)
    if records is None:
        keys = [key for part in parts for key in part.all_keys()]
        records = Records([value for part in parts for value in part.records.values], _timestamps_together(parts))
    return SortedPortion(
        parts[0].keying,
        np.concatenate([part.indexes for part in parts]),
        records,
        keys,
        np.concatenate([part.hashes for part in parts]),
        np.concatenate([part.times for part in parts]),
    )


def _columns_together(parts: Sequence[SortedPortion]) -> ArrowRecords | None:
    first = parts[0].records
    if not isinstance(first, ArrowRecords):
        return None
    for part in parts:
        records = part.records
        if part.keys is not None or part.keying is not parts[0].keying or not isinstance(records, ArrowRecords):
            return None
        if records.batch.schema != first.batch.schema or (records.stamps is None) != (first.stamps is None):
            return None
    batches = pa.Table.from_batches([part.records.batch for part in parts]).combine_chunks().to_batches()  # type: ignore[attr-defined]
    if len(batches) != 1:  # too large for one batch
        return None
    stamps = None if first.stamps is None else np.concatenate([part.records.stamps for part in parts])  # type: ignore[attr-defined]
    return ArrowRecords(batches[0], stamps)


def _timestamps_together(parts: Sequence[SortedPortion]) -> list[int | None] | None:
    if all(part.records.timestamps is None for part in parts):
        return None
    return [
        stamp
        for part in parts
        for stamp in (repeat(None, len(part)) if part.records.timestamps is None else part.records.timestamps)
    ]


def write_blocks(spool: Spool, portions: Iterable[SortedPortion], length: int) -> list[Block]:
    return [
        _write(spool, portion.slice(start, start + length))
        for portion in portions
        for start in range(0, len(portion), length)
    ]


def _write(spool: Spool, block: SortedPortion) -> Block:
    records, rest = encode(block.records), dumps((block.keys, block.hashes))
    return spool.append(records), spool.append(rest)


def read_blocks(spool: Spool, keying: Keying, index: int, blocks: Sequence[Block]) -> Iterator[SortedPortion]:
    for of_records, of_keys in blocks:
        records = decode(spool.read(of_records))
        assert isinstance(records, Records)
        keys, hashes = pickle.loads(spool.read(of_keys))
        yield SortedPortion.of(keying, index, records, keys, hashes)
