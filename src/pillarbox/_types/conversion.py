"""The values of a declared type: which ones it takes, and what they become.

Each Spark type has one rule. Typed operators, ``from_collection()`` and typed keys convert values by it, as PyFlink
converts results; columns of a DataFrame take the same values (``codecs``). Values of a ROW become named rows, FLOAT is
rounded to 32 bits, and values of subclasses, such as an enum, a numpy number or a pandas Timestamp, become values of
the type's Python class. (PyFlink lets SHORT and INT wrap around, as Java does; here they are refused.)
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyspark.sql.types as spark

from pillarbox._errors import ProgramError, TypeMismatchError, shorten
from pillarbox._rows import row_class
from pillarbox._types.row_shapes import RowShape, ShapeError
from pillarbox._types.type_information import TypeInformation

Converter = Callable[[Any], Any]
Declared = TypeInformation | spark.DataType

# The values of a list.
SEQUENCES: tuple[type[Any], ...] = (list, tuple, set, frozenset, np.ndarray)


class Misfit(TypeError):
    """A value does not fit.

    Args:
        value: the innermost value that does not fit.
        declared: its type.
        reason: what is wrong with the value.
        expects: the values that fit: "an int".

    Attributes:
        path: leads to the value, from the outside in.
    """

    def __init__(self, value: Any, declared: str, reason: str, expects: str) -> None:
        super().__init__(reason)
        self.value, self.declared, self.reason, self.expects = value, declared, reason, expects
        self.path: str = ""

    def within(self, step: str) -> Misfit:
        """Return it with another step in front of its path."""
        self.path = step + self.path
        return self

    def message(self, lead: str, whole: str, other: str) -> str:
        """Return the error message.

        Args:
            lead: operator and origin of the value.
            whole: what does not fit, if it is the value as a whole.
            other: the alternative to another value in this case.
        """
        if self.path:
            field = f"the field {self.path.lstrip('.')!r} is declared {self.declared}"
            whole, other = f": {field}, but the value {shorten(self.value)} does not fit", "the field otherwise"
        return f"{lead}{whole}: {self.reason}; give {self.expects}, or declare {other}"


def value_converter(declared: TypeInformation, where: str) -> Callable[..., Any]:
    """Return the function that converts values to a type; None stays None.

    It takes the value and, for the error, its position; it raises ``TypeMismatchError`` with the field that a value
    does not fit.

    Args:
        where: where the values come from: the errors begin with it.

    Raises:
        ProgramError: it is not one of ``Types``.
    """
    if not isinstance(declared, TypeInformation):
        raise ProgramError(f"{where}: a type is one of Types, such as Types.STRING(), not {shorten(declared)}")
    _, convert = _of_type(declared)

    def checked(value: Any, position: int | None = None) -> Any:
        if value is None:
            return None
        try:
            return convert(value)
        except Misfit as misfit:
            lead = where if position is None else f"{where} {position}"
            whole = f": {shorten(value)} does not fit {misfit.declared}"
            raise TypeMismatchError(misfit.message(lead, whole, "another type")) from None

    return checked


def converter(declared: Declared, nullable: bool = True) -> Converter:
    """Return the function that converts values to a type, and raises :class:`Misfit` for other values.

    Values of types that Python has no values for, and pickled objects, stay as they are.
    """
    expects, convert = _of_type(declared)
    if nullable:
        return lambda value: None if value is None else convert(value)

    def required(value: Any) -> Any:
        if value is None:
            raise Misfit(value, f"{name_of(declared)} not null", "it must not be null", expects)
        return convert(value)

    return required


def row_converter(declared: spark.StructType) -> Converter:
    """Return the function that converts rows, which may not be None, to tuples."""
    return _of_type(declared)[1]


def name_of(declared: Declared) -> str:
    """Return a type as Spark writes it; one that Spark does not have as it was declared."""
    data_type = declared.data_type if isinstance(declared, TypeInformation) else declared
    return repr(declared) if data_type is None else data_type.simpleString()


def _of_type(declared: Declared) -> tuple[str, Converter]:
    """Return the values that fit, for errors, and the function that converts values but None."""
    if isinstance(declared, TypeInformation):
        kind = declared.name.partition("(")[0]
        if kind in ("ROW", "TUPLE"):
            fields = [(name, part, True) for name, part in zip(declared.names, declared.parts, strict=True)]
            return _row(declared, fields, row_class(declared.names) if kind == "ROW" else tuple)
        if kind == "MAP":
            return _map(declared, declared.parts[0], converter(declared.parts[1]))
        if kind == "BIG_INT":
            expects, convert = _of_type(spark.DecimalType(38, 0))
            return expects, lambda value: int(convert(value))
        if declared.parts and not isinstance(declared.data_type, spark.BinaryType):
            return _list(declared, converter(declared.parts[0]))
        return ("any object", _same) if declared.data_type is None else _of_type(declared.data_type)
    if isinstance(declared, spark.StructType):
        return _row(declared, [(field.name, field.dataType, field.nullable) for field in declared], tuple)
    if isinstance(declared, spark.ArrayType):
        return _list(declared, converter(declared.elementType, declared.containsNull))
    if isinstance(declared, spark.MapType):
        return _map(declared, declared.keyType, converter(declared.valueType, declared.valueContainsNull))
    if isinstance(declared, spark.DecimalType):
        precision, scale = declared.precision, declared.scale
        expects = f"a Decimal of at most {precision} digits, {scale} of them after the point"
        return _scalar(declared, expects, _decimal(precision, scale))
    found = _SCALARS.get(type(declared))
    return ("any value", _same) if found is None else _scalar(declared, *found)


def _same(value: Any) -> Any:
    return value


# -- single values --


class _KindError(TypeError):
    """A value is of a class whose values do not fit."""

    def __init__(self, value: Any) -> None:
        super().__init__(f"it is of type {type(value).__name__}")


def _scalar(declared: Declared, expects: str, convert: Converter) -> tuple[str, Converter]:
    name = name_of(declared)

    def checked(value: Any) -> Any:
        try:
            return convert(value)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise Misfit(value, name, str(error), expects) from None

    return expects, checked


def _text(value: Any) -> str:
    if type(value) is not str:
        if not isinstance(value, str):
            raise _KindError(value)
        value = str.__str__(value)  # of an enum or of numpy
    if not value.isascii():
        value.encode()  # Arrow's text is UTF-8, which has no lone surrogates
    return value  # type: ignore[no-any-return]


def _bytes(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise _KindError(value)
    return value if type(value) is bytes else bytes(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise _KindError(value)
    return bool(value)


def _index(value: Any) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise _KindError(value)
    try:
        return operator.index(value)
    except TypeError:
        raise _KindError(value) from None


def _integer(bits: int) -> Converter:
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def convert(value: Any) -> int:
        number = value if type(value) is int else _index(value)
        if not least <= number <= most:
            raise ValueError(f"it is too large for {bits} bits")
        return number

    return convert


def _float(bits: int) -> Converter:
    """Return the converter to a float; ints have to be exact in these bits."""

    def convert(value: Any) -> float:
        if type(value) is float:
            return value
        if isinstance(value, (int, np.integer)):
            if abs(int(value)) > 1 << bits:
                raise ValueError(f"it is outside of the range of ints that a float holds exactly, up to 2**{bits}")
        elif not isinstance(value, (float, np.floating)):
            raise _KindError(value)
        return float(value)

    return convert


def _float32(value: Any) -> float:
    number = _exact_in_24(value)
    try:
        single: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        raise ValueError("it is too large for 32 bits") from None
    return single


def _decimal(precision: int, scale: int) -> Converter:
    context = decimal.Context(prec=precision, traps=[decimal.Inexact, decimal.InvalidOperation])
    places = decimal.Decimal(1).scaleb(-scale)

    def convert(value: Any) -> decimal.Decimal:
        number = value if isinstance(value, decimal.Decimal) else decimal.Decimal(_index(value))
        if not math.isfinite(number):
            raise ValueError("it is no number")
        try:
            rounded = number.quantize(places, context=context)
        except decimal.Inexact:
            raise ValueError(f"digits would be lost after {scale} places (data loss)") from None
        except decimal.InvalidOperation:
            raise ValueError(f"it has more digits than the precision of {precision}") from None
        return number if -scale <= number.as_tuple().exponent <= 0 else rounded  # type: ignore[operator]

    return convert


def _date(value: Any) -> dt.date:
    if type(value) is dt.date:
        return value
    if not isinstance(value, dt.date) or isinstance(value, dt.datetime):
        raise _KindError(value)
    return dt.date(value.year, value.month, value.day)


def _time(value: Any) -> dt.time:
    if type(value) is dt.time:
        return value
    if not isinstance(value, dt.time):
        raise _KindError(value)
    return dt.datetime.combine(dt.date.min, value).timetz()


def _interval(value: Any) -> dt.timedelta:
    if type(value) is dt.timedelta:
        return value
    if not isinstance(value, dt.timedelta):
        raise _KindError(value)
    return dt.timedelta(value.days, value.seconds, value.microseconds)


def _time_point(value: Any) -> dt.datetime:
    if type(value) is dt.datetime:
        return value
    if not isinstance(value, dt.datetime) or value != value:  # pandas' NaT
        raise _KindError(value)
    return dt.datetime.combine(value.date(), value.timetz())


def _wall_clock(value: Any) -> dt.datetime:
    time = _time_point(value)
    if time.tzinfo is not None:
        raise ValueError("it has a time zone, which would be lost")
    return time


def _nothing(value: Any) -> None:
    raise _KindError(value)


_exact_in_24 = _float(24)
_SCALARS: dict[type[spark.DataType], tuple[str, Converter]] = {
    spark.ByteType: ("an int of at most 8 bits", _integer(8)),
    spark.ShortType: ("an int of at most 16 bits", _integer(16)),
    spark.IntegerType: ("an int of at most 32 bits", _integer(32)),
    spark.LongType: ("an int of at most 64 bits", _integer(64)),
    spark.BooleanType: ("a bool", _boolean),
    spark.FloatType: ("a float", _float32),
    spark.DoubleType: ("a float", _float(53)),
    spark.StringType: ("a str", _text),
    spark.BinaryType: ("bytes", _bytes),
    spark.NullType: ("None", _nothing),
    spark.DateType: ("a date", _date),
    spark.TimeType: ("a time", _time),
    spark.TimestampType: ("a datetime", _time_point),
    spark.TimestampNTZType: ("a datetime without time zone", _wall_clock),
    spark.DayTimeIntervalType: ("a timedelta", _interval),
}


# -- values made of others --


def _row(
    declared: Declared, fields: Sequence[tuple[str, Declared, bool]], make: Callable[[Sequence[Any]], Any]
) -> tuple[str, Converter]:
    names = [name for name, _, _ in fields]
    parts = [converter(part, nullable) for _, part, nullable in fields]
    shape = RowShape(names, [name for name, _, nullable in fields if not nullable])
    fields_of = shape.fields

    def convert(value: Any) -> Any:
        try:
            found = fields_of(value)
        except ShapeError as error:
            raise Misfit(value, name_of(declared), str(error), shape.expects) from None
        try:
            return make([part(field) for part, field in zip(parts, found)])
        except Misfit:
            for name, part, field in zip(names, parts, found):
                _within(f".{name}", part, field)
            raise

    return shape.expects, convert


def _within(step: str, part: Converter, value: Any) -> Any:
    """Convert a value inside another one, which is a step away."""
    try:
        return part(value)
    except Misfit as misfit:
        raise misfit.within(step) from None


def _list(declared: Declared, part: Converter) -> tuple[str, Converter]:
    def convert(value: Any) -> list[Any]:
        if not isinstance(value, SEQUENCES):
            raise Misfit(value, name_of(declared), str(_KindError(value)), "a list")
        try:
            return list(map(part, value))
        except Misfit:
            for position, item in enumerate(value):
                _within(f"[{position}]", part, item)
            raise

    return "a list", convert


def _map(declared: Declared, key_type: Declared, part: Converter) -> tuple[str, Converter]:
    key_part = converter(key_type, nullable=False)

    def convert(value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise Misfit(value, name_of(declared), str(_KindError(value)), "a dict")
        try:
            return {key_part(key): part(item) for key, item in value.items()}
        except Misfit:
            for key, item in value.items():
                _within(" (a key)", key_part, key)
                _within(f"[{shorten(key)}]", part, item)
            raise

    return "a dict", convert
