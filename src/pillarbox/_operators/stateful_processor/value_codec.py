"""Converts values to their stored form (plain data) and back, according to their schema.

Sources: PySpark's ``StructType.toInternal`` and Spark's ``EvaluatePython``, which turn values of a wrong type into
null.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyspark.sql.types as spark
from pyspark.errors import PySparkRuntimeError

from pillarbox._errors import ProgramError
from pillarbox._types.readable import check_no_collation

Function = Callable[[Any], Any]
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_TIMESTAMP = spark.TimestampType()
# Types whose values are converted to Spark's internal form and back before they are stored.
_VIA_INTERNAL = (spark.DateType, spark.TimestampNTZType, spark.DayTimeIntervalType)
_TAKEN = frozenset(dir(spark.Row))


@cache
def row_maker(names: tuple[str, ...]) -> Callable[[Iterable[Any]], Any]:
    """Return a function that creates PySpark ``Row`` objects, whose class has fast column access."""
    columns = {
        name: property(itemgetter(position))
        for position, name in enumerate(names)
        if name not in _TAKEN and not name.startswith("__")
    }
    kind = type("Row", (spark.Row,), {"__slots__": (), "__fields__": list(names), **columns})
    new = tuple.__new__
    return lambda values: new(kind, values)


def _same(value: Any) -> Any:
    return value


class ValueCodec(NamedTuple):
    """Converts a type's values for storage and back."""

    encode: Function
    decode: Function = _same


def struct_codec(schema: spark.StructType, *, hashable: bool = False, zone: dt.tzinfo | None = None) -> ValueCodec:
    """Return the codec of a struct, which is stored and returned as a plain tuple.

    ``decode`` is ``tuple`` if no conversion back is needed.

    Args:
        hashable: whether stored values can be dictionary keys.
        zone: the time zone of returned timestamps. None means the machine's zone.
    """
    encoders, decode = _fields(schema, tuple, hashable, zone)
    count = len(encoders)

    def encode(value: Any) -> Any:
        values = tuple(value)
        if len(values) != count:
            raise PySparkRuntimeError(
                "Error updating value state: [STRUCT_ARRAY_LENGTH_MISMATCH] Input row doesn't have expected number of"
                f" values required by the schema. {count} fields are required while {len(values)} values are provided."
                " SQLSTATE: 2201E"
            )
        return tuple([convert(item) for convert, item in zip(encoders, values)])

    if count != 1:
        return ValueCodec(encode, decode)
    first = encoders[0]
    return ValueCodec(
        lambda value: (first(value[0]),) if type(value) is tuple and len(value) == 1 else encode(value), decode
    )


def _fields(
    schema: spark.StructType, make: Callable[[Iterable[Any]], Any], hashable: bool, zone: dt.tzinfo | None
) -> tuple[list[Function], Function]:
    """Return the encoders of a struct's fields, and its decoder, which calls ``make`` with the values."""
    codecs = [_codec(field.dataType, hashable, zone) for field in schema]
    encoders, decoders = [codec.encode for codec in codecs], [codec.decode for codec in codecs]
    if all(decode is _same for decode in decoders):
        return encoders, make
    return encoders, lambda values: make([decode(item) for decode, item in zip(decoders, values)])


def _codec(kind: spark.DataType, hashable: bool, zone: dt.tzinfo | None) -> ValueCodec:
    if isinstance(kind, spark.StructType):
        return _nested(kind, hashable, zone)
    if isinstance(kind, spark.ArrayType):
        element = _codec(kind.elementType, hashable, zone)
        make: Any = tuple if hashable else list
        return ValueCodec(
            lambda value: make(map(element.encode, value)) if isinstance(value, (list, tuple)) else None,
            lambda value: None if value is None else list(map(element.decode, value)),
        )
    if isinstance(kind, spark.MapType) and not hashable:
        key, item = _codec(kind.keyType, True, zone), _codec(kind.valueType, False, zone)
        key_of, item_of = key.decode, item.decode
        return ValueCodec(
            lambda value: (
                {key.encode(k): item.encode(v) for k, v in value.items()} if isinstance(value, dict) else None
            ),
            lambda value: None if value is None else {key_of(k): item_of(v) for k, v in value.items()},
        )
    if hashable:
        check_no_collation(kind, "a key (of a program or of a map)")
    if isinstance(kind, spark.DecimalType):
        return ValueCodec(_decimal(kind))
    if isinstance(kind, spark.TimestampType):
        return ValueCodec(
            _timestamp, lambda value: None if value is None else value.astimezone(zone).replace(tzinfo=None)
        )
    if type(kind) in _VIA_INTERNAL:
        return ValueCodec(lambda value: kind.fromInternal(kind.toInternal(value)))
    codec = _CODECS.get(type(kind))
    if codec is None:
        raise ProgramError(
            f"{'a key (of a program or of a map)' if hashable else 'a state'} has the type {kind.simpleString()}, which"
            " pillarbox cannot store: use a string, a number, binary, a date, a timestamp, or an array, map or"
            " struct of these"
        )
    return codec


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _integer(bits: int) -> Function:
    least, most, size = -(1 << bits - 1), (1 << bits - 1) - 1, 1 << bits

    return _only(int, lambda value: value if least <= value <= most else (value - least) % size + least)


def _only(kind: type, finish: Function = _same) -> Function:
    def encode(value: Any) -> Any:
        if type(value) is not kind:
            value = _plain(value)
        return finish(value) if type(value) is kind else None

    return encode


def _string(value: Any) -> str | None:
    if type(value) is str or value is None:
        return value
    value = _plain(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int)) or (isinstance(value, float) and 1e-3 <= abs(value) < 1e7):
        return str(value)
    raise PySparkRuntimeError(f"{value!r} ({type(value).__name__}) is not a string: convert it with str()")


def _binary(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else None if value is None else bytes(value)


def _timestamp(value: Any) -> dt.datetime | None:
    return None if value is None else _EPOCH + dt.timedelta(microseconds=_TIMESTAMP.toInternal(value))


def _decimal(kind: spark.DecimalType) -> Function:
    # The decimal context of the processor's thread may have too few digits.
    context = Context(prec=kind.precision, rounding=ROUND_HALF_UP, traps=[InvalidOperation])
    unit = Decimal((0, (1,), -kind.scale))

    def encode(value: Any) -> Decimal | None:
        if not isinstance(value, Decimal) or not value.is_finite():
            return None
        try:
            return value.quantize(unit, context=context)
        except InvalidOperation:
            raise PySparkRuntimeError(
                f"[NUMERIC_VALUE_OUT_OF_RANGE] {value} does not fit {kind.simpleString()}"
            ) from None

    return encode


def _nested(kind: spark.StructType, hashable: bool, zone: dt.tzinfo | None) -> ValueCodec:
    names = kind.names
    encoders, decode = _fields(kind, row_maker(tuple(names)), hashable, zone)

    def encode(value: Any) -> tuple[Any, ...] | None:
        if value is None:
            return None
        if isinstance(value, spark.Row) and getattr(value, "__from_dict__", False):
            value = [value[name] for name in names]
        elif isinstance(value, dict):
            value = [value.get(name) for name in names]
        elif not isinstance(value, (tuple, list)):
            value = [vars(value).get(name) for name in names]
        return tuple([convert(item) for convert, item in zip(encoders, value)])

    return ValueCodec(encode, lambda value: None if value is None else decode(value))


_CODECS: dict[type[spark.DataType], ValueCodec] = {
    spark.ByteType: ValueCodec(_integer(8)),
    spark.ShortType: ValueCodec(_integer(16)),
    spark.IntegerType: ValueCodec(_integer(32)),
    spark.LongType: ValueCodec(_integer(64)),
    spark.FloatType: ValueCodec(_only(float, lambda value: float(np.float32(value)))),
    spark.DoubleType: ValueCodec(_only(float)),
    spark.BooleanType: ValueCodec(_only(bool)),
    spark.StringType: ValueCodec(_string),
    spark.VarcharType: ValueCodec(_string),
    spark.CharType: ValueCodec(_string),
    spark.BinaryType: ValueCodec(_binary),
}
