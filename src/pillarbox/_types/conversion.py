"""From any Python value to the value of a declared type, as PyFlink converts elements of a collection, and results.

Values of a row become named rows, FLOAT is rounded to 32 bits, numpy's numbers become Python's. A value that does not
fit is refused with its field. (PyFlink lets SHORT and INT wrap around, as Java does; here they are refused.)
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import math
import operator
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pillarbox._errors import ProgramError, TypeMismatchError, shorten
from pillarbox._rows import Row, row_class
from pillarbox._types.type_information import TypeInformation

Converter = Callable[[Any], Any]


class _Misfit(Exception):
    """A value does not fit; ``path`` leads to it, from the outside in."""

    def __init__(self, value: Any, expected: str) -> None:
        super().__init__(value, expected)
        self.value, self.expected = value, expected
        self.path: list[str] = []

    def within(self, step: str) -> _Misfit:
        self.path.insert(0, step)
        return self


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
    convert = _converter(declared)

    def checked(value: Any, position: int | None = None) -> Any:
        try:
            return convert(value)
        except _Misfit as misfit:
            field = "" if position is None else f" {position}"
            field += f", field {''.join(misfit.path).lstrip('.')!r}" if misfit.path else ""
            kind = type(misfit.value).__name__
            raise TypeMismatchError(
                f"{where}{field}: {shorten(misfit.value)} ({kind}) does not fit {declared}:"
                f" {misfit.expected} is expected"
            ) from None

    return checked


def _converter(declared: TypeInformation) -> Converter:
    kind = declared.name.partition("(")[0]
    if kind in _COMPOSED:
        convert = _COMPOSED[kind](declared)
    elif kind in _PLAIN:
        convert = _PLAIN[kind]
    else:
        return lambda value: value  # pickled objects may be anything
    return lambda value: None if value is None else convert(value)


# -- single values --


def _instance(expected: str, *kinds: type, but: tuple[type, ...] = ()) -> Converter:
    def convert(value: Any) -> Any:
        if not isinstance(value, kinds) or isinstance(value, but):
            raise _Misfit(value, expected)
        return value

    return convert


def _integer(bits: int) -> Converter:
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    expected = f"an int of {bits} bits"

    def convert(value: Any) -> int:
        if isinstance(value, (bool, np.bool_)):
            raise _Misfit(value, expected)
        try:
            number = operator.index(value)
        except TypeError:
            raise _Misfit(value, expected) from None
        if not least <= number <= most:
            raise _Misfit(value, expected)
        return number

    return convert


def _float(value: Any) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise _Misfit(value, "a float")
    try:
        return float(value)
    except OverflowError:
        raise _Misfit(value, "a float of 64 bits") from None


def _float32(value: Any) -> float:
    number = _float(value)
    try:
        single: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        raise _Misfit(value, "a float of 32 bits") from None
    return single


def _boolean(value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise _Misfit(value, "True or False")
    return bool(value)


def _decimal(value: Any) -> decimal.Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, decimal.Decimal)):
        raise _Misfit(value, "a Decimal")
    number = decimal.Decimal(value)
    if not math.isfinite(number):
        raise _Misfit(value, "a Decimal that is a number")
    return number


_PLAIN: dict[str, Converter] = {
    "STRING": _instance("a str", str),
    "CHAR": _instance("a str", str),
    "BOOLEAN": _boolean,
    "BYTE": _integer(8),
    "SHORT": _integer(16),
    "INT": _integer(32),
    "LONG": _integer(64),
    "BIG_INT": _integer(128),
    "FLOAT": _float32,
    "DOUBLE": _float,
    "BIG_DEC": _decimal,
    "SQL_DATE": _instance("a datetime.date", dt.date, but=(dt.datetime,)),
    "SQL_TIME": _instance("a datetime.time", dt.time),
    "SQL_TIMESTAMP": _instance("a datetime", dt.datetime),
    "INSTANT": _instance("a datetime", dt.datetime),
}


# -- values made of others --


def _within(place: str, name: object, part: Converter, value: Any) -> Any:
    """Convert a value within another one; what does not fit says where, ``place`` with the name put in."""
    try:
        return part(value)
    except _Misfit as misfit:
        raise misfit.within(place.format(name)) from None


def _row(declared: TypeInformation) -> Converter:
    names, parts = declared.names, [_converter(part) for part in declared.parts]
    make = row_class(names)
    convert_fields = _fields(names, parts, f"a row of {len(names)} values")

    def convert(value: Any) -> Row:
        if isinstance(value, Mapping):
            if value.keys() != set(names):
                raise _Misfit(value, f"a dict with the fields {', '.join(names)}")
            value = [value[name] for name in names]
        elif isinstance(value, Row):
            if value._fields != names and set(value._fields) == set(names):
                value = [value[name] for name in names]
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = [getattr(value, name, None) for name in names]
        return make(convert_fields(value))

    return convert


def _tuple(declared: TypeInformation) -> Converter:
    convert_fields = _fields(declared.names, [_converter(part) for part in declared.parts], "a tuple of {} values")
    return lambda value: tuple(convert_fields(value))


def _fields(names: tuple[str, ...], parts: list[Converter], expected: str) -> Callable[[Any], list[Any]]:
    expected = expected.format(len(names))

    def convert(value: Any) -> list[Any]:
        if not isinstance(value, (tuple, list)) or len(value) != len(names):
            raise _Misfit(value, expected)
        return [_within(".{}", name, part, field) for name, part, field in zip(names, parts, value)]

    return convert


def _list(declared: TypeInformation) -> Converter:
    (element,) = declared.parts
    if declared.name.startswith("PRIMITIVE_ARRAY(BYTE"):
        return _instance("bytes", bytes, bytearray)
    part = _converter(element)

    def convert(value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple, np.ndarray)):
            raise _Misfit(value, "a list")
        return [_within("[{}]", position, part, item) for position, item in enumerate(value)]

    return convert


def _map(declared: TypeInformation) -> Converter:
    key_part, value_part = (_converter(part) for part in declared.parts)

    def convert(value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise _Misfit(value, "a dict")
        converted = {}
        for key, item in value.items():
            try:
                converted[key_part(key)] = value_part(item)
            except _Misfit as misfit:
                raise misfit.within(f"[{shorten(key)}]") from None
        return converted

    return convert


_COMPOSED: dict[str, Callable[[TypeInformation], Converter]] = {
    "ROW": _row,
    "TUPLE": _tuple,
    "LIST": _list,
    "PRIMITIVE_ARRAY": _list,
    "BASIC_ARRAY": _list,
    "OBJECT_ARRAY": _list,
    "MAP": _map,
}
