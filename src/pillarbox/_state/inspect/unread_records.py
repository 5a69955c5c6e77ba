"""Objects of dataclasses and named tuples without their classes: from their fields to stand-ins for them, and back.

A declared type says in which way a class is pickled, its *form*: with its values as arguments, as the dictionary of its
attributes, as that of its slots, or as a list. So a stand-in that is made of fields is pickled as the object was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copyreg import __newobj__  # type: ignore[attr-defined]
from typing import Any

from pillarbox._state.inspect.unread import Unread, name_of_class
from pillarbox._state.types.plain_names import PlainName, RecordName

__all__ = ["RecordForm", "with_fields"]


class RecordForm:
    """One class, as pickles have its objects.

    Args:
        record: the class, and how it is pickled.
        fields: the names of its fields.
    """

    def __init__(self, record: RecordName, fields: Sequence[str]) -> None:
        self._where = (record.module, record.qualname)
        self._fields = tuple(fields)
        self._names = frozenset(fields)
        self._count = len(fields)
        self._class: Any = name_of_class(self._where)
        self._read: Callable[[Unread], Sequence[Any] | None] = getattr(self, f"_of_{record.form}")
        self._form = record.form

    def fields_of(self, value: Any) -> Sequence[Any] | None:
        """Return the values of an object's fields; None: it is of another class, or has others than its fields."""
        if not isinstance(value, Unread) or type(value).where != self._where:
            return None
        if value._new is not __newobj__ or value._items or value._pairs:
            return None
        if self._form != "tuple" and len(value._args) != 1:
            return None
        return self._read(value)

    def make(self, values: Iterable[Any]) -> Unread:
        """Return what stands for the object with these fields."""
        if self._form == "tuple":
            return Unread.__new__(self._class, *values)
        made = Unread.__new__(self._class)
        if self._form == "list":
            made.__setstate__(list(values))
        else:
            named = dict(zip(self._fields, values))
            made.__setstate__(named if self._form == "dict" else (None, named))
        return made

    def _of_tuple(self, value: Unread) -> Sequence[Any] | None:
        values: Sequence[Any] = value._args[1:]
        return values if value._state is None and len(values) == self._count else None

    def _of_dict(self, value: Unread) -> Sequence[Any] | None:
        return self._named(value._state)

    def _of_slots(self, value: Unread) -> Sequence[Any] | None:
        state = value._state
        if type(state) is not tuple or len(state) != 2 or state[0] is not None:
            return None
        return self._named(state[1])

    def _of_list(self, value: Unread) -> Sequence[Any] | None:
        state = value._state
        return state if type(state) is list and len(state) == self._count else None

    def _named(self, state: Any) -> Sequence[Any] | None:
        if type(state) is not dict or state.keys() != self._names:
            return None
        return [state[name] for name in self._fields]


def with_fields(name: PlainName) -> Callable[[Any], Any] | None:
    """Return what makes values of a type that have tuples for the objects of classes in them; None: there are none.

    Values that were written before the class has moved, or has got another form, are such objects as well.
    """
    parts = [with_fields(part) for part in name.parts]
    if name.record is not None:
        fields = name.fields
        return lambda value: _as_tuple(fields, parts, value)
    if all(part is None for part in parts):
        return None
    if name.kind == "LIST":
        element = parts[0]
        assert element is not None
        return lambda value: value if value is None else [element(each) for each in value]
    if name.kind == "MAP":
        key, content = (part or _same for part in parts)
        return lambda value: value if value is None else {key(one): content(each) for one, each in value.items()}
    return lambda value: value if value is None else tuple(_each(parts, value))


def _as_tuple(fields: Sequence[str], parts: Sequence[Callable[[Any], Any] | None], value: Any) -> Any:
    if not isinstance(value, Unread) or value._new is not __newobj__:
        return value
    state = value._state
    named = state[1] if type(state) is tuple and len(state) == 2 else state
    if type(named) is dict:
        values: Sequence[Any] = [named.get(field) for field in fields]
    else:
        values = state if type(state) is list else value._args[1:]
    return tuple(_each(parts, values)) if len(values) == len(fields) else value


def _each(parts: Iterable[Callable[[Any], Any] | None], values: Iterable[Any]) -> Iterable[Any]:
    return (each if part is None else part(each) for part, each in zip(parts, values))


def _same(value: Any) -> Any:
    return value
