"""States on the heap: each is the number of a slot, and whose current row that slot is in.

Only the mailbox thread may touch them.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from functools import partial
from operator import is_
from typing import Any, NoReturn, Protocol

from pillarbox._errors import ProgramError, shorten
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
from pillarbox._state.keys.map_keys import WITHOUT_NAN, map_key, with_map_keys
from pillarbox._state.slots import Row, SlotSpec, state_name

_EMPTY: dict[Any, Any] = {}
_IS_NONE = partial(is_, None)


class CurrentRow(Protocol):
    """What a state knows of the rows that it is in.

    Attributes:
        operator: the operator's name.
    """

    operator: str

    @property
    def row(self) -> Row:
        """The current row."""
        ...

    @property
    def current_key(self) -> Any:
        """Whose it is, for errors."""

    def touch(self) -> None:
        """Note that the current row, unchanged so far in this epoch, is being changed."""

    def row_in(self, namespace: Any) -> Row:
        """Return the current key's row in a namespace, made where there is none."""
        ...

    def touch_row(self, row: Row) -> None:
        """Note that a row, unchanged so far in this epoch, is being changed."""

    def spec_of(self, place: int) -> SlotSpec:
        """Return what is in a place of the rows."""
        ...


RECORD_IS_NONE = "a record is None, which cannot be reduced with others: leave such records out, as with filter()"


def folded_none(rows: CurrentRow, slot: int, key: Any, *, is_record: bool = False) -> ProgramError:
    """Return the error of a function that folds elements, and returned None.

    Args:
        is_record: whether no function was called: the first record is None.
    """
    if is_record:
        return ProgramError(f"operator {rows.operator!r}, key {shorten(key)}: {RECORD_IS_NONE}")
    name = state_name(rows.spec_of(slot).name)
    return ProgramError(
        f"operator {rows.operator!r}, key {shorten(key)}: the function that folds the state {name!r} returned None,"
        " which would empty it: return the result"
    )


class HeapState:
    """A state is a slot number, and the rows of which one is current: the rows of keys, or of namespaces."""

    __slots__ = ("_backend", "_slot")

    def __init__(self, backend: CurrentRow, slot: int, descriptor: Any) -> None:
        self._backend = backend
        self._slot = slot

    @property
    def rows(self) -> CurrentRow:
        """The rows that it is in."""
        return self._backend

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots that hold it; the slot of its content first."""
        return (self._slot,)

    def _set(self, value: Any) -> None:
        backend = self._backend
        row = backend.row
        row[self._slot] = value
        if row[0] >= 0:
            backend.touch()

    def clear(self) -> None:
        if self._backend.row[self._slot] is not None:
            self._set(None)

    def is_readable(self, row: Any) -> bool:
        """Return whether there is something in a row that may be read."""
        return row[self._slot] is not None

    def _refuse_none(self) -> NoReturn:
        backend = self._backend
        name = state_name(backend.spec_of(self._slot).name)
        raise ProgramError(
            f"operator {backend.operator!r}, key {shorten(backend.current_key)}: None cannot be put into the list state"
            f" {name!r}: leave it out, or put in a value that stands for it"
        )


class HeapValueState(HeapState, ValueState[Any]):
    """ValueState on the heap."""

    __slots__ = ()

    def value(self) -> Any:
        return self._backend.row[self._slot]

    update = HeapState._set


class _HeapValueStateWithDefault(HeapValueState):
    __slots__ = ("_make_default",)

    def __init__(self, backend: CurrentRow, slot: int, descriptor: ValueStateDescriptor) -> None:
        super().__init__(backend, slot, descriptor)
        self._make_default = descriptor.make_default

    def value(self) -> Any:
        value = self._backend.row[self._slot]
        return self._make_default() if value is None else value


def _value_state(backend: CurrentRow, slot: int, descriptor: ValueStateDescriptor) -> HeapValueState:
    return (_HeapValueStateWithDefault if descriptor.has_default else HeapValueState)(backend, slot, descriptor)


class HeapMergingState(HeapState):
    """A state whose contents in several namespaces can become one: Flink's ``InternalMergingState``."""

    __slots__ = ()

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        """Move what the current key has in the namespaces ``sources`` into ``target``, after its existing content.

        The current namespace stays what it is.
        """
        rows, slot = self._backend, self._slot
        merged = None
        for namespace in sources:
            row = rows.row_in(namespace)
            part = row[slot]
            if part is not None:
                row[slot] = None
                if row[0] >= 0:
                    rows.touch_row(row)
                merged = part if merged is None else self._merged(merged, part)
        if merged is None:
            return
        row = rows.row_in(target)
        row[slot] = merged if row[slot] is None else self._merged(row[slot], merged)
        if row[0] >= 0:
            rows.touch_row(row)

    def _merged(self, one: Any, other: Any) -> Any:
        raise NotImplementedError

    def _folded_none(self, *, is_record: bool = False) -> ProgramError:
        return folded_none(self._backend, self._slot, self._backend.current_key, is_record=is_record)


class HeapListState(HeapMergingState, ListState[Any]):
    """ListState on the heap."""

    __slots__ = ()

    def _merged(self, one: Any, other: Any) -> Any:
        one.extend(other)
        return one

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
        added = self._without_none(values)
        elements = self._backend.row[self._slot]
        if elements is not None:
            elements.extend(added)
            added = elements
        self._set(added or None)

    def update(self, values: Iterable[Any]) -> None:
        self._set(self._without_none(values) or None)

    def _without_none(self, values: Iterable[Any]) -> list[Any]:
        elements = list(values)
        # By identity: numpy arrays do not compare to a bool.
        if any(map(_IS_NONE, elements)):
            self._refuse_none()
        return elements


class HeapMapState(HeapState, MapState[Any, Any]):
    """MapState on the heap. Its dicts have keys of :func:`map_key`, so a key that is found is one."""

    __slots__ = ()

    def get(self, key: Any) -> Any:
        entries = self._backend.row[self._slot]
        if entries is None:
            return None
        value = entries.get(key)
        return entries.get(map_key(key)) if value is None and type(key) not in WITHOUT_NAN else value

    def put(self, key: Any, value: Any) -> None:
        backend = self._backend
        row = backend.row
        entries = row[self._slot]
        if type(key) not in WITHOUT_NAN and (entries is None or key not in entries):
            key = map_key(key)
        if entries is None:
            row[self._slot] = {key: value}
        else:
            entries[key] = value
        if row[0] >= 0:
            backend.touch()

    def put_all(self, mapping: Mapping[Any, Any]) -> None:
        added = with_map_keys(mapping)
        entries = self._backend.row[self._slot]
        if entries is not None:
            entries.update(added)
            added = entries
        self._set(added or None)

    def remove(self, key: Any) -> None:
        entries = self._backend.row[self._slot]
        key = map_key(key)
        if entries is not None and key in entries:
            del entries[key]
            self._set(entries or None)

    def contains(self, key: Any) -> bool:
        entries = self._backend.row[self._slot] or _EMPTY
        return key in entries or (type(key) not in WITHOUT_NAN and map_key(key) in entries)

    def items(self) -> ItemsView[Any, Any]:
        return (self._backend.row[self._slot] or _EMPTY).items()

    def keys(self) -> KeysView[Any]:
        return (self._backend.row[self._slot] or _EMPTY).keys()

    def values(self) -> ValuesView[Any]:
        return (self._backend.row[self._slot] or _EMPTY).values()

    def is_empty(self) -> bool:
        return not self._backend.row[self._slot]


class HeapFoldingState(HeapMergingState):
    """A state into which values are folded, one by one."""

    __slots__ = ()

    def accumulator(self) -> Any:
        """Return what is folded so far; None: nothing."""
        return self._backend.row[self._slot]

    def add(self, value: Any) -> None:
        if value is None:
            self.clear()
            return
        self.fold(value)

    def fold(self, value: Any) -> bool:
        """Fold a value in, also None; return whether it is the first."""
        raise NotImplementedError


class HeapReducingState(HeapFoldingState, ReducingState[Any]):
    """ReducingState on the heap."""

    __slots__ = ("_reduce",)

    def __init__(self, backend: CurrentRow, slot: int, descriptor: ReducingStateDescriptor) -> None:
        super().__init__(backend, slot, descriptor)
        self._reduce = descriptor.reduce_function

    def _merged(self, one: Any, other: Any) -> Any:
        return self._reduce(one, other)

    def get(self) -> Any:
        return self._backend.row[self._slot]

    def fold(self, value: Any) -> bool:
        backend, slot = self._backend, self._slot
        row = backend.row
        present = row[slot]
        row[slot] = folded = value if present is None else self._reduce(present, value)
        if folded is None:
            raise self._folded_none(is_record=present is None)
        if row[0] >= 0:
            backend.touch()
        return present is None


class HeapAggregatingState(HeapFoldingState, AggregatingState[Any, Any]):
    """AggregatingState on the heap."""

    __slots__ = ("_function",)

    def __init__(self, backend: CurrentRow, slot: int, descriptor: AggregatingStateDescriptor) -> None:
        super().__init__(backend, slot, descriptor)
        self._function = descriptor.agg_function

    def _merged(self, one: Any, other: Any) -> Any:
        return self._function.merge(one, other)

    def get(self) -> Any:
        accumulator = self._backend.row[self._slot]
        return None if accumulator is None else self._function.get_result(accumulator)

    def fold(self, value: Any) -> bool:
        backend, slot = self._backend, self._slot
        row = backend.row
        present = row[slot]
        function = self._function
        row[slot] = folded = function.add(value, function.create_accumulator() if present is None else present)
        if folded is None:
            raise self._folded_none()
        if row[0] >= 0:
            backend.touch()
        return present is None


# By kind.
STATES: dict[str, Any] = {
    ValueStateDescriptor.kind: _value_state,
    ListStateDescriptor.kind: HeapListState,
    MapStateDescriptor.kind: HeapMapState,
    ReducingStateDescriptor.kind: HeapReducingState,
    AggregatingStateDescriptor.kind: HeapAggregatingState,
}
