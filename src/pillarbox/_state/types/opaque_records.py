"""Objects of dataclasses and named tuples without their classes: from their fields to stand-ins for them, and back.

A declared type says in which way a class is pickled, its *form*: with its values as arguments, as the dictionary of its
attributes, as that of its slots, or as a list. So a stand-in that is made of fields is pickled as the object was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copyreg import __newobj__  # type: ignore[attr-defined]
from typing import Any

from pillarbox._state.types.opaque import Opaque, name_of_class
from pillarbox._state.types.type_names import RecordName, TypeName, or_none, within


class RecordForm:
    """One class, as pickles have its objects.

    Args:
        record: the class, and how it is pickled.
        fields: the names of its fields.
    """

    def __init__(self, record: RecordName, fields: Sequence[str]) -> None:
        self._where = (record.module, record.qualname)
        self._fields = tuple(fields)
        self._class: Any = name_of_class(self._where)
        self._names = frozenset(fields)
        self._form = record.form

    def fields_of(self, value: Any) -> Sequence[Any] | None:
        """Return the values of an object's fields; None: it is of another class, or has others than its fields."""
        if not isinstance(value, Opaque) or type(value).where != self._where:
            return None
        state, args = value._state, value._args[1:]
        if value._new is not __newobj__ or value._items or value._pairs or (args and self._form != "tuple"):
            return None
        if self._form == "tuple":
            return args if state is None and len(args) == len(self._fields) else None
        if self._form == "list":
            return state if type(state) is list and len(state) == len(self._fields) else None
        if self._form == "slots":
            state = state[1] if type(state) is tuple and len(state) == 2 and state[0] is None else None
        if type(state) is not dict or state.keys() != self._names:
            return None
        return [state[name] for name in self._fields]

    def make(self, values: Iterable[Any]) -> Opaque:
        """Return what stands for the object with these fields."""
        if self._form == "tuple":
            return Opaque.__new__(self._class, *values)
        made = Opaque.__new__(self._class)
        if self._form == "list":
            made.__setstate__(list(values))
        else:
            named = dict(zip(self._fields, values))
            made.__setstate__(named if self._form == "dict" else (None, named))
        return made


def with_fields(name: TypeName) -> Callable[[Any], Any] | None:
    """Return what makes values of a type that have tuples for the objects of classes in them; None: there are none.

    Values that were written before the class has moved, or has got another form, are such objects as well.
    """
    fields, inner = name.names or (), {field: with_fields(part) for field, part in name.fields or ()}
    if name.record is not None:
        return lambda value: _as_tuple(fields, inner, value)
    if name.kind == "LIST" and inner["element"] is not None:
        element = inner["element"]
        return lambda values: [or_none(element, each) for each in values]
    return within(name, inner)


def _as_tuple(fields: Sequence[str], inner: Mapping[str, Callable[[Any], Any] | None], value: Any) -> Any:
    if not isinstance(value, Opaque) or value._new is not __newobj__:
        return value
    state = value._state
    named = state[1] if type(state) is tuple and len(state) == 2 else state
    if type(named) is dict:
        values: Sequence[Any] = [named.get(field) for field in fields]
    else:
        values = state if type(state) is list else value._args[1:]
    if len(values) != len(fields):
        return value
    return tuple(or_none(inner[field], each) for field, each in zip(fields, values))
