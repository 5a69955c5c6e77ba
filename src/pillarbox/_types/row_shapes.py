"""The fields of a row, from a value of any class that can stand for one.

A value with field names goes by name, and its names have to be declared: a mapping, a dataclass, a named tuple, a
``Row``, PySpark's ``Row``. A mapping or dataclass may lack a field that may be null. Tuples, lists and rows without
names go by position.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

from pyspark.sql import Row as SparkRow

from pillarbox._rows import Row, numbered

Columns = list[Sequence[Any]]
_Reader = tuple[Callable[[Any], Sequence[Any]], Callable[[Sequence[Any]], Columns]]


class ShapeError(TypeError):
    """A value has other fields than a row, or none; the message says why."""


def returned_tuple(names: Sequence[str]) -> str:
    """Return the words for a value that may be an element of a returned tuple, where a row was meant."""
    if len(names) < 2:
        return ""
    fields = ", ".join(names)
    return f" (a tuple that a function such as process_element() returns is a sequence of records: yield {fields})"


class RowShape:
    """The declared fields of a row.

    Args:
        names: the names of the fields.
        required: the fields that must not be null.
    """

    def __init__(self, names: Sequence[str], required: Collection[str] = ()) -> None:
        self.names: list[str] = list(names)
        self.expects: str = f"a tuple or dict of ({', '.join(names)})"
        self._known = frozenset(names)
        self._required = frozenset(required)
        # Without names of its own, a row takes a named tuple by position, as it takes a tuple.
        self._is_numbered = tuple(names) == numbered(len(names))
        self._readers: dict[type, _Reader] = {}

    def fields(self, value: Any) -> Sequence[Any]:
        """Return the fields of a value in the declared order.

        Raises:
            ShapeError: the value does not fit.
        """
        reader = self._readers.get(type(value)) or self._reader(type(value))
        return reader[0](value)

    def columns(self, values: Sequence[Any]) -> Columns:
        """Return the fields of many values: one sequence for each field.

        Raises:
            ShapeError: a value does not fit.
        """
        kinds = set(map(type, values))
        if len(kinds) == 1:
            kind = kinds.pop()
            reader = self._readers.get(kind) or self._reader(kind)
            return reader[1](values)
        return self._transposed(list(map(self.fields, values)))

    def _transposed(self, rows: Sequence[Sequence[Any]]) -> Columns:
        return list(zip(*rows, strict=True)) or [()] * len(self.names)

    def _reader(self, kind: type) -> _Reader:
        reader = self._readers[kind] = self._new_reader(kind)
        return reader

    def _new_reader(self, kind: type) -> _Reader:
        if issubclass(kind, SparkRow):  # one class for all rows: each has its names
            return self._spark_row, lambda rows: self._transposed(list(map(self._spark_row, rows)))
        if issubclass(kind, tuple):
            names = getattr(kind, "_fields", ())
            return self._by_order(() if issubclass(kind, Row) and names == numbered(len(names)) else names)
        if issubclass(kind, list):
            return self._by_order(())
        if issubclass(kind, Mapping):
            return (self._dict, self._dicts) if kind is dict else (self._mapping, self._mappings)
        if dataclasses.is_dataclass(kind):
            return self._of_dataclass({field.name for field in dataclasses.fields(kind)})
        raise ShapeError(f"it is of type {kind.__name__}{returned_tuple(self.names)}")

    # -- tuples and lists --

    def _by_order(self, names: Sequence[str]) -> _Reader:
        """Return the reader of tuples with these names, or without names."""
        order = self._order(names)
        if order is None:
            return self._by_position, self._columns_by_position

        def by_name(value: Any) -> Sequence[Any]:
            value = self._by_position(value)
            return [value[position] for position in order]

        def columns_by_name(values: Sequence[Any]) -> Columns:
            columns = self._columns_by_position(values)
            return [columns[position] for position in order]

        return by_name, columns_by_name

    def _order(self, names: Sequence[str]) -> list[int] | None:
        """Return the position of each declared field among these names, or None to go by position."""
        if not names or list(names) == self.names:
            return None
        if self._known == set(names):
            return [names.index(name) for name in self.names]
        if self._is_numbered:
            return None
        self._check_names(names)
        raise ShapeError(f"it has {len(names)} fields instead of {len(self.names)}")

    def _by_position(self, value: Any) -> Sequence[Any]:
        if len(value) != len(self.names):
            raise ShapeError(f"it has {len(value)} fields instead of {len(self.names)}")
        return value  # type: ignore[no-any-return]

    def _columns_by_position(self, values: Sequence[Any]) -> Columns:
        lengths = set(map(len, values))
        if lengths != {len(self.names)}:
            wrong = min(lengths - {len(self.names)})
            raise ShapeError(f"it has {wrong} fields instead of {len(self.names)}")
        return list(zip(*values, strict=True))

    def _spark_row(self, row: Any) -> Sequence[Any]:
        order = self._order(getattr(row, "__fields__", ()))
        self._by_position(row)
        return row if order is None else [row[position] for position in order]

    # -- mappings and dataclasses --

    def _dict(self, value: dict[Any, Any]) -> Sequence[Any]:
        if len(value) == len(self.names):
            try:
                return [value[name] for name in self.names]
            except KeyError:
                pass
        return self._mapping(value)

    def _dicts(self, values: Sequence[dict[Any, Any]]) -> Columns:
        if set(map(len, values)) == {len(self.names)}:
            try:
                return [list(map(itemgetter(name), values)) for name in self.names]
            except KeyError:
                pass
        return self._mappings(values)

    def _mapping(self, value: Mapping[Any, Any]) -> Sequence[Any]:
        self._check_names(value.keys(), self._required)
        return [value.get(name) for name in self.names]

    def _mappings(self, values: Sequence[Mapping[Any, Any]]) -> Columns:
        for value in values:
            self._check_names(value.keys(), self._required)
        return [[value.get(name) for value in values] for name in self.names]

    def _of_dataclass(self, names: Collection[str]) -> _Reader:
        self._check_names(names, self._required)
        getters = [attrgetter(name) if name in names else _no_value for name in self.names]

        def fields(value: Any) -> Sequence[Any]:
            try:
                return [getter(value) for getter in getters]
            except AttributeError as error:
                raise ShapeError(f"a field was never set: {error}") from None

        def columns(values: Sequence[Any]) -> Columns:
            try:
                return [list(map(getter, values)) for getter in getters]
            except AttributeError as error:
                raise ShapeError(f"a field was never set: {error}") from None

        return fields, columns

    def _check_names(self, names: Collection[Any], required: Collection[str] = ()) -> None:
        """Refuse names that are not declared, and required names that are missing."""
        unknown = sorted(map(repr, set(names) - self._known))
        if unknown:
            raise ShapeError(f"it has a field {unknown[0]}, which is not declared")
        missing = sorted(map(repr, set(required) - set(names)))
        if missing:
            raise ShapeError(f"it has no field {missing[0]}, which must not be null")


def _no_value(record: object) -> None:
    """Return None: the value of a field that a dataclass lacks and that may be null."""
