"""Keyed state and timers as they were before a record, for operators that go on when their function raises.

Only the mailbox thread may touch any of it.
"""

from __future__ import annotations

import copy
import datetime
from collections.abc import Collection, ItemsView, Iterable, Mapping, ValuesView
from decimal import Decimal
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

from pillarbox._state.addresses import OPERATOR
from pillarbox._state.backend import SlotSpec
from pillarbox._state.heap_rows import HeapRows, Row
from pillarbox._state.large_collection import LiveMap

if TYPE_CHECKING:
    from pillarbox._state.heap_backend import HeapKeyedStateBackend

__all__ = ["Undo", "unwatch"]

# Maps with more elements than this are watched, and not copied before each call.
_MANY = 64

# Values of these types cannot change.
_ATOMS = frozenset(
    {int, float, complex, str, bool, bytes, type(None), Decimal}
    | {datetime.datetime, datetime.date, datetime.time, datetime.timedelta}
)


class Undo:
    """The rows of some keys as they were, to be put back.

    What a function may have changed in place is copied when it is saved: that costs as much as the key has state. Of a
    large map, an element is copied when the function asks for it.

    Args:
        backend: whose rows they are.
        appended: the names of list states whose elements are only added, and never changed: their length is saved.
        unchanged: the names of states that are the same when they are put back: nothing of them is saved.
    """

    def __init__(
        self, backend: HeapKeyedStateBackend, appended: Collection[str] = (), unchanged: Collection[str] = ()
    ) -> None:
        self._backend = backend
        self._appended = {SlotSpec(f"state/{name}", "list") for name in appended}
        self._unchanged = {f"state/{name}" for name in unchanged}
        # The contents of each row, by key; None: there was none.
        self._rows: dict[Any, list[Any] | None] = {}
        # Those of its rows of namespaces, by address; and whether these are all that there were.
        self._spaces: dict[Any, tuple[bool, dict[Any, list[Any]]]] = {}
        self._watched: list[_Watched] = []

    def begin(self) -> None:
        """Forget what was saved before."""
        self._rows.clear()
        self._spaces.clear()
        for live in self._watched:
            live.before = None
        self._watched.clear()

    def save(self, key: Any) -> None:
        """Save all that a key has, also in namespaces; what is saved already stays as it is."""
        if key in self._rows:
            return
        backend = self._backend
        row = backend.rows.get(key)
        self._rows[key] = None if row is None else self._contents(backend, row)
        if backend.spaces.slots:
            self._save_spaces(key, self._spaces_of(key))

    def save_current(self) -> None:
        """Save what the current key has, and of its namespaces the current one."""
        backend = self._backend
        key = backend.key
        row = backend.rows.get(key)
        self._rows[key] = None if row is None else self._contents(backend, row)
        self._save_spaces(key, [backend.spaces.row], of_all=False)

    def save_operator_state(self) -> None:
        """Save what is the operator's own, and no key's."""
        self._save_spaces(OPERATOR[0], self._spaces_of(OPERATOR[0]))

    def restore(self) -> None:
        """Put back what was saved."""
        backend = self._backend
        for key, saved in self._rows.items():
            row = backend.rows.get(key)
            if row is not None and _put_back(backend, key, row, saved or []):
                backend.touch_row_of(key, row)
        spaces = backend.spaces
        for key, (of_all, contents) in self._spaces.items():
            for row in self._spaces_of(key):
                is_saved = of_all or row[1] in contents
                if is_saved and _put_back(spaces, row[1], row, contents.get(row[1], [])):
                    spaces.touch_row(row)

    def _save_spaces(self, key: Any, rows: Iterable[Row], *, of_all: bool = True) -> None:
        spaces = self._backend.spaces
        self._spaces[key] = (of_all, {row[1]: self._contents(spaces, row) for row in rows})

    def _contents(self, rows: HeapRows, row: Row) -> list[Any]:
        lead = len(rows.blank) - len(rows.slots)
        contents = row[lead:]
        for slot, value in enumerate(contents):
            if type(value) not in _ATOMS:
                if self._unchanged and rows.slots[slot].name in self._unchanged:
                    contents[slot] = _UNCHANGED
                elif type(value) is list and self._appended and rows.slots[slot] in self._appended:
                    contents[slot] = _Length(value, len(value))
                elif (watched := self._as_watched(value, rows.slots[slot])) is not None:
                    row[lead + slot] = contents[slot] = watched
                    watched.before = _Before()
                    self._watched.append(watched)
                else:
                    contents[slot] = _copy(value)
        return contents

    @staticmethod
    def _as_watched(value: Any, slot: SlotSpec) -> _Watched | None:
        """Return a map as one that can be watched; None: it is none, or small, or watched already."""
        if isinstance(value, LiveMap):
            # From now on it is of this kind, which notes nothing unless it is told to.
            if not isinstance(value, _WatchedMap):
                value.__class__ = _WatchedMap
            assert isinstance(value, _WatchedMap)
            return value if value.before is None else None
        if isinstance(value, _WatchedDict):
            return value if value.before is None else None
        # (A value that is a dict is changed in place.)
        if type(value) is dict and len(value) > _MANY and slot.kind == "map":
            return _WatchedDict(value)
        return None

    def _spaces_of(self, key: Any) -> Iterable[Row]:
        found = self._backend.spaces.by_key.get(key)
        if found is None:
            return ()
        return (found,) if isinstance(found, list) else list(found.values())


class _Before:
    """A large map before a call, as far as the call has had to do with it.

    Attributes:
        values: copies of the values that it may have changed, by key; ``_MISSING``: there was none.
        whole: what was there before the first element was removed, for the order of the others; and the notes for the
            log then.
    """

    __slots__ = ("values", "whole")

    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}
        self.whole: tuple[dict[Any, Any], Any] | None = None


_MISSING = object()
_UNCHANGED = object()


class _Watched(dict[Any, Any]):
    """The dict of a large map, which notes what is to be put back, while it has something to note it in.

    Only that is watched which states do with it.
    """

    __slots__ = ()

    before: _Before | None

    def _note(self, key: Any) -> None:
        before = self.before
        if before is not None and key not in before.values:
            value = dict.get(self, key, _MISSING)
            before.values[key] = value if type(value) in _ATOMS or value is _MISSING else _copy(value)

    def _note_all(self) -> None:
        if self.before is not None:
            for key in self:
                self._note(key)

    def get(self, key: Any, default: Any = None) -> Any:
        self._note(key)
        return dict.get(self, key, default)

    def __getitem__(self, key: Any) -> Any:
        self._note(key)
        return dict.__getitem__(self, key)

    def items(self) -> ItemsView[Any, Any]:  # type: ignore[override]
        self._note_all()
        return dict.items(self)

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        self._note_all()
        return dict.values(self)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._note(key)
        super().__setitem__(key, value)

    def update(self, elements: Mapping[Any, Any]) -> None:  # type: ignore[override]
        for key in elements:
            self._note(key)
        super().update(elements)

    def __delitem__(self, key: Any) -> None:
        self._note(key)
        if self.before is not None and self.before.whole is None:
            self.before.whole = dict(dict.items(self)), self._notes()
        super().__delitem__(key)

    def put_back(self) -> None:
        """Put back what was noted."""
        before, self.before = self.before, None
        assert before is not None
        if before.whole is not None:
            dict.clear(self)
            whole, notes = before.whole
            dict.update(self, whole)
            self._take_notes(notes)
        for key, value in before.values.items():
            if value is not _MISSING:
                dict.__setitem__(self, key, value)
            elif key in self:
                super().__delitem__(key)

    def _notes(self) -> Any:
        """Return what is noted of changes for the log."""

    def _take_notes(self, notes: Any) -> None:
        """Take it back."""


class _WatchedMap(_Watched, LiveMap):
    """One that the log knows by its elements."""

    __slots__ = ()

    def _notes(self) -> Any:
        return dict(self.changed), dict(self.removed)

    def _take_notes(self, notes: Any) -> None:
        self.changed, self.removed = notes


class _WatchedDict(_Watched):
    """One that the log knows as a whole, or not yet."""

    __slots__ = ("before",)

    def __init__(self, elements: Mapping[Any, Any]) -> None:
        super().__init__(elements)
        self.before = None

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


class _Length(NamedTuple):
    """A list to which elements may be added, and its length before that."""

    elements: list[Any]
    length: int


def unwatch(rows: Iterable[Row]) -> None:
    """Let maps be plain again that were watched, in rows that are about to be written."""
    for row in rows:
        for slot, value in enumerate(row):
            if type(value) is _WatchedDict:
                row[slot] = dict(value)


def _is_fixed(value: Any) -> bool:
    return type(value) in _ATOMS or (isinstance(value, tuple) and all(map(_is_fixed, value)))


def _copy(value: Any) -> Any:
    """Return a copy that nothing which is done to the value can change."""
    kind = type(value)
    if kind in (list, set):
        if _ATOMS.issuperset(map(type, value)) or all(map(_is_fixed, value)):
            return value.copy()
    elif isinstance(value, dict):
        if _ATOMS.issuperset(map(type, value.values())) or all(map(_is_fixed, value.values())):
            return dict(value)  # also of a large map: it becomes one again when it is written
    elif isinstance(value, tuple) and _is_fixed(value):
        return value
    return copy.deepcopy(value)


def _put_back(rows: HeapRows, address: Any, row: Row, saved: list[Any]) -> bool:
    """Put saved contents back into a row; tell whether the log must learn of it: the row was unchanged until now."""
    lead = len(rows.blank) - len(rows.slots)
    now = row[lead:]
    # Slots may have been added since: they were empty.
    then = saved + [None] * (len(now) - len(saved))
    for slot, value in enumerate(then):
        if value is _UNCHANGED:
            then[slot] = now[slot]
        elif type(value) is _Length:
            then[slot] = value.elements
            del value.elements[value.length :]
        elif isinstance(value, _Watched) and value.before is not None:
            value.put_back()
    for timers in rows.timers:
        slot = timers.slot - lead
        if now[slot] != then[slot]:
            timers.replace(address, now[slot], then[slot])
    row[lead:] = then
    return row[0] >= 0 and not all(map(is_, now, then))
