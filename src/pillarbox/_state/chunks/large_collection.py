"""A large map or list: which entry of the log holds each of its elements.

In memory it stays the live dict or list that the states use. Only the mailbox thread may touch any of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pillarbox._state.keys.map_keys import map_key, restored_keys

_UNWRITTEN = -1


class LiveMap(dict[Any, Any]):
    """The live dict of a large map, which notes the elements that change.

    Attributes:
        changed: keys that were set since the map was written, in the order of the first time.
        removed: keys that were removed since; one that was set again is in both.
    """

    __slots__ = ("changed", "removed")

    def __init__(self, elements: Any = ()) -> None:
        super().__init__(elements)
        self.changed: dict[Any, None] = {}
        self.removed: dict[Any, None] = {}

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.changed[key] = None

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key)
        self.changed.pop(key, None)
        self.removed[key] = None

    def update(self, elements: Mapping[Any, Any]) -> None:  # type: ignore[override]
        """Set all elements of a mapping."""
        super().update(elements)
        self.changed.update(dict.fromkeys(elements))

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


class Elements(NamedTuple):
    """Elements of one map or list, as they stand in a chunk.

    Attributes:
        address: the address of the row.
        slot: its place in the row.
        ordinals: where they stand among the others, ascending.
        keys: the map's keys; None: it is a list.
    """

    address: Any
    slot: int
    ordinals: npt.NDArray[np.int64]
    keys: list[Any] | None
    values: list[Any]

    def chosen(self, current: npt.NDArray[np.bool_]) -> Elements:
        """Return some of the elements."""
        those = current.tolist()
        keys = None if self.keys is None else list(compress(self.keys, those))
        return self._replace(ordinals=self.ordinals[current], keys=keys, values=list(compress(self.values, those)))

    def part(self, part: slice) -> Elements:
        """Return a part of the elements."""
        address, slot, ordinals, keys, values = self
        return Elements(address, slot, ordinals[part], None if keys is None else keys[part], values[part])

    def names(self) -> Sequence[Any]:
        """Return what each element is found by: a map's key, or a position."""
        if self.keys is not None:
            return self.keys
        first, count = int(self.ordinals[0]), len(self.values)
        return range(first, first + count) if self.ordinals[-1] == first + count - 1 else self.ordinals.tolist()


class LargeCollection(ABC):
    """A large map or list, and the entries that hold its elements.

    A *place* is the index of an element in ``entries``.

    Attributes:
        address: the address of its row.
        slot: its place in the row.
        live: the dict or list in the row.
        entries: the entry of each element; negative: it has none yet.
    """

    def __init__(self, address: Any, slot: int, live: Any) -> None:
        self.address: Any = address
        self.slot: int = slot
        self.live: Any = live
        self.entries: array[int] = array("q")

    @abstractmethod
    def take_changes(self) -> tuple[list[int], list[int], list[int]]:
        """Return entries of removed elements, places of changed elements, and their entries so far."""

    @abstractmethod
    def written(self) -> npt.NDArray[np.int64]:
        """Return the entries of all elements that have one."""

    @abstractmethod
    def place_of(self, name: Any, entry: int) -> int | None:
        """Return the place of the element of this name if this entry holds it."""

    @abstractmethod
    def elements(self, places: list[int]) -> Elements:
        """Return the elements at these places, which are in the order of their ordinals."""

    @abstractmethod
    def in_order(self, places: list[int]) -> list[int]:
        """Return places in the order of their ordinals."""

    @abstractmethod
    def plain(self) -> Any:
        """Return a plain dict or list with the same elements."""

    @abstractmethod
    def load(self, parts: FoundElements) -> bool:
        """Take all elements, which were found in the log; tell whether they fit together."""


class LargeList(LargeCollection):
    """Its elements are only appended: a place is a position."""

    def take_changes(self) -> tuple[list[int], list[int], list[int]]:
        places = list(range(len(self.entries), len(self.live)))
        older = [_UNWRITTEN] * len(places)
        self.entries.extend(older)
        return [], places, older

    def written(self) -> npt.NDArray[np.int64]:
        return np.array(self.entries, np.int64)

    def place_of(self, name: Any, entry: int) -> int | None:
        return name if name < len(self.entries) and self.entries[name] == entry else None

    def elements(self, places: list[int]) -> Elements:
        live = self.live
        return Elements(self.address, self.slot, np.array(places, np.int64), None, [live[place] for place in places])

    def in_order(self, places: list[int]) -> list[int]:
        return sorted(places)

    def plain(self) -> list[Any]:
        live: list[Any] = self.live
        return live

    def load(self, parts: FoundElements) -> bool:
        elements = parts.sorted()
        self.live.extend([value for _, _, _, value in elements])
        self.entries.extend([entry for _, entry, _, _ in elements])
        return [ordinal for ordinal, _, _, _ in elements] == list(range(len(elements)))


class LargeMap(LargeCollection):
    """Ordinals count up as keys come, so sorting by them restores the order of the dict."""

    def __init__(self, address: Any, slot: int, live: LiveMap) -> None:
        super().__init__(address, slot, live)
        # By place, too: ordinals, and keys as the dict has them (an equal one may be of another type).
        self._ordinals = array("q")
        self._keys: list[Any] = []
        self._places: dict[Any, int] = {}
        self._free: list[int] = []
        self._following = 0

    def take_changes(self) -> tuple[list[int], list[int], list[int]]:
        live, entries = self.live, self.entries
        gone = [entries[place] for key in live.removed if (place := self._remove(key)) is not None]
        places = []
        for key in live.changed:
            place = self._places.get(key)
            places.append(self._add(key, self._following) if place is None else place)
        places = self.in_order(places)
        older = [entries[place] for place in places]
        for place in places:
            entries[place] = _UNWRITTEN
        live.changed = {}
        live.removed = {}
        return gone, places, older

    def _add(self, key: Any, ordinal: int) -> int:
        if self._free:
            place = self._free.pop()
            self.entries[place], self._ordinals[place], self._keys[place] = _UNWRITTEN, ordinal, key
        else:
            place = len(self._keys)
            self.entries.append(_UNWRITTEN)
            self._ordinals.append(ordinal)
            self._keys.append(key)
        self._places[key] = place
        self._following = max(self._following, ordinal + 1)
        return place

    def _remove(self, key: Any) -> int | None:
        """Forget an element; its place keeps its entry until it is taken."""
        place = self._places.pop(key, None)
        if place is not None:
            self._free.append(place)
            self._keys[place] = None
        return place

    def written(self) -> npt.NDArray[np.int64]:
        return np.array(self.entries, np.int64)[np.fromiter(self._places.values(), np.int64, len(self._places))]

    def place_of(self, name: Any, entry: int) -> int | None:
        place = self._places.get(map_key(name))
        return place if place is not None and self.entries[place] == entry else None

    def elements(self, places: list[int]) -> Elements:
        keys = [self._keys[place] for place in places]
        ordinals = np.array([self._ordinals[place] for place in places], np.int64)
        live = self.live
        return Elements(self.address, self.slot, ordinals, keys, [live[key] for key in keys])

    def in_order(self, places: list[int]) -> list[int]:
        return sorted(places, key=self._ordinals.__getitem__)

    def plain(self) -> dict[Any, Any]:
        return dict(self.live)

    def load(self, parts: FoundElements) -> bool:
        elements = parts.sorted()
        self._keys = restored_keys([key for _, _, key, _ in elements])
        dict.update(self.live, zip(self._keys, [value for _, _, _, value in elements]))
        self._places = dict(zip(self._keys, range(len(elements))))
        self._ordinals.extend([ordinal for ordinal, _, _, _ in elements])
        self.entries.extend([entry for _, entry, _, _ in elements])
        self._following = self._ordinals[-1] + 1 if elements else 0
        return len(self._places) == len(elements)


class FoundElements:
    """Elements of one map or list that are found in chunks, one after the other."""

    def __init__(self, is_list: bool) -> None:
        self.ordinals: list[npt.NDArray[np.int64]] = []
        self.entries: list[npt.NDArray[np.int64]] = []
        self.keys: list[Any] | None = None if is_list else []
        self.values: list[Any] = []

    def __len__(self) -> int:
        return len(self.values)

    def add(self, found: Elements, entries: npt.NDArray[np.int64]) -> None:
        """Add elements, and the entries that hold them."""
        self.ordinals.append(found.ordinals)
        self.entries.append(entries)
        self.values += found.values
        if self.keys is not None:
            self.keys += found.keys or ()

    def content(self) -> Any:
        """Return them as a plain dict or list."""
        elements = self.sorted()
        if self.keys is None:
            return [value for _, _, _, value in elements]
        return {key: value for _, _, key, value in elements}

    def sorted(self) -> list[tuple[int, int, Any, Any]]:
        """Return ordinal, entry, key and value of each element, by ordinal."""
        if not self.values:
            return []
        ordinals, entries = np.concatenate(self.ordinals), np.concatenate(self.entries)
        keys = [None] * len(self.values) if self.keys is None else self.keys
        found = list(zip(ordinals.tolist(), entries.tolist(), keys, self.values))
        return [found[index] for index in np.argsort(ordinals).tolist()]


class FoundCollections:
    """The large maps and lists that are found in chunks, and how many elements each has to have.

    Each has a name: its row's address, and a slot.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[Any, Any], FoundElements] = {}
        self._counts: dict[tuple[Any, Any], int] = {}

    def find(self, name: tuple[Any, Any], found: Elements, entries: npt.NDArray[np.int64]) -> None:
        """Take up elements, and the entries that hold them."""
        if name not in self._found:
            self._found[name] = FoundElements(found.keys is None)
        self._found[name].add(found, entries)

    def expect(self, name: tuple[Any, Any], count: int) -> None:
        """Take note of how many elements one has to have."""
        self._counts[name] = count

    def take_all(self) -> Iterator[tuple[tuple[Any, Any], int, FoundElements]]:
        """Return each by its name, with the number of elements that it has to have: 0 where no row has it."""
        found, counts, self._found, self._counts = self._found, self._counts, {}, {}
        for name in dict.fromkeys((*counts, *found)):
            yield name, counts.get(name, 0), found.get(name) or FoundElements(is_list=True)
