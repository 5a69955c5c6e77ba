"""Rows of namespaces on the heap: a window's contents, the state of its trigger, and its timers are one row.

Only the mailbox thread may touch any of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from pillarbox._errors import ProgramError
from pillarbox._state.heap.key_rows import KeyRows
from pillarbox._state.heap.rows import RowTable
from pillarbox._state.keys.addresses import OPERATOR, check_namespace, is_namespaced, namespace_address
from pillarbox._state.slots import Row, SlotSpec

_OPERATORS_NAMESPACE = OPERATOR[1]


class NamespaceRows(RowTable):
    """The rows of (key, namespace).

    Args:
        keys: the rows of keys: which one is current is known there.

    Attributes:
        by_key: a key's only row, or its rows by namespace: many keys have one, and a dictionary costs 200 bytes.
        row: the row of the current key in the current namespace.
        is_of_keys: whether there are states or timers of (key, namespace), and not only the operator's own row.
    """

    row: Row
    is_namespaced = True
    lead = "space/"
    hint_without_row = "namespace"

    def __init__(self, keys: KeyRows) -> None:
        super().__init__(keys.operator, keys.zone)
        self._keys = keys
        self.by_key: dict[Any, Row | dict[Any, Row]] = {}
        self.is_of_keys: bool = False
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
        return self._keys.key

    def contents_by_key(self) -> Iterable[tuple[Any, Any]]:
        """Return all that is kept, with its keys, for a look at its size."""
        return self.by_key.items()

    # -- rows --

    def row_in(self, namespace: Any) -> Row:
        """Return the current key's row in a namespace, made where there is none.

        A new one stays only if it holds something when the epoch ends.

        Raises:
            ProgramError: the namespace is no plain value.
            OperatorError: the key belongs to another subtask.
        """
        key = self._keys.key
        found = self.by_key.get(key)
        if isinstance(found, list):
            if found[1][1] == namespace:
                return found
        elif found is not None and namespace in found:
            return found[namespace]
        if namespace is not self._checked:
            check_namespace(namespace, self.operator)
            self._checked = namespace  # keys that reach the same window bring the same one
        self._keys.check_owner(key)
        return self.new_row(namespace_address(key, namespace))

    def new_row(self, address: Any) -> Row:
        """Return a new row, in its place."""
        row = self.blank.copy()
        row[1] = address
        self._put((row,))
        self.dirty.append(row)
        return row

    def enter(self, address: Any) -> Row:
        """Make the key and the namespace of an address the current ones; return its row, made where there is none."""
        keys = self._keys
        keys.key, namespace, _ = address
        keys.row = keys.rows[keys.key] if keys.slots else keys.blank
        self.row = row = self.row_in(namespace)
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
        if not is_namespaced(address):
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
            self.dirty.clear()
            if own is not None:
                self._put((own,))

    def _put(self, rows: Collection[Row]) -> None:
        by_key = self.by_key
        for row in rows:
            key, namespace, _ = row[1]
            found = by_key.get(key)
            if found is None:
                by_key[key] = row
            elif isinstance(found, dict):
                found[namespace] = row
            elif found[1][1] == namespace:
                by_key[key] = row
            else:
                by_key[key] = {found[1][1]: found, namespace: row}

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

    def take_changes(self, removed: dict[Any, int]) -> list[Row]:
        """Return the rows that changed in this epoch and hold something; those that hold nothing are dropped."""
        if self.dirty:
            self.row = self.nowhere  # it may go
        return super().take_changes(removed)

    def count_rows(self) -> int:
        """Return how many rows of namespaces there are."""
        found = self.by_key.values()
        return len(found) + sum(len(rows) - 1 for rows in found if type(rows) is dict)


class OperatorsRow:
    """The operator's own row: the current one of all states that are the operator's, whatever the current key is."""

    def __init__(self, namespaces: NamespaceRows) -> None:
        self._namespaces = namespaces
        self.operator: str = namespaces.operator

    current_key: Any = None

    def spec_of(self, slot: int) -> SlotSpec:
        """Return what is in a place of the row."""
        return self._namespaces.spec_of(slot)

    def touch_row(self, row: Row) -> None:
        """Note that the row, unchanged so far in this epoch, is being changed."""
        self._namespaces.touch_row(row)

    def row_in(self, namespace: Any) -> Row:
        """Refuse: the operator's own states have no namespaces."""
        raise ProgramError(f"operator {self.operator!r}: a state of the operator itself has no namespaces")

    @property
    def row(self) -> Row:
        """The row, made where there is none; it stays only if it holds something when the epoch ends."""
        # As ``find`` does, in line for the usual case: it is asked for with each read of broadcast state.
        found = self._namespaces.by_key.get(None)
        if type(found) is list and found[1][1] == _OPERATORS_NAMESPACE:
            return found
        row = self._namespaces.find(OPERATOR)
        return self._namespaces.new_row(OPERATOR) if row is None else row

    def touch(self) -> None:
        """Note that the row, unchanged so far in this epoch, is being changed."""
        self._namespaces.touch_row(self.row)
