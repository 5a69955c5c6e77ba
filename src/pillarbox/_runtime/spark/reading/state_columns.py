"""State as columns: names, types, and Arrow arrays.

If an operator's state is plain (docs/security.md), columns have the types that its states declare. Otherwise, columns
are VARIANT, which Spark parses from JSON. In Arrow, a VARIANT is a struct that contains JSON, or a pickle if JSON
cannot express the value.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark.sql.types as spark

from pillarbox._errors import TypeMismatchError, shorten
from pillarbox._rows import Row
from pillarbox._state.chunks.head import LogHead
from pillarbox._state.inspect.view import ViewedRows
from pillarbox._state.keys.key_note import declared_key
from pillarbox._state.savepoint.manifest import unique_name
from pillarbox._state.savepoint.timer_column import TIMERS, encode_timers
from pillarbox._state.slots import state_name
from pillarbox._state.types.opaque import pickled
from pillarbox._state.types.opaque_records import with_fields
from pillarbox._state.types.type_names import TypeName, or_none, parse
from pillarbox._types.codecs import MISFITS, Slot, codec_for, time_zone
from pillarbox._types.scalars import SCALARS

_VARIANT = pa.struct([("json", pa.string()), ("pickled", pa.binary())])
_SPARK_VARIANT = spark.StructType().add("json", "string").add("pickled", "binary")
_SPARK_TIMERS = spark.ArrayType(
    spark.StructType().add("service", "string").add("domain", "string").add("timestamp", "long")
)
# Values with longer JSON are pickled, because Spark limits the size of variants.
_LONGEST_JSON = 8 * 1024 * 1024


@dataclass(frozen=True)
class StateColumn:
    """A column of an operator's state table.

    Attributes:
        name: unique in the table, ignoring case.
        type: its Spark type, or None for VARIANT.
        name_of_type: the type's name in the heads (metadata) of state logs.
    """

    name: str
    slots: tuple[str, ...]
    type: spark.DataType | None
    name_of_type: str | None = None


def type_of_name(name: str) -> spark.DataType | None:
    """Return the Spark type for a type's name in a state log's head, or None."""
    parsed = parse(name)
    return _spark_type(parsed) if parsed.is_plain else None


def _spark_type(name: TypeName) -> spark.DataType:
    if name.kind in SCALARS:
        return SCALARS[name.kind].spark
    parts = list(map(_spark_type, name.parts))
    if name.kind == "LIST":
        return spark.ArrayType(parts[0])
    if name.kind == "MAP":
        return spark.MapType(parts[0], parts[1])
    return _struct(name.names or (), parts)


def _struct(names: Sequence[str], parts: Sequence[spark.DataType]) -> spark.StructType:
    return spark.StructType([spark.StructField(name, part) for name, part in zip(names, parts)])


def key_type(heads: Iterable[LogHead], parse: Callable[[str], spark.DataType]) -> spark.DataType | None:
    """Return an operator's key type, or None if it is unknown or differs between inputs."""
    types, names = declared_key(head.key for head in heads)
    kinds = list(map(parse, types))
    if len(kinds) < 2:
        return kinds[0] if kinds else None
    if len(names) != len(kinds) or len({name.lower() for name in names}) < len(names):
        names = [f"f{index}" for index in range(len(kinds))]
    return _struct(names, kinds)


def state_columns(heads: Sequence[LogHead], reserved: Iterable[str]) -> list[StateColumn]:
    slots: dict[str, dict[str, None]] = {}
    types: dict[str, set[str | None]] = {}
    for head in heads:
        for lead, name, kind in head.slots():
            if kind != "timers":
                slots.setdefault(state_name(name), {})[name] = None
                types.setdefault(state_name(name), set()).add(head.types.get(lead + name))
    used = {name.lower() for name in reserved}
    columns = []
    for state, names in slots.items():
        declared_types = types[state]
        plain = declared_types.pop() if len(declared_types) == 1 else None
        declared = type_of_name(plain or "")
        name_of_type = None if declared is None else plain
        columns.append(StateColumn(unique_name(state, used), tuple(names), declared, name_of_type))
    return columns


class StateColumnsEncoder:
    """Encodes an operator's rows as Arrow batches."""

    def __init__(self, operator: str, key: spark.DataType | None, states: list[StateColumn], timezone: str) -> None:
        self._operator = operator
        self._states = states
        zone = time_zone(timezone)
        self._key = _Column("key", key, zone)
        self._namespace = _Column("namespace", None, zone)
        self._columns = [_Column(column.name, column.type, zone, column.name_of_type) for column in states]
        fields = [(column.name, column.arrow) for column in (self._key, self._namespace, *self._columns)]
        self.schema: pa.Schema = pa.schema([*fields, ("timers", TIMERS), ("subtask", pa.int32())])
        self.types: dict[str, spark.DataType] = {
            **{column.name: column.spark for column in (self._key, self._namespace, *self._columns)},
            "timers": _SPARK_TIMERS,
            "subtask": spark.IntegerType(),
        }

    @property
    def variants(self) -> list[str]:
        return [column.name for column in (self._key, self._namespace, *self._columns) if column.is_variant]

    def encode(self, rows: ViewedRows, subtask: int) -> pa.RecordBatch:
        indices = {name: index for index, (name, _) in enumerate(rows.layout, 1)}
        count, keys = len(rows.keys), rows.keys
        arrays = [self._convert(self._key, keys, keys), self._convert(self._namespace, rows.namespaces, keys)]
        for state, column in zip(self._states, self._columns):
            index = next((indices[name] for name in state.slots if name in indices), None)
            values = None if index is None else [row[index] for row in rows.rows]
            arrays.append(self._convert(column, values, keys))
        arrays.append(encode_timers(rows.layout, rows.rows, by_slot=True))
        arrays.append(pa.array(np.full(count, subtask, np.int32)))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _convert(self, column: _Column, values: list[Any] | None, keys: list[Any]) -> pa.Array:
        if values is None:
            return pa.nulls(len(keys), column.arrow)
        try:
            return column.convert(values)
        except MISFITS:
            for key, value in zip(keys, values):
                try:
                    column.convert([value])
                except MISFITS as error:
                    raise TypeMismatchError(
                        f"operator {self._operator!r}, key {shorten(key)}: column {column.name!r} is {shorten(value)},"
                        f" which does not fit {column.declared}: {error}"
                    ) from error
            raise


class _Column:
    def __init__(
        self, name: str, declared: spark.DataType | None, zone: dt.tzinfo, name_of_type: str | None = None
    ) -> None:
        self.name = name
        # Values are unpickled without their classes.
        self._with_fields = None if name_of_type is None else with_fields(parse(name_of_type))
        self.is_variant = declared is None
        self.declared = "VARIANT" if declared is None else declared.simpleString()
        self.spark: spark.DataType = _SPARK_VARIANT if declared is None else declared
        self._slot = None if declared is None else Slot(codec_for(declared, zone, name), True)
        self.arrow: pa.DataType = _VARIANT if self._slot is None else self._slot.codec.arrow

    def convert(self, values: list[Any]) -> pa.Array:
        if self._slot is None:
            return _variants(values)
        return self._slot.convert(
            values if self._with_fields is None else [or_none(self._with_fields, value) for value in values]
        )


def _variants(values: list[Any]) -> pa.StructArray:
    texts = list(map(as_json, values))
    pickles = [None if text is not None or value is None else pickled(value) for text, value in zip(texts, values)]
    return pa.StructArray.from_arrays(
        [pa.array(texts, pa.string()), pa.array(pickles, pa.binary())], fields=[*_VARIANT]
    )


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def as_json(value: Any) -> str | None:
    kind = type(value)
    if value is None:
        return None
    if kind is int and -(1 << 63) <= value < 1 << 63:
        return str(value)
    try:
        text = _encode(value if kind is str else _plain(value))
        text.encode()
    except (TypeError, ValueError, RecursionError):  # ValueError includes UnicodeEncodeError
        return None
    return text if len(text) <= _LONGEST_JSON else None


def _plain(value: Any) -> Any:
    kind = type(value)
    if value is None or kind is str or kind is bool:
        return value
    if kind is int:
        return value if abs(value) < 10**38 else str(value)
    if kind is float:
        return value if math.isfinite(value) else str(value)
    if kind is list or kind is tuple:
        return list(map(_plain, value))
    if kind is dict:
        if all(type(key) is str for key in value):
            return {key: _plain(item) for key, item in value.items()}
        if all(type(key) is int for key in value):
            return {str(key): _plain(item) for key, item in value.items()}
        return [[_plain(key), _plain(item)] for key, item in value.items()]
    if kind is set or kind is frozenset:
        return sorted(map(_plain, value), key=_encode)
    if isinstance(value, Row):
        return {name: _plain(item) for name, item in zip(value._fields, value)}
    if kind is dt.datetime or kind is dt.date or kind is dt.time:
        return value.isoformat()
    if kind is dt.timedelta:
        return value.total_seconds()
    if kind is Decimal:
        return str(value)
    raise TypeError(kind)
