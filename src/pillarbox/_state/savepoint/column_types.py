"""Columns of plain types, which give back exactly what was put in; and columns of pickles, for all else.

A column says which values it cannot hold exactly, and the table keeps them elsewhere. Columns are converted as a whole;
looking at each value is done in C.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pyspark.sql.types as spark

from pillarbox._rows import column_to_list, row_class
from pillarbox._state.types.opaque import pickled
from pillarbox._state.types.opaque_records import RecordForm
from pillarbox._state.types.plain_types import of_present
from pillarbox._state.types.type_names import Converter, TypeName, chained, or_none, parse, within
from pillarbox._types.codecs import MISFITS, Codec, codec_for
from pillarbox._types.scalars import SCALARS, Scalar


class ColumnType(ABC):
    """A kind of columns.

    Attributes:
        arrow: their Arrow type.
        stored: the Spark type of the values that a codec makes.
        write: makes of a value what is stored of it, and ``read`` the value again; None: it is the value.
    """

    arrow: pa.DataType
    stored: spark.DataType
    write: Converter | None = None
    read: Converter | None = None

    def split(self, values: list[Any]) -> tuple[pa.Array, list[int]]:
        """Return values as a column, and the places of those that it cannot hold exactly, where it is null."""
        column = self._exact(values)
        if column is not None:
            return column, []
        wrong = [place for place, value in enumerate(values) if self._exact([value]) is None]
        held = values.copy()
        for place in wrong:
            held[place] = None
        column = self._exact(held)
        if column is None:
            raise AssertionError("each value fits into a column, and all of them together do not")
        return column, wrong

    def _exact(self, values: list[Any]) -> pa.Array | None:
        """Return values as a column; None: there is one that it cannot hold exactly."""
        if not self.holds(values):
            return None
        try:
            return self.encode(values)
        except MISFITS:
            return None

    def holds(self, values: Sequence[Any]) -> bool:
        """Return whether the values, or None, are of the classes that come back."""
        return of_present(values, self._holds)

    @abstractmethod
    def _holds(self, values: Sequence[Any], kinds: set[type]) -> bool:
        """Return the same of values without None, which are of these classes."""

    @cached_property
    def _codec(self) -> Codec:
        return codec_for(self.stored, dt.timezone.utc, "")

    def encode(self, values: Sequence[Any]) -> pa.Array:
        """Return values, or None, as a column; one that does not fit raises Arrow's errors, or Python's."""
        write = self.write
        column = self._codec.convert(values if write is None else [or_none(write, value) for value in values])
        return column if column.type == self.arrow else column.cast(self.arrow)

    def decode(self, column: pa.Array) -> list[Any]:
        """Return the values of a column."""
        values, read = column_to_list(column), self.read
        return values if read is None else [or_none(read, value) for value in values]


class _Scalar(ColumnType):
    def __init__(self, scalar: Scalar) -> None:
        self._class = scalar.classes[0]
        self.stored = scalar.stored or scalar.spark
        self.arrow = self._codec.arrow
        self.write, self.read = _OTHERWISE.get(self._class, (None, None))

    def _holds(self, values: Sequence[Any], kinds: set[type]) -> bool:
        if kinds == {self._class} and self._class in (dt.datetime, dt.time):
            zone = dt.timezone.utc if getattr(self.arrow, "tz", None) else None
            zones = set(map(id, map(attrgetter("tzinfo"), values)))
            return zones == {id(zone)} and not any(map(attrgetter("fold"), values))
        return kinds == {self._class}


_MICROSECOND = dt.timedelta(microseconds=1)

# How values of a class are stored that are stored as something else, and how they are read.
_OTHERWISE: dict[type, tuple[Converter, Converter]] = {
    Decimal: (str, Decimal),
    dt.time: (dt.time.isoformat, dt.time.fromisoformat),
    dt.timedelta: (lambda value: value // _MICROSECOND, lambda micros: micros * _MICROSECOND),
}


class _Composed(ColumnType):
    """Values with others inside."""

    def __init__(self, name: TypeName, parts: Sequence[ColumnType]) -> None:
        names = name.names or ()
        self._parts = parts
        self.write = within(name, dict(zip(names, (part.write for part in parts))))
        self.read = within(name, dict(zip(names, (part.read for part in parts))))


class _List(_Composed):
    def __init__(self, name: TypeName, parts: Sequence[ColumnType]) -> None:
        super().__init__(name, parts)
        self.arrow = pa.list_(parts[0].arrow)
        self.stored = spark.ArrayType(parts[0].stored)

    def _holds(self, values: Sequence[Any], kinds: set[type]) -> bool:
        return kinds == {list} and self._parts[0].holds(list(chain.from_iterable(values)))


class _Map(_Composed):
    def __init__(self, name: TypeName, parts: Sequence[ColumnType]) -> None:
        super().__init__(name, parts)
        self.arrow = pa.map_(parts[0].arrow, parts[1].arrow)
        self.stored = spark.MapType(parts[0].stored, parts[1].stored)

    def _holds(self, values: Sequence[Any], kinds: set[type]) -> bool:
        if kinds != {dict}:
            return False
        keys, contents = list(chain.from_iterable(values)), list(chain.from_iterable(map(dict.values, values)))
        return None not in keys and self._parts[0].holds(keys) and self._parts[1].holds(contents)


class _Struct(_Composed):
    """Rows by their names, or tuples; or objects of a dataclass or named tuple, of which only the steps are known."""

    def __init__(self, name: TypeName, parts: Sequence[ColumnType]) -> None:
        super().__init__(name, parts)
        names = name.names or ()
        self.arrow = pa.struct(list(zip(names, (part.arrow for part in parts))))
        self.stored = spark.StructType(list(map(spark.StructField, names, (part.stored for part in parts))))
        self._class: type = tuple if name.kind == "TUPLE" else row_class(names)
        self._form = None if name.record is None else RecordForm(name.record, names)
        if self._form is not None:
            self.write = chained(self._form.fields_of, self.write)
            self.read = chained(self.read, self._form.make)
        elif name.kind == "TUPLE":
            self.read = chained(self.read, tuple)

    def _holds(self, values: Sequence[Any], kinds: set[type]) -> bool:
        rows = values if self._form is None else list(map(self._form.fields_of, values))
        if (self._form is None and kinds != {self._class}) or None in rows:
            return False
        is_complete = set(map(len, rows)) == {len(self._parts)}
        return is_complete and all(part.holds(column) for part, column in zip(self._parts, zip(*rows)))


class PickledType(ColumnType):
    """Any values, each as its pickle."""

    def __init__(self, loads: Callable[[bytes], Any]) -> None:
        self.arrow, self.stored = pa.binary(), spark.BinaryType()
        self.write, self.read = pickled, loads

    def _holds(self, values: Sequence[Any], kinds: set[type]) -> bool:
        return True


def is_typed(name: str | None) -> bool:
    """Return whether there are columns for the type of a name."""
    return name is not None and parse(name).is_plain


def column_type(name: str) -> ColumnType:
    """Return the columns for the plain type of a name.

    Raises:
        ValueError: there are none.
    """
    if not is_typed(name):
        raise ValueError(f"{name!r} is no plain type")
    return _of(parse(name))


def _of(name: TypeName) -> ColumnType:
    if name.kind in SCALARS:
        return _Scalar(SCALARS[name.kind])
    made: dict[str, Callable[..., ColumnType]] = {"LIST": _List, "MAP": _Map}
    return made.get(name.kind, _Struct)(name, list(map(_of, name.parts)))
