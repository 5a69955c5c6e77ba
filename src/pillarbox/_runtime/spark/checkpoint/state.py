"""Reads the state in a checkpoint with Spark's state readers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from pillarbox._errors import CheckpointMismatchError, ProgramError, is_count, shorten
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.checkpoint.damage import check_epoch
from pillarbox._runtime.spark.session.directories import is_readable_by_spark
from pillarbox._runtime.spark.session.folders import is_savepoint
from pillarbox._runtime.spark.session.session import session_of
from pillarbox._runtime.spark.session.session_settings import state_settings
from pillarbox._state.chunks.head import META, LogHead
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.inspect.view import LogView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


# The name of the map state that contains the subtasks' logs.
_LOG = "log"
_COLUMNS = {"key": "target", "user_map_key": "chunk", "user_map_value": "payload"}


class CheckpointStateOperator(NamedTuple):
    """A stateful operator of Spark, which stores the state logs of all subtasks between two shuffles."""

    id: int
    partitions: int
    first: int


class CheckpointState:
    """The state in a query's checkpoint after one epoch."""

    def __init__(self, spark: SparkSession, checkpoint: str, epoch: int | None = None, copy: str | None = None) -> None:
        self.spark: SparkSession = spark
        self.checkpoint: Checkpoint = Checkpoint(spark, checkpoint)
        self.is_copy: bool = copy is not None
        self._location = copy or str(self.checkpoint)
        # Epochs whose files in Spark's logs are not damaged.
        self._checked: set[int] = set()
        if epoch is not None and not is_count(epoch, 0):
            raise ProgramError(f"an epoch must be a micro-batch number (0 or more), not {shorten(epoch)}")
        last = self.checkpoint.last_committed
        if last < 0:
            if is_savepoint(spark, checkpoint):
                raise CheckpointMismatchError(
                    f"{checkpoint} is a savepoint, not a checkpoint: start a program from it with"
                    " env.from_savepoint(...), at any parallelism"
                )
            raise CheckpointMismatchError(
                f"{checkpoint} is not a checkpoint of a query, or has no committed epoch: pass the"
                " checkpointLocation of a query that has run"
            )
        if not is_readable_by_spark(checkpoint):
            raise CheckpointMismatchError(
                f"checkpoint {checkpoint}: its path contains a space or one of \"#%<>?[\\]^`{{|}}. Spark's queries"
                " accept such a path, but Spark's state readers cannot find it: stop the query, copy the whole"
                " checkpoint to another path, and continue there. On a local disk, a symbolic link at another path is"
                " enough"
            )
        if epoch is not None and epoch > last:
            raise CheckpointMismatchError(
                f"checkpoint {checkpoint}: its last epoch is {last}, so epoch {epoch} does not exist yet"
            )
        self.epoch: int = last if epoch is None else epoch

    def __str__(self) -> str:
        return str(self.checkpoint)

    @cached_property
    def stateful(self) -> list[CheckpointStateOperator]:
        self._check_files(self.epoch)
        read = self.state_operators()
        operators = []
        for row in read.collect():
            variables = json.loads(row["operatorProperties"] or "{}").get("stateVariables", [])
            operator = CheckpointStateOperator(row["operatorId"], row["numPartitions"], row["minBatchId"])
            if not any(variable.get("stateName") == _LOG for variable in variables):
                continue
            self._check_partitions(operator)
            # Spark cannot open purged state, which is refused below.
            if self.epoch < operator.first or _is_log(self._read(operator).schema):
                operators.append(operator)
        self._check_whole(operators)
        for operator in operators:
            if self.epoch < operator.first:
                raise CheckpointMismatchError(
                    f"checkpoint {self}: the state of epoch {self.epoch} has been removed. The oldest epoch with state"
                    f" is {operator.first}. spark.sql.streaming.minBatchesToRetain sets how many epochs Spark retains"
                )
        return operators

    def _check_whole(self, operators: Sequence[CheckpointStateOperator]) -> None:
        """Raise if an operator's folder is missing, which Spark's reader would silently skip."""
        programs = self.checkpoint.programs_at(self.epoch) or ()
        levels = sum(len({operator["level"] for operator in program["operators"]}) for program in programs)
        if len(operators) < levels:
            uids = [operator["uid"] for program in programs for operator in program["operators"]]
            raise CheckpointMismatchError(
                f"checkpoint {self}: {self}/pillarbox lists state for the operators {', '.join(map(repr, uids))}, but"
                f" {self}/state contains {'only some of it' if operators else 'none'}: restore the missing folders, or"
                " the whole checkpoint, from a backup"
            )

    def _check_partitions(self, operator: CheckpointStateOperator) -> None:
        # Spark's reader silently skips a state partition without a folder.
        folder = session_of(self.spark).hadoop_folder(f"{self._location}/state/{operator.id}")
        if folder is None:
            return
        missing = {*map(str, range(operator.partitions))}.difference(folder.folders())
        if missing:
            raise CheckpointMismatchError(
                f"checkpoint {self}: the folder {', '.join(f'state/{operator.id}/{name}' for name in sorted(missing))}"
                " is missing: restore the missing folders, or the whole checkpoint, from a backup"
            )

    def logs(self, operator: CheckpointStateOperator, epoch: int | None = None) -> DataFrame:
        """Return an operator's log entries. Columns: ``code`` (the subtask's number), ``number``, ``payload``.

        A subtask's entries are consecutive and in one partition.
        """
        return self._read(operator, epoch).selectExpr(
            "key.target AS code", "user_map_key.chunk AS number", "user_map_value.payload AS payload"
        )

    def _read(self, operator: CheckpointStateOperator, epoch: int | None = None) -> DataFrame:
        batch = self.epoch if epoch is None else epoch
        self._check_files(batch)
        return self.state_rows(operatorId=operator.id, batchId=batch, stateVarName=_LOG)

    def _check_files(self, epoch: int) -> None:
        if epoch not in self._checked:
            check_epoch(self.spark, self.checkpoint, epoch, self._location)
            self._checked.add(epoch)

    def state_rows(self, **options: Any) -> DataFrame:
        with state_settings(self.spark, self.checkpoint.state_format):
            read = self.spark.read.format("statestore").options(**{"batchId": self.epoch, **options})
            return session_of(self.spark).analyzed_now(read.load(self._location))

    def state_operators(self) -> DataFrame:
        return self.spark.read.format("state-metadata").option("batchId", self.epoch).load(self._location)

    def heads(self, operator: CheckpointStateOperator) -> dict[int, LogHead]:
        return {code: view.head for code, view in self.views(operator).items()}

    def views(self, operator: CheckpointStateOperator) -> dict[int, LogView]:
        """Return an operator's logs, with their heads (metadata) only, by subtask code."""
        views = {}
        for code, _, payload in self.logs(operator).where(f"number = {META}").collect():
            store = MemoryChunkStore()
            store.put(META, bytes(payload))
            views[code] = LogView(store, code)
        return views

    def all_heads(self) -> list[LogHead]:
        return [head for operator in self.stateful for head in self.heads(operator).values()]


def _is_log(schema: StructType) -> bool:
    """Return whether a state contains logs. A state of a user's ``StatefulProcessor`` may have the same name."""
    fields = {field.name: getattr(field.dataType, "names", None) for field in schema.fields}
    return all(fields.get(column) == [field] for column, field in _COLUMNS.items())


def map_logs(
    read: Callable[[int, MemoryChunkStore], Iterator[pa.RecordBatch]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Apply ``read`` to each log, and yield the resulting batches.

    Only one log is in memory at a time. It takes about twice the size of its subtask's pickled rows.
    """
    store = MemoryChunkStore()
    current: int | None = None
    ended: set[int | None] = set()
    for batch in batches:
        codes, numbers = batch.column(0).to_pylist(), batch.column(1).to_pylist()
        payloads = batch.column(2)
        for index, (code, number) in enumerate(zip(codes, numbers)):
            if code != current:
                if current is not None:
                    yield from read(current, store)
                ended.add(current)
                if code in ended:
                    raise AssertionError(f"Spark's state reader returned the values of {code} several times")
                store, current = MemoryChunkStore(), code
            store.put(number, payloads[index].as_py())
    if current is not None:
        yield from read(current, store)
