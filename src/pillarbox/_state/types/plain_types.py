"""Plain types: declared types whose values a checkpoint can hold without a pickle that names anything else.

Values are looked at by column: what takes a look at each of them is done in C.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import pickle
import sys
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import cached_property, partial
from itertools import chain
from operator import attrgetter
from typing import Any
from zoneinfo import ZoneInfo

import pyspark.sql.types as spark

from pillarbox._errors import shorten
from pillarbox._rows import Row
from pillarbox._state.types.records import (
    always,
    field_names,
    fields_beside,
    optional_fields,
    own_pickling,
    pickled_form,
)
from pillarbox._state.types.type_names import RecordName, TypeName
from pillarbox._types.scalars import CLASSES, OF_CLASSES, OF_SPARK, SCALARS, Scalar
from pillarbox._types.type_information import TypeInformation
from pillarbox._unpickle import Allowed, loads_allowed, row_class

_NONE = type(None)
_ZONES = frozenset({_NONE, dt.timezone, ZoneInfo})
_WITH_ZONES = frozenset({dt.datetime, dt.time})


class NotPlainError(Exception):
    """A declared type is not plain; its text says why."""


def of_present(values: Sequence[Any], is_so: Callable[[Any, set[type]], bool]) -> bool:
    """Return what holds for the values that are not None, and their classes; True where there are none."""
    kinds = set(map(type, values))
    if _NONE in kinds:
        kinds.remove(_NONE)
        values = [value for value in values if value is not None]
    return not kinds or is_so(values, kinds)


class PlainType(ABC):
    """A declared type. All of its values may be None, also those inside others.

    Attributes:
        type: the type by its name.
        name: the type as it is written in errors.
        allowed: what pickles of its values name, with what each becomes there.
        records: the classes in it, by module and name.
    """

    def __init__(self, type_: TypeName, parts: Iterable[PlainType] = (), allowed: Allowed | None = None) -> None:
        self.type = type_
        self.name = str(type_)
        self.allowed: Allowed = dict(allowed or {})
        self.records: dict[tuple[str, str], type] = {}
        for part in parts:
            self.allowed.update(part.allowed)
            self.records.update(part.records)

    def fits(self, values: Iterable[Any]) -> bool:
        """Return whether all values are of the type."""
        return of_present(values if isinstance(values, list) else list(values), self._fits)

    def takes(self, value: Any) -> bool:
        """Return whether one value is of the type."""
        return self.fits([value])

    @abstractmethod
    def _fits(self, values: list[Any], kinds: set[type]) -> bool:
        """Return the same of values without None, which are of these classes."""

    def parts(self, value: Any) -> Iterable[tuple[PlainType, Any]]:
        """Return the values inside one, with the types that they have to be of."""
        return ()

    def misfit(self, value: Any) -> str:
        """Return what is wrong with a value that does not fit: the innermost part of it that is to blame."""
        try:
            inner = [(part, each) for part, each in self.parts(value) if not part.fits([each])]
        except Exception:
            inner = []
        if inner:
            return inner[0][0].misfit(inner[0][1])
        return f"{shorten(value)} ({type(value).__name__}) is not of type {self.name}"


class _Scalar(PlainType):
    def __init__(self, scalar: Scalar) -> None:
        names = {where: make for kind in scalar.classes for where, make in _NAMED.get(kind, {}).items()}
        super().__init__(TypeName(scalar.name), allowed=names)
        self._classes = frozenset(scalar.classes)
        self._limit = 1 << (scalar.bits - 1) if scalar.bits else None
        # The classes of which all values fit.
        self._whole = frozenset({_NONE}) if self._limit else (self._classes | {_NONE}) - _WITH_ZONES

    def takes(self, value: Any) -> bool:
        """Return whether one value is of the type."""
        return type(value) in self._whole or self.fits([value])

    def _fits(self, values: list[Any], kinds: set[type]) -> bool:
        if not kinds <= self._classes:
            return False
        if not kinds.isdisjoint(_WITH_ZONES):  # with a time zone of Python's own, or none
            return _ZONES.issuperset(map(type, map(attrgetter("tzinfo"), values)))
        return self._limit is None or (-self._limit <= min(values) and max(values) < self._limit)


class ListOf(PlainType):
    """Lists, tuples and sets of elements."""

    def __init__(self, element: PlainType) -> None:
        super().__init__(TypeName("LIST", (("element", element.type),)), [element])
        self.element = element

    def _fits(self, values: list[Any], kinds: set[type]) -> bool:
        return kinds <= _SEQUENCES and self.element.fits(chain.from_iterable(values))

    def parts(self, value: Any) -> Iterable[tuple[PlainType, Any]]:
        """Return its elements."""
        return ((self.element, each) for each in value) if type(value) in _SEQUENCES else ()


class MapOf(PlainType):
    """Dictionaries."""

    def __init__(self, key: PlainType, value: PlainType) -> None:
        super().__init__(TypeName("MAP", (("key", key.type), ("value", value.type))), [key, value])
        self.key: PlainType = key
        self.value: PlainType = value

    def _fits(self, values: list[Any], kinds: set[type]) -> bool:
        if not kinds <= {dict} or not self.key.fits(chain.from_iterable(values)):
            return False
        return self.value.fits(chain.from_iterable(map(dict.values, values)))

    def parts(self, value: Any) -> Iterable[tuple[PlainType, Any]]:
        """Return its keys and values."""
        return chain(((self.key, each) for each in value), ((self.value, each) for each in value.values()))


class _Fields(PlainType):
    """Rows, and tuples and lists in their place; or objects of one class."""

    def __init__(self, kind: str, parts: Sequence[tuple[str, PlainType]], record: type | None = None) -> None:
        """Take its kind, ROW or TUPLE or the name of a class, and its fields."""
        names: Allowed = _ROWS if kind == "ROW" else {}
        optional: frozenset[str] = frozenset()
        stored: RecordName | None = None
        if record is not None:
            where, form = (record.__module__, record.__qualname__), pickled_form(record)
            names, optional = {where: partial(_stub, record)}, optional_fields(record)
            stored = None if form is None else RecordName(*where, form)
        type_ = TypeName(kind, tuple((name, part.type) for name, part in parts), optional, stored)
        super().__init__(type_, [part for _, part in parts], names)
        if record is not None:
            self.records[record.__module__, record.__qualname__] = record
        self._names = [part for part, _ in parts]
        self._types = [part for _, part in parts]
        self._record = record
        self._attributes = len(parts) - len(fields_beside(record)) if record is not None else 0

    def _fits(self, values: list[Any], kinds: set[type]) -> bool:
        if self._record is not None:
            if kinds != {self._record}:
                return False
        elif not all(kind is tuple or kind is list or issubclass(kind, Row) for kind in kinds):
            return False
        columns = self._columns(values, kinds)
        return columns is not None and all(part.fits(column) for part, column in zip(self._types, columns))

    def _columns(self, values: list[Any], kinds: set[type]) -> list[Sequence[Any]] | None:
        if self._record is not None and not issubclass(self._record, tuple):
            if hasattr(values[0], "__dict__") and set(map(len, map(vars, values))) != {self._attributes}:
                return None  # other attributes would be written as well
            try:
                return [list(map(attrgetter(name), values)) for name in self._names]
            except AttributeError:  # a field was never set
                return None
        if any(len(value) != len(self._names) for value in values):
            return None
        orders = {tuple(kind._fields) for kind in kinds if issubclass(kind, Row)}
        if any(order != tuple(self._names) and set(order) == set(self._names) for order in orders):
            # By name, as where rows become columns.
            values = [
                [value[name] for name in self._names]
                if set(getattr(value, "_fields", ())) == set(self._names)
                else value
                for value in values
            ]
        return list(zip(*values))

    def misfit(self, value: Any) -> str:
        """Return what is wrong with a value: also attributes of an object that are no fields."""
        if type(value) is self._record and not isinstance(value, tuple):
            more = [name for name in getattr(value, "__dict__", ()) if name not in self._names]
            lacks = [name for name in self._names if not hasattr(value, name)]
            if more or lacks:
                wrong = f"has an attribute {more[0]!r}, which is no field" if more else f"has no {lacks[0]!r}"
                return f"{shorten(value)} {wrong} of {self.name}"
        return super().misfit(value)

    def parts(self, value: Any) -> Iterable[tuple[PlainType, Any]]:
        """Return its fields."""
        columns = self._columns([value], {type(value)})
        return ((part, column[0]) for part, column in zip(self._types, columns)) if columns is not None else ()


class PlainKey(PlainType):
    """Keys, whose type the program knows: scalars of any type, and tuples and rows of them."""

    def __init__(self) -> None:
        super().__init__(TypeName("KEY"), map(_Scalar, SCALARS.values()), _ROWS)

    def _fits(self, values: list[Any], kinds: set[type]) -> bool:
        tuples = {kind for kind in kinds if kind is tuple or issubclass(kind, Row)}
        if not kinds - tuples <= CLASSES or (dt.datetime in kinds and not _zoned(values)):
            return False
        return not tuples or self.fits(chain.from_iterable(value for value in values if type(value) in tuples))


class Readable(PlainType):
    """Whatever a pickle with these names can hold: it is looked at by reading it."""

    def __init__(self, allowed: Allowed) -> None:
        super().__init__(TypeName("plain data"), allowed=allowed)

    def _fits(self, values: list[Any], kinds: set[type]) -> bool:
        try:
            loads_allowed(pickle.dumps(values, 5), self.allowed)
        except Exception:
            return False
        return True


def _zoned(values: list[Any]) -> bool:
    return _ZONES.issuperset(type(value.tzinfo) for value in values if type(value) is dt.datetime)


# -- what pickles name --


class _Rows:
    """Stands for ``row_class`` in a pickle: nothing in one can be changed, and no class of rows is handed out."""

    __slots__ = ()

    def __call__(self, fields: tuple[str, ...]) -> Callable[[Iterable[Any]], Any]:
        return partial(tuple.__new__, row_class(fields))


class _Zones:
    """Stands for ``getattr`` and for ``ZoneInfo``, of which a pickle takes one method."""

    __slots__ = ()

    def __call__(self, zones: Any, name: str) -> Any:
        if not isinstance(zones, _Zones) or name != "_unpickle":
            raise ValueError(f"an attribute {name!r} is asked for")
        return ZoneInfo._unpickle  # type: ignore[attr-defined]


def _stub(record: type) -> type:
    """Return a class that stands for another in one pickle, whose objects are the other's."""

    def new(_: type, *values: Any) -> Any:
        return record.__new__(record, *values)

    return type(record.__name__, (), {"__new__": new, "__slots__": ()})


_ROWS: Allowed = {("pillarbox._unpickle", "row_class"): _Rows, ("pillarbox.rows", "row_class"): _Rows}
_DELTA: Allowed = {("datetime", "timedelta"): always(dt.timedelta)}
_ZONED: Allowed = {
    **_DELTA,
    ("datetime", "timezone"): always(dt.timezone),
    ("builtins", "getattr"): _Zones,
    ("zoneinfo", "ZoneInfo"): _Zones,
}
_NAMED: dict[type, Allowed] = {
    Decimal: {("decimal", "Decimal"): always(Decimal)},
    dt.date: {("datetime", "date"): always(dt.date)},
    dt.datetime: {**_ZONED, ("datetime", "datetime"): always(dt.datetime)},
    dt.time: {**_ZONED, ("datetime", "time"): always(dt.time)},
    dt.timedelta: _DELTA,
}
_SEQUENCES = frozenset({list, tuple, set, frozenset})

# -- declarations --


def plain_type(declared: object) -> PlainType:
    """Return the plain type that is declared: by one of ``Types``, a Spark type, a class, or an annotation.

    Raises:
        NotPlainError: it is not plain.
    """
    if isinstance(declared, TypeInformation):
        if declared.data_type is None:
            raise NotPlainError(f"{declared} is pickled")
        return _of_spark(declared.data_type)
    return _of_spark(declared) if isinstance(declared, spark.DataType) else _of_annotation(declared, ())


def type_of_state(kind: str, declared: Sequence[object]) -> PlainType:
    """Return the plain type of a state of this kind: of a list and a map, with the declared types in it.

    Raises:
        NotPlainError: it is not plain, or not declared.
    """
    if None in declared:
        raise NotPlainError("no type is declared")
    parts = list(map(plain_type, declared))
    if kind == "list":
        return ListOf(parts[0])
    return MapOf(parts[0], parts[1]) if kind == "map" else parts[0]


def _of_spark(declared: spark.DataType) -> PlainType:
    if type(declared) in OF_SPARK:
        return _Scalar(OF_SPARK[type(declared)])
    if isinstance(declared, spark.ArrayType):
        return ListOf(_of_spark(declared.elementType))
    if isinstance(declared, spark.MapType):
        return MapOf(_of_spark(declared.keyType), _of_spark(declared.valueType))
    if isinstance(declared, spark.StructType):
        return _Fields("ROW", [(field.name, _of_spark(field.dataType)) for field in declared])
    raise NotPlainError(f"{declared.simpleString()} has no plain values")


def _of_annotation(declared: Any, inside: tuple[type, ...]) -> PlainType:
    if isinstance(declared, (TypeInformation, spark.DataType)):
        return plain_type(declared)
    origin, args = typing.get_origin(declared), typing.get_args(declared)
    if origin in (typing.Union, types.UnionType):
        others = [arg for arg in args if arg is not _NONE]
        if len(others) == 1:
            return _of_annotation(others[0], inside)
    elif origin in _SEQUENCES and (len(args) == 1 or args[1:] == (...,)):
        return ListOf(_of_annotation(args[0], inside))
    elif origin is tuple and args:
        parts = [(f"f{index}", _of_annotation(arg, inside)) for index, arg in enumerate(args)]
        return _Fields("TUPLE", parts)
    elif origin is dict:
        return MapOf(_of_annotation(args[0], inside), _of_annotation(args[1], inside))
    elif isinstance(declared, type):
        scalar = OF_CLASSES.get(declared)
        return _of_record(declared, inside) if scalar is None else _Scalar(scalar)
    raise NotPlainError(f"{shorten(declared)} has no plain values")


def _of_record(record: type, inside: tuple[type, ...]) -> PlainType:
    """Return the type of a dataclass or named tuple."""
    is_tuple = issubclass(record, tuple) and hasattr(record, "_fields")
    if not is_tuple and not dataclasses.is_dataclass(record):
        raise NotPlainError(f"{record.__qualname__} is neither a plain type, nor a dataclass or typing.NamedTuple")
    if record in inside:
        raise NotPlainError(f"{record.__qualname__} contains itself")
    found: Any = sys.modules.get(record.__module__)
    for name in record.__qualname__.split("."):
        found = getattr(found, name, None)
    if found is not record or record.__module__ == "__main__":
        raise NotPlainError(
            f"{record.__qualname__} cannot be imported in a worker: define it in a module, not in a function or script"
        )
    own = own_pickling(record)
    if own is not None:
        raise NotPlainError(f"{record.__qualname__} has a {own} of its own")
    members = (member for each in record.__mro__ for member in vars(each).items())
    cached = next((name for name, member in members if isinstance(member, cached_property)), None)
    if cached is not None:  # once it is used, its value is pickled with the fields
        raise NotPlainError(f"{record.__qualname__} has the cached property {cached!r}")
    try:
        hints = typing.get_type_hints(record)
    except Exception as error:
        raise NotPlainError(f"an annotation of {record.__qualname__} cannot be resolved ({error})") from error
    names = field_names(record)
    if not set(names) <= hints.keys():
        raise NotPlainError(f"{record.__qualname__} has fields without annotation")
    parts = [(name, _of_annotation(hints[name], (*inside, record))) for name in names]
    return _Fields(f"{record.__module__}.{record.__qualname__}", parts, record)
