"""The heap keyed state backend: live Python objects, one row per key.

A key's *row* is a list: ``row[0]`` is its mark, every other slot holds one state or one kind of timers of that
key. Looking up the row once per record makes each state access one list index, and what a key owns is written,
restored and dropped together. Only the mailbox thread may touch any of it, and outside of ``state`` nobody knows what
is in a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import is_
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from pillarbox.errors import CheckpointMismatchError, OperatorError, ProgramError, shorten
from pillarbox.state.backend import SlotSpec
from pillarbox.state.descriptors import StateDescriptor
from pillarbox.state.heap_states import STATES
from pillarbox.state.key_groups import key_group, subtask_of
from pillarbox.state.sizes import largest_rows
from pillarbox.state.timers import HeapTimers

__all__ = ["NEW", "HeapKeyedStateBackend", "KeyOwner", "stale_entries", "stale_entry"]

# Marks of a row. At least 0: unchanged since the entry of that number was written to the log.
NEW = -1  # changed; the log does not have it


def stale_entry(mark: int) -> int:
    """Return the number of the entry that holds an older value of a row, from its mark; negative: there is none.

    It is its own inverse: a row that is being changed has the stale entry of its mark so far as its mark.
    """
    return -2 - mark


def stale_entries(marks: list[int]) -> npt.NDArray[np.int64]:
    """Return the same of the marks of many rows."""
    return -2 - np.array(marks, np.int64)


Row = list[Any]


class KeyOwner(NamedTuple):
    """Which of a program's keys a backend may hold: those of one subtask."""

    subtask: int
    parallelism: int
    max_parallelism: int


class _NoRow(list[Any]):
    """Stands for the current row as long as there is no current key."""

    def __init__(self, backend: HeapKeyedStateBackend) -> None:
        self._backend = backend

    def _refuse(self, slot: Any, value: Any = None) -> NoReturn:
        name, kind = self._backend.slots[slot - 1]
        raise ProgramError(
            f"operator {self._backend.operator!r} uses the {kind} state {name.partition('/')[2]!r} where there is no"
            " current key: in open() states are only declared; read and change them when a record or a timer comes"
        )

    __getitem__ = _refuse
    __setitem__ = _refuse


class _Rows(dict[Any, Row]):
    """The row of each key that has state or timers. ``rows[key]`` makes the row where there is none."""

    __slots__ = ("_create",)

    def __init__(self, create: Callable[[Any], Row]) -> None:
        self._create = create

    def __missing__(self, key: Any) -> Row:
        return self._create(key)


class HeapKeyedStateBackend:
    """All keyed state of one operator in one subtask; see :class:`KeyedStateBackend` for what others know of it.

    Args:
        owner: the subtask whose keys they are; None: it may hold any key.

    Attributes:
        rows: the row of each key that has state or timers.
        row: the current key's row.
        key: the current key.
        dirty: the rows that were changed in this epoch, by key.
    """

    def __init__(self, operator: str, owner: KeyOwner | None = None) -> None:
        self.operator = operator
        # A single subtask has all keys.
        self._owner = owner if owner is not None and owner.parallelism > 1 else None
        self.rows = _Rows(self._create_row)
        self.row: Row = _NoRow(self)
        self.key: Any = None
        self.dirty: dict[Any, Row] = {}
        self.slots: list[SlotSpec] = []
        self._timers: list[HeapTimers] = []
        self._states: dict[str, Any] = {}
        self._sealed = False

    # -- declaring states: in open(), before the first row is read --

    def create_timers(self, name: str, *, namespaced: bool = False) -> HeapTimers:
        """Return the timers of one time domain of a timer service."""
        timers = HeapTimers(name, self, self._create_slot(name, "timers"), namespaced=namespaced)
        self._timers.append(timers)
        return timers

    def get_state(self, descriptor: StateDescriptor) -> Any:
        """Return the state that a descriptor declares; the same name gives the same state."""
        name = f"state/{descriptor.name}"
        state = self._states.get(name)
        if state is not None:
            kind = next(slot.kind for slot in self.slots if slot.name == name)
            if kind != descriptor.kind:
                raise ProgramError(
                    f"operator {self.operator!r} declares the state {descriptor.name!r} twice:"
                    f" as a {kind} state and as a {descriptor.kind} state"
                )
            return state
        if self._sealed:
            raise ProgramError(
                f"operator {self.operator!r} asks for the state {descriptor.name!r} while records are processed:"
                " declare all states in open()"
            )
        try:
            make = STATES[descriptor.kind]
        except KeyError:
            raise ProgramError(f"{shorten(descriptor)} is not a descriptor of keyed state") from None
        state = make(self, self._create_slot(name, descriptor.kind), descriptor)
        self._states[name] = state
        return state

    def _create_slot(self, name: str, kind: str) -> int:
        self.slots.append(SlotSpec(name, kind))
        return len(self.slots)

    def seal(self) -> None:
        """End the declaring of states."""
        self._sealed = True
        self._blank: Row = [None] * (len(self.slots) + 1)
        self._blank[0] = NEW

    @property
    def is_declared(self) -> bool:
        """Whether the operator has declared any state, or has timers."""
        return bool(self.slots)

    # -- the current key --

    def set_current_key(self, key: Any) -> None:
        """Make ``key`` the current one."""
        self.row = self.rows[key]
        self.key = key

    def _create_row(self, key: Any) -> Row:
        """Create the row of a key; it stays only if it holds something when the epoch ends.

        Raises:
            OperatorError: the key belongs to another subtask: the key function gave another one when the record was
                routed. (Flink: "Key group ... is not in KeyGroupRange".)
        """
        if self._owner is not None:
            subtask, parallelism, max_parallelism = self._owner
            right = subtask_of(key_group(key, max_parallelism), max_parallelism, parallelism)
            if right != subtask:
                self.key = key
                raise OperatorError(
                    f"operator {self.operator!r}: the key {shorten(key)} belongs to subtask {right}, but a record with"
                    f" it came to subtask {subtask} of {parallelism}: the key function gave another key when the record"
                    " was sent; it has to give the same key each time (no random numbers, no clock, no changing object)"
                )
        row = self._blank.copy()
        self.rows[key] = row
        self.dirty[key] = row
        return row

    def touch(self) -> None:
        """Note that the current row, unchanged so far in this epoch, is being changed."""
        row = self.row
        row[0] = -2 - row[0]  # (the stale entry, in line: each key that an epoch touches comes by here)
        self.dirty[self.key] = row

    # -- looking at it, for metrics and harnesses --

    @property
    def num_keys(self) -> int:
        """The number of keys that have state or timers."""
        return len(self.rows)

    def get_keys(self) -> Iterator[Any]:
        """Return the keys that have state or timers."""
        return iter(self.rows)

    def contents(self, key: Any) -> dict[str, Any]:
        """Return the contents of a key's states that are not empty, by name: the very objects, to be looked at only."""
        return {
            slot.name.removeprefix("state/"): value
            for slot, value in zip(self.slots, self.rows.get(key, self._blank)[1:])
            if slot.kind != "timers" and value is not None
        }

    def largest_keys(self, count: int = 3) -> list[tuple[Any, int]]:
        """Return the keys that take most memory, and about how many bytes each takes, without allocating much."""
        return largest_rows(self.rows, count)

    # -- writing and restoring whole rows (the state log's side) --

    def take_changes(self) -> tuple[dict[Any, Row], dict[Any, int]]:
        """Return the rows that changed in this epoch and hold something, by key; and the stale entries of those gone.

        Rows that hold nothing are dropped. The caller sets the marks of the rows that it writes.
        """
        changed, self.dirty = self.dirty, {}
        blank = self._blank[1:]
        # By identity: a state may hold what does not compare to a bool, such as a numpy array.
        empty = [key for key, row in changed.items() if all(map(is_, row[1:], blank))]
        removed = {key: stale_entry(changed[key][0]) for key in empty if changed[key][0] != NEW}
        for key in empty:
            del changed[key]
            del self.rows[key]
        return changed, removed

    def adopt_slots(self, written: list[SlotSpec]) -> list[int] | None:
        """Compare the slots of restored rows with those that the program declares.

        Returns:
            for each slot of the program its position in the restored rows (0 where they have none), or None
            when rows can be taken as they are.

        Raises:
            CheckpointMismatchError: a restored state is not declared, or with another kind.
        """
        if written == self.slots:
            return None
        declared = {slot.name: slot.kind for slot in self.slots}
        for name, kind in written:
            label = name.partition("/")[2]
            if name not in declared:
                raise CheckpointMismatchError(
                    f"the checkpoint holds {kind} {label!r} of operator {self.operator!r}, which the program does"
                    " not declare in open(): run the program that wrote it, or start from a new checkpoint"
                )
            if declared[name] != kind:
                raise CheckpointMismatchError(
                    f"the checkpoint holds {label!r} of operator {self.operator!r} as {kind} state, the program"
                    f" declares it as {declared[name]} state: give it another name"
                )
        positions = {slot.name: position for position, slot in enumerate(written, 1)}
        return [positions.get(slot.name, 0) for slot in self.slots]

    def load(self, keys: list[Any], rows: list[Row]) -> None:
        """Take over rows, each key's once, during a cold start; :meth:`end_loading` ends it."""
        self.rows.update(zip(keys, rows))
        # Now the rows are in the processor's cache; of millions, each would have to be fetched once more.
        for timers in self._timers:
            timers.load(keys, rows)

    def end_loading(self) -> None:
        """Have the timers ready."""
        for timers in self._timers:
            timers.end_loading()

    def apply(self, keys: list[Any], rows: list[Row], removed: list[Any]) -> None:
        """Take over rows that another worker wrote, into rows and timers that are live here."""
        live = self.rows
        blank = self._blank
        for key, row in zip(keys, rows):
            old = live.get(key, blank)
            for timers in self._timers:
                if old[timers.slot] != row[timers.slot]:
                    timers.replace(key, old[timers.slot], row[timers.slot])
            live[key] = row
        for key in removed:
            gone = live.pop(key, blank)
            for timers in self._timers:
                timers.replace(key, gone[timers.slot], None)
