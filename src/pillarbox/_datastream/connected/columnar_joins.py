"""Checks the arguments of columnar interval joins, and builds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyspark.sql.types as spark

from pillarbox._datastream.checks.schemas import check_column, check_column_names, encoder_of, known_schema
from pillarbox._errors import ProgramError, shorten
from pillarbox._graph.transformations import (
    DataFrameSource,
    EventTimeUse,
    KeyByTransformation,
    OperatorTransformation,
    PartitionTransformation,
    Transformation,
)
from pillarbox._operators.columnar.accumulators import arrow_type
from pillarbox._operators.columnar.joins.join_operator import ColumnarJoin, ColumnarJoinOperator
from pillarbox._operators.columnar.joins.join_side import JoinSide
from pillarbox._operators.frame.operator import OperatorFactory
from pillarbox._operators.functions.output_tag import OutputTag
from pillarbox._operators.joins.interval_join import Interval
from pillarbox._task.network.partitioner import KeyGroupPartitioner
from pillarbox._types.schema import is_collated

if TYPE_CHECKING:
    from pillarbox._datastream.streams.data_stream import DataStream
    from pillarbox._datastream.streams.keyed_stream import KeyedStream

_NO_KEYS = (spark.ArrayType, spark.MapType, spark.VariantType)
_INSTEAD = "use process() with a ProcessJoinFunction, which works on Python objects"


def join_columns(
    left: KeyedStream[Any, Any],
    right: KeyedStream[Any, Any],
    interval: Interval,
    how: str,
    suffixes: Any,
    late_tags: tuple[OutputTag[Any] | None, OutputTag[Any] | None],
) -> DataStream[Any]:
    if how not in ("inner", "left"):
        raise ProgramError(f'interval_join(): how= must be "inner" or "left", not {shorten(how)}')
    left_side, right_side = _sides(left, right, late_tags, joins_nulls=False)
    shared = {key for key, same in zip(left_side.keys, right_side.keys) if key == same}
    names = _names(left_side, right_side, shared, suffixes)
    join = ColumnarJoin(left_side, right_side, interval, how == "left", tuple(sorted(shared)), names)
    left, right = (_with_nan_as_key(stream) for stream in (left, right))
    make = partial(ColumnarJoinOperator, keying=left._keying, join=join)
    factory = OperatorFactory(make, keyed=True, sides_are_fixed=True)
    return left._apply(
        "interval_join.columns",
        None,
        factory,
        join.result_type(),
        event_time=EventTimeUse.TIMESTAMPS,
        more_inputs=[right._step],
    )


def _with_nan_as_key(stream: KeyedStream[Any, Any]) -> KeyedStream[Any, Any]:
    """Return a copy of the stream that accepts NaN as a key, for this join only."""
    keying = stream._keying.with_nan()
    assert isinstance(stream._step, KeyByTransformation)
    return type(stream)(stream._env, replace(stream._step, partitioner=KeyGroupPartitioner(keying)), keying)


def sides_of_rows(
    left: KeyedStream[Any, Any],
    right: KeyedStream[Any, Any],
    late_tags: tuple[OutputTag[Any] | None, OutputTag[Any] | None],
) -> tuple[JoinSide, JoinSide] | None:
    """Return both sides of a columnar join, or None if a stream's records are not DataFrame rows."""
    if not all(_is_untouched(stream._plain_step()) for stream in (left, right)):
        return None
    try:
        sides = _sides(left, right, late_tags, joins_nulls=True)
    except ProgramError:
        return None
    return None if any(side.encoder is None for side in sides) else sides


def _is_untouched(step: Transformation) -> bool:
    while isinstance(step, PartitionTransformation) or (
        isinstance(step, OperatorTransformation) and step.factory.keeps_columns
    ):
        step = step.inputs[0]
    return isinstance(step, DataFrameSource)


def _sides(
    left: KeyedStream[Any, Any],
    right: KeyedStream[Any, Any],
    late_tags: tuple[OutputTag[Any] | None, OutputTag[Any] | None],
    *,
    joins_nulls: bool,
) -> tuple[JoinSide, JoinSide]:
    sides = []
    for stream, which, tag in ((left, "left", late_tags[0]), (right, "right", late_tags[1])):
        schema = _schema(stream, which)
        encoder = encoder_of(stream, schema, stream._plain_step().name)
        sides.append(JoinSide(schema, _keys(stream, schema, which), encoder, tag, joins_nulls))
    left_side, right_side = sides
    _check_keys(left_side, right_side)
    return left_side, right_side


def _schema(stream: KeyedStream[Any, Any], which: str) -> spark.StructType:
    schema = known_schema(stream._plain_step())
    if schema is None:
        raise ProgramError(
            f"interval_join(): columns() needs declared columns, but {stream._plain_step().name!r}, on the"
            f" {which} side, declares none: join a from_dataframe() stream, declare output_type= of the previous"
            f" function (type_info= of a collection), or {_INSTEAD}"
        )
    check_column_names(schema.names, f"interval_join(), the {which} side")
    for field in schema.fields:
        try:
            arrow_type(field.dataType)
        except ProgramError as error:
            raise ProgramError(f"interval_join(), column {field.name!r} of the {which} side: {error}") from None
    return schema


def _keys(stream: KeyedStream[Any, Any], schema: spark.StructType, which: str) -> tuple[str, ...]:
    keying = stream._keying
    if keying.columns is None or keying.key_type is not None:
        raise ProgramError(
            f"interval_join(): columns() needs columns as keys, without key_type=: key the {which} side as in"
            f" key_by('card') or key_by(['card', 'shop']), or {_INSTEAD}"
        )
    for name in keying.columns:
        check_column(name, schema.names, f"key_by() of the {which} side: there is no column {name!r}")
        if not _can_be_compared(schema[name].dataType):
            kind = schema[name].dataType.simpleString()
            raise ProgramError(
                f"key_by() of the {which} side: columns() cannot join by {name!r}, which is {kind}: key by columns"
                " extracted from it, or cast it, for example to STRING"
            )
    return keying.columns


def _can_be_compared(kind: spark.DataType) -> bool:
    if isinstance(kind, spark.StructType):
        return all(_can_be_compared(field.dataType) for field in kind.fields)
    return not isinstance(kind, _NO_KEYS) and not is_collated(kind)


def _check_keys(left: JoinSide, right: JoinSide) -> None:
    """Raise unless both sides have the same key types. Integer sizes may differ."""
    if len(left.keys) != len(right.keys):
        raise ProgramError(
            f"interval_join(): the left side is keyed by {', '.join(left.keys)}, the right side by"
            f" {', '.join(right.keys)}: key both by the same number of columns"
        )
    for left_key, right_key in zip(left.keys, right.keys):
        kinds = [left.columns[left_key].dataType, right.columns[right_key].dataType]
        if not all(isinstance(kind, spark.IntegralType) for kind in kinds) and _compared_as(kinds[0]) != _compared_as(
            kinds[1]
        ):
            raise ProgramError(
                f"interval_join(): the key {left_key!r} of the left side is {kinds[0].simpleString()}, but"
                f" {right_key!r} of the right side is {kinds[1].simpleString()}: cast one of them"
            )


def _compared_as(kind: spark.DataType) -> Any:
    if isinstance(kind, spark.StructType):
        return [(field.name, _compared_as(field.dataType)) for field in kind.fields]
    return type(kind) if isinstance(kind, spark.DayTimeIntervalType) else kind


def _names(left: JoinSide, right: JoinSide, shared: set[str], suffixes: Any) -> tuple[str, ...]:
    ours: list[str] = left.columns.names
    theirs = [name for name in right.columns.names if name not in shared]
    both = [name for name in ours if name in theirs]
    if suffixes is None:
        if both:
            raise ProgramError(
                f'interval_join(): both sides have a column {both[0]!r}: rename one, or set suffixes=("", "_right")'
            )
        return (*ours, *theirs)
    is_pair = isinstance(suffixes, Sequence) and not isinstance(suffixes, str) and len(suffixes) == 2
    if not is_pair or not all(isinstance(suffix, str) for suffix in suffixes):
        raise ProgramError(
            f'interval_join(): suffixes= must be two strings, such as ("", "_right"), not {shorten(suffixes)}'
        )
    names = [name + suffix if name in both else name for side, suffix in zip((ours, theirs), suffixes) for name in side]
    check_column_names(names, "interval_join(): results")
    return tuple(names)
