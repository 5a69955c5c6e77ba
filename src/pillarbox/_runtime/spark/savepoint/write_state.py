"""``write_state``: writes a DataFrame as an operator's state in a savepoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import pillarbox
from pillarbox._errors import CheckpointMismatchError, ProgramError, TypeMismatchError, shorten
from pillarbox._operators.stateful_processor.spark_state import SparkStateTable
from pillarbox._runtime.spark.failures import unwrapped_failures
from pillarbox._runtime.spark.rows.any_names import map_in_arrow, quoted
from pillarbox._runtime.spark.savepoint import savepoint as files
from pillarbox._runtime.spark.session.directories import checked_directory
from pillarbox._runtime.spark.session.folders import is_savepoint
from pillarbox._state.descriptors import ValueStateDescriptor
from pillarbox._state.keys.key_groups import DEFAULT_MAX_PARALLELISM
from pillarbox._state.savepoint.manifest import Manifest, Sources
from pillarbox._state.savepoint.new_table import EditedTable, NewTable
from pillarbox._state.savepoint.own_state import is_drained
from pillarbox._state.savepoint.table import Table
from pillarbox._state.state_descriptor import StateDescriptor
from pillarbox._types.readable import can_be_key, check_readable, has_collation
from pillarbox._types.type_information import TypeInformation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def write_state(
    df: DataFrame,
    directory: str,
    uid: str,
    *,
    key: str | Sequence[str] | None = None,
    states: Sequence[StateDescriptor] | None = None,
    timers: str | None = None,
    like: str | None = None,
) -> None:
    """Write a DataFrame as an operator's state in a savepoint, for ``env.from_savepoint(directory)``.

    A query can begin with state from another system, or from a batch job over past data. ``df`` has a row for each key.
    If ``directory`` contains a savepoint, the operator is added to it.

    With ``like``, ``df`` contains rows of the same operator in another savepoint, perhaps filtered or changed, from
    that savepoint's folder ``state/UID`` (docs/savepoint-format.md) or from :func:`read_state`.

    Args:
        df: a batch DataFrame.
        directory: the new or existing savepoint.
        uid: the operator's uid, as set with ``.uid("count")``.
        key: the key's column or columns. The program must key by columns of these names, or by a function that returns
            the column's value (a tuple for several columns).
        states: the operator's states. Each reads the column of its name: an ARRAY for a list state, a MAP for a map
            state. By default, every other column is a value state.
        timers: the column with the timers of a ``KeyedProcessFunction``: an ARRAY of STRUCTs with ``domain`` (``event``
            or ``processing``) and ``timestamp`` (Unix time in ms).
        like: the other savepoint, instead of ``key``, ``states`` and ``timers``.

    Raises:
        ProgramError: an argument is wrong, or a column is missing.
        TypeMismatchError: a key is null or occurs twice, or a value does not have its state's type.
        CheckpointMismatchError: the directory contains other files, or already has state of this operator, or ``like``
            has no state of this operator.

    Example:
        >>> history = spark.sql("SELECT 'c1' AS card, 7L AS seen")  # doctest: +SKIP
        >>> write_state(history, "/savepoints/begin", "count", key="card")  # doctest: +SKIP
    """
    if not hasattr(df, "isStreaming"):
        raise ProgramError(f"write_state() takes a Spark DataFrame, not {shorten(df)}")
    directory = checked_directory(directory, "write_state(): directory=")
    like = None if like is None else checked_directory(like, "write_state(): like=")
    if df.isStreaming:
        raise ProgramError("write_state() takes a batch DataFrame, but this one is streaming")
    spark = df.sparkSession
    if like is not None:
        if key is not None or states is not None or timers is not None:
            raise ProgramError("write_state(): like= already defines key=, states= and timers=: drop these arguments")
        other = files.open_savepoint(spark, like)
        rows, edited = _edited(df, other.manifest, uid)
        tasks = [row.asDict() for row in other.tasks.collect() if row["uid"] == uid]
        write(directory, rows, edited, tasks, _manifest(other.manifest.epoch, other.manifest.programs))
        return
    table, columns = _new(df, uid, key, states, timers)
    _check_unique(df, list(table.keys), uid)
    write(directory, df.select(*map(quoted, columns)), table, [], _manifest(0, None))


def _new(
    df: DataFrame,
    uid: str,
    key: str | Sequence[str] | None,
    states: Sequence[StateDescriptor] | None,
    timers: str | None,
) -> tuple[NewTable, list[str]]:
    if not isinstance(uid, str) or not uid:
        raise ProgramError(f"write_state(): uid= must be the operator's uid, such as 'count', not {shorten(uid)}")
    from pyspark.sql.types import StructType

    names = [key] if isinstance(key, str) else list(key or ())
    if not names or not all(isinstance(name, str) for name in names):
        raise ProgramError(f"write_state(): key= must be a column name, or a list of column names, not {shorten(key)}")
    types = {field.name: field.dataType for field in df.schema.fields}
    if states is None:
        states = [
            ValueStateDescriptor(name, TypeInformation(kind.simpleString(), kind))
            for name, kind in types.items()
            if name not in (*names, timers)
        ]
    elif not all(isinstance(state, StateDescriptor) for state in states):
        raise ProgramError(
            "write_state(): states= must be a list of descriptors, such as ValueStateDescriptor('seen', Types.LONG()),"
            f" not {shorten(states)}"
        )
    columns = [*names, *(state.name for state in states), *([] if timers is None else [timers])]
    missing = [name for name in columns if name not in types]
    if missing:
        raise ProgramError(
            f"write_state(): there is no column {missing[0]!r} for operator {uid!r}; the columns are {', '.join(types)}"
        )
    repeated = [name for name in columns if columns.count(name) > 1]
    if repeated:
        raise ProgramError(
            f"write_state(): the column {repeated[0]!r} of operator {uid!r} is used twice: pass different columns as"
            " key=, states= and timers="
        )
    if timers is not None and not _are_timers(types[timers]):
        raise ProgramError(
            f"write_state(): the column {timers!r} is {types[timers].simpleString()}, but timers= must name a column of"
            " type array<struct<domain:string,timestamp:bigint>>"
        )
    check_readable(StructType([df.schema[name] for name in columns]), "write_state()")
    keys = {name: types[name].simpleString() for name in names}
    for name, kind in keys.items():
        if not can_be_key(types[name]) or has_collation(types[name]):
            raise ProgramError(
                f"write_state(): the column {name!r} of operator {uid!r} is {kind}, which cannot be a key: pass columns"
                " of strings (without a collation), numbers, dates, or structs of these as key="
            )
    return NewTable.of(uid, keys, states, timers, DEFAULT_MAX_PARALLELISM), columns


def _are_timers(kind: Any) -> bool:
    from pyspark.sql.types import ArrayType, LongType, StringType, StructType

    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = {field.name: type(field.dataType) for field in kind.elementType.fields}
    return fields.get("domain") is StringType and fields.get("timestamp") is LongType


def _check_unique(df: DataFrame, columns: list[str], uid: str) -> None:
    duplicates = df.groupBy(*map(quoted, columns)).count().where("count > 1").drop("count").take(1)
    if duplicates:
        values = duplicates[0].asDict()
        key = next(iter(values.values())) if len(values) == 1 else tuple(values.values())
        raise TypeMismatchError(
            f"operator {uid!r}: the key {shorten(key)} occurs more than once, but a key has only one row"
        )


def _edited(df: DataFrame, manifest: Manifest, uid: str) -> tuple[DataFrame, EditedTable]:
    from pyspark.sql.types import VariantType

    edited = EditedTable(manifest.operator(uid))
    table = Table(edited.operator)
    types = {field.name: field.dataType for field in df.schema.fields}
    unknown = [name for name in types if name not in table.schema.names]
    if unknown or "key" not in types:
        what = f"no column {unknown[0]!r}" if unknown else "a column 'key', but the DataFrame has none"
        raise ProgramError(
            f"write_state(): the savepoint's table of operator {uid!r} has {what}; the table's columns are"
            f" {', '.join(table.schema.names)}"
        )
    columns = []
    for name, kind in types.items():
        if isinstance(kind, VariantType):
            if name != "namespace":
                raise ProgramError(
                    f"write_state(): the column {name!r} of operator {uid!r} is a VARIANT, which does not preserve the"
                    " original values: read the rows from the savepoint's own folder, with"
                    " spark.read.parquet(.../state/UID)"
                )
            columns.append(f"to_json({quoted(name)}) AS {quoted(name)}")
        else:
            columns.append(quoted(name))
    rows = df.selectExpr(*columns)
    if not edited.operator.parts:
        of = ["key", *(["namespace"] if "namespace" in types else [])]
        # The operator's own rows have no key, and a key may be in ``exact`` instead.
        _check_unique(rows.where("key IS NOT NULL"), of, uid)
    return rows, edited


def _manifest(epoch: int, programs: list[dict[str, Any]] | None) -> Manifest:
    return Manifest(pillarbox.__version__, epoch, programs, operators=(), sources=Sources(), files={})


def write(
    directory: str,
    rows: DataFrame,
    table: NewTable | EditedTable | SparkStateTable,
    tasks: list[dict[str, Any]],
    manifest: Manifest,
) -> None:
    """Write an operator's table, which encodes ``rows``, and its rows of ``tasks``.

    Args:
        manifest: the manifest of a new savepoint, without the operator. An existing savepoint keeps its manifest.
    """
    spark, uid = rows.sparkSession, table.operator.uid
    before = _existing_savepoint(spark, directory, uid)
    with unwrapped_failures():
        if before is None:
            files.begin(spark, directory)
        schema = files.spark_schema(Table(table.operator).schema)
        encoded = map_in_arrow(rows, f"write_state {uid}", partial(_encoded, table), schema)
        files.write_table(encoded, directory, uid)
        others = [] if before is None else [row.asDict() for row in before.tasks.collect()]
        files.write_tasks(spark, [*others, *tasks], directory)
        manifest = replace(manifest, drained=is_drained(tasks)) if before is None else before.manifest
        operators = sorted([*manifest.operators, table.operator], key=lambda operator: operator.uid)
        files.complete(spark, directory, replace(manifest, operators=tuple(operators)))


def _existing_savepoint(spark: SparkSession, directory: str, uid: str) -> files.OpenSavepoint | None:
    try:
        files.check_new(spark, directory)
    except CheckpointMismatchError:
        if not is_savepoint(spark, directory):
            raise
        existing = files.open_savepoint(spark, directory)
        if any(operator.uid == uid for operator in existing.manifest.operators):
            raise CheckpointMismatchError(
                f"the savepoint {directory} already has state of operator {uid!r}: write to a new directory"
            ) from None
        return existing
    return None


def _encoded(
    table: NewTable | EditedTable | SparkStateTable, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            yield from table.encode(batch)
