"""What the slots of written rows hold, and how they come into the shape of the program's rows.

A program may get other states, and the order of its states may change: earlier rows stay in the log as they were.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain, compress, repeat
from typing import Any

from pillarbox._state.chunks.chunk import Chunk
from pillarbox._state.chunks.head import Layout, LogHead
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.heap.rows import RowTable
from pillarbox._state.keys.addresses import is_namespaced
from pillarbox._state.slots import FIRST_SLOT, STAMPS, Row, SlotSpec

# The place of a slot of a state that the program has deleted.
DELETED = -1


class Layouts:
    """The layouts of rows of both kinds.

    Attributes:
        keys: the layouts of rows of keys.
        namespaces: the layouts of rows of namespaces.
    """

    def __init__(self, backend: KeyedStateBackend) -> None:
        self.keys: SlotLayouts = SlotLayouts(backend)
        self.namespaces: SlotLayouts = SlotLayouts(backend.namespaces)
        self._both = (self.keys, self.namespaces)

    def take_over(self, head: LogHead) -> bool:
        """Take what a head says, and have room for it in the program's rows.

        Returns:
            whether the program has renamed or deleted a state.

        Raises:
            CheckpointMismatchError: the program does not declare what there is.
        """
        changed = self.keys.take_over(head.layouts)
        return self.namespaces.take_over(head.space_layouts) or changed

    def note(self, following: int) -> None:
        """Take the program's slots for the layout from a chunk on."""
        self.keys.note(following)
        if self.namespaces.table.slots:
            self.namespaces.note(following)

    def at(self, number: int) -> tuple[Layout, Layout]:
        """Return the layouts of a chunk."""
        return self.keys.at(number), self.namespaces.at(number)

    @property
    def former(self) -> dict[str, str]:
        """What the head says of states that the program has renamed or deleted."""
        return {
            table.lead + name: now and table.lead + now
            for table in (self.keys.table, self.namespaces.table)
            for name, now in chain(table.former.items(), zip(table.deleted, repeat("")))
            if not name.startswith(STAMPS)
        }

    def fit(self, chunk: Chunk) -> None:
        """Bring the slots of a chunk into the order of the program's."""
        positions = [layouts.positions(chunk.number) for layouts in self._both]
        for part, of in zip(chunk.parts, positions):
            if of is not None:
                chunk.rows[part] = [row if row is None else _rearranged(row, of) for row in chunk.rows[part]]
        if chunk.apart or chunk.elements:
            for index, counts in chunk.apart.items():
                places = [
                    (_place(slot, positions[chunk.is_namespaced(index)]), count) for slot, count in counts.items()
                ]
                chunk.apart[index] = {place: count for place, count in places if place != DELETED}
            chunk.elements = [
                found._replace(slot=_place(found.slot, positions[is_namespaced(found.address)]))
                for found in chunk.elements
            ]

    def fit_large(self, chunk: Chunk, index: int, layout: Layout, row: Row) -> Row:
        """Return a large row of a chunk, which has a layout of its own, with the program's slots."""
        table = self._both[chunk.is_namespaced(index)].table
        slots = _specs(layout)
        table.adopt_slots(slots)
        positions = table.positions(slots)
        row = row if positions is None else _rearranged(row, positions)
        row[0] = chunk.start + index
        return row

    def current_rows(self, chunk: Chunk) -> Iterator[tuple[RowTable, list[Any], list[Row]]]:
        """Return the current rows of a chunk, table by table, with their addresses, which are not in the rows."""
        # (As bytes: a list of millions would take longer to make than to go through.)
        selected = chunk.current.tobytes()
        for layouts, part in zip(self._both, chunk.parts):
            those = selected[part]
            addresses = list(compress(chunk.keys[part], those))
            if addresses:
                yield layouts.table, addresses, list(compress(chunk.rows[part], those))


class SlotLayouts:
    """The slots of rows of one kind, and the chunk that they begin with.

    Attributes:
        table: the program's rows.
    """

    def __init__(self, table: RowTable) -> None:
        self.table: RowTable = table
        self._layouts: list[tuple[int, Layout]] = []

    def take_over(self, layouts: list[tuple[int, Layout]]) -> bool:
        """Take what a head says, and have room for it in the program's rows.

        Returns:
            whether the program has renamed or deleted a state.

        Raises:
            CheckpointMismatchError: the program does not declare what there is.
        """
        changed = [self.table.adopt_slots(_specs(layout)) for _, layout in layouts]
        self._layouts = layouts
        return any(changed)

    def at(self, number: int) -> Layout:
        """Return the layout of a chunk."""
        return layout_at(self._layouts, number)

    def positions(self, number: int) -> list[int] | None:
        """Return the position of each of the program's slots in the rows of a chunk; None: they are the same."""
        return self.table.positions(_specs(self.at(number)))

    def note(self, following: int) -> None:
        """Take the program's slots for the layout from a chunk on."""
        layout = [(slot.name, slot.kind) for slot in self.table.slots]
        if not self._layouts or self._layouts[-1][1] != layout:
            self._layouts = [*self._layouts, (following, layout)]

    def written(self, first: int) -> list[tuple[int, Layout]]:
        """Return what the head says where this chunk is the first one."""
        while len(self._layouts) > 1 and self._layouts[1][0] <= first:
            self._layouts = self._layouts[1:]
        return self._layouts


def layout_at(layouts: list[tuple[int, Layout]], number: int) -> Layout:
    """Return the layout of a chunk, from what a head says."""
    first: Layout = layouts[0][1] if layouts else []
    return next((layout for start, layout in reversed(layouts) if start <= number), first)


def _specs(layout: Layout) -> list[SlotSpec]:
    return [SlotSpec(*slot) for slot in layout]


def with_addresses(rows: list[Row], addresses: list[Any]) -> None:
    """Put addresses into rows as they are written, of which there may be millions."""
    deque(map(list.insert, rows, repeat(1), addresses), 0)


def _rearranged(row: Row, positions: list[int]) -> Row:
    return [row[0], *(row[position] if position else None for position in positions)]


def _place(slot: int, positions: list[int] | None) -> int:
    """Return the place in the program's rows of a slot in written ones, which count from 1."""
    if positions is None:
        return slot + FIRST_SLOT - 1
    return positions.index(slot) + FIRST_SLOT if slot in positions else DELETED
