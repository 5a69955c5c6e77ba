"""Rows of namespaces on the heap: a window's contents, the state of its trigger, and its timers are one row.

Only the mailbox thread may touch any of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pillarbox._errors import ProgramError
from pillarbox._state.backend import SlotSpec
from pillarbox._state.heap.rows import NEW, HeapRows, Row, stale_entry
from pillarbox._state.heap.timers import HeapTimers, NamespaceTimers
from pillarbox._state.keys.addresses import OPERATOR, check_namespace, is_space, space_address

if TYPE_CHECKING:
    from pillarbox._state.heap.backend import HeapKeyedStateBackend

__all__ = ["HeapSpaces", "OperatorsRow"]

_OPERATORS_NAMESPACE = OPERATOR[1]


class HeapSpaces(HeapRows):
    """The rows of (key, namespace). ``row[1]`` is the row's address.

    Attributes:
        by_key: a key's only row, or its rows by namespace: many keys have one, and a dictionary costs 200 bytes.
        row: that of the current key in the current namespace.
        is_of_keys: whether there are states or timers of (key, namespace), and not only the operator's own row.
    """

    row: Row
    whose = "namespace"
    _lead = 2

    def __init__(self, backend: HeapKeyedStateBackend) -> None:
        super().__init__(backend.operator)
        self._backend = backend
        self.by_key: dict[Any, Row | dict[Any, Row]] = {}
        self._dirty: list[Row] = []
        self.is_of_keys = False
        self._checked: Any = object()  # the namespace that was looked at last
        self.operators_row: OperatorsRow = OperatorsRow(self)

    @property
    def num_keys(self) -> int:
        """The number of keys that have rows here."""
        return len(self.by_key) - (self.find(OPERATOR) is not None)

    def get_keys(self) -> Iterator[Any]:
        """Return the keys that have rows here."""
        no_key = self.find(OPERATOR) is not None
        return (key for key in self.by_key if key is not None or not no_key)

    @property
    def current_key(self) -> Any:
        """The current key."""
        return self._backend.key

    def create_timers(self, name: str) -> HeapTimers:
        """Return the timers of one time domain."""
        timers = NamespaceTimers(name, self._backend, self.add_slot(SlotSpec(name, "timers")))
        self.timers.append(timers)
        return timers

    def contents_by_key(self) -> Iterator[tuple[Any, Any]]:
        """Return all that is kept, with its keys, for a look at its size."""
        return iter(self.by_key.items())

    # -- rows --

    def row_in(self, namespace: Any) -> Row:
        """Return the current key's row in a namespace, made where there is none.

        A new one stays only if it holds something when the epoch ends.

        Raises:
            ProgramError: the namespace is no plain value.
            OperatorError: the key belongs to another subtask.
        """
        key = self._backend.key
        found = self.by_key.get(key)
        if isinstance(found, list):
            if found[1][1] == namespace:
                return found
        elif found is not None and namespace in found:
            return found[namespace]
        if namespace is not self._checked:
            check_namespace(namespace, self.operator)
            self._checked = namespace  # keys that come to be in the same window bring the same one
        self._backend.check_owner(key)
        return self.new_row(space_address(key, namespace))

    def new_row(self, address: Any) -> Row:
        """Return a new row, in its place."""
        row = self.blank.copy()
        row[1] = address
        self._put(row)
        self._dirty.append(row)
        return row

    def rows_of(self, key: Any) -> Iterator[Row]:
        """Return a key's rows that hold something."""
        found = self.by_key.get(key, {})
        return filter(self.holds_something, (found,) if isinstance(found, list) else found.values())

    def namespaces_of(self, key: Any) -> list[Any]:
        """Return the namespaces in which a key has state or timers."""
        return [row[1][1] for row in self.rows_of(key)]

    def find(self, address: Any) -> Row | None:
        """Return the row of an address; None where there is none, or it is none of a namespace."""
        if not is_space(address):
            return None
        found = self.by_key.get(address[0])
        if isinstance(found, dict):
            return found.get(address[1])
        return found if found is not None and found[1][1] == address[1] else None

    def drop_keys(self) -> None:
        """Drop the rows of all keys; the operator's own stays."""
        if self.by_key:
            own = self.find(OPERATOR)
            self.by_key.clear()
            self._dirty.clear()
            if own is not None:
                self._put(own)

    def _put(self, row: Row) -> None:
        """Put a row in its place, which is empty or has another row with the same address."""
        key, namespace, _ = row[1]
        found = self.by_key.get(key)
        if found is None:
            self.by_key[key] = row
        elif isinstance(found, dict):
            found[namespace] = row
        elif found[1][1] == namespace:
            self.by_key[key] = row
        else:
            self.by_key[key] = {found[1][1]: found, namespace: row}

    def _remove(self, row: Row) -> None:
        key, namespace, _ = row[1]
        found = self.by_key[key]
        if isinstance(found, list):
            del self.by_key[key]
            return
        del found[namespace]
        if len(found) == 1:
            self.by_key[key] = next(iter(found.values()))

    def every_row(self) -> Iterator[Row]:
        """Return all rows of namespaces."""
        for found in self.by_key.values():
            if isinstance(found, dict):
                yield from found.values()
            else:
                yield found

    def touch(self) -> None:
        """Note that the current row, unchanged so far in this epoch, is being changed."""
        self.touch_row(self.row)

    def touch_row(self, row: Row) -> None:
        """Note that a row, unchanged so far in this epoch, is being changed."""
        row[0] = stale_entry(row[0])
        self._dirty.append(row)

    def rewrite(self) -> None:
        """Have all rows written with this epoch."""
        kept = [row for row in self.every_row() if row[0] >= 0]
        for row in sorted(kept, key=itemgetter(0)):
            self.touch_row(row)

    # -- writing and restoring whole rows (the state log's side) --

    def take_changes(self, changed: dict[Any, Row], removed: dict[Any, int]) -> None:
        """Add the rows that changed in this epoch, and the stale entries of those that are gone, by address."""
        dirty, self._dirty = self._dirty, []
        holds_something = self.holds_something
        for row in dirty:
            if holds_something(row):
                changed[row[1]] = row
                continue
            self._remove(row)
            if row[0] != NEW:
                removed[row[1]] = stale_entry(row[0])
        if dirty:
            self.row = self.nowhere  # it may have gone

    def count_rows(self) -> int:
        """Return how many rows of namespaces there are."""
        found = self.by_key.values()
        return len(found) + sum(len(rows) - 1 for rows in found if type(rows) is dict)

    def load(self, addresses: list[Any], rows: list[Row]) -> None:
        """Take over rows, each once, during a cold start."""
        for row in rows:
            self._put(row)
        for timers in self.timers:
            timers.load(addresses, rows)


class OperatorsRow:
    """The operator's own row: the current one of all states that are the operator's, whatever the current key is."""

    def __init__(self, spaces: HeapSpaces) -> None:
        self._spaces = spaces
        self.operator: str = spaces.operator

    current_key: Any = None

    def spec_of(self, slot: int) -> SlotSpec:
        """Return what is in a place of the row."""
        return self._spaces.spec_of(slot)

    def touch_row(self, row: Row) -> None:
        """Note that the row, unchanged so far in this epoch, is being changed."""
        self._spaces.touch_row(row)

    def row_in(self, namespace: Any) -> Row:
        """Refuse: the operator's own states have no namespaces."""
        raise ProgramError(f"operator {self.operator!r}: a state of the operator itself has no namespaces")

    @property
    def row(self) -> Row:
        """The row, made where there is none; it stays only if it holds something when the epoch ends."""
        # As ``find`` does, in line for the usual case: it is asked for with each read of broadcast state.
        found = self._spaces.by_key.get(None)
        if type(found) is list and found[1][1] == _OPERATORS_NAMESPACE:
            return found
        row = self._spaces.find(OPERATOR)
        return self._spaces.new_row(OPERATOR) if row is None else row

    def touch(self) -> None:
        """Note that the row, unchanged so far in this epoch, is being changed."""
        self._spaces.touch_row(self.row)
