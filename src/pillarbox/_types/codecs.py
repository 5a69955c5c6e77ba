"""From Python values to Arrow: one codec for each Spark type.

A codec converts a whole column at a time; only a column that does not fit is looked at value by value, to name the
culprit.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain, repeat
from operator import attrgetter, itemgetter, sub
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyspark.sql.types as spark
from pyspark.sql import Row as SparkRow

from pillarbox._errors import ConfigurationError, ProgramError

# The errors of conversions for values that do not fit. KeyError and AttributeError are not among them:
# they would be mistakes of ours.
MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError, decimal.DecimalException)

_NoneType = type(None)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_NAIVE_EPOCH = dt.datetime(1970, 1, 1)


_Kinds = tuple[type, ...]


def _check_kinds(values: Sequence[Any], allowed: _Kinds, refused: _Kinds = ()) -> None:
    """Raise a TypeError unless all values are of ``allowed`` and not ``refused`` types, or None."""
    for kind in set(map(type, values)):
        if kind is not _NoneType and (not issubclass(kind, allowed) or issubclass(kind, refused)):
            raise TypeError(f"it is of type {kind.__name__}")


class Codec(ABC):
    """Turns values of one declared type into an Arrow array."""

    def __init__(self, declared: spark.DataType, arrow: pa.DataType, expects: str) -> None:
        self.declared = declared
        self.arrow = arrow
        self.expects = expects
        """The values that fit, for error messages: "an int"."""

    @abstractmethod
    def convert(self, values: Sequence[Any]) -> pa.Array:
        """Return the values as an array of type ``arrow``; raises one of ``MISFITS`` if one does not fit."""

    def parts(self, value: Any) -> Iterable[tuple[str, Slot, Any]]:
        """Return the values inside ``value``: path from here, slot, value. For error messages."""
        return ()


class Slot:
    """A place for values, a column or a part of one: a codec, and whether there may be None."""

    def __init__(self, codec: Codec, nullable: bool) -> None:
        self.codec = codec
        self.nullable = nullable

    def convert(self, values: Sequence[Any]) -> pa.Array:
        array = self.codec.convert(values)
        if array.null_count and not self.nullable:
            raise ValueError("it must not be null")
        return array

    def culprit(self, path: str, value: Any) -> tuple[str, Slot, Any, Exception] | None:
        """Return the innermost part of ``value`` that does not fit, or None if all of it does."""
        try:
            self.convert([value])
        except MISFITS as error:
            for suffix, slot, part in self.codec.parts(value):
                found = slot.culprit(path + suffix, part)
                if found is not None:
                    return found
            return path, self, value, error
        return None


class _ScalarCodec(Codec):
    """Values without parts.

    Args:
        allowed: their classes, and ``refused``: those among them that pyarrow would take in silence, as it takes 1.5
            for the integer 1, a datetime for its date, and 5 for five microseconds; None: it takes no value that would
            lose something.
    """

    def __init__(
        self, declared: spark.DataType, arrow: pa.DataType, expects: str, allowed: _Kinds, refused: _Kinds | None
    ) -> None:
        super().__init__(declared, arrow, expects)
        self._allowed = allowed
        self._refused = refused

    def convert(self, values: Sequence[Any]) -> pa.Array:
        if self._refused is not None:
            _check_kinds(values, self._allowed, self._refused)
        try:
            return pa.array(values, type=self.arrow)
        except MISFITS:
            _check_kinds(values, self._allowed)  # says more clearly than pyarrow what is wrong
            raise


def _sparse(convert: Callable[[Any, list[Any]], pa.Array]) -> Callable[[Any, Any], pa.Array]:
    """Let a conversion that knows no None be used for values with Nones among them."""

    def with_nones(codec: Any, values: Sequence[Any]) -> pa.Array:
        present = [value for value in values if value is not None]
        array = convert(codec, present)
        if len(present) == len(values):
            return array
        missing = np.fromiter((value is None for value in values), np.bool_, len(values))
        return array.take(pa.array(np.cumsum(~missing) - 1, mask=missing))

    return with_nones


class _TimestampCodec(Codec):
    """TIMESTAMP: points in time; naive datetimes are in a time zone. TIMESTAMP_NTZ: times on a wall clock, without one.

    Args:
        zone: the session's; None: of times without one.
    """

    def __init__(self, declared: spark.DataType, zone: dt.tzinfo | None) -> None:
        kind, expects = pa.timestamp("us", tz=None if zone is None else "UTC"), "a datetime"
        super().__init__(declared, kind, expects if zone is not None else f"{expects} without time zone")
        self._zone = zone
        self._epoch = _NAIVE_EPOCH if zone is None else _EPOCH

    def convert(self, values: Sequence[Any]) -> pa.Array:
        # The difference of datetimes runs in C, is several times faster than what pyarrow does with
        # aware datetimes, and raises for all but datetimes. The usual batch has no None.
        try:
            return self._from_deltas(list(map(sub, values, repeat(self._epoch))))
        except TypeError:
            return self._convert_mixed(values)

    @_sparse
    def _convert_mixed(self, values: list[Any]) -> pa.Array:
        _check_kinds(values, (dt.datetime,))
        aware = [value.tzinfo is not None for value in values]
        if self._zone is None and any(aware):
            raise TypeError("it has a time zone, which would be lost")
        if self._zone is not None and not any(aware):
            # Asking the zone, in C, is far faster than making the datetimes aware, and exact:
            # Arrow's assume_timezone knows no summer time after 2037.
            deltas = map(sub, values, repeat(_NAIVE_EPOCH))
            return self._from_deltas(list(map(sub, deltas, map(self._zone.utcoffset, values))))
        if self._zone is not None and not all(aware):
            values = [v if v.tzinfo is not None else v.replace(tzinfo=self._zone) for v in values]
        return self._from_deltas(list(map(sub, values, repeat(self._epoch))))

    def _from_deltas(self, deltas: list[dt.timedelta]) -> pa.Array:
        return pa.array(deltas, type=pa.duration("us")).view(self.arrow)


class _ListCodec(Codec):
    def __init__(self, declared: spark.ArrayType, element: Slot) -> None:
        field = pa.field("element", element.codec.arrow, nullable=element.nullable)
        super().__init__(declared, pa.list_(field), "a list")
        self._element = element

    @_sparse
    def convert(self, values: list[Any]) -> pa.Array:
        _check_kinds(values, (list, tuple, set, frozenset, np.ndarray))
        flat = self._element.convert(list(chain.from_iterable(values)))
        return pa.ListArray.from_arrays(_offsets(values), flat, type=self.arrow)

    def parts(self, value: Any) -> Iterable[tuple[str, Slot, Any]]:
        if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
            for position, part in enumerate(value):
                yield f"[{position}]", self._element, part


class _MapCodec(Codec):
    def __init__(self, declared: spark.MapType, key: Slot, value: Slot) -> None:
        fields = (
            pa.field("key", key.codec.arrow, nullable=False),
            pa.field("value", value.codec.arrow, nullable=value.nullable),
        )
        super().__init__(declared, pa.map_(*fields), "a dict")
        self._key = key
        self._value = value

    @_sparse
    def convert(self, values: list[Any]) -> pa.Array:
        _check_kinds(values, (Mapping,))
        keys = self._key.convert(list(chain.from_iterable(values)))
        items = self._value.convert(list(chain.from_iterable(v.values() for v in values)))
        return pa.MapArray.from_arrays(_offsets(values), keys, items, type=self.arrow)

    def parts(self, value: Any) -> Iterable[tuple[str, Slot, Any]]:
        if isinstance(value, Mapping):
            for key, part in value.items():
                yield " (a key)", self._key, key
                yield f"[{key!r}]", self._value, part


def _offsets(values: list[Any]) -> pa.Array:
    ends = np.cumsum(np.fromiter(map(len, values), np.int64, len(values)))
    return pa.array(np.concatenate(([0], ends)), type=pa.int32())


class StructCodec(Codec):
    """Structs, and the whole row: splits values that have fields into columns."""

    def __init__(self, declared: spark.StructType, slots: list[Slot]) -> None:
        self.fields: list[Any] = [
            pa.field(field.name, slot.codec.arrow, field.nullable, _metadata(field))
            for field, slot in zip(declared, slots, strict=True)
        ]
        names = ", ".join(declared.names)
        super().__init__(declared, pa.struct(self.fields), f"a tuple or dict of ({names})")
        self.slots = slots
        self.names: Any = declared.names
        self._names = frozenset(self.names)
        self._required = {field.name for field in declared if not field.nullable}
        self._splitters: dict[type, Callable[[Sequence[Any]], list[Sequence[Any]]]] = {}

    @_sparse
    def convert(self, values: list[Any]) -> pa.Array:
        arrays = self.convert_columns(self.columns(values))
        return pa.StructArray.from_arrays(arrays, fields=self.fields)

    def convert_columns(self, columns: list[Sequence[Any]]) -> list[pa.Array]:
        return [slot.convert(column) for slot, column in zip(self.slots, columns, strict=True)]

    def parts(self, value: Any) -> Iterable[tuple[str, Slot, Any]]:
        if value is None:
            return
        try:
            columns = self.columns([value])
        except MISFITS:
            return
        for name, slot, column in zip(self.names, self.slots, columns, strict=True):
            yield f".{name}", slot, column[0]

    def columns(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """Return one sequence of values for each field; raises a TypeError for values of another shape."""
        kinds = set(map(type, values))
        if len(kinds) == 1:
            return self._splitter(kinds.pop())(values)
        rows = [[column[0] for column in self._splitter(type(v))([v])] for v in values]
        return list(zip(*rows, strict=True)) or [()] * len(self.names)

    def _splitter(self, kind: type) -> Callable[[Sequence[Any]], list[Sequence[Any]]]:
        splitter = self._splitters.get(kind)
        if splitter is None:
            splitter = self._splitters[kind] = self._new_splitter(kind)
        return splitter

    def _new_splitter(self, kind: type) -> Callable[[Sequence[Any]], list[Sequence[Any]]]:
        if issubclass(kind, SparkRow):
            return self._split_spark_rows
        if issubclass(kind, tuple):
            return self._tuple_splitter(getattr(kind, "_fields", ()))
        if issubclass(kind, list):
            return self._split_by_position
        if issubclass(kind, dict):
            return self._split_dicts if kind is dict else self._split_uneven_dicts
        if dataclasses.is_dataclass(kind):
            return self._dataclass_splitter(kind)
        raise TypeError(f"it is of type {kind.__name__}")

    def _tuple_splitter(self, fields: Sequence[str]) -> Callable[[Sequence[Any]], list[Sequence[Any]]]:
        """Return the splitter of tuples: by name if they have just our names, in any order; else by position."""
        if list(fields) == self.names or set(fields) != self._names:
            return self._split_by_position
        positions = [fields.index(name) for name in self.names]

        def split_by_name(values: Sequence[Any]) -> list[Sequence[Any]]:
            columns = self._split_by_position(values)
            return [columns[position] for position in positions]

        return split_by_name

    def _split_by_position(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        lengths = set(map(len, values))
        if lengths != {len(self.names)}:
            wrong = min(lengths - {len(self.names)})
            raise TypeError(f"it has {wrong} fields instead of {len(self.names)}")
        return list(zip(*values, strict=True))

    def _split_spark_rows(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        # PySpark has one class for all rows: the names are in each.
        shapes = {tuple(getattr(value, "__fields__", ())) for value in values}
        if len(shapes) == 1:
            return self._tuple_splitter(shapes.pop())(values)
        rows = [[column[0] for column in self._split_spark_rows([value])] for value in values]
        return list(zip(*rows, strict=True))

    def _split_dicts(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        if set(map(len, values)) == {len(self.names)}:
            try:
                return [list(map(itemgetter(name), values)) for name in self.names]
            except KeyError:
                pass
        return self._split_uneven_dicts(values)

    def _split_uneven_dicts(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        for value in values:
            self._check_names(value.keys())
        return [[value.get(name) for value in values] for name in self.names]

    def _dataclass_splitter(self, kind: type) -> Callable[[Sequence[Any]], list[Sequence[Any]]]:
        names = {field.name for field in dataclasses.fields(kind)}
        self._check_names(names)
        getters = [attrgetter(name) if name in names else _no_value for name in self.names]
        return lambda values: [list(map(getter, values)) for getter in getters]

    def _check_names(self, given: Collection[Any]) -> None:
        unknown = sorted(map(repr, set(given) - self._names))
        if unknown:
            raise TypeError(f"it has a field {unknown[0]}, which is not declared")
        missing = sorted(map(repr, self._required - set(given)))
        if missing:
            raise TypeError(f"it has no field {missing[0]}, which must not be null")


def _no_value(record: object) -> None:
    """Return None, the value of a field that a dataclass lacks and that may be null."""


def _metadata(field: spark.StructField) -> dict[bytes, bytes] | None:
    """Return a field's metadata in the place where Spark looks for it."""
    if not field.metadata:
        return None
    return {b"SPARK::metadata::json": json.dumps(field.metadata).encode()}


_INT, _FLOAT = (int, np.integer), (float, int, np.number)
_SCALARS: dict[type[spark.DataType], tuple[pa.DataType, str, _Kinds, _Kinds | None]] = {
    spark.ByteType: (pa.int8(), "an int of at most 8 bits", _INT, (bool,)),
    spark.ShortType: (pa.int16(), "an int of at most 16 bits", _INT, (bool,)),
    spark.IntegerType: (pa.int32(), "an int of at most 32 bits", _INT, (bool,)),
    spark.LongType: (pa.int64(), "an int of at most 64 bits", _INT, (bool,)),
    spark.BooleanType: (pa.bool_(), "a bool", (bool, np.bool_), None),
    spark.FloatType: (pa.float32(), "a float", _FLOAT, None),
    spark.DoubleType: (pa.float64(), "a float", _FLOAT, None),
    spark.StringType: (pa.string(), "a str", (str,), None),
    spark.BinaryType: (pa.binary(), "bytes", (bytes, bytearray, memoryview), None),
    spark.NullType: (pa.null(), "None", (), None),
    spark.DateType: (pa.date32(), "a date", (dt.date,), (dt.datetime,)),
    spark.TimeType: (pa.time64("ns"), "a time", (dt.time,), ()),
    spark.DayTimeIntervalType: (pa.duration("us"), "a timedelta", (dt.timedelta,), ()),
}


def codec_for(declared: spark.DataType, zone: dt.tzinfo, path: str) -> Codec:
    """Return the codec for a declared type; ``path`` says where it stands, for the error message."""
    kind = type(declared)
    if kind in _SCALARS:
        return _ScalarCodec(declared, *_SCALARS[kind])
    if isinstance(declared, spark.DecimalType):
        precision, scale = declared.precision, declared.scale
        expects = f"a Decimal of at most {precision} digits, {scale} of them after the point"
        return _ScalarCodec(declared, pa.decimal128(precision, scale), expects, (decimal.Decimal, int), None)
    if isinstance(declared, spark.TimestampType):
        return _TimestampCodec(declared, zone)
    if isinstance(declared, spark.TimestampNTZType):
        return _TimestampCodec(declared, None)
    if isinstance(declared, spark.ArrayType):
        element = codec_for(declared.elementType, zone, f"{path}[]")
        return _ListCodec(declared, Slot(element, declared.containsNull))
    if isinstance(declared, spark.MapType):
        key = codec_for(declared.keyType, zone, f"{path} (its keys)")
        value = codec_for(declared.valueType, zone, f"{path}[]")
        return _MapCodec(declared, Slot(key, False), Slot(value, declared.valueContainsNull))
    if isinstance(declared, spark.StructType):
        return struct_codec(declared, zone, f"{path}." if path else "")
    raise ProgramError(
        f"the column {path} is declared {declared.simpleString()}, which cannot be made from "
        "Python values; declare it STRING or BINARY, and convert it in the DataFrame"
    )


def struct_codec(declared: spark.StructType, zone: dt.tzinfo, lead: str = "") -> StructCodec:
    """Return the codec for a struct, or for whole rows; ``lead`` is what leads the names of its fields in errors."""
    return StructCodec(declared, [Slot(codec_for(f.dataType, zone, lead + f.name), f.nullable) for f in declared])


def time_zone(name: str) -> dt.tzinfo:
    """Return the time zone that Spark calls ``name``: a region, or an offset such as +01:00 or GMT+1."""
    if name in ("UTC", "Z", "GMT", "Etc/UTC"):
        return dt.timezone.utc
    offset = re.fullmatch(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::(\d{2}))?(?::(\d{2}))?", name)
    if offset:
        sign, *parts = offset.groups()
        hours, minutes, seconds = (int(part or 0) for part in parts)
        distance = dt.timedelta(hours=hours, minutes=minutes, seconds=seconds)
        return dt.timezone(-distance if sign == "-" else distance)
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ConfigurationError(
            f"{name!r} is no time zone that is known here; set spark.sql.session.timeZone to a "
            'region such as "Europe/Berlin", or install the tzdata package'
        ) from error
