"""Checks columns when a program is built, as far as the previous step's columns are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pillarbox._errors import ConfigurationError, ProgramError
from pillarbox._graph.transformations import (
    DataFrameSource,
    OperatorTransformation,
    PartitionTransformation,
    SourceTransformation,
    Transformation,
    UnionTransformation,
)
from pillarbox._operators.frame.keying import Keying
from pillarbox._types.readable import can_be_key, check_no_collation
from pillarbox._types.row_encoder import RowEncoder
from pillarbox._types.schema import SchemaLike, resolve_schema
from pillarbox._types.type_information import TypeInformation

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pillarbox._datastream.streams.keyed_stream import KeyedStream
    from pillarbox._datastream.streams.stream import Stream


def check_column_names(names: Sequence[str], where: str) -> None:
    doubled = next((name for name, times in Counter(names).items() if times > 1), None)
    if doubled is not None:
        raise ProgramError(f"{where}: {names.count(doubled)} columns have the name {doubled!r}: rename them")


def check_column(name: object, columns: Sequence[str], otherwise: str) -> None:
    if name not in columns:
        raise ProgramError(f"{otherwise}; the columns are {', '.join(columns)}")


def check_timestamp_column(step: Transformation, column: str | None) -> None:
    step = _source_of(step)
    if column is None or not isinstance(step, DataFrameSource):
        return
    from pyspark.sql.types import DateType, IntegerType, LongType, TimestampNTZType, TimestampType

    schema = step.dataframe.schema
    check_column(column, schema.names, f"there is no timestamp column {column!r} in {step.name!r}")
    kind = schema[column].dataType
    if not isinstance(kind, (TimestampType, TimestampNTZType, DateType, LongType, IntegerType)):
        raise ProgramError(
            f"column {column!r} of {step.name!r} is {kind.simpleString()}, which is not a timestamp: use a"
            " TIMESTAMP, DATE or BIGINT (epoch milliseconds) column, or a function as timestamp assigner"
        )


def check_key_columns(step: Transformation, columns: Sequence[str] | None) -> None:
    step = _source_of(step)
    if columns is None or not isinstance(step, SourceTransformation) or step.columns is None:
        return
    for column in columns:
        check_column(column, step.columns, f"key_by(): there is no column {column!r} in {step.name!r}")
        kind = step.dataframe.schema[column].dataType if isinstance(step, DataFrameSource) else None
        if kind is None:
            continue
        if not can_be_key(kind):
            raise ProgramError(
                f"key_by(): the column {column!r} of {step.name!r} is {kind.simpleString()}, which is not hashable:"
                " key by a function that returns a string, a number, a date, or a tuple of these"
            )
        check_no_collation(kind, f"key_by(): the column {column!r} of {step.name!r}")


def check_field(step: Transformation, field: int | str, method: str) -> None:
    source = _source_of(step)
    columns = source.columns if isinstance(source, SourceTransformation) else None
    if columns is not None and (isinstance(field, str) or field >= len(columns)):
        check_column(field, columns, f"{method}(): there is no column {field!r} in {source.name!r}")


def _source_of(step: Transformation) -> Transformation:
    while isinstance(step, PartitionTransformation) or (
        isinstance(step, OperatorTransformation) and step.factory.keeps_records
    ):
        step = step.inputs[0]
    return step


def key_types(step: Transformation, keying: Keying) -> list[str] | None:
    if keying.key_type is not None:
        return keying.declared_types
    columns = keying.columns
    if columns is None:
        return None
    try:
        schema = known_schema(step)
    except (ProgramError, ConfigurationError):
        return None  # a type without columns, or a DDL string without a session to parse it
    if schema is None or not set(columns) <= set(schema.names):
        return None
    return [schema[column].dataType.simpleString() for column in columns]


def check_key_type(keying: Keying, schema: StructType) -> None:
    columns = keying.columns
    if keying.key_type is None or columns is None:
        return
    declared = keying.key_type.data_type if len(columns) == 1 else keying.declared_types
    kinds = [schema[column].dataType for column in columns]
    if declared == (kinds[0] if len(kinds) == 1 else [kind.simpleString() for kind in kinds]):
        return
    names_and_types = ", ".join(f"{column!r} {kind.simpleString().upper()}" for column, kind in zip(columns, kinds))
    raise ProgramError(
        f"key_by(): column aggregates cannot convert keys, but key_type={keying.key_type} is not"
        f" the type of the key's columns ({names_and_types}): drop key_type=, or cast the columns first"
    )


def declared_type(step: Transformation) -> TypeInformation[Any] | None:
    declared = _source_of(step).output_type
    return declared if isinstance(declared, TypeInformation) else None


def known_schema(step: Transformation) -> StructType | None:
    """Return the columns of a step's records, or None if they are unknown."""
    schemas: list[StructType | None] = []
    pending, seen = [step], set[int]()
    while pending:
        step = _source_of(pending.pop())
        if id(step) in seen:
            continue  # a union may contain the same stream several times
        seen.add(id(step))
        if isinstance(step, DataFrameSource):
            schemas.append(step.dataframe.schema)
        elif isinstance(step, UnionTransformation):
            pending += reversed(step.inputs)
        else:
            schemas.append(None if step.output_type is None else resolve_schema(step.output_type))
    return schemas[0] if schemas.count(schemas[0]) == len(schemas) else None


def encoder_of(stream: KeyedStream[Any, Any], schema: StructType, operator: str) -> RowEncoder | str:
    """Return an encoder of a stream's records to columns, or the reason if Python cannot represent a column's type."""
    try:
        return RowEncoder(schema, operator, stream._env._runtime.time_zone)
    except ProgramError as error:
        return str(error)


def encoder_of_output(stream: Stream[Any], schema: SchemaLike | None, output: str, asked_by: str) -> RowEncoder:
    columns = declared_columns(stream._step, schema, asked_by)
    check_column_names(columns.names, f"output {output!r}")
    declared = stream._step.output_type if schema is None else schema
    bare = not declared.names if isinstance(declared, TypeInformation) else None
    return RowEncoder(columns, stream._plain_step().name, stream._env._runtime.time_zone, bare)


def declared_columns(step: Transformation, schema: SchemaLike | None, asked_by: str) -> StructType:
    if schema is None and step.output_type is None:
        raise ProgramError(
            f"{asked_by} needs columns, but {step.name!r} declares no output_type: pass a schema, such as 'card STRING'"
        )
    try:
        return resolve_schema(step.output_type if schema is None else schema)
    except ProgramError as error:
        raise ProgramError(f"{asked_by}: {error}") from None
