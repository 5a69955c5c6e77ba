"""The heap keyed state backend: live Python objects, one row per key.

A key's *row* is a list: ``row[0]`` is its mark, every other slot holds one state or one kind of timers of that
key. Looking up the row once per record makes each state access one list index, and what a key owns is written,
restored and dropped together. Only the mailbox thread may touch any of it.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from pillarbox.errors import CheckpointMismatchError, OperatorError, ProgramError, shorten
from pillarbox.state.descriptors import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from pillarbox.state.key_groups import key_group, subtask_of

if TYPE_CHECKING:
    from pillarbox.time.internal_timer_service import TimerIndex

__all__ = ["NEW", "HeapKeyedStateBackend", "KeyOwner", "SlotSpec", "stale_entries", "stale_entry"]

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
_EMPTY: dict[Any, Any] = {}
_IS_NONE = partial(is_, None)


class SlotSpec(NamedTuple):
    """What a slot of the rows holds: a state's name, or a timer service's; and the kind."""

    name: str
    kind: str


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


class HeapKeyedStateBackend:
    """All keyed state of one operator in one subtask.

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
        self.rows: dict[Any, Row] = {}
        self.row: Row = _NoRow(self)
        self.key: Any = None
        self.dirty: dict[Any, Row] = {}
        self.slots: list[SlotSpec] = []
        self._timer_indexes: list[TimerIndex] = []
        self._states: dict[str, Any] = {}
        self._sealed = False

    # -- declaring states: in open(), before the first row is read --

    def create_timer_slot(self, name: str, index: TimerIndex) -> int:
        """Return the slot of one time domain of a timer service."""
        slot = self._create_slot(name, "timers")
        self._timer_indexes.append(index)
        return slot

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
            make = _STATES[descriptor.kind]
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

    # -- the current key --

    def set_current_key(self, key: Any) -> None:
        """Make ``key`` the current one."""
        row = self.rows.get(key)
        self.key = key
        self.row = self.create_row(key) if row is None else row

    def create_row(self, key: Any) -> Row:
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
        for index in self._timer_indexes:
            index.load(keys, rows)

    def end_loading(self) -> None:
        """Have the timers ready."""
        for index in self._timer_indexes:
            index.end_loading()

    def apply(self, keys: list[Any], rows: list[Row], removed: list[Any]) -> None:
        """Take over rows that another worker wrote, into rows and timers that are live here."""
        live = self.rows
        blank = self._blank
        for key, row in zip(keys, rows):
            old = live.get(key, blank)
            for index in self._timer_indexes:
                if old[index.slot] != row[index.slot]:
                    index.replace(key, old[index.slot], row[index.slot])
            live[key] = row
        for key in removed:
            gone = live.pop(key, blank)
            for index in self._timer_indexes:
                index.replace(key, gone[index.slot], None)


class _HeapState:
    """A state is a slot number and the backend that knows the current row."""

    __slots__ = ("_backend", "_slot")

    def __init__(self, backend: HeapKeyedStateBackend, slot: int, descriptor: Any) -> None:
        self._backend = backend
        self._slot = slot

    def _set(self, value: Any) -> None:
        backend = self._backend
        row = backend.row
        row[self._slot] = value
        if row[0] >= 0:
            backend.touch()

    def clear(self) -> None:
        if self._backend.row[self._slot] is not None:
            self._set(None)

    def _refuse_none(self) -> NoReturn:
        backend = self._backend
        name = backend.slots[self._slot - 1].name.partition("/")[2]
        raise ProgramError(
            f"operator {backend.operator!r}, key {shorten(backend.key)}: None cannot be put into the list state"
            f" {name!r}: leave it out, or put in a value that stands for it"
        )


class _HeapValueState(_HeapState, ValueState[Any]):
    __slots__ = ()

    def value(self) -> Any:
        return self._backend.row[self._slot]

    def update(self, value: Any) -> None:
        backend = self._backend
        row = backend.row
        row[self._slot] = value
        if row[0] >= 0:
            backend.touch()


class _HeapListState(_HeapState, ListState[Any]):
    __slots__ = ()

    def get(self) -> tuple[Any, ...]:
        return tuple(self._backend.row[self._slot] or ())

    def __iter__(self) -> Iterator[Any]:
        return iter(tuple(self._backend.row[self._slot] or ()))

    def add(self, value: Any) -> None:
        if value is None:
            self._refuse_none()
        backend = self._backend
        row = backend.row
        elements = row[self._slot]
        if elements is None:
            row[self._slot] = [value]
        else:
            elements.append(value)
        if row[0] >= 0:
            backend.touch()

    def add_all(self, values: Iterable[Any]) -> None:
        self._set([*(self._backend.row[self._slot] or ()), *self._without_none(values)] or None)

    def update(self, values: Iterable[Any]) -> None:
        self._set(self._without_none(values) or None)

    def _without_none(self, values: Iterable[Any]) -> list[Any]:
        elements = list(values)
        # By identity: numpy arrays do not compare to a bool.
        if any(map(_IS_NONE, elements)):
            self._refuse_none()
        return elements


class _HeapMapState(_HeapState, MapState[Any, Any]):
    __slots__ = ()

    def get(self, key: Any) -> Any:
        entries = self._backend.row[self._slot]
        return None if entries is None else entries.get(key)

    def put(self, key: Any, value: Any) -> None:
        backend = self._backend
        row = backend.row
        entries = row[self._slot]
        if entries is None:
            row[self._slot] = {key: value}
        else:
            entries[key] = value
        if row[0] >= 0:
            backend.touch()

    def put_all(self, mapping: Mapping[Any, Any]) -> None:
        self._set({**(self._backend.row[self._slot] or _EMPTY), **mapping} or None)

    def remove(self, key: Any) -> None:
        entries = self._backend.row[self._slot]
        if entries is not None and key in entries:
            del entries[key]
            self._set(entries or None)

    def contains(self, key: Any) -> bool:
        return key in (self._backend.row[self._slot] or _EMPTY)

    def items(self) -> ItemsView[Any, Any]:
        return (self._backend.row[self._slot] or _EMPTY).items()

    def keys(self) -> KeysView[Any]:
        return (self._backend.row[self._slot] or _EMPTY).keys()

    def values(self) -> ValuesView[Any]:
        return (self._backend.row[self._slot] or _EMPTY).values()

    def is_empty(self) -> bool:
        return not self._backend.row[self._slot]


class _HeapReducingState(_HeapState, ReducingState[Any]):
    __slots__ = ("_reduce",)

    def __init__(self, backend: HeapKeyedStateBackend, slot: int, descriptor: ReducingStateDescriptor) -> None:
        super().__init__(backend, slot, descriptor)
        self._reduce = descriptor.reduce_function

    def get(self) -> Any:
        return self._backend.row[self._slot]

    def add(self, value: Any) -> None:
        if value is None:
            self.clear()
            return
        present = self._backend.row[self._slot]
        self._set(value if present is None else self._reduce(present, value))


class _HeapAggregatingState(_HeapState, AggregatingState[Any, Any]):
    __slots__ = ("_function",)

    def __init__(self, backend: HeapKeyedStateBackend, slot: int, descriptor: AggregatingStateDescriptor) -> None:
        super().__init__(backend, slot, descriptor)
        self._function = descriptor.agg_function

    def get(self) -> Any:
        accumulator = self._backend.row[self._slot]
        return None if accumulator is None else self._function.get_result(accumulator)

    def add(self, value: Any) -> None:
        if value is None:
            self.clear()
            return
        accumulator = self._backend.row[self._slot]
        if accumulator is None:
            accumulator = self._function.create_accumulator()
        self._set(self._function.add(value, accumulator))


_STATES: dict[str, Any] = {
    ValueStateDescriptor.kind: _HeapValueState,
    ListStateDescriptor.kind: _HeapListState,
    MapStateDescriptor.kind: _HeapMapState,
    ReducingStateDescriptor.kind: _HeapReducingState,
    AggregatingStateDescriptor.kind: _HeapAggregatingState,
}
