"""A look into a state log, without the program that wrote it: its rows as they are, by state.

It reads as a restore does, and proves as much; but it makes no backend, runs nothing that the checkpoint names, and
holds one chunk at a time, and the large maps and lists. It is a pure function of the values of the log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pillarbox._errors import CheckpointMismatchError, describe
from pillarbox._state.chunks.checks import check_rows
from pillarbox._state.chunks.chunk import Chunk, read_large
from pillarbox._state.chunks.head import META, Layout, LogHead, LogIdentity, damaged, open_head
from pillarbox._state.chunks.large_collection import FoundCollections
from pillarbox._state.chunks.scan import scan
from pillarbox._state.chunks.store import ChunkStore
from pillarbox._state.keys.addresses import format_owner, is_namespaced
from pillarbox._state.log.layouts import layout_at
from pillarbox._state.slots import Row, state_name
from pillarbox._state.types.opaque import AnyNames
from pillarbox._unpickle import loads_allowed


class ViewedRows(NamedTuple):
    """Some current rows, of keys or of namespaces.

    Attributes:
        keys: the key of each.
        namespaces: the namespace of each; None: they are rows of keys.
        layout: name and kind of each slot.
        rows: in each row, before the slots, the number of its entry.
        sizes: about how many bytes each takes in the log.
    """

    keys: list[Any]
    namespaces: list[Any] | None
    layout: Layout
    rows: list[list[Any]]
    sizes: npt.NDArray[np.float64]


class _Apart(NamedTuple):
    """A row with large maps and lists, whose elements may lie in any chunk."""

    layout: Layout
    row: list[Any]
    size: float


class LogView:
    """The state of a subtask, as its log has it.

    Args:
        code: the code of the subtask, for errors.

    Attributes:
        head: the head of the log.

    Raises:
        CheckpointMismatchError: the log has no head, or it cannot be read.
    """

    def __init__(self, store: ChunkStore, code: int) -> None:
        self._store = store
        self._names = AnyNames()
        unknown = LogIdentity(f"with subtask code {code}", 0, 1, 1)
        payload = store.get(META)
        if payload is None:
            raise damaged(unknown, "the head of the state", "it is missing")
        self.head: LogHead = open_head(payload, unknown)
        self._identity = LogIdentity(
            self.head.operator, self.head.subtask, self.head.parallelism, self.head.max_parallelism
        )

    @property
    def classes(self) -> set[str]:
        """The classes and functions that were named in all that was read so far, as ``module:name``."""
        return self._names.classes

    def _loads(self, payload: bytes) -> Any:
        return loads_allowed(payload, self._names)

    def task_state(self) -> dict[str, Any]:
        """Return what the task keeps besides the rows: ``gate``, ``operators``; of values of classes only the steps.

        Raises:
            CheckpointMismatchError: it cannot be read.
        """
        try:
            return self._loads(self.head.task) if self.head.task else {}
        except Exception as error:
            raise CheckpointMismatchError(
                f"{self._identity}: the state of the task cannot be read: {describe(error)}"
            ) from error

    def rows(self) -> Iterator[ViewedRows]:
        """Return all rows, in no certain order.

        Raises:
            CheckpointMismatchError: something is missing, or is not what was written, or cannot be read.
        """
        apart: dict[Any, _Apart] = {}
        collections = FoundCollections()
        sizes_of_elements: defaultdict[Any, float] = defaultdict(float)
        for chunk in scan(self._store, self.head, self._identity, self._layouts, self._names):
            layouts, sizes = self._layouts(chunk.number), _sizes(chunk)
            fit = partial(_with_slots, chunk, layouts)
            for index, _, mark in read_large(chunk, self._store, self._identity, self._names, fit):
                sizes[index] += mark.size
            alone = chunk.current[: len(chunk.keys)].copy()
            for index, counts in chunk.apart.items():
                if alone[index]:
                    alone[index] = False
                    address, of = chunk.keys[index], layouts[chunk.is_namespaced(index)]
                    apart[address] = _Apart(of, chunk.rows[index], sizes[index])
                    for slot, count in counts.items():
                        collections.expect((address, of[slot - 1]), count)
            check_rows(list(compress(chunk.rows, alone.tobytes())), chunk.number, self._identity)
            for found, entries in chunk.current_elements():
                spec = layouts[is_namespaced(found.address)][found.slot - 1]
                collections.find((found.address, spec), found, entries)
                sizes_of_elements[found.address] += float(sizes[entries - chunk.start].sum())
            for part, layout in zip(chunk.parts, layouts):
                yield from _chosen(chunk, part, alone[part], layout, sizes[part])
        for (address, spec), count, elements in collections.take_all():
            if not count or count != len(elements):
                state = f"the state {state_name(spec[0])!r} of {format_owner(address)}"
                what = f"{state} has not its {count} elements, but {len(elements)}"
                raise damaged(self._identity, "the state", what)
            apart[address].row[1 + apart[address].layout.index(spec)] = elements.content()
        for address, (layout, row, size) in apart.items():
            yield _viewed([address], layout, [row], np.array([size + sizes_of_elements[address]]))

    def _layouts(self, number: int) -> tuple[Layout, Layout]:
        return layout_at(self.head.layouts, number), layout_at(self.head.space_layouts, number)


def _with_slots(chunk: Chunk, layouts: tuple[Layout, Layout], index: int, written: Layout, row: Row) -> Row:
    """Return a large row with the slots of the others in its chunk."""
    held = dict(zip(written, row[1:]))
    return [row[0], *(held.get(slot) for slot in layouts[chunk.is_namespaced(index)])]


def _sizes(chunk: Chunk) -> npt.NDArray[np.float64]:
    """Return about how many bytes each entry of a chunk takes."""
    sizes = chunk.sizes()
    return np.full(chunk.count, chunk.own / max(1, chunk.count)) if sizes is None else sizes.astype(np.float64)


def _chosen(
    chunk: Chunk, part: slice, chosen: npt.NDArray[np.bool_], layout: Layout, sizes: npt.NDArray[np.float64]
) -> Iterator[ViewedRows]:
    """Return the chosen ones of some rows, which are all of one kind."""
    selected = chosen.tobytes()
    addresses = list(compress(chunk.keys[part], selected))
    if addresses:
        yield _viewed(addresses, layout, list(compress(chunk.rows[part], selected)), sizes[chosen])


def _viewed(addresses: list[Any], layout: Layout, rows: list[Row], sizes: npt.NDArray[np.float64]) -> ViewedRows:
    if not is_namespaced(addresses[0]):
        return ViewedRows(addresses, None, layout, rows, sizes)
    keys, namespaces = ([address[place] for address in addresses] for place in (0, 1))
    return ViewedRows(keys, namespaces, layout, rows, sizes)
