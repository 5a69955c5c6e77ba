"""The declared types of output columns, and the way from Python values to Arrow.

A stream becomes a DataFrame when its user declares the columns: see `resolve_schema` for the ways
to say it. `RowEncoder` then turns records into Arrow batches, by column; only a batch that does not
fit is looked at value by value, to name the culprit.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import re
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from operator import attrgetter, itemgetter, sub
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyspark.sql.types as spark
from pyspark.sql import Row as SparkRow

from pillarbox.errors import ConfigurationError, PillarboxError, ProgramError, describe, shorten, shorten_record

__all__ = ["RowEncoder", "TypeInformation", "TypeMismatchError", "Types", "resolve_schema"]


class TypeMismatchError(PillarboxError, TypeError):
    """A value does not fit the declared type of its column."""


# --- PyFlink's names -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class TypeInformation:
    """A type as PyFlink programs declare it; made by `Types`.

    Attributes:
        name: How the type was said, e.g. `ROW(f0: STRING, f1: LONG)`.
        data_type: Spark's type for it; None for what cannot be a column (pickled objects).
        parts: The types of the fields of a row or tuple, of a list's elements, of a map's keys and values.
        names: The names of the fields of a row or tuple.
    """

    name: str
    data_type: spark.DataType | None
    parts: tuple[TypeInformation, ...] = ()
    names: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return self.name


class Types:
    """PyFlink's `pyflink.common.Types`: how PyFlink programs spell the types of columns.

    All of these may be null, also inside rows, lists and maps.
    """

    @staticmethod
    def STRING() -> TypeInformation:
        """Text: `str`."""
        return TypeInformation("STRING", spark.StringType())

    @staticmethod
    def CHAR() -> TypeInformation:
        """One character: `str`. Spark has no such type, so it becomes a STRING."""
        return TypeInformation("CHAR", spark.StringType())

    @staticmethod
    def BOOLEAN() -> TypeInformation:
        """True or False."""
        return TypeInformation("BOOLEAN", spark.BooleanType())

    @staticmethod
    def BYTE() -> TypeInformation:
        """`int` of 8 bits."""
        return TypeInformation("BYTE", spark.ByteType())

    @staticmethod
    def SHORT() -> TypeInformation:
        """`int` of 16 bits."""
        return TypeInformation("SHORT", spark.ShortType())

    @staticmethod
    def INT() -> TypeInformation:
        """`int` of 32 bits."""
        return TypeInformation("INT", spark.IntegerType())

    @staticmethod
    def LONG() -> TypeInformation:
        """`int` of 64 bits."""
        return TypeInformation("LONG", spark.LongType())

    @staticmethod
    def BIG_INT() -> TypeInformation:
        """`int` of up to 38 digits; it comes back as a `Decimal`."""
        return TypeInformation("BIG_INT", spark.DecimalType(38, 0))

    @staticmethod
    def FLOAT() -> TypeInformation:
        """`float`, kept in 32 bits."""
        return TypeInformation("FLOAT", spark.FloatType())

    @staticmethod
    def DOUBLE() -> TypeInformation:
        """`float`."""
        return TypeInformation("DOUBLE", spark.DoubleType())

    @staticmethod
    def BIG_DEC() -> TypeInformation:
        """`Decimal` of up to 38 digits, 18 of them after the point."""
        return TypeInformation("BIG_DEC", _DECIMAL)

    @staticmethod
    def SQL_DATE() -> TypeInformation:
        """`datetime.date`."""
        return TypeInformation("SQL_DATE", spark.DateType())

    @staticmethod
    def SQL_TIME() -> TypeInformation:
        """`datetime.time`, to the microsecond."""
        return TypeInformation("SQL_TIME", spark.TimeType())

    @staticmethod
    def SQL_TIMESTAMP() -> TypeInformation:
        """A point in time: `datetime`; naive ones are in the session's time zone."""
        return TypeInformation("SQL_TIMESTAMP", spark.TimestampType())

    @staticmethod
    def INSTANT() -> TypeInformation:
        """A point in time: `datetime`; naive ones are in the session's time zone."""
        return TypeInformation("INSTANT", spark.TimestampType())

    @staticmethod
    def PICKLED_BYTE_ARRAY() -> TypeInformation:
        """Any Python object; between operators only, never a column."""
        return TypeInformation("PICKLED_BYTE_ARRAY", None)

    @staticmethod
    def ROW(field_types: Sequence[TypeInformation]) -> TypeInformation:
        """A row with columns f0, f1, ..."""
        return _row_type("ROW", [f"f{i}" for i in range(len(field_types))], field_types)

    @staticmethod
    def ROW_NAMED(field_names: Sequence[str], field_types: Sequence[TypeInformation]) -> TypeInformation:
        """A row with these columns.

        Raises:
            ProgramError: There are more names than types, or fewer.
        """
        return _row_type("ROW", field_names, field_types)

    @staticmethod
    def TUPLE(field_types: Sequence[TypeInformation]) -> TypeInformation:
        """A tuple, as a row with columns f0, f1, ..."""
        return _row_type("TUPLE", [f"f{i}" for i in range(len(field_types))], field_types)

    @staticmethod
    def PRIMITIVE_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """A list; of BYTE, as in PyFlink: `bytes`."""
        if isinstance(element_type.data_type, spark.ByteType):
            return TypeInformation(f"PRIMITIVE_ARRAY({element_type})", spark.BinaryType(), (element_type,))
        return _list_type("PRIMITIVE_ARRAY", element_type)

    @staticmethod
    def BASIC_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """A list."""
        return _list_type("BASIC_ARRAY", element_type)

    @staticmethod
    def OBJECT_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """A list."""
        return _list_type("OBJECT_ARRAY", element_type)

    @staticmethod
    def LIST(element_type_info: TypeInformation) -> TypeInformation:
        """A list."""
        return _list_type("LIST", element_type_info)

    @staticmethod
    def MAP(key_type_info: TypeInformation, value_type_info: TypeInformation) -> TypeInformation:
        """A dict."""
        key, value = key_type_info.data_type, value_type_info.data_type
        return TypeInformation(
            f"MAP({key_type_info}, {value_type_info})",
            None if key is None or value is None else spark.MapType(key, value),
            (key_type_info, value_type_info),
        )


def _row_type(kind: str, names: Sequence[str], field_types: Sequence[TypeInformation]) -> TypeInformation:
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


def _list_type(kind: str, element: TypeInformation) -> TypeInformation:
    data_type = None if element.data_type is None else spark.ArrayType(element.data_type)
    return TypeInformation(f"{kind}({element})", data_type, (element,))


# --- declarations --------------------------------------------------------------------------------

_DECIMAL = spark.DecimalType(38, 18)  # what Spark infers for a Decimal, too

_TYPE_OF: dict[Any, spark.DataType] = {
    int: spark.LongType(),
    float: spark.DoubleType(),
    str: spark.StringType(),
    bool: spark.BooleanType(),
    bytes: spark.BinaryType(),
    dt.datetime: spark.TimestampType(),
    dt.date: spark.DateType(),
    dt.time: spark.TimeType(),
    dt.timedelta: spark.DayTimeIntervalType(),
    decimal.Decimal: _DECIMAL,
}

_WAYS = (
    'a DDL string such as "tail STRING, delay INT", a StructType, Types.ROW_NAMED(...), '
    "a dataclass, or a typing.NamedTuple"
)


def resolve_schema(declared: object) -> spark.StructType:
    """The columns that a user declared.

    Args:
        declared: One of

            - a DDL string, `"tail STRING, delay INT"`; Spark parses it, which needs a session;
            - a `StructType`, which is returned as it is;
            - `Types.ROW(...)`, `Types.ROW_NAMED(...)`, `Types.TUPLE(...)`, or another of `Types`,
              which makes one column `f0`;
            - a dataclass or a `typing.NamedTuple`, whose fields are the columns. A field may be
              null only where its annotation says so (`str | None`, `Optional[str]`).

    Raises:
        ProgramError: It is none of these; a field's annotation has no Spark type; the DDL string cannot be parsed;
            or there is no column.
        ConfigurationError: A DDL string was given, but no Spark session is active.
    """
    schema = _resolved(declared)
    if not schema.fields:
        raise ProgramError(f"{shorten(declared)} declares no columns; declare at least one")
    return schema


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
        raise ProgramError(f"{ddl!r} is no list of columns as Spark's DDL has them: {describe(error)}") from None
    except Exception as error:
        raise ConfigurationError(
            f"Spark parses the columns {ddl!r}, so a SparkSession must be active (it is, once "
            "SparkSession.builder.getOrCreate() was called in this process); create it before, or "
            "declare the columns as a StructType, a dataclass or a typing.NamedTuple"
        ) from error
    if not isinstance(data_type, spark.StructType):
        raise ProgramError(f"{ddl!r} is a type without a name; name the column: 'value {ddl}'")
    return data_type


def _is_record_class(declared: object) -> typing.TypeGuard[type]:
    """Whether `declared` is a dataclass or a named tuple (the class, not an instance)."""
    return isinstance(declared, type) and (
        dataclasses.is_dataclass(declared) or (issubclass(declared, tuple) and hasattr(declared, "_fields"))
    )


def _struct_of(record: type, inside: tuple[type, ...]) -> spark.StructType:
    """The columns of a dataclass or named tuple that is nested in the classes `inside`."""
    if record in inside:
        raise ProgramError(
            f"{record.__name__} contains itself, which columns cannot; "
            "keep such a field as bytes (pickled) or str (JSON)"
        )
    try:
        hints = typing.get_type_hints(record)
    except NameError as error:
        raise ProgramError(
            f"an annotation of {record.__name__} names a class that cannot be found ({error}); "
            "define or import that class at the top level of its module"
        ) from error
    if dataclasses.is_dataclass(record):
        names = [field.name for field in dataclasses.fields(record)]
    else:
        names = list(getattr(record, "_fields", ()))
    fields = []
    for name in names:
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
    """Spark's type for an annotation and whether it may be null; None if there is no such type."""
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
        return _TYPE_OF[hint], False
    except (KeyError, TypeError):  # TypeError: some annotations cannot be hashed
        return None


# --- values to Arrow: one codec for each type ----------------------------------------------------

# What conversions raise for values that do not fit. KeyError and AttributeError are not among them:
# they would be mistakes of ours.
_MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError, decimal.DecimalException)

_NoneType = type(None)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_NAIVE_EPOCH = dt.datetime(1970, 1, 1)


_Kinds = tuple[type, ...]


def _check_kinds(values: Sequence[Any], allowed: _Kinds, refused: _Kinds = ()) -> None:
    """Raise a TypeError unless all values are of `allowed` and not `refused` types, or None."""
    for kind in set(map(type, values)):
        if kind is not _NoneType and (not issubclass(kind, allowed) or issubclass(kind, refused)):
            raise TypeError(f"it is of type {kind.__name__}")


class _Codec(ABC):
    """Turns values of one declared type into an Arrow array."""

    def __init__(self, declared: spark.DataType, arrow: pa.DataType, expects: str) -> None:
        self.declared = declared
        self.arrow = arrow
        self.expects = expects
        """What to give, for error messages: "an int"."""

    @abstractmethod
    def convert(self, values: Sequence[Any]) -> pa.Array:
        """The values as an array of type `arrow`; raises one of `_MISFITS` if one does not fit."""

    def parts(self, value: Any) -> Iterable[tuple[str, _Slot, Any]]:
        """The values inside `value`: path from here, slot, value. For error messages."""
        return ()


class _Slot:
    """A place for values, a column or a part of one: a codec, and whether there may be None."""

    def __init__(self, codec: _Codec, nullable: bool) -> None:
        self.codec = codec
        self.nullable = nullable

    def convert(self, values: Sequence[Any]) -> pa.Array:
        array = self.codec.convert(values)
        if array.null_count and not self.nullable:
            raise ValueError("it must not be null")
        return array

    def culprit(self, path: str, value: Any) -> tuple[str, _Slot, Any, Exception] | None:
        """The innermost part of `value` that does not fit; None if all of it does."""
        try:
            self.convert([value])
        except _MISFITS as error:
            for suffix, slot, part in self.codec.parts(value):
                found = slot.culprit(path + suffix, part)
                if found is not None:
                    return found
            return path, self, value, error
        return None


class _Plain(_Codec):
    """Types for which pyarrow takes no value that would lose something."""

    def __init__(
        self,
        declared: spark.DataType,
        arrow: pa.DataType,
        expects: str,
        allowed: _Kinds,
        refused: _Kinds = (),
    ) -> None:
        super().__init__(declared, arrow, expects)
        self._allowed = allowed
        self._refused = refused

    def convert(self, values: Sequence[Any]) -> pa.Array:
        try:
            return pa.array(values, type=self.arrow)
        except _MISFITS:
            self._check(values)  # says more clearly than pyarrow what is wrong
            raise

    def _check(self, values: Sequence[Any]) -> None:
        _check_kinds(values, self._allowed, self._refused)


class _Checked(_Plain):
    """Types for which pyarrow takes too much.

    It takes 1.5 for the integer 1, a datetime for its date, the integer 5 for five microseconds.
    """

    def convert(self, values: Sequence[Any]) -> pa.Array:
        self._check(values)
        return pa.array(values, type=self.arrow)


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


class _Timestamp(_Codec):
    """TIMESTAMP: points in time. Naive datetimes are in the session's time zone."""

    def __init__(self, declared: spark.DataType, zone: dt.tzinfo) -> None:
        super().__init__(declared, pa.timestamp("us", tz="UTC"), "a datetime")
        self._zone = zone

    def convert(self, values: Sequence[Any]) -> pa.Array:
        # The difference of datetimes runs in C, is several times faster than what pyarrow does with
        # aware datetimes, and raises for all but datetimes. The usual batch has no None.
        try:
            return self._from_deltas(list(map(sub, values, repeat(_EPOCH))))
        except TypeError:
            return self._convert_mixed(values)

    @_sparse
    def _convert_mixed(self, values: list[Any]) -> pa.Array:
        _check_kinds(values, (dt.datetime,))
        aware = [value.tzinfo is not None for value in values]
        if not any(aware):
            # Asking the zone, in C, is far faster than making the datetimes aware, and exact:
            # Arrow's assume_timezone knows no summer time after 2037.
            deltas = map(sub, values, repeat(_NAIVE_EPOCH))
            return self._from_deltas(list(map(sub, deltas, map(self._zone.utcoffset, values))))
        if not all(aware):
            values = [v if v.tzinfo is not None else v.replace(tzinfo=self._zone) for v in values]
        return self._from_deltas(list(map(sub, values, repeat(_EPOCH))))

    def _from_deltas(self, deltas: list[dt.timedelta]) -> pa.Array:
        return pa.array(deltas, type=pa.duration("us")).view(self.arrow)


class _TimestampNtz(_Codec):
    """TIMESTAMP_NTZ: what a clock on the wall shows, without a time zone."""

    def convert(self, values: Sequence[Any]) -> pa.Array:
        try:
            return self._convert_present(values)
        except TypeError:
            return self._convert_sparse(values)

    def _convert_present(self, values: Sequence[Any]) -> pa.Array:
        deltas = list(map(sub, values, repeat(_NAIVE_EPOCH)))
        return pa.array(deltas, type=pa.duration("us")).view(self.arrow)

    @_sparse
    def _convert_sparse(self, values: list[Any]) -> pa.Array:
        _check_kinds(values, (dt.datetime,))
        if any(value.tzinfo is not None for value in values):
            raise TypeError("it has a time zone, which would be lost")
        return self._convert_present(values)


class _List(_Codec):
    def __init__(self, declared: spark.ArrayType, element: _Slot) -> None:
        field = pa.field("element", element.codec.arrow, nullable=element.nullable)
        super().__init__(declared, pa.list_(field), "a list")
        self._element = element

    @_sparse
    def convert(self, values: list[Any]) -> pa.Array:
        _check_kinds(values, (list, tuple, set, frozenset, np.ndarray))
        flat = self._element.convert(list(chain.from_iterable(values)))
        return pa.ListArray.from_arrays(_offsets(values), flat, type=self.arrow)

    def parts(self, value: Any) -> Iterable[tuple[str, _Slot, Any]]:
        if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
            for position, part in enumerate(value):
                yield f"[{position}]", self._element, part


class _Map(_Codec):
    def __init__(self, declared: spark.MapType, key: _Slot, value: _Slot) -> None:
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

    def parts(self, value: Any) -> Iterable[tuple[str, _Slot, Any]]:
        if isinstance(value, Mapping):
            for key, part in value.items():
                yield " (a key)", self._key, key
                yield f"[{key!r}]", self._value, part


def _offsets(values: list[Any]) -> pa.Array:
    ends = np.cumsum(np.fromiter(map(len, values), np.int64, len(values)))
    return pa.array(np.concatenate(([0], ends)), type=pa.int32())


class _Struct(_Codec):
    """Structs, and the whole row: splits values that have fields into columns."""

    def __init__(self, declared: spark.StructType, slots: list[_Slot]) -> None:
        self.fields = [
            pa.field(field.name, slot.codec.arrow, field.nullable, _metadata(field))
            for field, slot in zip(declared, slots, strict=True)
        ]
        names = ", ".join(declared.names)
        super().__init__(declared, pa.struct(self.fields), f"a tuple or dict of ({names})")
        self.slots = slots
        self.names = declared.names
        self._names = frozenset(self.names)
        self._required = {field.name for field in declared if not field.nullable}
        self._splitters: dict[type, Callable[[Sequence[Any]], list[Sequence[Any]]]] = {}

    @_sparse
    def convert(self, values: list[Any]) -> pa.Array:
        arrays = self.convert_columns(self.columns(values))
        return pa.StructArray.from_arrays(arrays, fields=self.fields)

    def convert_columns(self, columns: list[Sequence[Any]]) -> list[pa.Array]:
        return [slot.convert(column) for slot, column in zip(self.slots, columns, strict=True)]

    def parts(self, value: Any) -> Iterable[tuple[str, _Slot, Any]]:
        if value is None:
            return
        try:
            columns = self.columns([value])
        except _MISFITS:
            return
        for name, slot, column in zip(self.names, self.slots, columns, strict=True):
            yield f".{name}", slot, column[0]

    def columns(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """One sequence of values for each field; raises a TypeError for values of another shape."""
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
        """Fields with just our names are taken by name, in whatever order; others by position."""
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
    """The value of a field that a dataclass lacks, and that may be null."""


def _metadata(field: spark.StructField) -> dict[bytes, bytes] | None:
    """A field's metadata where Spark looks for it."""
    import json

    if not field.metadata:
        return None
    return {b"SPARK::metadata::json": json.dumps(field.metadata).encode()}


_INTEGERS: dict[type[spark.DataType], tuple[pa.DataType, int]] = {
    spark.ByteType: (pa.int8(), 8),
    spark.ShortType: (pa.int16(), 16),
    spark.IntegerType: (pa.int32(), 32),
    spark.LongType: (pa.int64(), 64),
}

_PLAIN: dict[type[spark.DataType], tuple[pa.DataType, str, _Kinds]] = {
    spark.BooleanType: (pa.bool_(), "a bool", (bool, np.bool_)),
    spark.FloatType: (pa.float32(), "a float", (float, int, np.number)),
    spark.DoubleType: (pa.float64(), "a float", (float, int, np.number)),
    spark.StringType: (pa.string(), "a str", (str,)),
    spark.BinaryType: (pa.binary(), "bytes", (bytes, bytearray, memoryview)),
    spark.NullType: (pa.null(), "None", ()),
}


def _codec(declared: spark.DataType, zone: dt.tzinfo, path: str) -> _Codec:
    """The codec for a declared type; `path` says where it stands, for the error message."""
    kind = type(declared)
    if kind in _INTEGERS:
        arrow, bits = _INTEGERS[kind]
        return _Checked(declared, arrow, f"an int of at most {bits} bits", (int, np.integer), (bool,))
    if kind in _PLAIN:
        return _Plain(declared, *_PLAIN[kind])
    if isinstance(declared, spark.DecimalType):
        precision, scale = declared.precision, declared.scale
        expects = f"a Decimal of at most {precision} digits, {scale} of them after the point"
        kinds = (decimal.Decimal, int)
        return _Plain(declared, pa.decimal128(precision, scale), expects, kinds)
    if isinstance(declared, spark.TimestampType):
        return _Timestamp(declared, zone)
    if isinstance(declared, spark.TimestampNTZType):
        return _TimestampNtz(declared, pa.timestamp("us"), "a datetime without time zone")
    if isinstance(declared, spark.DateType):
        return _Checked(declared, pa.date32(), "a date", (dt.date,), (dt.datetime,))
    if isinstance(declared, spark.TimeType):
        return _Checked(declared, pa.time64("ns"), "a time", (dt.time,))
    if isinstance(declared, spark.DayTimeIntervalType):
        return _Checked(declared, pa.duration("us"), "a timedelta", (dt.timedelta,))
    if isinstance(declared, spark.ArrayType):
        element = _codec(declared.elementType, zone, f"{path}[]")
        return _List(declared, _Slot(element, declared.containsNull))
    if isinstance(declared, spark.MapType):
        key = _codec(declared.keyType, zone, f"{path} (its keys)")
        value = _codec(declared.valueType, zone, f"{path}[]")
        return _Map(declared, _Slot(key, False), _Slot(value, declared.valueContainsNull))
    if isinstance(declared, spark.StructType):
        dots = f"{path}." if path else ""
        return _Struct(
            declared,
            [_Slot(_codec(f.dataType, zone, dots + f.name), f.nullable) for f in declared],
        )
    raise ProgramError(
        f"the column {path} is declared {declared.simpleString()}, which cannot be made from "
        "Python values; declare it STRING or BINARY, and convert it in the DataFrame"
    )


def _zone(name: str) -> dt.tzinfo:
    """The time zone that Spark calls `name`: a region, or an offset such as +01:00 or GMT+1."""
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


# --- the encoder ---------------------------------------------------------------------------------


class RowEncoder:
    """Encodes the records of a stream as Arrow batches with the declared columns.

    A record may be

    - a tuple or list, by position;
    - a `Row`, a named tuple, or a PySpark `Row`: by name if it has just the declared names, in
      whatever order, else by position;
    - a dict, by name; a key that is not declared is an error, and a missing one is null;
    - a dataclass instance, by name, with the same rules;
    - if there is just one column: the bare value. Of tuples, lists, dicts and dataclasses, only a
      list for an ARRAY column and a dict for a MAP column count as bare.

    The same holds for values of STRUCT columns (they are never bare). Values have to be of the
    declared types; ints may stand for floats and decimals, aware datetimes may be in any time zone,
    and naive ones are taken in the session's where the type has one.

    It is fastest when all records of a batch are of one type.

    Args:
        schema: The declared columns, at least one.
        operator: The name of the operator whose records these are, for error messages.
        timezone: The session's time zone, as in `spark.sql.session.timeZone`.

    Raises:
        ProgramError: A column's type cannot be made from Python values, or there are no columns.
        ConfigurationError: The time zone is not known.
    """

    def __init__(self, schema: spark.StructType, operator: str, timezone: str = "UTC") -> None:
        if not schema.fields:
            raise ProgramError("no columns are declared; declare at least one")
        self._arguments = (schema, operator, timezone)
        self._operator = operator
        self._row = _Struct(
            schema,
            [_Slot(_codec(f.dataType, _zone(timezone), f.name), f.nullable) for f in schema],
        )
        self.arrow_schema: pa.Schema = pa.schema(self._row.fields)
        """The columns as Spark's `mapInArrow` wants them; timestamps are in UTC."""
        self._single = len(schema.fields) == 1
        self._composite: tuple[type, ...] = (tuple, list, dict)
        if self._single and isinstance(schema.fields[0].dataType, spark.ArrayType):
            self._composite = (tuple, dict)
        if self._single and isinstance(schema.fields[0].dataType, spark.MapType):
            self._composite = (tuple, list)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return RowEncoder, self._arguments

    def encode(self, values: list[Any]) -> pa.RecordBatch:
        """The records as one batch, in their order.

        Raises:
            TypeMismatchError: A record or one of its values does not fit.
        """
        try:
            arrays = self._row.convert_columns(self._columns(values))
        except _MISFITS as error:
            mismatch = self._explained(values, error)
            mismatch.at(operator=self._operator)
            raise mismatch from error
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)

    def _columns(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        if self._single:
            bare = {kind: self._is_bare(kind) for kind in set(map(type, values))}
            if all(bare.values()):
                return [values]
            if any(bare.values()):
                values = [(value,) if bare[type(value)] else value for value in values]
        return self._row.columns(values)

    def _is_bare(self, kind: type) -> bool:
        return not (issubclass(kind, self._composite) or dataclasses.is_dataclass(kind))

    def _explained(self, values: list[Any], cause: Exception) -> TypeMismatchError:
        """The error for the first value that does not fit."""
        for value in values:
            try:
                columns = self._columns([value])
            except _MISFITS as error:
                return TypeMismatchError(
                    f"operator {self._operator!r}: the record {shorten_record(value)} does not fit the declared "
                    f"columns: {error}; give {self._row.expects}, or declare other columns"
                )
            for name, slot, column in self._slots(columns):
                found = slot.culprit(name, column[0])
                if found is not None:
                    mismatch = self._misfit(*found)
                    mismatch.at(record=value)
                    return mismatch
        return TypeMismatchError(
            f"operator {self._operator!r}: {len(values)} records do not fit the declared columns: {cause}"
        )

    def _slots(self, columns: list[Sequence[Any]]) -> Iterator[tuple[str, _Slot, Sequence[Any]]]:
        return zip(self._row.names, self._row.slots, columns, strict=True)

    def _misfit(self, path: str, slot: _Slot, value: Any, error: Exception) -> TypeMismatchError:
        declared = slot.codec.declared.simpleString() + ("" if slot.nullable else " not null")
        return TypeMismatchError(
            f"operator {self._operator!r}: the field {path!r} is declared {declared}, but the value "
            f"{shorten(value)} does not fit: {error}; give {slot.codec.expects}, or declare the "
            "field otherwise"
        )
