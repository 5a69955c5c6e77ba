"""Records key by key, and by time within a key: an external merge sort, for batch mode.

Records are gathered up to a bound, sorted, and written to a temporary file as a sorted run; the runs are merged block
by block. So a task holds a bounded number of records, however many there are, and of keys one at a time.

Keys need not have an order: they are sorted by their hash, which is the same for equal keys. Where two keys share a
hash, the records of the second wait until the first has ended.

Source of the idea: Flink's sorted inputs (``SortingDataInput``), which sort by the bytes of keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pillarbox._elements import Records
from pillarbox._operators.frame.keyed_run import KeyedRun
from pillarbox._operators.frame.keying import Keying
from pillarbox._state.keys.key_groups import stable_hash
from pillarbox._task.network.sorted_records import Block, Portion, read_blocks, together, write_blocks
from pillarbox._task.network.spool import NOT_KEPT, RecordSpool, Spool
from pillarbox._task.network.unpicklable import refuse_unpicklable

# Records are sorted when they take about this much: the bytes in which they come, and so much more for each, as objects
# or as columns.
_PORTION_BYTES = 32 * 1024 * 1024
_OBJECT_BYTES = 250
_COLUMN_BYTES = 20
# That many runs are merged at a time, of each of which one block is in memory.
_FAN_IN = 64
_BLOCK_BYTES = 256 * 1024
# Hashes of keys are remembered up to this many.
_REMEMBERED = 1 << 17
# Keys are sorted by these bits of their hash: by all of them.
_HASH_BITS = np.uint64((1 << 32) - 1)
# Runs hold this many records at most, so that mails get their turn.
_RUN_RECORDS = 4096

_NO_KEY = object()


class _Run:
    """A sorted run: its blocks come one after the other."""

    def __init__(self, index: int, blocks: Iterable[Portion]) -> None:
        self.index = index
        self._blocks = iter(blocks)
        self._at = 0
        self.block: Portion | None = None
        self._next()

    def _next(self) -> None:
        self.block = next(self._blocks, None)
        self._at = 0

    @property
    def last(self) -> tuple[np.uint64, np.int64]:
        """Hash and time of the last record of the block."""
        assert self.block is not None
        return self.block.hashes[-1], self.block.times[-1]

    def take(self, bound: tuple[np.uint64, np.int64], *, inclusive: bool) -> Portion | None:
        """Return the records before a place in the order, or up to it; None: there are none."""
        block = self.block
        assert block is not None
        first, last = (int(np.searchsorted(block.hashes, bound[0], side)) for side in ("left", "right"))
        within = np.searchsorted(block.times[first:last], bound[1], "right" if inclusive else "left")
        start, end = self._at, first + int(within)
        taken = block.slice(start, end) if end > start else None
        self._at = max(start, end)
        if self._at == len(block):
            self._next()
        return taken


def _merged(runs: Sequence[_Run]) -> Iterator[Portion]:
    """Return the records of several runs as sorted portions; earlier runs first if hash and time are equal.

    Everything up to the earliest end of a block is in memory. (Ends are compared with the runs' numbers, too.)
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
        yield parts[0] if len(parts) == 1 else together(parts).in_order()


class KeySorter:
    """Takes records in any order, then gives them back key by key. Only the mailbox thread may touch it.

    Args:
        operator: the name of the operator that gets the records, for errors.
    """

    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._hashes: dict[Any, int] = {}
        self._keyings: dict[int, Keying] = {}
        # The records of each input that are not sorted yet.
        self._gathered: dict[int, list[Portion]] = {}
        self._gathered_bytes = 0
        self._spool = Spool(memory=1)
        # Of each input, the blocks of each sorted run.
        self._runs: dict[int, list[list[Block]]] = {}
        # The key whose records come; others of the same hash wait.
        self._current: Any = _NO_KEY
        self._current_hash = -1
        self._aside: dict[Any, RecordSpool] = {}

    def add(self, index: int, records: Records, keying: Keying, size: int) -> None:
        """Take a run of records.

        Args:
            index: the input that they are for.
            keying: how they have their keys.
            size: the bytes in which they came.

        Raises:
            OperatorError: the key function raised; or one of the records that were added so far cannot be written to
                the file.
        """
        if not len(records):
            return
        known = self._hashes
        if len(known) >= _REMEMBERED:
            known.clear()
        self._keyings[index] = keying
        keys: list[Any] | None = None
        hashes = keying.hashes_of_columns(records, known)
        if hashes is None:
            keys = keying.keys_of(records)
            found = [known[key] if key in known else known.setdefault(key, stable_hash(key)) for key in keys]
            hashes = np.array(found, np.uint64)
            records = Records(records.values, records.timestamps)
        self._gathered.setdefault(index, []).append(Portion.of(keying, index, records, keys, hashes & _HASH_BITS))
        self._gathered_bytes += size + (_COLUMN_BYTES if keys is None else _OBJECT_BYTES) * len(records)
        if self._gathered_bytes >= _PORTION_BYTES:
            self._spill()

    def _take_gathered(self) -> dict[int, Portion]:
        gathered, self._gathered = self._gathered, {}
        return {index: together(parts).in_order() for index, parts in gathered.items()}

    def _spill(self) -> None:
        """Write what is gathered as a sorted run of each input."""
        portions = self._take_gathered()
        length = max(1, _BLOCK_BYTES * sum(map(len, portions.values())) // self._gathered_bytes)
        self._gathered_bytes = 0
        for index, portion in portions.items():
            try:
                blocks = write_blocks(self._spool, [portion], length)
            except Exception as error:
                refuse_unpicklable(error, self._operator, portion.records.values, "gets", NOT_KEPT, portion.keys or ())
            self._runs.setdefault(index, []).append(blocks)

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
        runs, spool, keying = self._runs.pop(index, []), self._spool, self._keyings[index]
        while len(runs) > _FAN_IN:
            # Blocks that are merged stay in the file until the end: a file cannot give back its middle.
            length = len(next(read_blocks(spool, keying, index, runs[0][:1])))
            runs = [
                write_blocks(
                    spool, _merged([_Run(index, read_blocks(spool, keying, index, each)) for each in some]), length
                )
                for some in (runs[start : start + _FAN_IN] for start in range(0, len(runs), _FAN_IN))
            ]
        return [_Run(index, read_blocks(spool, keying, index, each)) for each in runs]

    # -- key by key --

    def runs(self) -> Iterator[KeyedRun]:
        """Return the records of each key, and its end, in runs of a bounded length."""
        for portion in _merged(self._final_runs()):
            bounds = _bounds(np.diff(portion.indexes) != 0)
            for start, end in pairwise(bounds):
                for at in range(start, end, _RUN_RECORDS):
                    yield from self._of_one_input(portion.slice(at, min(end, at + _RUN_RECORDS)))
        yield from self._ended(0)
        self.close()

    def _of_one_input(self, portion: Portion) -> Iterator[KeyedRun]:
        """Divide records of one input by their keys: where none share a hash, all at once."""
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
            # The records of each hash are a stretch; of those that keys share, each is taken by itself.
            stretches = begins.cumsum()
            alone = ~np.isin(stretches, stretches[shared])
            for start, end in pairwise(_bounds((alone[1:] != alone[:-1]) | (begins[1:] & ~alone[1:]))):
                divide = self._alone if alone[start] else self._of_one_hash
                yield from divide(portion.slice(start, end), begins[start:end])
        self._current_hash = int(hashes[-1])

    def _alone(self, portion: Portion, begins: npt.NDArray[np.bool_]) -> Iterator[KeyedRun]:
        """Return records of keys that share no hash."""
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

    def _of_one_hash(self, portion: Portion, begins: npt.NDArray[np.bool_]) -> Iterator[KeyedRun]:
        """Return the records of the current key; put aside the records of other keys with the same hash."""
        index, keys = int(portion.indexes[0]), portion.found_keys()
        if begins[0]:
            yield from self._ended(index)
            self._current = keys[0]
        mine = []
        for at, key in enumerate(keys):
            if key == self._current:
                mine.append(at)
                continue
            if key not in self._aside:
                self._aside[key] = RecordSpool(self._operator)
            self._aside[key].add(index, portion.records.slice(at, at + 1))
        if mine:
            yield KeyedRun(index, portion.records.take(np.array(mine)), [self._current])

    def _ended(self, index: int) -> Iterator[KeyedRun]:
        """End the current key, if there is one; return the records of those that were put aside, key by key."""
        if self._current is not _NO_KEY:
            yield KeyedRun(index, Records([]), ends=[0])
            self._current = _NO_KEY
        while self._aside:
            key = next(iter(self._aside))
            for way_in, records in self._aside[key]:
                yield KeyedRun(way_in, records, [key])
            yield KeyedRun(index, Records([]), ends=[0])
            self._aside.pop(key).close()

    def close(self) -> None:
        """Drop what is left."""
        self._gathered = {}
        for spool in self._aside.values():
            spool.close()
        self._aside = {}
        self._spool.close()


def _bounds(changes: npt.NDArray[np.bool_]) -> Sequence[int]:
    """Return where stretches begin and the last one ends, from whether each element but the first begins another."""
    return [0, *(np.flatnonzero(changes) + 1).tolist(), len(changes) + 1]
