"""``read_state``: reads an operator's state as a DataFrame, without the program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from pillarbox._errors import CheckpointMismatchError, check_text, shorten
from pillarbox._rows import in_larger_batches
from pillarbox._runtime.spark.checkpoint.look import may_run, read_epoch
from pillarbox._runtime.spark.checkpoint.state import CheckpointState, CheckpointStateOperator, map_logs
from pillarbox._runtime.spark.reading.state_columns import StateColumnsEncoder, key_type, state_columns
from pillarbox._runtime.spark.rows.any_names import map_in_arrow, quoted
from pillarbox._runtime.spark.savepoint.savepoint import open_savepoint, table_of_logs
from pillarbox._runtime.spark.session.directories import check_session, checked_directory
from pillarbox._runtime.spark.session.folders import is_savepoint
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

_RESERVED = ("key", "namespace", "timers", "subtask")


def read_state(spark: SparkSession, checkpoint: str, uid: str, epoch: int | None = None) -> DataFrame:
    """Return an operator's state as a DataFrame, with a row for each key and for each of its windows.

    Reads the checkpoint of a running or stopped query, needs neither the program nor its classes, and imports nothing
    that the checkpoint names. If the query has begun an epoch in the last minute, this call reads and caches the state.
    Otherwise, the state is read when the DataFrame is used. The columns are:

    - ``key``: the key. Typed if the program keyed by a DataFrame's columns, or with a ``key_type``;
    - ``namespace``: the namespace of the key's state, such as a window's ``[start, end]`` (Unix times in ms), or null;
    - a column for each state, with the state's name (prefixed, as in ``state_key``, if the name is in this list). Empty
      states are null. The columns are typed if the types of the key and of all states are declared and plain. A
      dataclass or NamedTuple is a struct, as in ``account.owner``;
    - ``timers``: service, domain (``event`` or ``processing``) and timestamp (Unix time in ms) of each timer, or null;
    - ``subtask``: the index of its subtask.

    A columnar operator (window aggregates, joins of columns) stores the rows of many keys together. Its rows are as in
    a savepoint (docs/savepoint-format.md). The keys are inside the column ``partials``, as in ``partials.card``, or
    inside ``left`` and ``right``.

    Untyped columns are VARIANT. Read them as in ``seen::long`` or ``variant_get(namespace, '$[0]', 'long')``. In a
    VARIANT, times and decimals are text; values that contain bytes or instances of your own classes are pickles, for
    ``pickle.loads``.

    Args:
        checkpoint: the ``checkpointLocation`` of the query, or the directory of a savepoint.
        uid: the operator's uid, as set with ``.uid("count")``.
        epoch: a micro-batch whose state Spark retains, or None for the last committed micro-batch.

    Raises:
        CheckpointMismatchError: the checkpoint, epoch or operator does not exist, or cannot be read.
        ProgramError: ``epoch`` is not a micro-batch number.

    Example:
        >>> state = read_state(spark, "/checkpoints/flights", "count")  # doctest: +SKIP
        >>> state.where("seen::long > 1000").select("key", "seen").show()  # doctest: +SKIP
    """
    check_session(spark, "read_state()")
    checkpoint = checked_directory(checkpoint, "read_state(): checkpoint=")
    check_text(uid, "read_state(): uid=")
    if is_savepoint(spark, checkpoint):
        return _of_savepoint(spark, checkpoint, uid, epoch)
    return read_epoch(spark, checkpoint, epoch, partial(_of_checkpoint, uid))


def _of_checkpoint(uid: str, files: CheckpointState) -> DataFrame:
    from pyspark.sql.types import DataType

    operator, heads = operator_with(files, uid)
    every = list(heads.values())
    codes = ", ".join(map(str, sorted(heads)))
    logs = files.logs(operator).where(f"code IN ({codes})")
    if files.is_copy or may_run(files):
        # Spark may remove the epoch before the DataFrame is used.
        logs = logs.localCheckpoint(eager=True)
    if any(parts_slot_of(head) is not None for head in every):
        return table_of_logs(logs, every)[1]
    states = state_columns(every, _RESERVED)
    encoder = StateColumnsEncoder(uid, key_type(every, DataType.fromDDL), states, time_zone(files.spark))
    return _encoded_rows(logs, partial(map_logs, partial(_rows, encoder)), encoder)


def _of_savepoint(spark: SparkSession, directory: str, uid: str, epoch: int | None) -> DataFrame:
    from pyspark.sql.types import DataType

    opened = open_savepoint(spark, directory)
    if epoch not in (None, opened.manifest.epoch):
        raise CheckpointMismatchError(
            f"savepoint {directory} was written after epoch {opened.manifest.epoch}, not {shorten(epoch)}"
        )
    operator = opened.manifest.operator(uid)
    if operator.parts:
        return opened.frame(uid)
    heads = [operator.head()]
    states = state_columns(heads, _RESERVED)
    encoder = StateColumnsEncoder(uid, key_type(heads, DataType.fromDDL), states, time_zone(spark))
    return _encoded_rows(opened.frame(uid), partial(_table_rows, operator, encoder), encoder)


def _encoded_rows(
    df: DataFrame, function: Callable[..., Iterator[pa.RecordBatch]], encoder: StateColumnsEncoder
) -> DataFrame:
    from pyspark.sql.types import StructField, StructType

    schema = StructType([StructField(name, declared) for name, declared in encoder.types.items()])
    rows = map_in_arrow(df, "read_state", function, schema)
    variants = set(encoder.variants)
    # Values that JSON cannot express are binary (see `state_columns`).
    template = "coalesce(parse_json({0}.json), CAST({0}.pickled AS VARIANT)) AS {0}"
    columns = [quoted(name) for name in encoder.schema.names]
    return rows.selectExpr(
        *(
            template.format(column) if name in variants else column
            for name, column in zip(encoder.schema.names, columns)
        )
    )


def operator_with(files: CheckpointState, uid: str) -> tuple[CheckpointStateOperator, dict[int, LogHead]]:
    others: set[str] = set()
    for operator in files.stateful:
        heads = files.heads(operator)
        own_heads = {code: head for code, head in heads.items() if head.operator == uid}
        if own_heads:
            return operator, own_heads
        others |= {head.operator for head in heads.values()}
    has = f"it has state of {', '.join(map(repr, sorted(others)))}" if others else "it has no pillarbox state"
    raise CheckpointMismatchError(
        f"checkpoint {files}, epoch {files.epoch}: no operator with state has the uid {shorten(uid)}; {has}"
    )


def _rows(encoder: StateColumnsEncoder, code: int, store: MemoryChunkStore) -> Iterator[pa.RecordBatch]:
    view = LogView(store, code)
    return in_larger_batches((encoder.encode(rows, view.head.subtask), int(rows.sizes.sum())) for rows in view.rows())


def _table_rows(
    operator: OperatorTable, encoder: StateColumnsEncoder, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    table, names = Table(operator), AnyNames()
    for batch in batches:
        for view, subtasks in table.views(batch, lambda payload: loads_allowed(payload, names)):
            encoded = encoder.encode(view, 0)
            index = encoded.schema.get_field_index("subtask")
            yield encoded.set_column(index, encoded.schema.field(index), subtasks)
