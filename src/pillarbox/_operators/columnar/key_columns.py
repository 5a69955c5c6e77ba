"""Converts keys of columnar aggregates to columns that Arrow can group by.

A struct becomes several columns. For example, ``part: STRUCT<a: INT, b: STRING>`` becomes ``part?`` (whether it is not
null), ``part.a`` and ``part.b``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.types as spark

from pillarbox._operators.windowing.by_key import with_one_zero


def grouped_fields(fields: Iterable[spark.StructField]) -> Iterator[spark.StructField]:
    for field in fields:
        if isinstance(field.dataType, spark.StructType):
            yield spark.StructField(f"{field.name}?", spark.BooleanType())
            for part in field.dataType.fields:
                yield from grouped_fields([spark.StructField(f"{field.name}.{part.name}", part.dataType)])
        else:
            yield field


def grouped_arrays(name: str, key: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """Yield a key's (name, column) pairs. In float columns, -0.0 becomes 0.0, and NaNs become equal."""
    kind = key.type
    if pa.types.is_struct(kind):
        yield f"{name}?", key.is_valid()
        for index, part in enumerate(key.flatten()):
            yield from grouped_arrays(f"{name}.{kind.field(index).name}", part)
    else:
        yield name, with_one_zero(key)


def key_array(name: str, kind: pa.DataType, columns: Mapping[str, pa.Array]) -> pa.Array:
    if not pa.types.is_struct(kind):
        return columns[name]
    valid = columns[f"{name}?"]
    fields = [kind.field(index) for index in range(kind.num_fields)]
    parts = [key_array(f"{name}.{field.name}", field.type, columns) for field in fields]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=pc.invert(valid))
