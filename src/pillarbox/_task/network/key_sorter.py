"""An external merge sort for batch mode: by key, then by time.

The memory for records is bounded. A task processes one key at a time.

Records are sorted by their keys' hashes, because the order of keys does not matter. If two keys have the same hash, the
second key's records are set aside until the first key is done. Follows Flink's sorted inputs (``SortingDataInput``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pillarbox._elements.records import Records
from pillarbox._operators.frame.keyed_run import KeyedRun
from pillarbox._operators.frame.keying import Keying
from pillarbox._state.keys.key_groups import stable_hash
from pillarbox._task.network.sorted_records import Block, SortedPortion, read_blocks, together, write_blocks
from pillarbox._task.network.spool import NOT_KEPT, RecordSpool, Spool
from pillarbox._task.network.unpicklable import refuse_unpicklable

# Bound of buffered bytes, and the overhead added for each record.
_PORTION_BYTES = 32 * 1024 * 1024
_OBJECT_BYTES = 250
_COLUMN_BYTES = 20
# Runs merged at a time, with a block of each in memory.
_FAN_IN = 64
_BLOCK_BYTES = 256 * 1024
# Bound of the cache of key hashes.
_REMEMBERED = 1 << 17
_HASH_BITS = np.uint64((1 << 32) - 1)
# Maximum records to process between two mails.
_RUN_RECORDS = 4096

_NO_KEY = object()


class _Run:
    def __init__(self, index: int, blocks: Iterable[SortedPortion]) -> None:
        self.index = index
        self._blocks = iter(blocks)
        self._at = 0
        self.block: SortedPortion | None = None
        self._next()

    def _next(self) -> None:
        self.block = next(self._blocks, None)
        self._at = 0

    @property
    def last(self) -> tuple[np.uint64, np.int64]:
        assert self.block is not None
        return self.block.hashes[-1], self.block.times[-1]

    def take(self, bound: tuple[np.uint64, np.int64], *, inclusive: bool) -> SortedPortion | None:
        """Remove and return the records before a bound or, with ``inclusive``, up to the bound."""
        block = self.block
        assert block is not None
        first, last = (int(np.searchsorted(block.hashes, bound[0], side)) for side in ("left", "right"))
        within = np.searchsorted(block.times[first:last], bound[1], "right" if inclusive else "left")
        start, end = self._at, first + int(within)
        portion = block.slice(start, end) if end > start else None
        self._at = max(start, end)
        if self._at == len(block):
            self._next()
        return portion


def _merged(runs: Sequence[_Run]) -> Iterator[SortedPortion]:
    """Merge sorted runs. Records with equal hash and time stay in the order of the runs."""
    while True:
        ends = [(run.last, number) for number, run in enumerate(runs) if run.block is not None]
        if not ends:
            return
        bound, earliest = min(ends)
        parts = [
            portion
            for number, run in enumerate(runs)
            if run.block is not None and (portion := run.take(bound, inclusive=number <= earliest)) is not None
        ]
        yield parts[0] if len(parts) == 1 else together(parts).in_order()


class KeySorter:
    """Accepts records in any order, and returns them sorted by key. Mailbox thread only."""

    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._hashes: dict[Any, int] = {}
        self._keyings: dict[int, Keying] = {}
        self._buffered: dict[int, list[SortedPortion]] = {}
        self._buffered_bytes = 0
        self._spool = Spool(memory=1)
        # Sorted runs by input, as blocks.
        self._runs: dict[int, list[list[Block]]] = {}
        # Records of other keys with the current key's hash are set aside.
        self._current: Any = _NO_KEY
        self._current_hash = -1
        self._aside: dict[Any, RecordSpool] = {}

    def add(self, index: int, records: Records, keying: Keying, size: int) -> None:
        """Add records from input ``index``. ``size`` is the size of their buffer in bytes."""
        if not len(records):
            return
        cache = self._hashes
        if len(cache) >= _REMEMBERED:
            cache.clear()
        self._keyings[index] = keying
        keys: list[Any] | None = None
        hashes = keying.hashes_of_columns(records, cache)
        if hashes is None:
            keys = keying.keys_of(records)
            numbers = [cache[key] if key in cache else cache.setdefault(key, stable_hash(key)) for key in keys]
            hashes = np.array(numbers, np.uint64)
            records = Records(records.values, records.timestamps)
        self._buffered.setdefault(index, []).append(SortedPortion.of(keying, index, records, keys, hashes & _HASH_BITS))
        self._buffered_bytes += size + (_COLUMN_BYTES if keys is None else _OBJECT_BYTES) * len(records)
        if self._buffered_bytes >= _PORTION_BYTES:
            self._spill()

    def _take_buffered(self) -> dict[int, SortedPortion]:
        buffered, self._buffered = self._buffered, {}
        return {index: together(parts).in_order() for index, parts in buffered.items()}

    def _spill(self) -> None:
        portions = self._take_buffered()
        length = max(1, _BLOCK_BYTES * sum(map(len, portions.values())) // self._buffered_bytes)
        self._buffered_bytes = 0
        for index, portion in portions.items():
            try:
                blocks = write_blocks(self._spool, [portion], length)
            except Exception as error:
                refuse_unpicklable(error, self._operator, portion.records.values, "gets", NOT_KEPT, portion.keys or ())
            self._runs.setdefault(index, []).append(blocks)

    def _final_runs(self) -> list[_Run]:
        buffered = self._take_buffered()
        runs: list[_Run] = []
        for index in sorted({*self._runs, *buffered}):
            runs += self._merged_down(index)
            if index in buffered:
                runs.append(_Run(index, [buffered[index]]))
        return runs

    def _merged_down(self, index: int) -> list[_Run]:
        runs, spool, keying = self._runs.pop(index, []), self._spool, self._keyings[index]
        while len(runs) > _FAN_IN:
            # Merged runs are appended, because the middle of a file cannot be freed.
            length = len(next(read_blocks(spool, keying, index, runs[0][:1])))
            runs = [
                write_blocks(
                    spool, _merged([_Run(index, read_blocks(spool, keying, index, blocks)) for blocks in some]), length
                )
                for some in (runs[start : start + _FAN_IN] for start in range(0, len(runs), _FAN_IN))
            ]
        return [_Run(index, read_blocks(spool, keying, index, blocks)) for blocks in runs]

    def runs(self) -> Iterator[KeyedRun]:
        for portion in _merged(self._final_runs()):
            bounds = _bounds(np.diff(portion.indexes) != 0)
            for start, end in pairwise(bounds):
                for at in range(start, end, _RUN_RECORDS):
                    yield from self._of_one_input(portion.slice(at, min(end, at + _RUN_RECORDS)))
        yield from self._ended(0)
        self.close()

    def _of_one_input(self, portion: SortedPortion) -> Iterator[KeyedRun]:
        hashes = portion.hashes
        begins = np.empty(len(portion), np.bool_)
        begins[0] = int(hashes[0]) != self._current_hash
        begins[1:] = hashes[1:] != hashes[:-1]
        shared = np.empty(len(portion), np.bool_)
        shared[0] = not begins[0] and portion.keys_at([0]) != [self._current]
        shared[1:] = portion.changes() & ~begins[1:]
        if not shared.any():
            yield from self._alone(portion, begins)
        else:
            # A stretch is the consecutive records of one hash, possibly of several keys.
            stretches = begins.cumsum()
            alone = ~np.isin(stretches, stretches[shared])
            for start, end in pairwise(_bounds((alone[1:] != alone[:-1]) | (begins[1:] & ~alone[1:]))):
                divide = self._alone if alone[start] else self._of_one_hash
                yield from divide(portion.slice(start, end), begins[start:end])
        self._current_hash = int(hashes[-1])

    def _alone(self, portion: SortedPortion, begins: npt.NDArray[np.bool_]) -> Iterator[KeyedRun]:
        index = int(portion.indexes[0])
        if begins[0]:
            if self._aside:
                yield from self._ended(index)
            if self._current is _NO_KEY:
                begins[0] = False
        ends: list[int] = np.flatnonzero(begins).tolist()
        keys = portion.keys_at(ends if begins[0] else [0, *ends])
        self._current = keys[-1]
        yield KeyedRun(index, portion.records, keys, ends)

    def _of_one_hash(self, portion: SortedPortion, begins: npt.NDArray[np.bool_]) -> Iterator[KeyedRun]:
        """Yield the current key's records, and set aside other keys with the same hash."""
        index, keys = int(portion.indexes[0]), portion.all_keys()
        if begins[0]:
            yield from self._ended(index)
            self._current = keys[0]
        positions = []
        for at, key in enumerate(keys):
            if key == self._current:
                positions.append(at)
                continue
            if key not in self._aside:
                self._aside[key] = RecordSpool(self._operator)
            self._aside[key].add(index, portion.records.slice(at, at + 1))
        if positions:
            yield KeyedRun(index, portion.records.take(np.array(positions)), [self._current])

    def _ended(self, index: int) -> Iterator[KeyedRun]:
        if self._current is not _NO_KEY:
            yield KeyedRun(index, Records([]), ends=[0])
            self._current = _NO_KEY
        while self._aside:
            key = next(iter(self._aside))
            for number, records in self._aside[key]:
                yield KeyedRun(number, records, [key])
            yield KeyedRun(index, Records([]), ends=[0])
            self._aside.pop(key).close()

    def close(self) -> None:
        self._buffered = {}
        for spool in self._aside.values():
            spool.close()
        self._aside = {}
        self._spool.close()


def _bounds(changes: npt.NDArray[np.bool_]) -> Sequence[int]:
    return [0, *(np.flatnonzero(changes) + 1).tolist(), len(changes) + 1]
