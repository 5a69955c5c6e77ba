"""From Python values to Arrow: one codec for each Spark type.

A codec converts a whole column at a time. Values that Arrow does not take as they are go through the type's converter
(``conversion``), which decides which values fit.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, repeat
from operator import sub
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyspark.sql.types as spark

from pillarbox._errors import ConfigurationError, ProgramError, no_time_zone, shorten
from pillarbox._types.conversion import SEQUENCES, converter
from pillarbox._types.row_shapes import RowShape

# The errors of conversions for values that do not fit. KeyError and AttributeError are not among them:
# they would be mistakes of ours.
MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError, decimal.DecimalException)

_NoneType = type(None)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_NAIVE_EPOCH = dt.datetime(1970, 1, 1)


def _check_kinds(values: Sequence[Any], allowed: tuple[type, ...], refused: tuple[type, ...] = ()) -> None:
    """Raise a TypeError unless all values are of ``allowed`` and not ``refused`` types, or None."""
    for kind in set(map(type, values)):
        if kind is not _NoneType and (not issubclass(kind, allowed) or issubclass(kind, refused)):
            raise TypeError(f"it is of type {kind.__name__}")


class Codec(ABC):
    """Turns values of one declared type into an Arrow array."""

    def __init__(self, declared: spark.DataType, arrow: pa.DataType) -> None:
        self.declared = declared
        self.arrow = arrow

    @abstractmethod
    def convert(self, values: Sequence[Any]) -> pa.Array:
        """Return the values as an array of type ``arrow``; raises one of ``MISFITS`` if one does not fit."""


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


class _ScalarCodec(Codec):
    """Values without parts.

    Args:
        allowed: the classes of values that are passed to Arrow, and ``refused``: the subclasses that Arrow would take
            without complaint, as it takes a datetime for its date; None: Arrow refuses what does not fit.
    """

    def __init__(
        self,
        declared: spark.DataType,
        arrow: pa.DataType,
        allowed: tuple[type, ...] | None = None,
        refused: tuple[type, ...] = (),
    ) -> None:
        super().__init__(declared, arrow)
        self._to_value = converter(declared)
        self._allowed = allowed
        self._refused = refused

    def convert(self, values: Sequence[Any]) -> pa.Array:
        try:
            return self._convert(values)
        except MISFITS:
            return pa.array(list(map(self._to_value, values)), type=self.arrow)

    def _convert(self, values: Sequence[Any]) -> pa.Array:
        if self._allowed is not None:
            _check_kinds(values, self._allowed, self._refused)
        return pa.array(values, type=self.arrow)


class _TextCodec(_ScalarCodec):
    """STRING: for which Arrow would take bytes, too."""

    def _convert(self, values: Sequence[Any]) -> pa.Array:
        array = pa.array(values)  # of the type that the values have
        if array.type != self.arrow and array.type != pa.null():
            raise TypeError("there are other values than text")
        return array if array.type == self.arrow else array.cast(self.arrow)


class _FloatCodec(_ScalarCodec):
    """FLOAT: of larger numbers Arrow would make infinity."""

    def _convert(self, values: Sequence[Any]) -> pa.Array:
        array = super()._convert(values)
        if np.isinf(array.to_numpy(zero_copy_only=False)).any():
            raise ValueError("a number may be too large")
        return array


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
        zone: the session's; None: naive datetimes are refused.
    """

    def __init__(self, declared: spark.TimestampType | spark.TimestampNTZType, zone: dt.tzinfo | None) -> None:
        self._is_wall_clock = isinstance(declared, spark.TimestampNTZType)
        super().__init__(declared, pa.timestamp("us", tz=None if self._is_wall_clock else "UTC"))
        self._zone = zone
        self._epoch = _NAIVE_EPOCH if self._is_wall_clock else _EPOCH

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
        if self._is_wall_clock and any(aware):
            raise TypeError("it has a time zone, which would be lost")
        if self._is_wall_clock or all(aware):
            return self._from_deltas(list(map(sub, values, repeat(self._epoch))))
        if self._zone is None:
            raise ValueError(no_time_zone(shorten(values[aware.index(False)])))
        if not any(aware):
            # Asking the zone, in C, is far faster than making the datetimes aware, and exact:
            # Arrow's assume_timezone knows no summer time after 2037.
            deltas = map(sub, values, repeat(_NAIVE_EPOCH))
            return self._from_deltas(list(map(sub, deltas, map(self._zone.utcoffset, values))))
        values = [v if v.tzinfo is not None else v.replace(tzinfo=self._zone) for v in values]
        return self._from_deltas(list(map(sub, values, repeat(self._epoch))))

    def _from_deltas(self, deltas: list[dt.timedelta]) -> pa.Array:
        return pa.array(deltas, type=pa.duration("us")).view(self.arrow)


class _ListCodec(Codec):
    def __init__(self, declared: spark.ArrayType, element: Slot) -> None:
        field = pa.field("element", element.codec.arrow, nullable=element.nullable)
        super().__init__(declared, pa.list_(field))
        self._element = element

    @_sparse
    def convert(self, values: list[Any]) -> pa.Array:
        _check_kinds(values, SEQUENCES)
        flat = self._element.convert(list(chain.from_iterable(values)))
        return pa.ListArray.from_arrays(_offsets(values), flat, type=self.arrow)


class _MapCodec(Codec):
    def __init__(self, declared: spark.MapType, key: Slot, value: Slot) -> None:
        fields = (
            pa.field("key", key.codec.arrow, nullable=False),
            pa.field("value", value.codec.arrow, nullable=value.nullable),
        )
        super().__init__(declared, pa.map_(*fields))
        self._key = key
        self._value = value

    @_sparse
    def convert(self, values: list[Any]) -> pa.Array:
        _check_kinds(values, (Mapping,))
        keys = self._key.convert(list(chain.from_iterable(values)))
        items = self._value.convert(list(chain.from_iterable(v.values() for v in values)))
        return pa.MapArray.from_arrays(_offsets(values), keys, items, type=self.arrow)


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
        super().__init__(declared, pa.struct(self.fields))
        self.slots = slots
        self._shape = RowShape(declared.names, [field.name for field in declared if not field.nullable])

    @_sparse
    def convert(self, values: list[Any]) -> pa.Array:
        arrays = self.convert_columns(self.columns(values))
        if not arrays:  # Arrow would take the number of values from the fields
            return pa.array([{}] * len(values), self.arrow)
        return pa.StructArray.from_arrays(arrays, fields=self.fields)

    def convert_columns(self, columns: list[Sequence[Any]]) -> list[pa.Array]:
        return [slot.convert(column) for slot, column in zip(self.slots, columns, strict=True)]

    def columns(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """Return one sequence of values for each field; raises a TypeError for values of another shape."""
        return self._shape.columns(values)


def _metadata(field: spark.StructField) -> dict[bytes, bytes] | None:
    """Return a field's metadata in the place where Spark looks for it."""
    if not field.metadata:
        return None
    return {b"SPARK::metadata::json": json.dumps(field.metadata).encode()}


_Scalar = Callable[[spark.DataType], Codec]


def _of(
    arrow: pa.DataType,
    allowed: tuple[type, ...] | None = None,
    refused: tuple[type, ...] = (),
    codec: type[_ScalarCodec] = _ScalarCodec,
) -> _Scalar:
    return lambda declared: codec(declared, arrow, allowed, refused)


_INT = (int, np.integer)
_SCALARS: dict[type[spark.DataType], _Scalar] = {
    spark.ByteType: _of(pa.int8(), _INT, (bool,)),
    spark.ShortType: _of(pa.int16(), _INT, (bool,)),
    spark.IntegerType: _of(pa.int32(), _INT, (bool,)),
    spark.LongType: _of(pa.int64(), _INT, (bool,)),
    spark.BooleanType: _of(pa.bool_()),
    spark.FloatType: _of(pa.float32(), codec=_FloatCodec),
    spark.DoubleType: _of(pa.float64()),
    spark.StringType: _of(pa.string(), codec=_TextCodec),
    spark.BinaryType: _of(pa.binary(), (bytes, bytearray)),
    spark.NullType: _of(pa.null()),
    spark.DateType: _of(pa.date32(), (dt.date,), (dt.datetime,)),
    spark.TimeType: _of(pa.time64("ns"), (dt.time,)),
    spark.DayTimeIntervalType: _of(pa.duration("us"), (dt.timedelta,)),
}


def codec_for(declared: spark.DataType, zone: dt.tzinfo | None, path: str) -> Codec:
    """Return the codec for a declared type; ``path`` says where it stands, for the error message."""
    kind = type(declared)
    if kind in _SCALARS:
        return _SCALARS[kind](declared)
    if isinstance(declared, spark.DecimalType):
        return _ScalarCodec(declared, pa.decimal128(declared.precision, declared.scale))
    if isinstance(declared, spark.TimestampType):
        return _TimestampCodec(declared, zone)
    if isinstance(declared, spark.TimestampNTZType):
        return _TimestampCodec(declared, zone)
    if isinstance(declared, spark.ArrayType):
        return _ListCodec(declared, _slot(declared.elementType, declared.containsNull, zone, f"{path}[]"))
    if isinstance(declared, spark.MapType):
        key = _slot(declared.keyType, False, zone, f"{path} (its keys)")
        return _MapCodec(declared, key, _slot(declared.valueType, declared.valueContainsNull, zone, f"{path}[]"))
    if isinstance(declared, spark.StructType):
        return struct_codec(declared, zone, f"{path}." if path else "")
    raise ProgramError(
        f"the column {path} is declared {declared.simpleString()}, which cannot be made from "
        "Python values; declare it STRING or BINARY, and convert it in the DataFrame"
    )


def struct_codec(declared: spark.StructType, zone: dt.tzinfo | None, lead: str = "") -> StructCodec:
    """Return the codec for a struct, or for whole rows; ``lead`` is what leads the names of its fields in errors."""
    return StructCodec(declared, [_slot(f.dataType, f.nullable, zone, lead + f.name) for f in declared])


def _slot(declared: spark.DataType, nullable: bool, zone: dt.tzinfo | None, path: str) -> Slot:
    if isinstance(declared, spark.NullType) and not nullable:  # Spark infers such types for array() and map()
        raise ProgramError(f"the column {path} is VOID and NOT NULL, so it can have no value: declare its type")
    return Slot(codec_for(declared, zone, path), nullable)


def checked_time_zone(name: str, asked_by: str) -> str:
    """Return the name of a time zone that a user gave.

    Raises:
        ProgramError: there is no such time zone.
    """
    try:
        time_zone(name)
    except (ConfigurationError, TypeError):
        raise ProgramError(
            f"{asked_by}: time_zone= must be the name of a time zone, such as 'Europe/Berlin', not {shorten(name)}"
        ) from None
    return name


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
