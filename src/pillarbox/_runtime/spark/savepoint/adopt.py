"""``adopt``: converts the state of a Spark query to a savepoint."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, TypeVar

import pillarbox
from pillarbox._elements.buffers import dumps
from pillarbox._errors import CheckpointMismatchError, ProgramError, describe, listed, shorten
from pillarbox._operators.stateful_processor.group_state import STATE, GroupStateOperator
from pillarbox._operators.stateful_processor.handle import SPARK_MODES, HandleDeclarations, StateVariable, declare
from pillarbox._operators.stateful_processor.operator import StatefulProcessorOperator, event_time_state
from pillarbox._operators.stateful_processor.spark_state import STATE_COLUMN, TIMERS_COLUMN, SparkStateTable
from pillarbox._runtime.spark.checkpoint.state import CheckpointState
from pillarbox._runtime.spark.savepoint import savepoint as files
from pillarbox._runtime.spark.savepoint.write_state import write
from pillarbox._runtime.spark.session import session_settings
from pillarbox._runtime.spark.session.directories import check_session, checked_directory
from pillarbox._state.savepoint.manifest import Manifest
from pillarbox._types.codecs import time_zone
from pillarbox._types.schema import resolve_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import DataType

T = TypeVar("T")

# Spark's operators for Python functions on rows, on pandas frames, and with a GroupState.
_FRAMES = "transformWithStateInPandasExec"
_PROCESSORS = ("transformWithStateInPySparkExec", _FRAMES)
_GROUP_STATE = "applyInPandasWithState"
# Spark's kinds of state: ``(pillarbox's kind, column in Spark's reader, parts of the column's type)``.
_KINDS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "ValueState": ("value", "value", ()),
    "ListState": ("list", "list_value", ("elementType",)),
    "MapState": ("map", "map_value", ("keyType", "valueType")),
}


def adopt(spark: SparkSession, checkpoint: str, directory: str, processor: StatefulProcessor | None = None) -> None:
    """Write a savepoint of a Spark query that used ``transformWithState`` or similar, without pillarbox.

    First stop the query. After this call, the same program with ``pillarbox.group_by`` and
    ``env.from_savepoint(directory)`` resumes as Spark would, with the state variables, timers, times-to-live, watermark
    and source positions of the last committed micro-batch. An uncommitted micro-batch is repeated. The checkpoint is
    not changed, so the query can still resume without pillarbox.

    If the call is interrupted, repeat it: it overwrites the incomplete savepoint.

    Args:
        checkpoint: the query's ``checkpointLocation``.
        directory: a new directory, on any file system that Spark can write to.
        processor: the query's ``StatefulProcessor`` (its ``init`` is called), or None for ``applyInPandasWithState``.

    Raises:
        CheckpointMismatchError: the checkpoint is missing or cannot be read, the query has further stateful operators,
            the processor declares different states, or the directory is not empty.
        ProgramError: an argument is wrong.

    Example:
        >>> adopt(spark, "/checkpoints/spent", "/savepoints/spent", Spent())  # doctest: +SKIP
        >>> env = StreamExecutionEnvironment.get_execution_environment(spark)  # doctest: +SKIP
        >>> env = env.from_savepoint("/savepoints/spent")  # doctest: +SKIP
        >>> grouped = group_by(payments, "card", env=env)  # doctest: +SKIP
        >>> spent = grouped.transformWithState(Spent(), schema, "append", "EventTime")  # doctest: +SKIP
    """
    check_session(spark, "adopt()")
    query = CheckpointState(spark, checked_directory(checkpoint, "adopt(): checkpoint="))
    directory = checked_directory(directory, "adopt(): directory=")
    if query.checkpoint.lines:
        raise CheckpointMismatchError(
            f"{query} is already a pillarbox checkpoint: write a savepoint of it with 'pillarbox savepoint {query}"
            " DIRECTORY'"
        )
    rows, table = _SparkState(query).rows_for(processor)
    files.check_new(spark, directory)
    late = event_time_state(None, query.checkpoint.offsets([query.epoch])[query.epoch].watermark)
    task = dumps({"event_time": {"operators": {table.operator.uid: late}}})
    subtask = {"uid": table.operator.uid, "subtask": 0, "parallelism": 1, "watermark": None, "task": task}
    sources = files.sources_at(spark, query.checkpoint, query.epoch)
    manifest = Manifest(pillarbox.__version__, query.epoch, None, (), sources, files={}, checkpoint=str(query))
    write(directory, rows, table, [subtask], manifest)


class _SparkState:
    def __init__(self, query: CheckpointState) -> None:
        self._query = query
        metadata = self._readable("the operators", lambda: query.state_operators().collect())
        operators = {row["operatorId"]: row for row in metadata}
        names = [row["operatorName"] for row in operators.values()]
        if len(names) != 1 or names[0] not in (*_PROCESSORS, _GROUP_STATE):
            raise self._refused(
                "adopt() takes a query with a single stateful operator (transformWithState or applyInPandasWithState"
                f" in Python), but this query has {listed(names)}: move the other operators to separate queries first"
            )
        self._operator = names[0]
        self._properties: dict[str, Any] = json.loads(next(iter(operators.values()))["operatorProperties"] or "{}")

    def rows_for(self, processor: StatefulProcessor | None) -> tuple[DataFrame, SparkStateTable]:
        takes_processor = self._operator in _PROCESSORS
        if takes_processor != hasattr(processor, "handleInputRows"):
            advice = "pass its StatefulProcessor as processor=" if takes_processor else "pass processor=None"
            raise ProgramError(
                f"adopt(): the query of {self._query} runs {self._operator}: {advice}, not {shorten(processor)}"
            )
        return self._of_processor(processor) if takes_processor else self._of_groups()

    def _of_processor(self, processor: Any) -> tuple[DataFrame, SparkStateTable]:
        mode = next(mode for mode, name in SPARK_MODES.items() if name == self._properties["timeMode"])
        declarations = declare(processor, mode, resolve_schema)
        stored = {variable["stateName"]: variable for variable in self._properties["stateVariables"]}
        names = [name for name in stored if not name.startswith("$")]  # names of Spark's own state
        undeclared = sorted({*names} - declarations.variables.keys() - declarations.deleted)
        if undeclared:
            raise self._refused(
                f"it has the states {listed(undeclared)}, which the processor's init() does not declare: declare them,"
                " or call handle.deleteIfExists() with their names"
            )
        frames = [
            self._variable(name, variable, stored[name], STATE_COLUMN.format(number))
            for number, (name, variable) in enumerate(declarations.variables.items())
            if name in stored
        ]
        if mode != "none":
            timers = self._readable("the timers", lambda: self._query.state_rows(readRegisteredTimers=True))
            frames.append(timers.selectExpr("key", f"expiration_timestamp_ms AS {TIMERS_COLUMN}"))
            self._readable("the timers", lambda: timers.take(1))
        if not frames:
            raise self._refused("it has no state and no timers: start the program with a new checkpoint directory")
        self._check_key(frames[0].schema["key"].dataType)
        return _by_key(StatefulProcessorOperator.kind, frames, declarations)

    def _check_key(self, key: DataType) -> None:
        zone = session_settings.time_zone(self._query.spark)
        if self._operator == _FRAMES and '"timestamp"' in key.json() and not _is_local(time_zone(zone)):
            raise self._refused(
                "its key contains a TIMESTAMP, which Spark stored with an offset, because the session's time zone"
                f" ({zone}) differs from this machine's. Its state cannot be adopted: start the program without it,"
                " with a new checkpoint directory"
            )

    def _variable(self, name: str, variable: StateVariable, noted: Any, column: str) -> DataFrame:
        read = partial(self._query.state_rows, stateVarName=name, flattenCollectionTypes=False)
        frame = self._readable(f"the state {name!r}", read)
        kind, content, parts = _KINDS[noted["stateVariableType"]]
        stored = frame.schema[content].dataType
        types: list[Any] = [getattr(stored, part) for part in parts] or [stored]
        if noted["ttlEnabled"]:
            types[-1] = types[-1]["value"].dataType
        then = _shown(kind, types, has_ttl=noted["ttlEnabled"])
        now = _shown(variable.kind, variable.schemas, has_ttl=variable.ttl is not None)
        if then != now:
            raise self._refused(f"the state {name!r} is {then}, but the processor's init() declares {now}")
        return frame.selectExpr("key", f"{content} AS {column}")

    def _of_groups(self) -> tuple[DataFrame, SparkStateTable]:
        frame = self._readable("the state", self._query.state_rows)
        value: Any = frame.schema["value"].dataType
        if "groupState" not in value.names:
            raise self._refused("its state is in Spark's state format 1, which adopt() does not read")
        declarations = HandleDeclarations({STATE: StateVariable("value", (value["groupState"].dataType,), None)})
        columns = ["key", f"value.groupState AS {STATE_COLUMN.format(0)}"]
        if "timeoutTimestamp" in value.names:
            # A group times out after its timeout, so the timer is one millisecond later.
            columns.append(f"nullif(value.timeoutTimestamp, -1) + 1 AS {TIMERS_COLUMN}")
        return _by_key(GroupStateOperator.kind, [frame.selectExpr(*columns)], declarations)

    def _readable(self, what: str, read: Callable[[], T]) -> T:
        try:
            return read()
        except Exception as error:
            raise self._refused(f"Spark {self._query.spark.version} cannot read {what}: {describe(error)}") from error

    def _refused(self, why: str) -> CheckpointMismatchError:
        return CheckpointMismatchError(f"checkpoint {self._query} of a Spark query: {why}")


def _by_key(
    uid: str, frames: Sequence[DataFrame], declarations: HandleDeclarations
) -> tuple[DataFrame, SparkStateTable]:
    from pyspark.sql import functions as F

    rows = reduce(lambda left, other: left.unionByName(other, allowMissingColumns=True), frames)
    columns = {STATE_COLUMN.format(number): "first({}, true)" for number in range(len(declarations.variables))}
    columns[TIMERS_COLUMN] = "collect_list({})"
    contents = [
        F.expr(f"{content.format(name) if name in rows.columns else 'CAST(NULL AS STRING)'} AS {name}")
        for name, content in columns.items()
    ]
    key: Any = rows.schema["key"].dataType
    return rows.groupBy("key").agg(*contents), SparkStateTable.of(uid, key, declarations)


def _is_local(zone: dt.tzinfo) -> bool:
    """Return whether a time zone has the offsets of this machine's zone, from 1970 to 2038."""
    times = [dt.datetime.fromtimestamp(day * 86_400, zone) for day in range(0, 24_855, 30)]
    return all(time.utcoffset() == time.astimezone().utcoffset() for time in times)


def _shown(kind: str, types: Sequence[DataType], *, has_ttl: bool) -> str:
    return f"a {kind} of {', '.join(kind.simpleString() for kind in types)}{' with a time-to-live' if has_ttl else ''}"
