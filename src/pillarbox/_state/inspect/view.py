"""A look into a state log, without the program that wrote it: its rows as they are, by state.

It reads as a restore does, and proves as much; but it makes no backend, runs nothing that the checkpoint names, and
holds one chunk at a time, and the large maps and lists. It is a pure function of the values of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pillarbox._errors import CheckpointMismatchError, describe
from pillarbox._state.chunks.checks import check_rows
from pillarbox._state.chunks.chunk import Chunk, read_large
from pillarbox._state.chunks.head import META, Layout, LogHead, LogIdentity, damaged, open_head
from pillarbox._state.chunks.large_collection import Parts
from pillarbox._state.chunks.scan import Scanned, scan
from pillarbox._state.chunks.store import ChunkStore
from pillarbox._state.keys.addresses import is_space, whose
from pillarbox._state.log.layouts import layout_at
from pillarbox._state.types.opaque import AnyNames
from pillarbox._unpickle import loads_allowed

__all__ = ["LogView", "ViewedRows"]


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

    address: Any
    layout: Layout
    row: list[Any]
    counts: dict[int, int]
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
        waiting: list[_Apart] = []
        parts: dict[tuple[Any, str], Parts] = {}
        sizes_of_parts: dict[tuple[Any, str], float] = {}
        for scanned in scan(self._store, self.head, self._identity, self._layouts, self._names):
            chunk, current = scanned.chunk, scanned.current
            layout, space_layout = self._layouts(scanned.number)
            sizes = _sizes(scanned)
            alone = current[: len(chunk.keys)].copy()
            for index, (number, mark) in chunk.large.items():
                if not current[index]:
                    continue
                is_row = index < len(chunk.keys)
                content = read_large(self._store, number, mark, self._identity, self._names, of_row=is_row)
                sizes[index] += mark.size
                if not is_row:
                    chunk.put(index, content["element"])
                    continue
                alone[index] = False
                # Cleaning moves the entry, never the value: the slots of that may be others than those of the chunk.
                of = space_layout if chunk.is_space(index) else layout
                places = {name: place for place, (name, _) in enumerate(content["slots"], 1)}
                counts = {places[of[slot - 1][0]]: count for slot, count in chunk.apart.get(index, {}).items()}
                waiting.append(_Apart(chunk.keys[index], content["slots"], content["row"], counts, sizes[index]))
                if not counts:
                    yield from self._completed([waiting.pop()], parts, sizes_of_parts)
            check_rows(list(compress(chunk.rows, alone.tobytes())), scanned.number, self._identity)
            for index, counts in chunk.apart.items():
                if current[index] and index not in chunk.large:
                    alone[index] = False
                    of = space_layout if chunk.is_space(index) else layout
                    waiting.append(_Apart(chunk.keys[index], of, chunk.rows[index], counts, sizes[index]))
            at = len(chunk.keys)
            for found in chunk.elements:
                part = slice(at, at := at + len(found.values))
                if current[part].any():
                    of = space_layout if is_space(found.address) else layout
                    whose = found.address, of[found.slot - 1][0]
                    entries = np.arange(scanned.start + part.start, scanned.start + part.stop)
                    parts.setdefault(whose, Parts(found.keys is None)).add(found, entries, current[part])
                    size = float(sizes[part][current[part]].sum())
                    sizes_of_parts[whose] = sizes_of_parts.get(whose, 0.0) + size
            yield from _of_each_kind(chunk, alone, layout, space_layout, sizes)
        yield from self._completed(waiting, parts, sizes_of_parts)
        for (address, name), unclaimed in parts.items():
            raise self._wrong(address, name, 0, len(unclaimed.values))

    def _layouts(self, number: int) -> tuple[Layout, Layout]:
        return layout_at(self.head.layouts, number), layout_at(self.head.space_layouts, number)

    def _completed(
        self, waiting: list[_Apart], parts: dict[tuple[Any, str], Parts], sizes: dict[tuple[Any, str], float]
    ) -> Iterator[ViewedRows]:
        """Return rows with their large maps and lists."""
        for address, layout, row, counts, own in waiting:
            size = own
            for slot, count in counts.items():
                name, kind = layout[slot - 1]
                found = parts.pop((address, name), None)
                if found is None or len(found.values) != count:
                    raise self._wrong(address, name, count, 0 if found is None else len(found.values))
                elements = found.sorted()
                row[slot] = (
                    [value for _, _, _, value in elements]
                    if kind == "list"
                    else {key: value for _, _, key, value in elements}
                )
                size += sizes.pop((address, name))
            keys, namespaces = ([address[0]], [address[1]]) if is_space(address) else ([address], None)
            yield ViewedRows(keys, namespaces, layout, [row], np.array([size]))

    def _wrong(self, address: Any, name: str, count: int, found: int) -> CheckpointMismatchError:
        state = f"the state {name.partition('/')[2]!r} of {whose(address)}"
        return damaged(self._identity, "the state", f"{state} has not its {count} elements, but {found}")


def _sizes(scanned: Scanned) -> npt.NDArray[np.float64]:
    """Return about how many bytes each entry of a chunk takes."""
    chunk = scanned.chunk
    own = chunk.own(scanned.mark.size)
    sizes = chunk.sizes(own)
    return np.full(chunk.count, own / max(1, chunk.count)) if sizes is None else sizes.astype(np.float64)


def _of_each_kind(
    chunk: Chunk,
    chosen: npt.NDArray[np.bool_],
    layout: Layout,
    space_layout: Layout,
    sizes: npt.NDArray[np.float64],
) -> Iterator[ViewedRows]:
    selected, own, count = chosen.tolist(), chunk.own_keys, len(chunk.keys)
    rows = chunk.rows
    if any(selected[:own]):
        keys = list(compress(chunk.keys[:own], selected))
        yield ViewedRows(keys, None, layout, list(compress(rows[:own], selected)), sizes[:own][chosen[:own]])
    if any(selected[own:]):
        addresses = list(compress(chunk.keys[own:], selected[own:]))
        yield ViewedRows(
            [address[0] for address in addresses],
            [address[1] for address in addresses],
            space_layout,
            list(compress(rows[own:], selected[own:])),
            sizes[own:count][chosen[own:]],
        )
