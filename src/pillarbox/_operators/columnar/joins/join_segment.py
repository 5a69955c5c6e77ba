"""Sorted rows of one join side, for binary search by key and time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]

BLOCK = 1 << 12
"""Number of rows per stored block of ``matched`` flags."""

_PIECE = 1 << 16
_NONE = np.empty(0, np.int64)
_SAFE = 2**62
_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class _Grid:
    """Encodes a row's key and time as one integer. Integers sort by key, then by time.

    The integer is: rank of the key's code * number of time ranks + rank of the time. A rank is the distance from the
    minimum or, if the integer would then be too large, the index among the distinct values.
    """

    def __init__(self, codes: Ints, times: Ints) -> None:
        self.low: int = int(times.min())
        self.high: int = int(times.max())
        self._first = int(codes.min())
        self._last = int(codes.max())
        keys, self._span = self._last - self._first + 1, self.high - self.low + 1
        self._codes: Ints | None = None
        self._times: Ints | None = None
        if keys * self._span > _SAFE:
            self._codes = np.unique(codes)
            keys = len(self._codes)
        if keys * self._span > _SAFE:
            self._times = np.unique(times)
            self._span = len(self._times)
        self._size = keys * self._span

    def integers(self, codes: Ints, times: Ints) -> Ints:
        keys = codes - self._first if self._codes is None else np.searchsorted(self._codes, codes)
        ranks = times - self.low if self._times is None else np.searchsorted(self._times, times)
        integers: Ints = keys * self._span + ranks
        return integers

    def in_order(self, integers: Ints) -> tuple[Ints | None, Ints]:
        """Return the stable sort order of integers (None if they are sorted) and the sorted integers."""
        if (integers[1:] >= integers[:-1]).all():
            return None, integers
        bits = (len(integers) - 1).bit_length()
        if self._size << bits > _SAFE:
            order = np.argsort(integers, kind="stable")
            return order, integers[order]
        # Positions are packed into the integers, because sorting integers is much faster than finding their order.
        packed = (integers << bits) | np.arange(len(integers))
        packed.sort()
        return packed & ((1 << bits) - 1), packed >> bits

    def near(self, codes: Ints, times: Ints, lower: int, upper: int) -> tuple[Ints, Ints, Ints]:
        """Return the positions of rows that may have partners in this grid, and their partners' encoded ranges.

        Partners are ``lower`` to ``upper`` ms later than their row.
        """
        near = (times >= max(self.low - upper, _LEAST)) & (times <= min(self.high - lower, _MOST))
        near &= (codes >= self._first) & (codes <= self._last)
        own = np.flatnonzero(near)
        codes, times = codes[own], times[own]
        if self._codes is None:
            keys = codes - self._first
        else:
            keys = np.searchsorted(self._codes, codes)
            equal = self._codes[keys] == codes
            own, keys, times = own[equal], keys[equal], times[equal]
        starts = keys * self._span
        if self._times is None:
            begin = np.maximum(times + lower - self.low, 0)
            end = np.minimum(times + upper - self.low, self._span - 1)
        else:
            begin = np.searchsorted(self._times, times + lower)
            end = np.searchsorted(self._times, times + upper, "right") - 1
        return own, starts + begin, starts + end


class Segment:
    """Rows with their key codes and times, sorted by both.

    Attributes:
        batch: the rows in another order. Use :meth:`columns` for sorted columns.
        times: Unix times in ms.
        matched: flags of rows that have been emitted, alone or in a pair. None if the join does not need them.
        changed: blocks of ``matched`` that have changed since they were written.
    """

    def __init__(
        self,
        batch: pa.RecordBatch,
        order: Ints | None,
        codes: Ints,
        times: Ints,
        matched: npt.NDArray[np.bool_] | None,
        grid: _Grid,
        integers: Ints,
    ) -> None:
        self.batch: Any = batch
        self.codes = codes
        self.times = times
        self.matched = matched
        self.number: int | None = None
        self.changed: set[int] = set()
        self._order = order
        self._grid = grid
        self._integers = integers
        self._by_age: Ints | None = None
        self._ages: Ints | None = None
        self._over = 0

    @staticmethod
    def of(batch: pa.RecordBatch, codes: Ints, times: Ints, matched: npt.NDArray[np.bool_] | None = None) -> Segment:
        grid = _Grid(codes, times)
        order, integers = grid.in_order(grid.integers(codes, times))
        if order is not None:
            codes, times = codes[order], times[order]
            matched = None if matched is None else matched[order]
        return Segment(batch, order, codes, times, matched, grid, integers)

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def is_sorted(self) -> bool:
        return self._order is None

    def columns(self, positions: Ints | None = None, columns: Sequence[int] | None = None) -> list[pa.Array]:
        arrays = self.batch.columns if columns is None else [self.batch.column(index) for index in columns]
        if positions is None and self._order is None:
            return list(arrays)
        if self._order is not None:
            positions = self._order if positions is None else self._order[positions]
        indices = pa.array(positions)
        return [column.take(indices) for column in arrays]

    def match(self, positions: Ints) -> None:
        assert self.matched is not None
        self.matched[positions] = True
        if self.number is not None:
            self.changed.update(np.unique(positions // BLOCK).tolist())

    def pairs_with(self, other: Segment, lower: int, upper: int) -> Iterator[tuple[Ints, Ints]]:
        """Yield positions of pairs with equal keys whose row in ``other`` is ``lower`` to ``upper`` ms later."""
        if self._grid.high + upper < other._grid.low or other._grid.high < self._grid.low + lower:
            return
        own, first, last = other._grid.near(self.codes, self.times, lower, upper)
        begin = np.searchsorted(other._integers, first)
        # Most rows have no partner and need only one search.
        some = np.flatnonzero(begin < len(other))
        some = some[other._integers[begin[some]] <= last[some]]
        own, begin = own[some], begin[some]
        counts = np.searchsorted(other._integers, last[some], "right") - begin
        ends = np.cumsum(counts)
        start = 0
        while start < len(own):
            done = int(ends[start - 1]) if start else 0
            stop = max(int(np.searchsorted(ends, done + _PIECE, "right")), start + 1)
            repeats = counts[start:stop]
            numbers = np.arange(int(ends[stop - 1]) - done)
            shifts = np.repeat(begin[start:stop] - (ends[start:stop] - repeats - done), repeats)
            yield np.repeat(own[start:stop], repeats), numbers + shifts
            start = stop

    def expire(self, limit: int) -> Ints:
        if limit <= self._grid.low:
            return _NONE
        if self._ages is None:
            before = self.times < limit
            if 2 * int(np.count_nonzero(before)) >= len(self):
                over = np.flatnonzero(before)
                self._over = len(over)
                return over
            self._by_age = np.argsort(self.times, kind="stable")
            self._ages = self.times[self._by_age]
        assert self._by_age is not None
        former, self._over = self._over, max(self._over, int(np.searchsorted(self._ages, limit)))
        return self._by_age[former : self._over]

    @property
    def is_mostly_over(self) -> bool:
        return 2 * self._over >= len(self)

    def alive(self) -> Segment:
        if not self._over:
            return self
        assert self._by_age is not None
        return self.at(np.sort(self._by_age[self._over :]))

    def since(self, limit: int) -> Segment | None:
        alive = np.flatnonzero(self.times >= limit)
        return self.at(alive) if len(alive) else None

    def at(self, positions: Ints) -> Segment:
        batch = pa.RecordBatch.from_arrays(self.columns(positions), schema=self.batch.schema)
        matched = None if self.matched is None else self.matched[positions]
        return Segment.of(batch, self.codes[positions], self.times[positions], matched)

    @staticmethod
    def together(segments: Sequence[Segment]) -> Segment:
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
