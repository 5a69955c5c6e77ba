"""Columns of DataFrames whose values Python cannot represent, cannot hash, or compares in another way than Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pillarbox._errors import ProgramError
from pillarbox._types.schema import is_collated

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


def check_readable(schema: StructType, asked_by: str) -> None:
    for field in schema.fields:
        if _has_months(field.dataType):
            raise ProgramError(
                f"{asked_by}: the column {field.name!r} is {field.dataType.simpleString()}, but Python has no"
                " type for intervals of months: drop it, or cast it to STRING"
            )
        if _has_unhashable_keys(field.dataType):
            raise ProgramError(
                f"{asked_by}: the column {field.name!r} is {field.dataType.simpleString()}, but Python cannot"
                " hash its maps' keys: drop it, or convert it with map_entries()"
            )


def _has_months(kind: DataType) -> bool:
    from pyspark.sql.types import YearMonthIntervalType

    return isinstance(kind, YearMonthIntervalType) or any(map(_has_months, _parts_of(kind)))


def has_collation(kind: DataType) -> bool:
    return is_collated(kind) or any(map(has_collation, _parts_of(kind)))


def check_no_collation(kind: DataType, what: str) -> None:
    if has_collation(kind):
        raise ProgramError(
            f"{what} is {kind.simpleString()}, but keys are compared without a collation: cast it to STRING, after"
            " lower() if its collation ignores case"
        )


def _has_unhashable_keys(kind: DataType) -> bool:
    from pyspark.sql.types import MapType

    if isinstance(kind, MapType) and not can_be_key(kind.keyType):
        return True
    return any(map(_has_unhashable_keys, _parts_of(kind)))


def _parts_of(kind: DataType) -> Sequence[DataType]:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        return [field.dataType for field in kind.fields]
    if isinstance(kind, MapType):
        return [kind.keyType, kind.valueType]
    return [kind.elementType] if isinstance(kind, ArrayType) else []


def can_be_key(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType

    if isinstance(kind, StructType):
        return all(can_be_key(field.dataType) for field in kind)
    return not isinstance(kind, (ArrayType, MapType, VariantType))
