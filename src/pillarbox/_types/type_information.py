"""PyFlink's ``Types``: how its programs spell the types of columns, keys and elements."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyspark.sql.types as spark

from pillarbox._errors import ProgramError, check_kind
from pillarbox._generics import Generic, K, Out, T, V
from pillarbox._rows import Row

DECIMAL = spark.DecimalType(38, 18)  # what Spark infers for a Decimal, too


@dataclass(frozen=True)
class TypeInformation(Generic[Out]):
    """A type as PyFlink programs declare it, of Python values of type ``Out``; made by ``Types``.

    Attributes:
        name: the type as it was declared, e.g. ``ROW(f0: STRING, f1: LONG)``.
        data_type: Spark's type for it; None if it cannot be a column (pickled objects).
        parts: the types of the fields of a row or tuple, of a list's elements, of a map's keys and values.
        names: the names of the fields of a row or tuple.
    """

    name: str
    data_type: spark.DataType | None
    parts: tuple[TypeInformation[Any], ...] = ()
    names: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return self.name


class Types:
    """PyFlink's ``pyflink.common.Types``: how PyFlink programs spell the types of columns.

    All of these may be null, also inside rows, lists and maps.
    """

    @staticmethod
    def STRING() -> TypeInformation[str]:
        """Declare text: ``str``."""
        return TypeInformation("STRING", spark.StringType())

    @staticmethod
    def CHAR() -> TypeInformation[str]:
        """Declare one character: ``str``. Spark has no such type, so it becomes a STRING."""
        return TypeInformation("CHAR", spark.StringType())

    @staticmethod
    def BOOLEAN() -> TypeInformation[bool]:
        """Declare ``bool``."""
        return TypeInformation("BOOLEAN", spark.BooleanType())

    @staticmethod
    def BYTE() -> TypeInformation[int]:
        """Declare an ``int`` of 8 bits."""
        return TypeInformation("BYTE", spark.ByteType())

    @staticmethod
    def SHORT() -> TypeInformation[int]:
        """Declare an ``int`` of 16 bits."""
        return TypeInformation("SHORT", spark.ShortType())

    @staticmethod
    def INT() -> TypeInformation[int]:
        """Declare an ``int`` of 32 bits."""
        return TypeInformation("INT", spark.IntegerType())

    @staticmethod
    def LONG() -> TypeInformation[int]:
        """Declare an ``int`` of 64 bits."""
        return TypeInformation("LONG", spark.LongType())

    @staticmethod
    def BIG_INT() -> TypeInformation[int]:
        """Declare an ``int`` of up to 38 digits; it comes back as a ``Decimal``."""
        return TypeInformation("BIG_INT", spark.DecimalType(38, 0))

    @staticmethod
    def FLOAT() -> TypeInformation[float]:
        """Declare a ``float``, kept in 32 bits."""
        return TypeInformation("FLOAT", spark.FloatType())

    @staticmethod
    def DOUBLE() -> TypeInformation[float]:
        """Declare a ``float``."""
        return TypeInformation("DOUBLE", spark.DoubleType())

    @staticmethod
    def BIG_DEC() -> TypeInformation[decimal.Decimal]:
        """Declare a ``Decimal`` of up to 38 digits, 18 of them after the point."""
        return TypeInformation("BIG_DEC", DECIMAL)

    @staticmethod
    def SQL_DATE() -> TypeInformation[dt.date]:
        """Declare a ``datetime.date``."""
        return TypeInformation("SQL_DATE", spark.DateType())

    @staticmethod
    def SQL_TIME() -> TypeInformation[dt.time]:
        """Declare a ``datetime.time``, to the microsecond."""
        return TypeInformation("SQL_TIME", spark.TimeType())

    @staticmethod
    def SQL_TIMESTAMP() -> TypeInformation[dt.datetime]:
        """Declare a point in time: ``datetime``; naive ones are in the session's time zone."""
        return TypeInformation("SQL_TIMESTAMP", spark.TimestampType())

    @staticmethod
    def INSTANT() -> TypeInformation[dt.datetime]:
        """Declare a point in time: ``datetime``; naive ones are in the session's time zone."""
        return TypeInformation("INSTANT", spark.TimestampType())

    @staticmethod
    def PICKLED_BYTE_ARRAY() -> TypeInformation[Any]:
        """Declare any Python object; between operators only, never a column."""
        return TypeInformation("PICKLED_BYTE_ARRAY", None)

    @staticmethod
    def ROW(field_types: Sequence[TypeInformation[Any]]) -> TypeInformation[Row]:
        """Declare a row with columns f0, f1, ..."""
        return _row_type("ROW", None, field_types)

    @staticmethod
    def ROW_NAMED(field_names: Sequence[str], field_types: Sequence[TypeInformation[Any]]) -> TypeInformation[Row]:
        """Declare a row with these columns.

        A value with field names goes by name, and its names have to be declared: a dict, a dataclass, a named tuple, a
        ``Row``, PySpark's ``Row``. A field that a dict or dataclass lacks is null. A tuple, a list or a row without
        names goes by position. The same holds in a list or map, and for the columns of a DataFrame.

        Raises:
            ProgramError: there are more names than types, or fewer; one is no name, or no type.
        """
        check_kind(field_names, (list, tuple), "Types.ROW_NAMED(): the field names", "a list of names")
        for name in field_names:
            check_kind(name, str, "Types.ROW_NAMED(): the name of a field", "a string")
        return _row_type("ROW_NAMED", field_names, field_types)

    @staticmethod
    def TUPLE(field_types: Sequence[TypeInformation[Any]]) -> TypeInformation[tuple[Any, ...]]:
        """Declare a tuple, as a row with columns f0, f1, ..."""
        return _row_type("TUPLE", None, field_types)

    @staticmethod
    def PRIMITIVE_ARRAY(element_type: TypeInformation[Any]) -> TypeInformation[Any]:
        """Declare a list; of BYTE, as in PyFlink: ``bytes``."""
        _check_types("PRIMITIVE_ARRAY", element_type)
        if isinstance(element_type.data_type, spark.ByteType):
            return TypeInformation(f"PRIMITIVE_ARRAY({element_type})", spark.BinaryType(), (element_type,))
        return _list_type("PRIMITIVE_ARRAY", element_type)

    @staticmethod
    def BASIC_ARRAY(element_type: TypeInformation[T]) -> TypeInformation[list[T]]:
        """Declare a list."""
        return _list_type("BASIC_ARRAY", element_type)

    @staticmethod
    def OBJECT_ARRAY(element_type: TypeInformation[T]) -> TypeInformation[list[T]]:
        """Declare a list."""
        return _list_type("OBJECT_ARRAY", element_type)

    @staticmethod
    def LIST(element_type_info: TypeInformation[T]) -> TypeInformation[list[T]]:
        """Declare a list."""
        return _list_type("LIST", element_type_info)

    @staticmethod
    def MAP(key_type_info: TypeInformation[K], value_type_info: TypeInformation[V]) -> TypeInformation[dict[K, V]]:
        """Declare a dict."""
        _check_types("MAP", key_type_info, value_type_info)
        key, value = key_type_info.data_type, value_type_info.data_type
        return TypeInformation(
            f"MAP({key_type_info}, {value_type_info})",
            None if key is None or value is None else spark.MapType(key, value),
            (key_type_info, value_type_info),
        )


def _check_types(kind: str, *types: Any) -> None:
    for each in types:
        check_kind(each, TypeInformation, f"Types.{kind}(): the type of a part", "one of Types, such as Types.LONG()")


def _row_type(
    kind: str, names: Sequence[str] | None, field_types: Sequence[TypeInformation[Any]]
) -> TypeInformation[Any]:
    check_kind(field_types, (list, tuple), f"Types.{kind}(): the field types", "a list of Types")
    _check_types(kind, *field_types)
    names = [f"f{i}" for i in range(len(field_types))] if names is None else names
    kind = kind.removesuffix("_NAMED")
    if len(names) != len(field_types):
        raise ProgramError(f"{len(names)} field names, but {len(field_types)} field types")
    said = ", ".join(map("{}: {}".format, names, field_types))
    fields = [
        spark.StructField(name, field_type.data_type)
        for name, field_type in zip(names, field_types, strict=True)
        if field_type.data_type is not None
    ]
    complete = len(fields) == len(names)
    data_type = spark.StructType(fields) if complete else None
    return TypeInformation(f"{kind}({said})", data_type, tuple(field_types), tuple(names))


def _list_type(kind: str, element: TypeInformation[Any]) -> TypeInformation[Any]:
    _check_types(kind, element)
    data_type = None if element.data_type is None else spark.ArrayType(element.data_type)
    return TypeInformation(f"{kind}({element})", data_type, (element,))
