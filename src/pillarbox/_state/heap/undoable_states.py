"""States and timers that note what is to be undone, before they change it or hand it out.

Each stands before a state on the heap, which knows nothing of it. Only the mailbox thread may touch them.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any

from pillarbox._state.descriptors import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from pillarbox._state.heap.processing_timers import ProcessingTimers
from pillarbox._state.heap.timers import HeapTimers
from pillarbox._state.heap.undo import Undo
from pillarbox._state.keys.map_keys import map_key, with_map_keys
from pillarbox._state.slots import Row
from pillarbox._state.state_descriptor import StateDescriptor
from pillarbox._time.internal_timer_service import VOID_NAMESPACE


def undoable(state: Any, descriptor: StateDescriptor, undo: Undo) -> Any:
    """Return a state before a state, which notes what is to be undone."""
    if descriptor.name in undo.unchanged:
        return state
    return _STATES[descriptor.kind](state, undo)


class _Undoable:
    """What all of them have in common.

    Args:
        state: the state on the heap.
    """

    def __init__(self, state: Any, undo: Undo) -> None:
        self._state = state
        self._undo = undo
        self._rows = state.rows
        # The slot of its content, and that of its stamps if it has a time-to-live.
        self._slots: tuple[int, ...] = state.slots
        self._slot = self._slots[0]

    def clear(self) -> None:
        self._note()
        self._state.clear()

    def _note(self) -> Row:
        """Note which objects there are; return the row."""
        row: Row = self._rows.row
        for slot in self._slots:
            self._undo.slot(row, slot)
        return row

    def _note_content(self, row: Row) -> None:
        """Note the content, which may be changed in place; the stamp of such a state is a number."""
        for slot in self._slots:
            self._undo.content(row, slot)


class _UndoableValueState(_Undoable, ValueState[Any]):
    def value(self) -> Any:
        self._note_content(self._rows.row)
        return self._state.value()

    def update(self, value: Any) -> None:
        self._note()
        self._state.update(value)


class _UndoableMerging(_Undoable):
    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        merged = list(sources)
        for namespace in (target, *merged):
            self._note_change(self._rows.row_in(namespace))
        self._state.merge_namespaces(target, merged)

    def _note_change(self, row: Row) -> None:
        raise NotImplementedError


class _UndoableListState(_UndoableMerging, ListState[Any]):
    def get(self) -> Iterable[Any]:
        row = self._note()
        self._undo.elements(row[self._slot])
        return self._state.get()  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def add(self, value: Any) -> None:
        self._note_change(self._rows.row)
        self._state.add(value)

    def add_all(self, values: Iterable[Any]) -> None:
        added = list(values)  # the state itself, perhaps
        self._note_change(self._rows.row)
        self._state.add_all(added)

    def update(self, values: Iterable[Any]) -> None:
        self._note()
        self._state.update(values)

    def _note_change(self, row: Row) -> None:
        for slot in self._slots:
            self._undo.slot(row, slot)
            self._undo.length(row[slot])


class _UndoableFoldingState(_UndoableMerging):
    def get(self) -> Any:
        self._note_content(self._rows.row)
        return self._state.get()

    def accumulator(self) -> Any:
        self._note_content(self._rows.row)
        return self._state.accumulator()

    def add(self, value: Any) -> None:
        self._note_content(self._rows.row)
        self._state.add(value)

    def fold(self, value: Any) -> bool:
        self._note_content(self._rows.row)
        return self._state.fold(value)  # type: ignore[no-any-return]

    def _note_change(self, row: Row) -> None:
        self._note_content(row)


class _UndoableReducingState(_UndoableFoldingState, ReducingState[Any]):
    pass


class _UndoableAggregatingState(_UndoableFoldingState, AggregatingState[Any, Any]):
    pass


class _UndoableMapState(_Undoable, MapState[Any, Any]):
    def get(self, key: Any) -> Any:
        key = map_key(key)
        self._note_look(key)
        return self._state.get(key)

    def __getitem__(self, key: Any) -> Any:
        key = map_key(key)
        self._note_look(key)
        return self._state[key]

    def contains(self, key: Any) -> bool:
        key = map_key(key)
        self._note_access(key)
        return self._state.contains(key)  # type: ignore[no-any-return]

    def put(self, key: Any, value: Any) -> None:
        key = map_key(key)
        self._note_each(self._undo.put, (key,))
        self._state.put(key, value)

    def put_all(self, dict_value: Mapping[Any, Any]) -> None:
        added = with_map_keys(dict_value)
        self._note_each(self._undo.put, added)
        self._state.put_all(added)

    def remove(self, key: Any) -> None:
        key = map_key(key)
        self._note_each(self._undo.removal, (key,))
        self._state.remove(key)

    def items(self) -> ItemsView[Any, Any]:
        self._undo.values(self._rows.row[self._slot])
        self._note_all_accesses()
        return self._state.items()  # type: ignore[no-any-return]

    def values(self) -> ValuesView[Any]:
        self._undo.values(self._rows.row[self._slot])
        self._note_all_accesses()
        return self._state.values()  # type: ignore[no-any-return]

    def keys(self) -> KeysView[Any]:
        self._note_all_accesses()
        return self._state.keys()  # type: ignore[no-any-return]

    def is_empty(self) -> bool:
        return self._state.is_empty()  # type: ignore[no-any-return]

    def _note_each(self, note: Callable[[Any, Any], None], keys: Iterable[Any]) -> None:
        """Note something of keys, in the map and in the map of its stamps."""
        row = self._note()
        for slot in self._slots:
            for key in keys:
                note(row[slot], key)

    def _note_look(self, key: Any) -> None:
        # First of all: what is removed as it has expired is put back as it is, and then as it was.
        self._undo.value(self._rows.row[self._slot], key)
        self._note_access(key)

    def _note_access(self, key: Any) -> None:
        """Note what an access does: only with a time-to-live there is something."""
        if len(self._slots) > 1:
            if self._state.has_expired(key):
                self._note_each(self._undo.removal, (key,))
            else:
                self._undo.put(self._note()[self._slots[1]], key)

    def _note_all_accesses(self) -> None:
        if len(self._slots) > 1:
            self._note_each(self._undo.removal, self._state.expired())
            stamps = self._rows.row[self._slots[1]]
            for key in self._state.stamped_by_looks():
                self._undo.put(stamps, key)


_STATES: dict[str, type[_Undoable]] = {
    ValueStateDescriptor.kind: _UndoableValueState,
    ListStateDescriptor.kind: _UndoableListState,
    MapStateDescriptor.kind: _UndoableMapState,
    ReducingStateDescriptor.kind: _UndoableReducingState,
    AggregatingStateDescriptor.kind: _UndoableAggregatingState,
}


class UndoableTimers:
    """Timers before timers."""

    def __init__(self, timers: HeapTimers, undo: Undo) -> None:
        self._timers = timers
        self._undo = undo
        self.next_timestamp = timers.next_timestamp
        self.first_of_key = timers.first_of_key
        self.fire = timers.fire
        self.claim, self.take_due = timers.claim, timers.take_due
        self.put_back, self.take_away = timers.put_back, timers.take_away
        if isinstance(timers, ProcessingTimers):
            self.claim_overdue = timers.claim_overdue
            self.begin_epoch = timers.begin_epoch
            self.next_for_clock = timers.next_for_clock
            self.has_overdue = timers.has_overdue
            self.fire_overdue = timers.fire_overdue

    def __len__(self) -> int:
        return len(self._timers)

    def register(self, timestamp: int, namespace: Any = VOID_NAMESPACE) -> None:
        timers = self._timers
        before = len(timers)
        timers.register(timestamp, namespace)
        if len(timers) > before:
            self._undo.timer_added(timers, timers.row_for(namespace), int(timestamp))

    def delete(self, timestamp: int, namespace: Any = VOID_NAMESPACE) -> None:
        timers = self._timers
        before = len(timers)
        timers.delete(timestamp, namespace)
        if len(timers) < before:
            self._undo.timer_removed(timers, timers.row_for(namespace), int(timestamp))
