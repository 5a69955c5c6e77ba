"""Rows of one side of a join, sorted by key and time, among which those near in time to others are found by search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["Segment"]

Ints = npt.NDArray[np.int64]

# Pairs are given in pieces of about this many.
_PIECE = 1 << 16
_NONE = np.empty(0, np.int64)
# Products below it are safe from overflow.
_SAFE = 2**62


class Segment:
    """Rows with their keys' codes and their times, in the order of both.

    Attributes:
        batch: the columns; only :meth:`columns` knows the order of its rows.
        codes: the code of each row's key.
        times: when it happened, epoch milliseconds.
        matched: whether a partner was found; None: nobody asks.
        number: under which number the rows are in the state; None: they are not, or in another form.
        changed: which of the rows have been matched since they were last written, as numbers of blocks of rows.
    """

    def __init__(
        self, batch: pa.RecordBatch, order: Ints | None, codes: Ints, times: Ints, matched: npt.NDArray[np.bool_] | None
    ) -> None:
        self.batch: Any = batch
        self.codes = codes
        self.times = times
        self.matched = matched
        self.number: int | None = None
        self.changed: set[int] = set()
        self._order = order
        new = np.ones(len(codes), np.bool_)
        new[1:] = codes[1:] != codes[:-1]
        self._keys: Ints = codes[new]
        self._groups: Ints = np.cumsum(new) - 1
        self._low = int(times.min())
        self._high = int(times.max())
        self._span = self._high - self._low + 1
        # A row's place is the number of its key and the time, as one number. Where that would be too large, a time is
        # the number of its rung on the ladder of all times.
        self._ladder: Ints | None = None
        ranks = times - self._low if self._span * len(self._keys) < _SAFE else None
        if ranks is None:
            self._ladder = np.unique(times)
            self._span = len(self._ladder)
            ranks = np.searchsorted(self._ladder, times)
        self._places: Ints = self._groups * self._span + ranks
        self._by_age: Ints | None = None
        self._ages: Ints | None = None
        self._over = 0

    @staticmethod
    def of(batch: pa.RecordBatch, codes: Ints, times: Ints, matched: npt.NDArray[np.bool_] | None = None) -> Segment:
        """Return a segment of rows in any order."""
        order = np.lexsort((times, codes))
        return Segment(batch, order, codes[order], times[order], None if matched is None else matched[order])

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def is_sorted(self) -> bool:
        """Whether the rows of the batch are in the segment's order."""
        return self._order is None or bool((self._order[1:] > self._order[:-1]).all())

    def columns(self, positions: Ints | None = None, columns: Sequence[int] | None = None) -> list[pa.Array]:
        """Return columns of the rows at some positions.

        Args:
            positions: None: all rows.
            columns: the indices of columns; None: all of them.
        """
        wanted = self.batch.columns if columns is None else [self.batch.column(index) for index in columns]
        if positions is None and self._order is None:
            return list(wanted)
        if self._order is not None:
            positions = self._order if positions is None else self._order[positions]
        indices = pa.array(positions)
        return [column.take(indices) for column in wanted]

    # -- pairs --

    def pairs_with(self, other: Segment, lower: int, upper: int) -> Iterator[tuple[Ints, Ints]]:
        """Yield the positions of pairs: rows of this segment, and of the other one with the same key.

        Those of the other are later than those here by ``lower`` to ``upper`` milliseconds.
        """
        if self._high + upper < other._low or other._high < self._low + lower:
            return
        group = np.searchsorted(other._keys, self._keys)
        group[group == len(other._keys)] = 0
        met = other._keys[group] == self._keys
        own = np.flatnonzero(met[self._groups])
        if not len(own):
            return
        starts = group[self._groups[own]] * other._span
        times = self.times[own]
        begin = np.searchsorted(other._places, starts + other._first_rank(times + lower))
        counts = np.searchsorted(other._places, starts + other._last_rank(times + upper), "right") - begin
        some = np.flatnonzero(counts)
        own, begin, counts = own[some], begin[some], counts[some]
        ends = np.cumsum(counts)
        start = 0
        while start < len(own):
            done = int(ends[start - 1]) if start else 0
            stop = max(int(np.searchsorted(ends, done + _PIECE, "right")), start + 1)
            each = counts[start:stop]
            numbers = np.arange(int(ends[stop - 1]) - done)
            shifts = np.repeat(begin[start:stop] - (ends[start:stop] - each - done), each)
            yield np.repeat(own[start:stop], each), numbers + shifts
            start = stop

    def _first_rank(self, times: Ints) -> Ints:
        """Return the rank of the first time here that is not before each of others."""
        if self._ladder is None:
            return np.clip(times - self._low, 0, self._span)
        return np.searchsorted(self._ladder, times)

    def _last_rank(self, times: Ints) -> Ints:
        """Return the rank of the last time here that is not behind each of others."""
        if self._ladder is None:
            return np.clip(times - self._low, -1, self._span - 1)
        return np.searchsorted(self._ladder, times, "right") - 1

    # -- age --

    def expire(self, limit: int) -> Ints:
        """Return the positions of rows from before ``limit`` (epoch ms) that were not there for an earlier one."""
        if limit <= self._low:
            return _NONE
        if self._ages is None:
            before = self.times < limit
            if 2 * int(np.count_nonzero(before)) >= len(self):
                over = np.flatnonzero(before)  # so the rows get a segment of their own, without these
                self._over = len(over)
                return over
            self._by_age = np.argsort(self.times, kind="stable")
            self._ages = self.times[self._by_age]
        assert self._by_age is not None
        former, self._over = self._over, max(self._over, int(np.searchsorted(self._ages, limit)))
        return self._by_age[former : self._over]

    @property
    def is_mostly_over(self) -> bool:
        """Whether half of the rows are from before the limit."""
        return 2 * self._over >= len(self)

    def alive(self) -> Segment:
        """Return the rows that are not over, as a segment that is not in the state if it is another one."""
        if not self._over:
            return self
        assert self._by_age is not None
        return self.at(np.sort(self._by_age[self._over :]))

    def since(self, limit: int) -> Segment | None:
        """Return the rows that are not from before ``limit``, as a segment that is not in the state; None: none."""
        alive = np.flatnonzero(self.times >= limit)
        return self.at(alive) if len(alive) else None

    def at(self, positions: Ints) -> Segment:
        """Return the rows at positions, which ascend, as a segment that is not in the state."""
        batch = pa.RecordBatch.from_arrays(self.columns(positions), schema=self.batch.schema)
        matched = None if self.matched is None else self.matched[positions]
        return Segment(batch, None, self.codes[positions], self.times[positions], matched)

    @staticmethod
    def together(segments: Sequence[Segment]) -> Segment:
        """Return the rows of segments as one that is not in the state."""
        schema = segments[0].batch.schema
        columns = zip(*(segment.columns() for segment in segments))
        batch = pa.RecordBatch.from_arrays([pa.concat_arrays(parts) for parts in columns], schema=schema)
        matched = [segment.matched for segment in segments if segment.matched is not None]
        return Segment.of(
            batch,
            np.concatenate([segment.codes for segment in segments]),
            np.concatenate([segment.times for segment in segments]),
            np.concatenate(matched) if matched else None,
        )
