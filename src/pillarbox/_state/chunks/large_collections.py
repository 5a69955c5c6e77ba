"""Large maps and lists: each of their elements is an entry of the log, so that a change writes what it changes.

A map or list beyond some size leaves its row when it is written: the row says only how many elements there are. Only
the mailbox thread may touch any of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pillarbox._state.backend import LoggedStateBackend, SlotSpec
from pillarbox._state.chunks.large_collection import Elements, LargeCollection, LargeList, LargeMap, LiveMap, Parts
from pillarbox._state.keys.addresses import is_space, said
from pillarbox._state.types.sizes import sizes_of

__all__ = ["Batch", "LargeCollections", "batch_of"]

# Beyond about this many bytes a map or list leaves its row; below a quarter of it, it comes back. What is in its row
# is written with each change of it, but needs no numbers in memory.
_LARGE = 32 * 1024
_KINDS = ("map", "list")


class Batch(NamedTuple):
    """Elements of one map or list that are appended to the log together.

    Attributes:
        older: the entries that held them so far; negative: none.
        sizes: about how many bytes each takes.
    """

    collection: LargeCollection
    places: list[int]
    older: npt.NDArray[np.int64]
    elements: Elements
    sizes: npt.NDArray[np.float64]


class LargeCollections:
    """All large maps and lists of a backend, by address and slot."""

    def __init__(self, backend: LoggedStateBackend) -> None:
        self._backend = backend
        self._of: dict[Any, dict[int, LargeCollection]] = {}
        self._found: dict[tuple[Any, int], Parts] = {}
        self._counts: dict[Any, dict[int, int]] = {}

    def get(self, address: Any, slot: int) -> LargeCollection | None:
        """Return the large map or list in a slot of a row."""
        return self._of.get(address, {}).get(slot)

    def slim(self, addresses: Iterable[Any], rows: Iterable[list[Any]]) -> list[list[Any]]:
        """Return rows without their large maps and lists; those that have none as they are."""
        if not self._of:
            return list(rows)
        return [self._slim(address, row) if address in self._of else row for address, row in zip(addresses, rows)]

    def _slim(self, address: Any, row: list[Any]) -> list[Any]:
        row = row.copy()
        for slot in self._of[address]:
            row[slot] = None
        return row

    def apart(self, addresses: list[Any]) -> dict[int, dict[int, int]]:
        """Return which of the rows have large maps and lists, and how many elements these have, by slot."""
        if not self._of:
            return {}
        return {
            index: {slot: len(collection.live) for slot, collection in self._of[address].items()}
            for index, address in enumerate(addresses)
            if address in self._of
        }

    # -- writing --

    def take_changes(
        self, changed: dict[Any, list[Any]], removed: Iterable[Any], scale: float
    ) -> tuple[list[int], list[Batch]]:
        """Return the entries of elements that went, and the elements that changed.

        Args:
            changed: the rows that changed, by address; where a map or list has become small, it is back in them.
            removed: the addresses of those that are gone.
            scale: how many bytes are written for each one that is reckoned with.
        """
        gone: list[int] = []
        batches: list[Batch] = []
        for address in removed if self._of else ():
            for collection in self._of.pop(address, {}).values():
                gone += collection.written().tolist()
        for address in (
            [address for address in self._of if address in changed] if len(self._of) < len(changed) else [*changed]
        ):
            row = changed[address]
            for slot, collection in [*self._of.get(address, {}).items()]:
                if row[slot] is collection.live and not self._is_small(collection, scale):
                    went, batch = self._changes_of(collection, scale)
                    gone += went
                    if batch.places:
                        batches.append(batch)
                    continue
                if row[slot] is collection.live:
                    row[slot] = collection.plain()
                gone += collection.written().tolist()
                self._forget(address, slot)
        return gone, batches

    def grow(
        self, changed: dict[Any, list[Any]], sizes: npt.NDArray[np.float64], scale: float
    ) -> Iterator[tuple[int, Any, list[Batch]]]:
        """Move maps and lists that became large out of their rows: return whose, and their elements.

        Args:
            changed: the rows that changed, by address.
            sizes: about how many bytes each of them takes.
            scale: how many bytes are written for each one that is reckoned with.
        """
        large = np.flatnonzero(sizes > _LARGE).tolist()
        addresses = list(changed) if large else []
        for index in large:
            address = addresses[index]
            batches = self._grow(address, changed[address], scale)
            if batches:
                yield index, address, batches

    def _grow(self, address: Any, row: list[Any], scale: float) -> list[Batch]:
        batches = []
        lead = 1 + is_space(address)
        for slot, value in enumerate(row[lead:], lead):
            kind = self.spec(address, slot).kind
            if kind not in _KINDS or value is None or len(value) < 2 or self.get(address, slot) is not None:
                continue
            if float(sizes_of([None], [[value]])[0]) * scale <= _LARGE:
                continue
            collection: LargeCollection
            if kind == "list":
                collection = LargeList(address, slot, value)
            else:
                row[slot] = live = LiveMap()
                live.update(value)
                collection = LargeMap(address, slot, live)
            self._of.setdefault(address, {})[slot] = collection
            batches.append(self._changes_of(collection, scale)[1])
        return batches

    def spec(self, address: Any, slot: int) -> SlotSpec:
        """Return what is in a place of a row."""
        if is_space(address):
            return self._backend.spaces.slots[slot - 2]
        return self._backend.slots[slot - 1]

    def rewrite(self) -> None:
        """Put all maps and lists back into their rows: those that are large leave them with the next epoch."""
        for address, slots in self._of.items():
            row = self._backend.find(address)
            for slot, collection in slots.items():
                if row is not None:
                    row[slot] = list(collection.live) if isinstance(collection, LargeList) else collection.plain()

    @staticmethod
    def _is_small(collection: LargeCollection, scale: float) -> bool:
        """Return whether the elements together take so little that they fit into their row."""
        live, least = collection.live, _LARGE / 4 / scale
        if len(live) > least or float(sizes_of([None], [[live]])[0]) > least:
            return False
        values = live.values() if isinstance(live, dict) else live
        return float(sizes_of(list(live), [[value] for value in values]).sum()) <= least

    @staticmethod
    def _changes_of(collection: LargeCollection, scale: float) -> tuple[list[int], Batch]:
        gone, places, older = collection.take_changes()
        batch = batch_of(collection, places, older, scale)
        return gone, batch

    def _forget(self, address: Any, slot: int) -> None:
        del self._of[address][slot]
        if not self._of[address]:
            del self._of[address]

    # -- reading --

    def find(self, found: Elements, entries: npt.NDArray[np.int64], current: npt.NDArray[np.bool_]) -> None:
        """Take up elements of a chunk, in entries of which some are current."""
        if not current.any():
            return
        parts = self._found.get((found.address, found.slot))
        if parts is None:
            parts = self._found[found.address, found.slot] = Parts(found.keys is None)
        parts.add(found, entries, current)

    def expect(self, address: Any, counts: dict[int, int]) -> None:
        """Take note of how many elements the large maps and lists of a row have."""
        self._counts[address] = counts

    def load(self) -> str | None:
        """Put the maps and lists that were found into the rows; return what is wrong with them."""
        found, counts, self._found, self._counts = self._found, self._counts, {}, {}
        for address, slots in counts.items():
            for slot, count in slots.items():
                parts = found.pop((address, slot), None)
                collection = self._new(address, slot)
                row = self._backend.find(address)
                if row is None or parts is None or count != len(parts.values) or not collection.load(parts):
                    return self._wrong(address, slot, count, 0 if parts is None else len(parts.values))
                row[slot] = collection.live
        for (address, slot), parts in found.items():
            return self._wrong(address, slot, 0, len(parts.values))
        return None

    def _new(self, address: Any, slot: int) -> LargeCollection:
        is_list = self.spec(address, slot).kind == "list"
        collection: LargeCollection = LargeList(address, slot, []) if is_list else LargeMap(address, slot, LiveMap())
        self._of.setdefault(address, {})[slot] = collection
        return collection

    def _wrong(self, address: Any, slot: int, count: int, found: int) -> str:
        name, kind = self.spec(address, slot)
        state = f"the {kind} state {name.partition('/')[2]!r} of key {said(address)}"
        return f"{state} has not its {count} elements, but {found}{', in other places' if found == count else ''}"


def batch_of(collection: LargeCollection, places: list[int], older: list[int], scale: float) -> Batch:
    """Return elements of a map or list, at places that are in order, to be appended to the log."""
    elements = collection.elements(places)
    sizes = np.zeros(0)
    if places:
        sizes = sizes_of(list(elements.names()), [[value] for value in elements.values]) * scale
    return Batch(collection, places, np.array(older, np.int64), elements, sizes)
