"""Large maps and lists: each of their elements is an entry of the log, so that a change writes what it changes.

A map or list beyond some size leaves its row when it is written: the row says only how many elements there are. Only
the mailbox thread may touch any of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pillarbox._state.chunks.large_collection import (
    Elements,
    FoundCollections,
    LargeCollection,
    LargeList,
    LargeMap,
    LiveMap,
)
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.heap.rows import RowTable
from pillarbox._state.keys.addresses import format_address
from pillarbox._state.log.sections import ElementSection
from pillarbox._state.slots import FIRST_SLOT, Row, SlotSpec
from pillarbox._state.types.sizes import sizes_of

# Beyond about this many bytes a map or list leaves its row; below a quarter of it, it comes back. Content of a row
# is written with each change of it, but needs no numbers in memory.
_LARGE = 32 * 1024
_KINDS = ("map", "list")


class LargeCollections:
    """All large maps and lists of a backend, by address and slot."""

    def __init__(self, backend: KeyedStateBackend) -> None:
        self._backend = backend
        self._of: dict[Any, dict[int, LargeCollection]] = {}
        self._found = FoundCollections()

    def get(self, address: Any, slot: int) -> LargeCollection | None:
        """Return the large map or list in a slot of a row."""
        return self._of.get(address, {}).get(slot)

    def slim(self, rows: list[Row]) -> list[Row]:
        """Return rows without their large maps and lists; those that have none as they are."""
        if not self._of:
            return rows
        return [self._slim(row) if row[1] in self._of else row for row in rows]

    def _slim(self, row: Row) -> Row:
        row = row.copy()
        for slot in self._of[row[1]]:
            row[slot] = None
        return row

    def apart(self, rows: list[Row]) -> Iterator[tuple[int, dict[int, int]]]:
        """Return which of the rows have large maps and lists, and how many elements these have, by slot."""
        for index, row in enumerate(rows) if self._of else ():
            if row[1] in self._of:
                yield index, {slot: len(collection.live) for slot, collection in self._of[row[1]].items()}

    # -- writing --

    def take_changes(
        self, changed: Iterable[Row], removed: Iterable[Any], scale: float
    ) -> tuple[list[int], list[ElementSection]]:
        """Return the entries of removed elements, and the changed elements.

        Args:
            changed: the rows that changed; where a map or list has become small, it is back in them.
            removed: the addresses of those that are gone.
            scale: how many bytes are written for each one that is reckoned with.
        """
        gone: list[int] = []
        sections: list[ElementSection] = []
        if not self._of:
            return gone, sections
        for address in removed:
            for collection in self._of.pop(address, {}).values():
                gone += collection.written().tolist()
        for row in [row for row in changed if row[1] in self._of]:
            for slot, collection in [*self._of[row[1]].items()]:
                if row[slot] is collection.live and not self._is_small(collection, scale):
                    went, section = self._changes_of(collection, scale)
                    gone += went
                    if len(section):
                        sections.append(section)
                    continue
                if row[slot] is collection.live:
                    row[slot] = collection.plain()
                gone += collection.written().tolist()
                self._forget(row[1], slot)
        return gone, sections

    def grow(
        self, table: RowTable, rows: list[Row], sizes: npt.NDArray[np.float64], scale: float
    ) -> Iterator[tuple[int, list[ElementSection]]]:
        """Move maps and lists that became large out of their rows: return the numbers of rows, and the elements.

        Args:
            rows: the rows of the table that changed.
            sizes: about how many bytes each of them takes.
            scale: how many bytes are written for each one that is reckoned with.
        """
        for index in np.flatnonzero(sizes > _LARGE).tolist():
            grown = [self._changes_of(each, scale)[1] for each in self._grown(table, rows[index], scale)]
            if grown:
                yield index, grown

    def _grown(self, table: RowTable, row: Row, scale: float) -> Iterator[LargeCollection]:
        for slot, (spec, value) in enumerate(zip(table.slots, row[FIRST_SLOT:]), FIRST_SLOT):
            if spec.kind not in _KINDS or value is None or len(value) < 2 or self.get(row[1], slot) is not None:
                continue
            if float(sizes_of([None], [[value]])[0]) * scale > _LARGE:
                collection = self._new(row[1], slot, value)
                row[slot] = collection.live
                yield collection

    def spec(self, address: Any, slot: int) -> SlotSpec:
        """Return what is in a place of a row."""
        return self._backend.table_of(address).spec_of(slot)

    def rewrite(self) -> None:
        """Put all maps and lists back into their rows: those that are large leave them with the next epoch."""
        for address, slots in self._of.items():
            row = self._row(address)
            for slot, collection in slots.items():
                if row is not None:
                    row[slot] = list(collection.live) if isinstance(collection, LargeList) else collection.plain()

    def _row(self, address: Any) -> Row | None:
        return self._backend.table_of(address).find(address)

    @staticmethod
    def _is_small(collection: LargeCollection, scale: float) -> bool:
        """Return whether the elements together take so little that they fit into their row."""
        live, least = collection.live, _LARGE / 4 / scale
        if len(live) > least or float(sizes_of([None], [[live]])[0]) > least:
            return False
        values = live.values() if isinstance(live, dict) else live
        return float(sizes_of(list(live), [[value] for value in values]).sum()) <= least

    def _changes_of(self, collection: LargeCollection, scale: float) -> tuple[list[int], ElementSection]:
        gone, places, older = collection.take_changes()
        return gone, self._section(collection, places, older, scale)

    def moved(self, collection: LargeCollection, places: list[int], scale: float) -> ElementSection:
        """Return elements that have not changed, to be written again."""
        places = collection.in_order(places)
        return self._section(collection, places, [collection.entries[place] for place in places], scale)

    def _section(
        self, collection: LargeCollection, places: list[int], older: list[int], scale: float
    ) -> ElementSection:
        return ElementSection(collection, self.spec(collection.address, collection.slot), places, older, scale)

    def _forget(self, address: Any, slot: int) -> None:
        del self._of[address][slot]
        if not self._of[address]:
            del self._of[address]

    # -- reading --

    def find(self, found: Elements, entries: npt.NDArray[np.int64]) -> None:
        """Take up elements of a chunk, and the entries that hold them."""
        self._found.find((found.address, found.slot), found, entries)

    def expect(self, address: Any, counts: dict[int, int]) -> None:
        """Take note of how many elements the large maps and lists of a row have."""
        for slot, count in counts.items():
            self._found.expect((address, slot), count)

    def load(self) -> str | None:
        """Put the maps and lists that were found into the rows; return what is wrong with them."""
        for (address, slot), count, found in self._found.take_all():
            row = self._row(address)
            if row is None or not count or count != len(found):
                return self._wrong(address, slot, count, len(found))
            collection = self._new(address, slot)
            if not collection.load(found):
                return self._wrong(address, slot, count, len(found))
            row[slot] = collection.live
        return None

    def _new(self, address: Any, slot: int, content: Any = None) -> LargeCollection:
        """Return a map or list as a large one, with what is in it so far."""
        collection: LargeCollection
        if self.spec(address, slot).kind == "list":
            collection = LargeList(address, slot, content or [])
        else:
            live = LiveMap()
            live.update(content or {})
            collection = LargeMap(address, slot, live)
        self._of.setdefault(address, {})[slot] = collection
        return collection

    def _wrong(self, address: Any, slot: int, count: int, found: int) -> str:
        state = f"{self.spec(address, slot).title} of key {format_address(address)}"
        return f"{state} has not its {count} elements, but {found}{', in other places' if found == count else ''}"
