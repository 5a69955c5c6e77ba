"""Columns of plain types, which give back exactly what was put in; and columns of pickles, for all else.

What a column cannot hold exactly, it says so, and the table keeps it elsewhere. Columns are converted as a whole; what
takes a look at each value is done in C.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from itertools import chain, repeat
from operator import attrgetter, sub
from typing import Any

import numpy as np
import pyarrow as pa

from pillarbox._rows import Row, column_to_list, row_class
from pillarbox._state.inspect.unread import pickled
from pillarbox._state.inspect.unread_records import RecordForm
from pillarbox._state.types.plain_names import PlainName, RecordName, parse_name

__all__ = ["ColumnType", "PickledType", "column_type", "is_typed"]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_NAIVE_EPOCH = dt.datetime(1970, 1, 1)
_NONE = type(None)
# What Arrow raises where a value does not fit.
_MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError)


class ColumnType(ABC):
    """A kind of columns.

    Attributes:
        arrow: their Arrow type.
    """

    arrow: pa.DataType

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
        except _MISFITS:
            return None

    def holds(self, values: Sequence[Any]) -> bool:
        """Return whether the values, or None, are of the classes that come back."""
        kinds = set(map(type, values))
        present = values
        if _NONE in kinds:
            kinds.remove(_NONE)
            present = [value for value in values if value is not None]
        return not kinds or self._holds(present, kinds)

    @abstractmethod
    def _holds(self, values: Sequence[Any], kinds: set[type]) -> bool:
        """Return the same of values without None, which are of these classes."""

    @abstractmethod
    def encode(self, values: Sequence[Any]) -> pa.Array:
        """Return values, or None, as a column; one that does not fit raises Arrow's errors, or Python's."""

    @abstractmethod
    def decode(self, column: pa.Array) -> list[Any]:
        """Return the values of a column."""


class _Scalar(ColumnType):
    def __init__(self, kind: type, arrow: pa.DataType) -> None:
        self._kinds = {kind}
        self.arrow = arrow

    def _holds(self, values: Sequence[Any], kinds: set[type]) -> bool:
        return kinds == self._kinds

    def encode(self, values: Sequence[Any]) -> pa.Array:
        return pa.array(values, self.arrow)

    def decode(self, column: pa.Array) -> list[Any]:
        return column_to_list(column)


class _Text(_Scalar):
    """Values that have a text of which they can be made again."""

    def __init__(self, kind: type, write: Callable[[Any], str], read: Callable[[str], Any]) -> None:
        super().__init__(kind, pa.string())
        self._write = write
        self._read = read

    def encode(self, values: Sequence[Any]) -> pa.Array:
        return pa.array([None if value is None else self._write(value) for value in values], self.arrow)

    def decode(self, column: pa.Array) -> list[Any]:
        return [None if text is None else self._read(text) for text in column_to_list(column)]


class _Time(_Text):
    """Times of day without a zone."""

    def __init__(self) -> None:
        super().__init__(dt.time, dt.time.isoformat, dt.time.fromisoformat)

    def _holds(self, values: Sequence[Any], kinds: set[type]) -> bool:
        return super()._holds(values, kinds) and all(value.tzinfo is None and not value.fold for value in values)


class _Datetime(_Scalar):
    """Datetimes in UTC, as Spark's rows have them, or without a zone."""

    def __init__(self, zone: dt.tzinfo | None) -> None:
        super().__init__(dt.datetime, pa.timestamp("us", tz="UTC" if zone else None))
        self._zone = zone
        self._epoch = _EPOCH if zone else _NAIVE_EPOCH

    def _holds(self, values: Sequence[Any], kinds: set[type]) -> bool:
        if not super()._holds(values, kinds) or any(map(attrgetter("fold"), values)):
            return False
        zones = {id(zone): zone for zone in map(attrgetter("tzinfo"), values)}
        return all(zone is self._zone for zone in zones.values())

    def encode(self, values: Sequence[Any]) -> pa.Array:
        # (Differences are made in C, and are several times faster than Arrow's own way.)
        if None in values:
            deltas = [None if value is None else value - self._epoch for value in values]
        else:
            deltas = list(map(sub, values, repeat(self._epoch)))
        return pa.array(deltas, pa.duration("us")).view(self.arrow)


class _Interval(_Scalar):
    """Durations as microseconds: Parquet has no type for them."""

    def __init__(self) -> None:
        super().__init__(dt.timedelta, pa.int64())

    def encode(self, values: Sequence[Any]) -> pa.Array:
        column = pa.array(values, pa.duration("us"))
        return column.view(self.arrow)

    def decode(self, column: pa.Array) -> list[Any]:
        return column_to_list(column.view(pa.duration("us")))


class _List(ColumnType):
    def __init__(self, element: ColumnType) -> None:
        self._element = element
        self.arrow = pa.list_(element.arrow)

    def _holds(self, values: Sequence[Any], kinds: set[type]) -> bool:
        return kinds == {list} and self._element.holds(list(chain.from_iterable(values)))

    def encode(self, values: Sequence[Any]) -> pa.Array:
        flat = [element for value in values if value is not None for element in value]
        return pa.ListArray.from_arrays(_offsets(values), self._element.encode(flat))

    def decode(self, column: pa.Array) -> list[Any]:
        elements = self._element.decode(column.flatten())
        return [None if part is None else elements[part] for part in _slices(column)]


class _Map(ColumnType):
    def __init__(self, key: ColumnType, value: ColumnType) -> None:
        self._key = key
        self._value = value
        self.arrow = pa.map_(key.arrow, value.arrow)

    def _holds(self, values: Sequence[Any], kinds: set[type]) -> bool:
        if kinds != {dict}:
            return False
        keys = list(chain.from_iterable(values))
        return None not in keys and self._key.holds(keys) and self._value.holds(_items(values))

    def encode(self, values: Sequence[Any]) -> pa.Array:
        present = [value for value in values if value is not None]
        keys = self._key.encode(list(chain.from_iterable(present)))
        return pa.MapArray.from_arrays(_offsets(values), keys, self._value.encode(_items(present))).cast(self.arrow)

    def decode(self, column: pa.Array) -> list[Any]:
        # A slice of a map has all the entries of the whole.
        starts = column.offsets.to_numpy()
        first, last = (int(starts[0]), int(starts[-1])) if len(column) else (0, 0)
        keys = self._key.decode(column.keys.slice(first, last - first))
        values = self._value.decode(column.items.slice(first, last - first))
        nulls = column.is_null().to_numpy(zero_copy_only=False)
        return [
            None if null else dict(zip(keys[start:end], values[start:end]))
            for null, start, end in zip(nulls.tolist(), (starts[:-1] - first).tolist(), (starts[1:] - first).tolist())
        ]


class _Struct(ColumnType):
    """Rows by their names, or tuples."""

    def __init__(
        self, fields: Sequence[str], parts: Sequence[ColumnType], make: Callable[[Iterable[Any]], Any]
    ) -> None:
        self._parts = parts
        self._make = make
        self._kinds = {type(make([None] * len(parts)))}
        self.arrow = pa.struct(list(zip(fields, (part.arrow for part in parts))))

    def _holds(self, values: Sequence[Any], kinds: set[type]) -> bool:
        if kinds != self._kinds or set(map(len, values)) != {len(self._parts)}:
            return False
        return all(part.holds(column) for part, column in zip(self._parts, zip(*values)))

    def encode(self, values: Sequence[Any]) -> pa.Array:
        nothing = (None,) * len(self._parts)
        columns = list(zip(*(nothing if value is None else value for value in values))) or [()] * len(self._parts)
        arrays = [part.encode(column) for part, column in zip(self._parts, columns)]
        mask = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(arrays, fields=list(self.arrow), mask=mask)

    def decode(self, column: pa.Array) -> list[Any]:
        columns = [part.decode(each) for part, each in zip(self._parts, column.flatten())]
        values = list(map(self._make, zip(*columns)))
        for place in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[place] = None
        return values


class _Record(_Struct):
    """Objects of a dataclass or named tuple, which stand-ins stand for: no class is at hand."""

    def __init__(self, record: RecordName, fields: Sequence[str], parts: Sequence[ColumnType]) -> None:
        self._form = RecordForm(record, fields)
        super().__init__(fields, parts, self._form.make)

    def _holds(self, values: Sequence[Any], kinds: set[type]) -> bool:
        rows = list(map(self._form.fields_of, values))
        return None not in rows and all(part.holds(column) for part, column in zip(self._parts, zip(*rows)))

    def encode(self, values: Sequence[Any]) -> pa.Array:
        return super().encode([None if value is None else self._form.fields_of(value) for value in values])


class PickledType(ColumnType):
    """Any values, each as its pickle."""

    arrow: pa.DataType = pa.binary()

    def __init__(self, loads: Callable[[bytes], Any]) -> None:
        self._loads = loads

    def _holds(self, values: Sequence[Any], kinds: set[type]) -> bool:
        return True

    def encode(self, values: Sequence[Any]) -> pa.Array:
        return pa.array([None if value is None else pickled(value) for value in values], self.arrow)

    def decode(self, column: pa.Array) -> list[Any]:
        return [None if value is None else self._loads(value) for value in column_to_list(column)]


def _offsets(values: Sequence[Any]) -> pa.Array:
    """Return where the elements of lists or maps begin and end; None has none, and its offset is null."""
    lengths = np.fromiter((0 if value is None else len(value) for value in values), np.int64, len(values))
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    nulls = np.fromiter((value is None for value in values), np.bool_, len(values))
    return pa.array(ends, mask=np.append(nulls, False)) if nulls.any() else pa.array(ends)


def _slices(column: pa.Array) -> Iterable[slice | None]:
    """Return where the elements of each list are among those that are there."""
    lengths = column.value_lengths().fill_null(0).to_numpy()
    ends = np.cumsum(lengths)
    nulls = column.is_null().to_numpy(zero_copy_only=False)
    for null, start, end in zip(nulls.tolist(), (ends - lengths).tolist(), ends.tolist()):
        yield None if null else slice(start, end)


def _items(maps: Iterable[dict[Any, Any]]) -> list[Any]:
    return list(chain.from_iterable(map(dict.values, maps)))


_SCALARS: dict[str, Callable[[], ColumnType]] = {
    "STRING": lambda: _Scalar(str, pa.string()),
    "BINARY": lambda: _Scalar(bytes, pa.binary()),
    "BOOLEAN": lambda: _Scalar(bool, pa.bool_()),
    "BYTE": lambda: _Scalar(int, pa.int8()),
    "SHORT": lambda: _Scalar(int, pa.int16()),
    "INT": lambda: _Scalar(int, pa.int32()),
    "LONG": lambda: _Scalar(int, pa.int64()),
    "int": lambda: _Scalar(int, pa.int64()),
    # Python's floats have 64 bits.
    "FLOAT": lambda: _Scalar(float, pa.float64()),
    "DOUBLE": lambda: _Scalar(float, pa.float64()),
    # A type of Arrow's has one number of digits behind the point, and Decimal("1.50") is to come back as such.
    "DECIMAL": lambda: _Text(Decimal, str, Decimal),
    "DATE": lambda: _Scalar(dt.date, pa.date32()),
    "TIMESTAMP": lambda: _Datetime(dt.timezone.utc),
    "TIMESTAMP_NTZ": lambda: _Datetime(None),
    "TIME": _Time,
    "INTERVAL": _Interval,
}


def is_typed(name: str | None) -> bool:
    """Return whether there are columns for the type of a name."""
    return name is not None and parse_name(name) is not None


def column_type(name: str) -> ColumnType:
    """Return the columns for the plain type of a name.

    Raises:
        ValueError: there are none.
    """
    parsed = parse_name(name)
    if parsed is None:
        raise ValueError(f"{name!r} is no plain type")
    return _of(parsed)


def _of(name: PlainName) -> ColumnType:
    if name.kind in _SCALARS:
        return _SCALARS[name.kind]()
    parts = list(map(_of, name.parts))
    if name.kind == "LIST":
        return _List(parts[0])
    if name.kind == "MAP":
        return _Map(*parts)
    if name.record is not None:
        return _Record(name.record, name.fields, parts)
    if name.kind == "ROW":
        made: type[Row] = row_class(name.fields)
        return _Struct(name.fields, parts, made._make)
    return _Struct(name.fields, parts, tuple)
