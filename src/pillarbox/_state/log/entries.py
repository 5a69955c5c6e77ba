"""All entries that an epoch appends to a log: rows of keys, rows of namespaces, elements of large maps and lists.

Only the mailbox thread may touch any of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pillarbox._state.chunks.chunk import Chunk, large_row
from pillarbox._state.chunks.head import Mark
from pillarbox._state.heap.rows import RowTable
from pillarbox._state.log.large_collections import LargeCollections
from pillarbox._state.log.sections import ElementSection, Section
from pillarbox._state.slots import FIRST_SLOT, Row, SlotSpec
from pillarbox._state.types.sizes import sizes_of

# The entry in a chunk for a row that lies elsewhere.
_STUB = 64
# Rows of a chunk whose sizes differ by no more than this factor count as their mean.
_ALIKE = 1.5


class RowSection(Section):
    """Rows of one table.

    Args:
        collections: the large maps and lists in the rows.
        scale: how many bytes are written for each one that is reckoned with.
    """

    def __init__(self, table: RowTable, collections: LargeCollections, scale: float) -> None:
        self.table: RowTable = table
        self._collections = collections
        self._scale = scale
        self.rows: list[Row] = []
        self.older: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self.sizes: npt.NDArray[np.float64] = np.zeros(0)

    def add(self, rows: list[Row], older: npt.NDArray[np.int64]) -> None:
        """Add rows, and the entries that they take the place of."""
        if rows:
            self.rows += rows
            self.older = np.concatenate([self.older, older])
            self.sizes = np.concatenate([self.sizes, self._sizes_of(rows)])

    def grow(self) -> Iterator[ElementSection]:
        """Move maps and lists that became large out of their rows: return their elements."""
        for index, grown in self._collections.grow(self.table, self.rows, self.sizes, self._scale):
            yield from grown
            self.sizes[index] = self._sizes_of([self.rows[index]])[0]

    def _sizes_of(self, rows: list[Row]) -> npt.NDArray[np.float64]:
        slim = self._collections.slim(rows)
        if not self.table.is_namespaced:
            return sizes_of([None] * len(rows), slim) * self._scale
        return sizes_of([row[1][0] for row in rows], [[row[1][1], *row[FIRST_SLOT:]] for row in slim]) * self._scale

    def names(self) -> Sequence[Any]:
        return [row[1] for row in self.rows]

    def so_far(self) -> list[int]:
        return [row[0] for row in self.rows]

    def put_into(self, chunk: Chunk, part: slice, entry: int) -> None:
        rows = self.rows[part]
        for number, row in enumerate(rows, entry):
            row[0] = number
        for index, counts in self._collections.apart(rows):
            chunk.apart[len(chunk.keys) + index] = counts
        chunk.keys += [row[1] for row in rows]
        chunk.rows += list(map(_as_written, self._collections.slim(rows)))
        if self.table.is_namespaced:
            chunk.namespaces = len(rows)

    def values(self, part: slice) -> Iterator[tuple[Any, SlotSpec, Any]]:
        for row in self._collections.slim(self.rows[part]):
            for spec, value in zip(self.table.slots, row[FIRST_SLOT:]):
                yield row[1], spec, value

    def dump(self, index: int, dump: Callable[[Any], bytes]) -> bytes:
        (row,) = self._collections.slim([self.rows[index]])
        return large_row([(spec.name, spec.kind) for spec in self.table.slots], _as_written(row), dump)


def _as_written(row: Row) -> Row:
    """Return a row without its address."""
    return row[:1] + row[FIRST_SLOT:]


class Entries:
    """The entries that an epoch appends.

    Args:
        sections: the sections of rows come first.

    Attributes:
        older: the entries that these take the place of; negative: none.
        sizes: about how many bytes each takes together with what it is found by.
        large: which of them lie in values of their own, and where.
    """

    def __init__(self, sections: Iterable[Section]) -> None:
        self._sections = [section for section in sections if len(section)]
        self._ends = np.cumsum([len(section) for section in self._sections])
        self._rows = sum(len(section) for section in self._sections if isinstance(section, RowSection))
        self.older: npt.NDArray[np.int64] = np.concatenate(
            [np.zeros(0, np.int64), *(section.older for section in self._sections)]
        )
        self.sizes: npt.NDArray[np.float64] = np.concatenate(
            [np.zeros(0), *(section.sizes for section in self._sections)]
        )
        self.large: dict[int, tuple[int, Mark]] = {}

    def __len__(self) -> int:
        return len(self.older)

    def parts(self, start: int, stop: int) -> Iterator[tuple[Section, slice]]:
        """Return the sections that have some of the entries, and which of its own each has."""
        first = int(np.searchsorted(self._ends, start, "right"))
        begin = int(self._ends[first - 1]) if first else 0
        for section in self._sections[first:]:
            if begin >= stop:
                return
            yield section, slice(max(0, start - begin), min(stop - begin, len(section)))
            begin += len(section)

    def section_of(self, index: int) -> tuple[Section, int]:
        """Return the section of an entry, and its number there."""
        ((section, part),) = self.parts(index, index + 1)
        return section, part.start

    def so_far(self) -> Iterator[int]:
        """Return the entries that hold these so far; negative: none, or one that is out of date."""
        for section in self._sections:
            yield from section.so_far()

    def shares(self) -> npt.NDArray[np.float64]:
        """Return about how many bytes each takes of its chunk."""
        for index in self.large:  # what it is found by is in the chunk
            section, place = self.section_of(index)
            self.sizes[index] = _STUB + float(sizes_of([section.names()[place]], [[]])[0])
        return self.sizes

    def weights(self, start: int, stop: int) -> npt.NDArray[np.uint32] | None:
        """Return the sizes of some of them; None where all take about the same."""
        sizes = self.sizes[start:stop]
        if start == stop or sizes.max() <= _ALIKE * sizes.min():
            return None
        elements = sizes[max(0, self._rows - start) :]
        if len(elements) and elements.max() <= _ALIKE * elements.min():
            elements = np.full(len(elements), elements.mean())
            sizes = np.concatenate([sizes[: len(sizes) - len(elements)], elements])
        weights: npt.NDArray[np.uint32] = np.maximum(sizes, 1).astype(np.uint32)
        return weights
