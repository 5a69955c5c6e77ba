"""Records key by key, and by time within a key: an external merge sort, for batch mode.

Records are gathered up to a bound, sorted, and written to a temporary file as a sorted run; the runs are merged block
by block. So a task holds a bounded number of records, however many there are, and of keys one at a time.

Keys need not have an order: they are sorted by their hash, which is the same for equal keys. Where two keys share a
hash, the records of the second wait until the first has ended.

Source of the idea: Flink's sorted inputs (``SortingDataInput``), which sort by the bytes of keys.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pillarbox._elements import Records, decode, dumps, encode
from pillarbox._state.keys.key_groups import stable_hash
from pillarbox._task.network.spool import NOT_KEPT, Extent, RecordSpool, Spool
from pillarbox._task.network.unpicklable import refuse_unpicklable
from pillarbox._time.timestamps import MIN_TIMESTAMP

# Records are sorted when they take about this much: the bytes in which they come, and so much more for each as objects.
_PORTION_BYTES = 32 * 1024 * 1024
_OBJECT_BYTES = 250
# That many runs are merged at a time, of each of which one block is in memory.
_FAN_IN = 64
_BLOCK_BYTES = 256 * 1024
# Hashes of keys are remembered up to this many.
_REMEMBERED = 1 << 17
# Steps hold about this many records, so that mails get their turn.
_STEP_RECORDS = 1024


class KeyedRun(NamedTuple):
    """Records of one key.

    Attributes:
        way_in: the number of the input that they are for.
        records: by time; None stands for the end of the key.
    """

    way_in: int
    records: Records | None


_END = KeyedRun(0, None)


class _Sorted(NamedTuple):
    """Records that are sorted by the hash of their key, and by time.

    Attributes:
        indexes: the input of each.
        times: the timestamps as numbers: of a record without one, the smallest.
    """

    indexes: npt.NDArray[np.int64]
    values: list[Any]
    timestamps: list[int | None]
    keys: list[Any]
    hashes: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]

    def slice(self, start: int, end: int) -> _Sorted:
        return _Sorted(
            self.indexes[start:end],
            self.values[start:end],
            self.timestamps[start:end],
            self.keys[start:end],
            self.hashes[start:end],
            self.times[start:end],
        )

    def records(self, start: int, end: int) -> Records:
        timestamps = self.timestamps[start:end]
        untimed = all(timestamp is None for timestamp in timestamps)
        return Records(self.values[start:end], None if untimed else timestamps)


def _in_order(parts: _Sorted) -> _Sorted:
    """Return records sorted; those of equal hash and time stay in their order."""
    order = np.lexsort((parts.times, parts.hashes))
    positions = order.tolist()
    values, timestamps, keys = (
        list(map(column.__getitem__, positions)) for column in (parts.values, parts.timestamps, parts.keys)
    )
    return _Sorted(parts.indexes[order], values, timestamps, keys, parts.hashes[order], parts.times[order])


def _together(parts: Sequence[_Sorted]) -> _Sorted:
    """Return several sorted portions as one."""
    if len(parts) == 1:
        return parts[0]
    return _in_order(
        _Sorted(
            np.concatenate([part.indexes for part in parts]),
            [value for part in parts for value in part.values],
            [timestamp for part in parts for timestamp in part.timestamps],
            [key for part in parts for key in part.keys],
            np.concatenate([part.hashes for part in parts]),
            np.concatenate([part.times for part in parts]),
        )
    )


class _Gathered:
    """Records of one input that are not sorted yet."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.timestamps: list[int | None] = []
        self.keys: list[Any] = []
        self.hashes: list[int] = []


#: Where a block of sorted records is in a spool: the records; their keys, and the hashes of these.
_Block = tuple[Extent, Extent]


def _write(spool: Spool, block: _Sorted) -> _Block:
    """Write a block; return where it is."""
    records, rest = encode(block.records(0, len(block.values))), dumps((block.keys, block.hashes))
    return spool.append(records), spool.append(rest)


def _read(spool: Spool, index: int, blocks: Sequence[_Block]) -> Iterator[_Sorted]:
    """Yield blocks of one input."""
    for of_records, of_keys in blocks:
        records = decode(spool.read(of_records))
        assert isinstance(records, Records)
        keys, hashes = pickle.loads(spool.read(of_keys))
        timestamps = list(records.timestamps or repeat(None, len(keys)))
        yield _Sorted(np.full(len(keys), index), records.values, timestamps, keys, hashes, _times(timestamps))


def _times(timestamps: Iterable[int | None]) -> npt.NDArray[np.int64]:
    return np.array([MIN_TIMESTAMP if stamp is None else stamp for stamp in timestamps], np.int64)


class _Run:
    """A sorted run: its blocks come one after the other."""

    def __init__(self, index: int, blocks: Iterable[_Sorted]) -> None:
        self.index = index
        self._blocks = iter(blocks)
        self._at = 0
        self.block: _Sorted | None = None
        self._next()

    def _next(self) -> None:
        self.block = next(self._blocks, None)
        self._at = 0

    @property
    def last(self) -> tuple[int, int]:
        """Hash and time of the last record of the block."""
        assert self.block is not None
        return int(self.block.hashes[-1]), int(self.block.times[-1])

    def take(self, bound: tuple[int, int], *, inclusive: bool) -> _Sorted | None:
        """Return the records before a place in the order, or up to it; None: there are none."""
        block = self.block
        assert block is not None
        first, last = (int(np.searchsorted(block.hashes, bound[0], side)) for side in ("left", "right"))
        within = np.searchsorted(block.times[first:last], bound[1], "right" if inclusive else "left")
        start, end = self._at, first + int(within)
        taken = block.slice(start, end) if end > start else None
        self._at = max(start, end)
        if self._at == len(block.values):
            self._next()
        return taken


def _merged(runs: Sequence[_Run]) -> Iterator[_Sorted]:
    """Return the records of several runs as sorted portions; of equal hash and time, those of earlier runs first.

    All that comes up to the earliest end of a block is there. (Ends are compared with the runs' numbers, too.)
    """
    while True:
        ends = [(run.last, number) for number, run in enumerate(runs) if run.block is not None]
        if not ends:
            return
        bound, earliest = min(ends)
        parts = [
            taken
            for number, run in enumerate(runs)
            if run.block is not None and (taken := run.take(bound, inclusive=number <= earliest)) is not None
        ]
        yield _together(parts)


class KeySorter:
    """Takes records in any order, then gives them back key by key. Only the mailbox thread may touch it.

    Args:
        operator: the name of the operator that gets the records, for errors.
    """

    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._hashes: dict[Any, int] = {}
        self._gathered: dict[int, _Gathered] = {}
        self._gathered_bytes = 0
        self._spool = Spool(memory=1)
        # Of each input, the blocks of each sorted run.
        self._runs: dict[int, list[list[_Block]]] = {}
        self._aside: dict[Any, RecordSpool] = {}

    def add(self, index: int, records: Records, keys: list[Any], size: int) -> None:
        """Take a run of records.

        Args:
            index: the input that they are for.
            keys: the key of each.
            size: the bytes in which they came.

        Raises:
            OperatorError: one of those that were added so far cannot be written to the file.
        """
        hashes = self._hashes
        if len(hashes) >= _REMEMBERED:
            hashes.clear()
        gathered = self._gathered.get(index)
        if gathered is None:
            gathered = self._gathered[index] = _Gathered()
        gathered.values += records.values
        gathered.timestamps += records.timestamps or repeat(None, len(keys))
        gathered.keys += keys
        gathered.hashes += [hashes[key] if key in hashes else hashes.setdefault(key, stable_hash(key)) for key in keys]
        self._gathered_bytes += size + _OBJECT_BYTES * len(keys)
        if self._gathered_bytes >= _PORTION_BYTES:
            self._spill()

    def _take_gathered(self) -> dict[int, _Sorted]:
        gathered, self._gathered = self._gathered, {}
        return {
            index: _in_order(
                _Sorted(
                    np.full(len(each.keys), index),
                    each.values,
                    each.timestamps,
                    each.keys,
                    np.array(each.hashes, np.int64),
                    _times(each.timestamps),
                )
            )
            for index, each in gathered.items()
        }

    def _spill(self) -> None:
        """Write what is gathered as a sorted run of each input."""
        records = sum(len(each.keys) for each in self._gathered.values())
        length = max(1, _BLOCK_BYTES * records // self._gathered_bytes)
        self._gathered_bytes = 0
        for index, portion in self._take_gathered().items():
            try:
                blocks = _written(self._spool, [portion], length)
            except Exception as error:
                refuse_unpicklable(error, self._operator, portion.values, "gets", NOT_KEPT, portion.keys)
            self._runs.setdefault(index, []).append(blocks)

    def groups(self) -> Iterator[list[KeyedRun]]:
        """Return the records of each key, and its end, in steps of some records each."""
        step: list[KeyedRun] = []
        records = 0
        for run in self._keyed(_merged(self._final_runs())):
            step.append(run)
            records += 1 if run.records is None else len(run.records)
            if records >= _STEP_RECORDS:
                yield step
                step, records = [], 0
        if step:
            yield step
        self.close()

    def _final_runs(self) -> list[_Run]:
        """Return the runs to be merged, few enough of each input."""
        gathered = self._take_gathered()
        runs: list[_Run] = []
        for index in sorted({*self._runs, *gathered}):
            runs += self._merged_down(index)
            if index in gathered:
                runs.append(_Run(index, [gathered[index]]))
        return runs

    def _merged_down(self, index: int) -> list[_Run]:
        runs, spool = self._runs.pop(index, []), self._spool
        while len(runs) > _FAN_IN:
            # What is merged stays in the file until all is done: a file cannot give back its middle.
            length = len(next(_read(spool, index, runs[0][:1])).keys)
            runs = [
                _written(spool, _merged([_Run(index, _read(spool, index, each)) for each in some]), length)
                for some in (runs[start : start + _FAN_IN] for start in range(0, len(runs), _FAN_IN))
            ]
        return [_Run(index, _read(spool, index, each)) for each in runs]

    def _keyed(self, portions: Iterable[_Sorted]) -> Iterator[KeyedRun]:
        """Divide sorted records by their keys."""
        begun = False
        current_hash, current = -1, None
        for portion in portions:
            changes = (np.diff(portion.hashes) != 0) | (np.diff(portion.indexes) != 0)
            bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(portion.keys)]
            for start, end in pairwise(bounds):
                if int(portion.hashes[start]) != current_hash or not begun:
                    if begun:
                        yield _END
                        yield from self._put_aside()
                    begun, current_hash, current = True, int(portion.hashes[start]), portion.keys[start]
                yield from self._of_one_hash(portion, start, end, current)
        if begun:
            yield _END
            yield from self._put_aside()

    def _of_one_hash(self, portion: _Sorted, start: int, end: int, current: Any) -> Iterator[KeyedRun]:
        """Return the records of the current key; those of others with the same hash are put aside."""
        index = int(portion.indexes[start])
        if portion.keys[start:end].count(current) != end - start:
            others = [at for at in range(start, end) if portion.keys[at] != current]
            for at in others:
                key = portion.keys[at]
                if key not in self._aside:
                    self._aside[key] = RecordSpool(self._operator)
                self._aside[key].add(index, portion.records(at, at + 1))
            mine = [at for at in range(start, end) if portion.keys[at] == current]
            for at in mine:
                yield KeyedRun(index, portion.records(at, at + 1))
            return
        for at in range(start, end, _STEP_RECORDS):
            yield KeyedRun(index, portion.records(at, min(end, at + _STEP_RECORDS)))

    def _put_aside(self) -> Iterator[KeyedRun]:
        """Return the records of keys that were put aside, key by key."""
        while self._aside:
            key = next(iter(self._aside))
            for index, records in self._aside[key]:
                yield KeyedRun(index, records)
            yield _END
            self._aside.pop(key).close()

    def close(self) -> None:
        """Drop what is left."""
        self._gathered = {}
        for spool in self._aside.values():
            spool.close()
        self._aside = {}
        self._spool.close()


def _written(spool: Spool, portions: Iterable[_Sorted], length: int) -> list[_Block]:
    """Write sorted portions as one run, in blocks of ``length`` records; return where they are."""
    return [
        _write(spool, portion.slice(start, start + length))
        for portion in portions
        for start in range(0, len(portion.keys), length)
    ]
