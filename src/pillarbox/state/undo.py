"""Keyed state and timers as they were before a record, for operators that go on when their function raises.

Only the mailbox thread may touch any of it.
"""

from __future__ import annotations

import copy
import datetime
from collections.abc import Iterable
from decimal import Decimal
from operator import is_
from typing import TYPE_CHECKING, Any

from pillarbox.state.addresses import OPERATOR
from pillarbox.state.heap_rows import HeapRows, Row, stale_entry

if TYPE_CHECKING:
    from pillarbox.state.heap_backend import HeapKeyedStateBackend

__all__ = ["Undo"]

# Values of these types cannot change.
_ATOMS = frozenset(
    {int, float, complex, str, bool, bytes, type(None), Decimal}
    | {datetime.datetime, datetime.date, datetime.time, datetime.timedelta}
)


class Undo:
    """The rows of some keys as they were, to be put back.

    What a function may have changed in place is copied when it is saved: that costs as much as the key has state.

    Args:
        backend: whose rows they are.
    """

    def __init__(self, backend: HeapKeyedStateBackend) -> None:
        self._backend = backend
        # The contents of each row, by key; None: there was none.
        self._rows: dict[Any, list[Any] | None] = {}
        # Those of each of its rows of namespaces, by address.
        self._spaces: dict[Any, dict[Any, list[Any]]] = {}

    def begin(self) -> None:
        """Forget what was saved before."""
        self._rows.clear()
        self._spaces.clear()

    def save(self, key: Any) -> None:
        """Save all that a key has, also in namespaces; what is saved already stays as it is."""
        if key in self._rows:
            return
        backend = self._backend
        row = backend.rows.get(key)
        self._rows[key] = None if row is None else _contents(row, 1)
        if backend.spaces.slots:
            self._spaces[key] = {row[1]: _contents(row, 2) for row in self._spaces_of(key)}

    def save_operator_state(self) -> None:
        """Save what is the operator's own, and no key's."""
        self._spaces[OPERATOR[0]] = {row[1]: _contents(row, 2) for row in self._spaces_of(OPERATOR[0])}

    def restore(self) -> None:
        """Put back what was saved."""
        backend = self._backend
        for key, saved in self._rows.items():
            row = backend.rows.get(key)
            if row is not None and _put_back(backend, key, row, saved or []):
                row[0] = stale_entry(row[0])
                backend.dirty[key] = row
        spaces = backend.spaces
        for key, contents in self._spaces.items():
            for row in self._spaces_of(key):
                if _put_back(spaces, row[1], row, contents.get(row[1], [])):
                    spaces.touch_row(row)

    def _spaces_of(self, key: Any) -> Iterable[Row]:
        found = self._backend.spaces.by_key.get(key)
        if found is None:
            return ()
        return (found,) if isinstance(found, list) else list(found.values())


def _contents(row: Row, lead: int) -> list[Any]:
    return [value if type(value) in _ATOMS else _copy(value) for value in row[lead:]]


def _copy(value: Any) -> Any:
    """Return a copy that nothing which is done to the value can change."""
    kind = type(value)
    if kind in (list, set) and _ATOMS.issuperset(map(type, value)):
        return value.copy()
    if isinstance(value, dict) and _ATOMS.issuperset(map(type, value.values())):
        return dict(value)  # also of a large map: it becomes one again when it is written
    return copy.deepcopy(value)


def _put_back(rows: HeapRows, address: Any, row: Row, saved: list[Any]) -> bool:
    """Put saved contents back into a row; tell whether the log must learn of it: the row was unchanged until now."""
    lead = len(rows.blank) - len(rows.slots)
    now = row[lead:]
    # Slots may have been added since: they were empty.
    then = saved + [None] * (len(now) - len(saved))
    for timers in rows.timers:
        slot = timers.slot - lead
        if now[slot] != then[slot]:
            timers.replace(address, now[slot], then[slot])
    row[lead:] = then
    return row[0] >= 0 and not all(map(is_, now, then))
