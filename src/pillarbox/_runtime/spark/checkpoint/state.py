"""The state in a checkpoint from outside: its stateful operators and their logs, as Spark's readers have them.

Nothing here needs the program. Everything is read by Spark, so a checkpoint can be wherever Spark reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from pillarbox._errors import CheckpointMismatchError, ProgramError, is_count, shorten
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.session.folders import is_savepoint
from pillarbox._runtime.spark.session.places import state_is_found
from pillarbox._runtime.spark.session.session import session_of
from pillarbox._runtime.spark.session.session_settings import state_settings
from pillarbox._state.chunks.head import META, LogHead
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.inspect.view import LogView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


# The map state with the logs of a level's subtasks, and the columns that Spark's reader shows of it.
_LOG = "log"
_COLUMNS = {"key": "target", "user_map_key": "chunk", "user_map_value": "payload"}


class Stateful(NamedTuple):
    """A stateful operator of Spark's with logs of pillarbox's: the vertices of one level.

    Attributes:
        first: the oldest epoch whose state can be read.
    """

    id: int
    partitions: int
    first: int


class CheckpointState:
    """The state in the checkpoint of a query, as of one epoch.

    Args:
        epoch: the number of a micro-batch; None: the last one that was committed.
        copy: a copy that has the state of the epoch alone, or None.

    Attributes:
        spark: the session that reads it.
        is_copy: whether only the state of the epoch can be read.
        checkpoint: its files.
        epoch: the number of the micro-batch.

    Raises:
        CheckpointMismatchError: nothing was committed there yet, or it is no checkpoint.
        ProgramError: the epoch is no whole number.
    """

    def __init__(self, spark: SparkSession, checkpoint: str, epoch: int | None = None, copy: str | None = None) -> None:
        self.spark: SparkSession = spark
        self.checkpoint: Checkpoint = Checkpoint(spark, checkpoint)
        self.is_copy: bool = copy is not None
        self._place = copy or str(self.checkpoint)
        if epoch is not None and not is_count(epoch, 0):
            raise ProgramError(f"an epoch is the number of a micro-batch, from 0, not {shorten(epoch)}")
        last = self.checkpoint.last_committed
        if last < 0:
            if is_savepoint(spark, checkpoint):
                raise CheckpointMismatchError(
                    f"{checkpoint} is a savepoint, not a checkpoint: start a program from it with"
                    " env.from_savepoint(...), at any parallelism"
                )
            raise CheckpointMismatchError(
                f"{checkpoint} is no checkpoint of a query, or none of its epochs was committed: give the"
                " checkpointLocation of a query that has run"
            )
        if not state_is_found(checkpoint):
            raise CheckpointMismatchError(
                f'checkpoint {checkpoint}: its path has a space, or one of "#%<>?[\\]^`{{|}}, and Spark, whose queries'
                " take any path, looks for the state of this one elsewhere when it reads or moves that: stop the query,"
                " copy all of the checkpoint to another path, and continue there; on a local disk, a symbolic link to"
                " it is enough"
            )
        if epoch is not None and epoch > last:
            raise CheckpointMismatchError(f"checkpoint {checkpoint}: its last epoch is {last}; there is no {epoch} yet")
        self.epoch: int = last if epoch is None else epoch

    def __str__(self) -> str:
        return str(self.checkpoint)

    @cached_property
    def stateful(self) -> list[Stateful]:
        """The stateful operators that have logs.

        Raises:
            CheckpointMismatchError: the epoch's state no longer exists, or folders of it are gone.
        """
        read = self.spark.read.format("state-metadata").option("batchId", self.epoch).load(self._place)
        found = []
        for row in read.collect():
            variables = json.loads(row["operatorProperties"] or "{}").get("stateVariables", [])
            operator = Stateful(row["operatorId"], row["numPartitions"], row["minBatchId"])
            if not any(variable.get("stateName") == _LOG for variable in variables):
                continue
            # State that Spark has purged cannot be looked at, and is refused below.
            if self.epoch < operator.first or _is_log(self._read(operator).schema):
                found.append(operator)
        self._check_whole(found)
        for operator in found:
            if self.epoch < operator.first:
                raise CheckpointMismatchError(
                    f"checkpoint {self}: the state of epoch {self.epoch} no longer exists: the oldest one that does"
                    f" is {operator.first} (spark.sql.streaming.minBatchesToRetain says how many Spark keeps)"
                )
        return found

    def _check_whole(self, found: Sequence[Stateful]) -> None:
        """Refuse a checkpoint without state that its programs have: Spark's reader passes over folders that are gone.

        Each level of a program is a stateful operator of Spark's.
        """
        programs = self.checkpoint.programs_at(self.epoch) or ()
        levels = sum(len({operator["level"] for operator in program["operators"]}) for program in programs)
        if len(found) < levels:
            uids = [operator["uid"] for program in programs for operator in program["operators"]]
            raise CheckpointMismatchError(
                f"checkpoint {self}: state of the operators {', '.join(map(repr, uids))} is noted in {self}/pillarbox,"
                f" and {self}/state has {'only some of it' if found else 'none'}: folders of it are gone, so put them"
                " back, or take an older copy of all of the checkpoint"
            )

    def logs(self, operator: Stateful, epoch: int | None = None) -> DataFrame:
        """Return the values of the logs of a stateful operator: subtask's ``code``, ``number``, ``payload``.

        The values of a subtask are in one partition, one after the other.

        Args:
            epoch: another epoch whose state Spark still has; None: this one.
        """
        return self._read(operator, epoch).selectExpr(
            "key.target AS code", "user_map_key.chunk AS number", "user_map_value.payload AS payload"
        )

    def _read(self, operator: Stateful, epoch: int | None = None) -> DataFrame:
        with state_settings(self.spark, self.checkpoint.state_format):
            rows = (
                self.spark.read.format("statestore")
                .option("operatorId", operator.id)
                .option("batchId", self.epoch if epoch is None else epoch)
                .option("stateVarName", _LOG)
                .load(self._place)
            )
            return session_of(self.spark).analyzed_now(rows)

    def heads(self, operator: Stateful) -> dict[int, LogHead]:
        """Return the heads of the logs of a stateful operator, by the subtask's code.

        Raises:
            CheckpointMismatchError: one cannot be read.
        """
        return {code: view.head for code, view in self.views(operator).items()}

    def views(self, operator: Stateful) -> dict[int, LogView]:
        """Return the logs of a stateful operator by the subtask's code, as far as their heads go.

        Raises:
            CheckpointMismatchError: a head cannot be read.
        """
        found = {}
        for code, _, payload in self.logs(operator).where(f"number = {META}").collect():
            store = MemoryChunkStore()
            store.put(META, bytes(payload))
            found[code] = LogView(store, code)
        return found

    def every_head(self) -> list[LogHead]:
        """Return the heads of all logs.

        Raises:
            CheckpointMismatchError: one cannot be read.
        """
        return [head for operator in self.stateful for head in self.heads(operator).values()]


def _is_log(schema: StructType) -> bool:
    """Return whether state has the columns of logs. A ``StatefulProcessor`` of the user's may call one so, too."""
    fields = {field.name: getattr(field.dataType, "names", None) for field in schema.fields}
    return all(fields.get(column) == [field] for column, field in _COLUMNS.items())


def each_log(
    read: Callable[[int, MemoryChunkStore], Iterator[pa.RecordBatch]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Gather the values of one log after the other, and return what ``read`` makes of each.

    One log is in memory at a time: about twice the live rows of a subtask, pickled.
    """
    store = MemoryChunkStore()
    current: int | None = None
    ended: set[int | None] = set()
    for batch in batches:
        codes, numbers = batch.column(0).to_pylist(), batch.column(1).to_pylist()
        payloads = batch.column(2)
        for place, (code, number) in enumerate(zip(codes, numbers)):
            if code != current:
                if current is not None:
                    yield from read(current, store)
                ended.add(current)
                if code in ended:
                    raise AssertionError(f"Spark's reader of state has the values of {code} in several places")
                store, current = MemoryChunkStore(), code
            store.put(number, payloads[place].as_py())
    if current is not None:
        yield from read(current, store)
