"""Checks the arguments of columnar window aggregates, and builds them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pyspark.sql.types as spark

from pillarbox._datastream.checks.schemas import check_column_names, check_key_type, encoder_of, known_schema
from pillarbox._datastream.streams.data_stream import DataStream
from pillarbox._errors import ProgramError, shorten
from pillarbox._graph.transformations import EventTimeUse
from pillarbox._operators.columnar.accumulators import is_compared
from pillarbox._operators.columnar.aggregates import ColumnAggregate
from pillarbox._operators.columnar.key_columns import grouped_fields
from pillarbox._operators.columnar.partials import ALL, PartialColumns
from pillarbox._operators.columnar.pre_aggregate import PreAggregateOperator
from pillarbox._operators.columnar.program import ColumnarProgram
from pillarbox._operators.columnar.session_operator import ColumnarSessionOperator
from pillarbox._operators.columnar.window_operator import ColumnarWindowOperator
from pillarbox._operators.frame.operator import OperatorFactory
from pillarbox._operators.windowing.api.session_windows import EventTimeSessionWindows
from pillarbox._operators.windowing.api.triggers import EventTimeTrigger
from pillarbox._operators.windowing.panes import panes_of

if TYPE_CHECKING:
    from pillarbox._datastream.streams.keyed_stream import KeyedStream
    from pillarbox._datastream.windows.windowed import WindowsOfOneStream

_INSTEAD = "use an AggregateFunction instead, which works on Python objects"


def _misfit(windows: WindowsOfOneStream[Any, Any]) -> str | None:
    """Return why windows with these options cannot have column aggregates, or None."""
    assigner = windows._assigner
    if type(assigner) is not EventTimeSessionWindows and (panes_of(assigner) is None or not assigner.is_event_time()):
        return f"need tumbling, sliding, cumulating or session windows in event time, not {assigner!r}"
    if type(windows._trigger) is not EventTimeTrigger:
        return f"fire at the end of a window, not by {windows._trigger!r}"
    if windows._evictor is not None:
        return f"keep no elements for evictor({shorten(windows._evictor)}) to remove"
    if windows._late_tag is not None:
        return "only count late rows (metric late_records_dropped), and cannot send them to a side output"
    if windows._error_tag is not None:
        return "call no function that could raise, so side_output_errors() has no effect"
    return None


def aggregate_columns(windows: WindowsOfOneStream[Any, Any], aggregates: Mapping[str, Any]) -> DataStream[Any]:
    misfit = _misfit(windows)
    if misfit is not None:
        raise ProgramError(f"column aggregates {misfit}: {_INSTEAD}")
    stream: KeyedStream[Any, Any] = windows._stream
    assigner, by_key = windows._assigner, windows._of_keys
    for name, aggregate in aggregates.items():
        if not isinstance(aggregate, ColumnAggregate):
            raise ProgramError(
                f"aggregate({name}=...) takes a column aggregate, such as sum_('amount'), not {shorten(aggregate)}"
            )
    schema = _schema(stream)
    keys = [spark.StructField(ALL, spark.LongType(), nullable=False)]
    if by_key:
        keys = [schema[name] for name in _key_columns(stream, schema)]
    column_names = dict.fromkeys(column for aggregate in aggregates.values() for column in aggregate.columns)
    for name, aggregate in aggregates.items():
        for column in aggregate.columns:
            if column not in schema.names:
                raise ProgramError(
                    f"aggregate({name}={aggregate!r}): there is no column {column!r}; the columns are"
                    f" {', '.join(schema.names)}"
                )
    grouped = [field.name for field in grouped_fields(keys)]
    named = {key.name for key in keys}
    check_column_names([*grouped, *(name for name in column_names if name not in named)], "key_by() and aggregate()")
    inputs = [schema[name] for name in column_names if name not in grouped]
    sessions = isinstance(assigner, EventTimeSessionWindows)
    columns = PartialColumns(spark.StructType(keys), spark.StructType(inputs), dict(aggregates), sessions)
    results = columns.result_type()
    check_column_names(results.names, "aggregate()")
    name = f"window.aggregate: {', '.join(aggregates)}"
    program = ColumnarProgram(assigner, columns, windows._lateness, encoder_of(stream, schema, name))
    env = stream._env
    partials = DataStream[Any](env, stream._plain_step())._apply(
        "window.partials", None, OperatorFactory(partial(PreAggregateOperator, program=program))
    )
    keyed = partials.key_by(grouped)
    keyed._keying.nan_is_key = True
    if by_key and stream._step.key_types is not None:  # type: ignore[attr-defined]
        keyed._step.key_types = [field.dataType.simpleString() for field in columns.grouped()]  # type: ignore[attr-defined]
    kind = ColumnarSessionOperator if sessions else ColumnarWindowOperator
    make = partial(kind, keying=keyed._keying, program=program)
    factory = OperatorFactory(make, keyed=True)
    return keyed._apply("window.aggregate", None, factory, results, event_time=EventTimeUse.TIMESTAMPS).name(name)


def _schema(stream: KeyedStream[Any, Any]) -> spark.StructType:
    schema = known_schema(stream._plain_step())
    if schema is None:
        raise ProgramError(
            f"column aggregates need declared columns, but {stream._plain_step().name!r} declares none: put"
            " the window after from_dataframe(), or declare output_type= of the previous function (type_info= of a"
            " collection)"
        )
    return schema


def _key_columns(stream: KeyedStream[Any, Any], schema: spark.StructType) -> tuple[str, ...]:
    keying = stream._keying
    if keying.columns is None:
        raise ProgramError(
            "column aggregates need one or several columns as key: key_by('card') or key_by('card', 'shop'), not a"
            " function"
        )
    for name in keying.columns:
        if name not in schema.names:
            raise ProgramError(f"key_by(): there is no column {name!r}; the columns are {', '.join(schema.names)}")
        kind = schema[name].dataType
        if not _is_grouped(kind):
            raise ProgramError(
                f"key_by(): column aggregates cannot group by {name!r}, which is {kind.simpleString()}: key by"
                " columns extracted from it, or cast it, for example to STRING"
            )
    check_key_type(keying, schema)
    return keying.columns


def _is_grouped(kind: spark.DataType) -> bool:
    if isinstance(kind, spark.StructType):
        return all(_is_grouped(field.dataType) for field in kind.fields)
    return is_compared(kind)
