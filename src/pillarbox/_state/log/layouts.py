"""What the slots of written rows hold, and how they come into the shape of the program's rows.

A program may get other states, and the order of its states may change: rows of before stay in the log as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, compress, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from pillarbox._state.backend import LoggedRows, LoggedStateBackend, SlotSpec
from pillarbox._state.chunks.chunk import Chunk
from pillarbox._state.chunks.head import Layout, LogHead
from pillarbox._state.heap.rows import STAMPS
from pillarbox._state.keys.addresses import is_space

__all__ = ["DELETED", "Layouts", "SlotLayouts", "as_written", "layout_at", "state_name"]


# The place of a slot of a state that the program has deleted.
DELETED = -1


class Layouts:
    """The layouts of rows of both kinds.

    Attributes:
        keys: those of rows of keys.
        spaces: those of rows of namespaces.
    """

    def __init__(self, backend: LoggedStateBackend) -> None:
        self._backend = backend
        self.keys: SlotLayouts = SlotLayouts(backend)
        self.spaces: SlotLayouts = SlotLayouts(backend.spaces)

    def take_over(self, head: LogHead) -> bool:
        """Take what a head says, and have room for it in the program's rows.

        Returns:
            whether the program has renamed or deleted a state.

        Raises:
            CheckpointMismatchError: the program does not declare what there is.
        """
        changed = self.keys.take_over(head.layouts)
        return self.spaces.take_over(head.space_layouts) or changed

    def note(self, following: int) -> None:
        """Take the program's slots for the layout from a chunk on."""
        self.keys.note(following)
        if self._backend.spaces.slots:
            self.spaces.note(following)

    def at(self, number: int) -> tuple[Layout, Layout]:
        """Return the layouts of a chunk."""
        return self.keys.at(number), self.spaces.at(number)

    def newest(self, *, of_space: bool) -> Layout:
        """Return the layout of what is written now."""
        return (self.spaces if of_space else self.keys).newest

    @property
    def former(self) -> dict[str, str]:
        """What the head says of states that the program has renamed or deleted."""
        return {
            lead + name: now and lead + now
            for lead, rows in (("", self._backend), ("space/", self._backend.spaces))
            for name, now in chain(rows.former.items(), zip(rows.deleted, repeat("")))
            if not name.startswith(STAMPS)
        }

    def fit(self, chunk: Chunk, number: int) -> None:
        """Bring the rows of a chunk into the shape of the program's."""
        rows, own = chunk.rows, chunk.own_keys
        positions = self.keys.positions(number)
        if positions is not None:
            rows[:own] = [row if row is None else _rearranged(row, positions) for row in rows[:own]]
        space_positions = None
        if chunk.spaces or chunk.elements:
            space_positions = self.spaces.positions(number)
        if chunk.spaces:
            if space_positions is not None:
                rows[own:] = [row if row is None else _rearranged(row, space_positions) for row in rows[own:]]
            for address, row in zip(chunk.keys[own:], rows[own:]):
                if row is not None:
                    row.insert(1, address)
        if chunk.apart or chunk.elements:
            slots, space_slots = _places(positions, 1), _places(space_positions, 2)
            for index, counts in chunk.apart.items():
                of = space_slots if chunk.is_space(index) else slots
                chunk.apart[index] = {of(slot): count for slot, count in counts.items() if of(slot) != DELETED}
            chunk.elements = [
                found._replace(slot=(space_slots if is_space(found.address) else slots)(found.slot))
                for found in chunk.elements
            ]

    def fit_large(self, chunk: Chunk, index: int, content: dict[str, Any]) -> list[Any]:
        """Return a large row of a chunk in the shape that the program's have; it has a layout of its own."""
        of_space = chunk.is_space(index)
        rows: LoggedRows = self._backend.spaces if of_space else self._backend
        slots = _specs(content["slots"])
        rows.adopt_slots(slots)
        positions = rows.positions(slots)
        row: list[Any] = content["row"] if positions is None else _rearranged(content["row"], positions)
        if of_space:
            row.insert(1, chunk.keys[index])
        return row

    def of_each_kind(
        self, chunk: Chunk, chosen: npt.NDArray[np.bool_]
    ) -> Iterator[tuple[LoggedRows, list[Any], list[list[Any]]]]:
        """Return the chosen rows of a chunk with their addresses: those of keys, and those of namespaces."""
        # (As bytes: a list of millions would take longer to make than to go through.)
        selected, own = chosen.tobytes(), chunk.own_keys
        if not chunk.spaces:
            yield self._backend, list(compress(chunk.keys, selected)), list(compress(chunk.rows, selected))
            return
        for rows, part in ((self._backend, slice(own)), (self._backend.spaces, slice(own, None))):
            those = selected[part]
            yield rows, list(compress(chunk.keys[part], those)), list(compress(chunk.rows[part], those))


class SlotLayouts:
    """The slots of rows of one kind, and the chunk that they begin with."""

    def __init__(self, rows: LoggedRows) -> None:
        self._rows = rows
        self._layouts: list[tuple[int, Layout]] = []

    def take_over(self, layouts: list[tuple[int, Layout]]) -> bool:
        """Take what a head says, and have room for it in the program's rows.

        Returns:
            whether the program has renamed or deleted a state.

        Raises:
            CheckpointMismatchError: the program does not declare what there is.
        """
        changed = [self._rows.adopt_slots(_specs(layout)) for _, layout in layouts]
        self._layouts = layouts
        return any(changed)

    @property
    def newest(self) -> Layout:
        """The layout of what is written now."""
        return self._layouts[-1][1]

    def at(self, number: int) -> Layout:
        """Return the layout of a chunk."""
        return layout_at(self._layouts, number)

    def positions(self, number: int) -> list[int] | None:
        """Return the position of each of the program's slots in the rows of a chunk; None: they are the same."""
        return self._rows.positions(_specs(self.at(number)))

    def note(self, following: int) -> None:
        """Take the program's slots for the layout from a chunk on."""
        layout = [(slot.name, slot.kind) for slot in self._rows.slots]
        if not self._layouts or self.newest != layout:
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


def state_name(slot: str) -> str:
    """Return the name of a state for people, from that of its slot; stamps of a time-to-live have one, too."""
    lead, _, name = slot.partition("/")
    return f"{name.partition('/')[2]}_last_access" if f"{lead}/" == STAMPS else name


def _specs(layout: Layout) -> list[SlotSpec]:
    return [SlotSpec(*slot) for slot in layout]


def as_written(row: list[Any]) -> list[Any]:
    """Return a namespace's row without its address."""
    return [row[0], *row[2:]]


def _rearranged(row: list[Any], positions: Sequence[int]) -> list[Any]:
    return [row[0], *(row[position] if position else None for position in positions)]


def _places(positions: Sequence[int] | None, lead: int) -> Callable[[int], int]:
    """Return what tells the place in the program's rows of a slot in written ones, which count from 1."""
    if positions is None:
        return lambda slot: slot + lead - 1
    places = {written: place for place, written in enumerate(positions, lead)}
    return lambda slot: places.get(slot, DELETED)
