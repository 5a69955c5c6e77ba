"""The columns that a user declares: a DDL string, a ``StructType``, one of ``Types``, a dataclass or a named tuple."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

import pyspark.sql.types as spark

from pillarbox._errors import ConfigurationError, ProgramError, describe, shorten
from pillarbox._types.ddl import DdlError, columns_of
from pillarbox._types.scalars import OF_CLASSES
from pillarbox._types.type_information import TypeInformation

SchemaLike: typing.TypeAlias = str | spark.StructType | TypeInformation[Any] | type[Any]
"""The ways to declare columns: see ``resolve_schema``."""

_WAYS = (
    'a DDL string such as "tail STRING, delay INT", a StructType, Types.ROW_NAMED(...), '
    "a dataclass, or a typing.NamedTuple"
)


def resolve_schema(declared: object) -> spark.StructType:
    """Return the columns that a user declared.

    Args:
        declared: one of

            - a DDL string, ``"tail STRING, delay INT"``, which Spark parses if there is a session;
            - a ``StructType``, which is returned as it is;
            - ``Types.ROW(...)``, ``Types.ROW_NAMED(...)``, ``Types.TUPLE(...)``, or another of ``Types``,
              which makes one column ``f0``;
            - a dataclass or a ``typing.NamedTuple``, whose fields are the columns. A field may be
              null only where its annotation says so (``str | None``, ``Optional[str]``).

    Raises:
        ProgramError: it is none of these; a field's annotation has no Spark type; the DDL string cannot be parsed;
            or there is no column.
        ConfigurationError: without a session, a DDL string has a type that only Spark can parse.
    """
    schema = _resolved(declared)
    if not schema.fields:
        raise ProgramError(f"{shorten(declared)} declares no columns; declare at least one")
    return schema


def column_names(declared: object) -> tuple[str, ...] | None:
    """Return the names of declared columns, also where no session can parse them.

    None: they are no columns, two have one name, or they are of ``Types``, to which values are converted.
    """
    if isinstance(declared, spark.StructType):
        names = declared.names
    elif isinstance(declared, str):
        try:
            names = columns_of(declared).names
        except DdlError:
            return None
    elif _is_record_class(declared):
        names = _field_names(declared)
    else:
        return None
    return tuple(names) if names and len(set(names)) == len(names) else None


def _resolved(declared: object) -> spark.StructType:
    if isinstance(declared, spark.StructType):
        return declared
    if isinstance(declared, str):
        return _parsed(declared)
    if isinstance(declared, TypeInformation):
        data_type = declared.data_type
        if data_type is None:
            raise ProgramError(
                f"{declared} cannot be columns of a DataFrame, for Spark has no type for "
                "PICKLED_BYTE_ARRAY; declare the type of every field"
            )
        if isinstance(data_type, spark.StructType):
            return data_type
        return spark.StructType([spark.StructField("f0", data_type)])
    if _is_record_class(declared):
        return _struct_of(declared, ())
    raise ProgramError(f"{shorten(declared)} does not declare columns; declare them as {_WAYS}")


def _parsed(ddl: str) -> spark.StructType:
    from pyspark.errors import ParseException

    try:
        data_type = spark.StructType.fromDDL(ddl)
    except ParseException as error:
        raise ProgramError(
            f"{ddl!r} is not a list of columns such as 'card STRING, amount DOUBLE': {describe(error)}"
        ) from None
    except Exception:  # there is no session
        try:
            return columns_of(ddl)
        except DdlError as error:
            raise ConfigurationError(
                f"without a Spark session, the columns {ddl!r} cannot be parsed: {error}; if they are right, create a"
                " SparkSession before, or declare the columns as a StructType, a dataclass or a typing.NamedTuple"
            ) from None
    if not isinstance(data_type, spark.StructType):
        raise ProgramError(f"{ddl!r} is a type without a name; name the column: 'value {ddl}'")
    return data_type


def _is_record_class(declared: object) -> typing.TypeGuard[type]:
    """Return whether ``declared`` is a dataclass or a named tuple (the class, not an instance)."""
    return isinstance(declared, type) and (
        dataclasses.is_dataclass(declared) or (issubclass(declared, tuple) and hasattr(declared, "_fields"))
    )


def _field_names(record: type) -> list[str]:
    """Return the names of the fields of a dataclass or named tuple."""
    if dataclasses.is_dataclass(record):
        return [field.name for field in dataclasses.fields(record)]
    return list(getattr(record, "_fields", ()))


def _struct_of(record: type, inside: tuple[type, ...]) -> spark.StructType:
    """Return the columns of a dataclass or named tuple that is nested in the classes ``inside``."""
    if record in inside:
        raise ProgramError(
            f"{record.__name__} contains itself, which columns cannot; "
            "keep such a field as bytes (pickled) or str (JSON)"
        )
    try:
        hints = typing.get_type_hints(record)
    except Exception as error:  # an annotation may be any text
        raise ProgramError(
            f"an annotation of {record.__name__} cannot be resolved ({describe(error)}); "
            "define or import the classes that it names at the top level of its module"
        ) from error
    fields = []
    for name in _field_names(record):
        if name not in hints:
            raise ProgramError(f"{record.__name__}.{name} has no annotation; use typing.NamedTuple or a dataclass")
        found = _type_of(hints[name], (*inside, record))
        if found is None:
            said = hints[name]
            said = said.__name__ if isinstance(said, type) and not typing.get_args(said) else said
            raise ProgramError(
                f"{record.__name__}.{name} is annotated {said}, which has no Spark type; "
                "annotate it with int, float, str, bool, bytes, datetime, date, time, timedelta, "
                "Decimal, list[T], tuple[T, ...], dict[K, V], T | None, a dataclass or a "
                "typing.NamedTuple, or declare the columns as a DDL string"
            )
        fields.append(spark.StructField(name, *found))
    return spark.StructType(fields)


def _type_of(hint: Any, inside: tuple[type, ...]) -> tuple[spark.DataType, bool] | None:
    """Return Spark's type for an annotation and whether it may be null, or None if there is no such type."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        others = [arg for arg in args if arg is not type(None)]
        found = _type_of(others[0], inside) if len(others) == 1 else None
        return found and (found[0], True)
    if origin is list or (origin is tuple and args[1:] == (...,)):
        element = _type_of(args[0], inside)
        return element and (spark.ArrayType(*element), False)
    if origin is dict:
        key, value = _type_of(args[0], inside), _type_of(args[1], inside)
        if key is None or value is None or key[1]:  # Spark's maps have no null keys
            return None
        return spark.MapType(key[0], *value), False
    if _is_record_class(hint):
        return _struct_of(hint, inside), False
    try:
        return OF_CLASSES[hint].spark, False
    except (KeyError, TypeError):  # TypeError: some annotations cannot be hashed
        return None


def is_collated(kind: spark.DataType) -> bool:
    """Return whether Spark compares a string by other rules than Python, which compares characters."""
    return isinstance(kind, spark.StringType) and not kind.isUTF8BinaryCollation()
