"""The entries that an epoch appends to a log: sections of one kind each, so that each step is one loop over them.

Only the mailbox thread may touch any of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pillarbox._state.chunks.chunk import Chunk, large_element
from pillarbox._state.chunks.large_collection import Elements, LargeCollection
from pillarbox._state.slots import SlotSpec
from pillarbox._state.types.sizes import sizes_of


class Section(ABC):
    """Entries of one kind.

    Attributes:
        older: the entries that these take the place of; negative: none.
        sizes: about how many bytes each takes together with what it is found by.
    """

    older: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.older)

    @abstractmethod
    def names(self) -> Sequence[Any]:
        """Return what each entry is found by: the address of a row, or a map's key or a position."""

    @abstractmethod
    def so_far(self) -> list[int]:
        """Return the entries that hold these so far; negative: none, or one that is out of date."""

    @abstractmethod
    def put_into(self, chunk: Chunk, part: slice, entry: int) -> None:
        """Add some of the entries to a chunk; they get the numbers from ``entry`` on."""

    @abstractmethod
    def values(self, part: slice) -> Iterator[tuple[Any, SlotSpec, Any]]:
        """Return the values in some of the entries, with the address and the slot of each."""

    @abstractmethod
    def dump(self, index: int, dump: Callable[[Any], bytes]) -> bytes:
        """Return an entry as it stands in the store by itself."""


class ElementSection(Section):
    """Elements of one map or list.

    Args:
        places: the places of the elements, in the order of their ordinals.
        older: the entries that held them so far.
        scale: how many bytes are written for each one that is reckoned with.

    Attributes:
        spec: the slot of the map or list.
        elements: the elements.
    """

    def __init__(
        self, collection: LargeCollection, spec: SlotSpec, places: list[int], older: Sequence[int], scale: float
    ) -> None:
        self._collection = collection
        self._places = places
        self.spec: SlotSpec = spec
        self.elements: Elements = collection.elements(places)
        self.older = np.array(older, np.int64)
        self.sizes = np.zeros(0)
        if places:
            self.sizes = sizes_of(list(self.names()), [[value] for value in self.elements.values]) * scale

    def names(self) -> Sequence[Any]:
        return self.elements.names()

    def so_far(self) -> list[int]:
        return [self._collection.entries[place] for place in self._places]

    def put_into(self, chunk: Chunk, part: slice, entry: int) -> None:
        for number, place in enumerate(self._places[part], entry):
            self._collection.entries[place] = number
        chunk.elements.append(self.elements.part(part))

    def values(self, part: slice) -> Iterator[tuple[Any, SlotSpec, Any]]:
        found = self.elements.part(part)
        for element in zip(found.names(), found.values):
            yield found.address, self.spec, element

    def dump(self, index: int, dump: Callable[[Any], bytes]) -> bytes:
        return large_element(self.elements.values[index], dump)
