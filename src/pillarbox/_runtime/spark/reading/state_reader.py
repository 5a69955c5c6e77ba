"""``read_state``: the state of an operator as a DataFrame, from the checkpoint alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from pillarbox._errors import CheckpointMismatchError, check_text, shorten
from pillarbox._rows import in_larger_batches
from pillarbox._runtime.spark.checkpoint.look import look_at, may_run
from pillarbox._runtime.spark.checkpoint.state import CheckpointState, Stateful, each_log
from pillarbox._runtime.spark.reading.state_columns import StateEncoder, key_type, state_columns
from pillarbox._runtime.spark.rows.any_names import map_in_arrow, quoted
from pillarbox._runtime.spark.savepoint.savepoint import open_savepoint, table_of_logs
from pillarbox._runtime.spark.session.folders import is_savepoint
from pillarbox._runtime.spark.session.places import check_session, place_of
from pillarbox._runtime.spark.session.session_settings import time_zone
from pillarbox._state.chunks.head import LogHead
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.inspect.view import LogView
from pillarbox._state.savepoint.manifest import OperatorTable, parts_slot_of
from pillarbox._state.savepoint.table import Table
from pillarbox._state.types.opaque import AnyNames
from pillarbox._unpickle import loads_allowed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TAKEN = ("key", "namespace", "timers", "subtask")


def read_state(spark: SparkSession, checkpoint: str, uid: str, epoch: int | None = None) -> DataFrame:
    """Return the state of an operator as a DataFrame: a row for each key, and for each of its windows.

    It reads the checkpoint of a query that is stopped, or running; the program and its classes are not needed. The
    state of a query that has begun an epoch in the last minute is read at once, and Spark holds it while the DataFrame
    is used; otherwise the state is read when the DataFrame is used. It is checked as when a task restores it: what is
    missing or damaged is an error. Nothing that the checkpoint names is imported or called. The columns:

    - ``key``: of the type of the key, where that is known: of the columns of a DataFrame, or a ``key_type``;
    - ``namespace``: null, or whose state of the key it is: ``[start, end]`` of a window (epoch milliseconds);
    - a column for each state, by its name; ``state_key`` and so on where the name is one of these here. Null: empty. It
      has its type where the types of the key and of all states are declared and plain, and a dataclass or NamedTuple is
      a struct: ``account.owner``;
    - ``timers``: service, domain (``event`` or ``processing``) and timestamp (epoch milliseconds) of each, or null;
    - ``subtask``: the index of the subtask that has it.

    An operator by columns keeps rows of many keys together: aggregates of windows, and joins of columns. They are shown
    as a savepoint has them (docs/savepoint-format.md), with their keys in the columns ``partials``, or ``left`` and
    ``right``: ``partials.card``.

    Columns whose type is not known are of Spark's type VARIANT: ``seen::long``, or
    ``variant_get(namespace, '$[0]', 'long')``. Times and decimals are text in them; a value with something of a class
    of yours in it, or with bytes, is binary: its pickle, which ``pickle.loads`` reads where the class is.

    Args:
        checkpoint: the ``checkpointLocation`` of the query, or the directory of a savepoint.
        uid: the operator's, as in ``.uid("count")``.
        epoch: the number of a micro-batch whose state Spark still has; None: the last one that was committed.

    Raises:
        CheckpointMismatchError: there is no such checkpoint, epoch or operator; or it cannot be read.
        ProgramError: ``epoch`` is no number of a micro-batch.

    Example:
        >>> state = read_state(spark, "/checkpoints/flights", "count")  # doctest: +SKIP
        >>> state.where("seen::long > 1000").select("key", "seen").show()  # doctest: +SKIP
    """
    check_session(spark, "read_state()")
    checkpoint = place_of(checkpoint, "read_state(): the checkpoint")
    check_text(uid, "read_state(): the uid")
    if is_savepoint(spark, checkpoint):
        return _of_savepoint(spark, checkpoint, uid, epoch)
    return look_at(spark, checkpoint, epoch, partial(_of_checkpoint, uid))


def _of_checkpoint(uid: str, files: CheckpointState) -> DataFrame:
    from pyspark.sql.types import DataType

    operator, heads = operator_with(files, uid)
    every = list(heads.values())
    codes = ", ".join(map(str, sorted(heads)))
    logs = files.logs(operator).where(f"code IN ({codes})")
    if files.is_copy or may_run(files):
        # When the DataFrame is used, the state of the epoch may no longer exist.
        logs = logs.localCheckpoint(eager=True)
    if any(parts_slot_of(head) is not None for head in every):
        return table_of_logs(logs, every)[1]
    states = state_columns(every, _TAKEN)
    encoder = StateEncoder(uid, key_type(every, DataType.fromDDL), states, time_zone(files.spark))
    return _mapped(logs, partial(each_log, partial(_rows, encoder)), encoder)


def _of_savepoint(spark: SparkSession, directory: str, uid: str, epoch: int | None) -> DataFrame:
    """Return the same from a savepoint."""
    from pyspark.sql.types import DataType

    opened = open_savepoint(spark, directory)
    if epoch not in (None, opened.manifest.epoch):
        raise CheckpointMismatchError(
            f"savepoint {directory} is of epoch {opened.manifest.epoch}, not {shorten(epoch)}"
        )
    operator = opened.manifest.operator(uid)
    if operator.parts:
        return opened.frame(uid)
    heads = [operator.head()]
    states = state_columns(heads, _TAKEN)
    encoder = StateEncoder(uid, key_type(heads, DataType.fromDDL), states, time_zone(spark))
    return _mapped(opened.frame(uid), partial(_table_rows, operator, encoder), encoder)


def _mapped(df: DataFrame, function: Callable[..., Iterator[pa.RecordBatch]], encoder: StateEncoder) -> DataFrame:
    from pyspark.sql.types import StructField, StructType

    schema = StructType([StructField(name, declared) for name, declared in encoder.types.items()])
    rows = map_in_arrow(df, "read_state", function, schema)
    variants = set(encoder.variants)
    # Values that are no JSON are binary: see state_columns.
    made = "coalesce(parse_json({0}.json), CAST({0}.pickled AS VARIANT)) AS {0}"
    columns = [quoted(name) for name in encoder.schema.names]
    return rows.selectExpr(
        *(made.format(column) if name in variants else column for name, column in zip(encoder.schema.names, columns))
    )


def operator_with(files: CheckpointState, uid: str) -> tuple[Stateful, dict[int, LogHead]]:
    """Return the stateful operator that has the logs of a uid, and their heads.

    Spark has to know a DataFrame's columns before it reads, and only the heads of all subtasks together say which there
    are. It cannot look a value up by its key, so this opens the state once more than reading the rows does.
    """
    others: set[str] = set()
    for operator in files.stateful:
        heads = files.heads(operator)
        mine = {code: head for code, head in heads.items() if head.operator == uid}
        if mine:
            return operator, mine
        others |= {head.operator for head in heads.values()}
    has = f"it has state of {', '.join(map(repr, sorted(others)))}" if others else "it has no state of pillarbox"
    raise CheckpointMismatchError(
        f"checkpoint {files}, epoch {files.epoch}: there is no state of an operator with the uid {shorten(uid)}; {has}"
    )


def _rows(encoder: StateEncoder, code: int, store: MemoryChunkStore) -> Iterator[pa.RecordBatch]:
    """Return the rows of a log."""
    view = LogView(store, code)
    return in_larger_batches((encoder.encode(rows, view.head.subtask), int(rows.sizes.sum())) for rows in view.rows())


def _table_rows(
    operator: OperatorTable, encoder: StateEncoder, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Return the rows of state in the table of a savepoint."""
    table, names = Table(operator), AnyNames()
    for batch in batches:
        for view, subtasks in table.views(batch, lambda payload: loads_allowed(payload, names)):
            made = encoder.encode(view, 0)
            place = made.schema.get_field_index("subtask")
            yield made.set_column(place, made.schema.field(place), subtasks)
