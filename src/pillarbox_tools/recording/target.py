"""Chooses the task to record from the program's plan, the checkpoint and the history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pillarbox._elements.buffers import Buffer, edge_of_channel
from pillarbox._errors import CheckpointMismatchError, ProgramError, is_count, shorten
from pillarbox._reports.failure import Failure
from pillarbox._reports.plan import Plan, PlanVertex
from pillarbox._rows import batch_from_bytes
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.checkpoint.look import read_epoch
from pillarbox._runtime.spark.checkpoint.state import CheckpointState
from pillarbox._runtime.spark.plan.registry import RegisteredProgram, vertex_with
from pillarbox._runtime.spark.reading.key_life import key_in_state
from pillarbox._runtime.spark.reading.key_text import possible_keys, several_keys
from pillarbox._runtime.spark.reading.state_reader import operator_with
from pillarbox._state.keys.key_groups import subtask_of_key
from pillarbox._task.vertex import sender_of_edge
from pillarbox_tools.model.snapshot import Snapshot, SnapshotEpoch, vertex_id
from pillarbox_tools.watching.history import read_history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Target(NamedTuple):
    """A task of an epoch."""

    program: RegisteredProgram
    vertex: PlanVertex
    subtask: int
    epoch: int
    failure: Failure | None
    epoch_run: SnapshotEpoch | None

    @property
    def _plan(self) -> Plan:
        plan = self.program.summary.plan
        assert plan is not None, "the vertex was found in it"
        return plan

    @property
    def uid(self) -> str:
        """The uid of one of the operators, preferably one that no other vertex has. "" if no operator has a uid."""
        others = {
            operator.uid
            for vertex in self._plan.vertices
            if vertex_id(vertex) != vertex_id(self.vertex)
            for operator in vertex.operators
        }
        own = [operator.uid for operator in self.vertex.operators if operator.uid]
        return next((uid for uid in own if uid not in others), own[0] if own else "")

    @property
    def earlier(self) -> list[int]:
        return self._plan.before(self.vertex.program, self.vertex.number)

    @property
    def senders(self) -> list[int]:
        edges = [edge for edge in self._plan.edges if edge.program == self.vertex.program]
        return [edge.sender for edge in edges if edge.receiver == self.vertex.number]


def epoch_to_record(spark: SparkSession, checkpoint: str, epoch: int | None, uid: str | None) -> int:
    if epoch is not None:
        if not is_count(epoch, 0):
            raise ProgramError(f"record(): epoch= must be a micro-batch number (0 or more), not {shorten(epoch)}")
        return epoch
    failure = _failure(read_history(spark, checkpoint), uid)
    if failure is not None and failure.epoch is not None:
        return failure.epoch
    notes = Checkpoint(spark, checkpoint)
    return notes.last_committed + notes.is_interrupted


def find_target(
    spark: SparkSession,
    checkpoint: str,
    planned: Sequence[RegisteredProgram],
    epoch: int,
    uid: str | None,
    subtask: int | None,
    key: str | None,
) -> Target:
    history = read_history(spark, checkpoint)
    failure = _failure(history, uid)
    of_failure = failure if failure is not None and failure.epoch == epoch else None
    number: int | None = None
    if uid is None and of_failure is not None:
        uid, number = of_failure.uid, of_failure.vertex
    if uid is None:
        raise ProgramError(
            f"checkpoint {checkpoint}: no failure of epoch {epoch} is known, so select the task to record: pass uid=,"
            " and subtask= or key="
        )
    program, vertex = vertex_with(planned, uid, number)
    if key is not None:
        subtask = _subtask_of(spark, checkpoint, program, vertex.uid, key)
    elif subtask is None and of_failure is not None and of_failure.uid in {part.uid for part in vertex.operators}:
        subtask = of_failure.subtask
    if subtask is None:
        raise ProgramError(f"record(): select the subtask of {uid!r} to record: pass subtask=..., or key=...")
    if of_failure is not None and of_failure.subtask != subtask:
        of_failure = None
    ran = next((run for snapshot in history for run in snapshot.epochs if run.number == epoch), None)
    return Target(program, vertex, subtask, epoch, of_failure, ran)


def _failure(history: list[Snapshot], uid: str | None) -> Failure | None:
    if not history or not history[0].run.failures:
        return None
    newest = history[0].run.failures[-1]
    return newest if uid is None or newest.uid == uid else None


def _subtask_of(spark: SparkSession, checkpoint: str, program: RegisteredProgram, uid: str, text: str) -> int:
    layout = program.summary.description.with_layout(program.layout)
    operator = next((operator for operator in layout["operators"] if operator["uid"] == uid), None)
    if operator is None or operator["key"] is None:
        raise ProgramError(f"record(): {uid!r} has no keys, so select the subtask to record: pass subtask=...")
    keys = possible_keys(text, [operator["key"]])
    try:
        return read_epoch(spark, checkpoint, None, partial(_subtask_in_state, uid, text, keys))
    except CheckpointMismatchError:
        subtasks = {subtask_of_key(key, layout["max_parallelism"], operator["parallelism"]) for key in keys}
    if len(subtasks) > 1:
        raise several_keys(text, uid, keys, "the operator has no state yet", "pass subtask=...")
    return subtasks.pop()


def _subtask_in_state(uid: str, text: str, keys: Sequence[Any], files: CheckpointState) -> int:
    head = next(iter(operator_with(files, uid)[1].values()))
    subtasks = {subtask_of_key(key, head.max_parallelism, head.parallelism) for key in keys}
    chosen = keys[0] if len(subtasks) == 1 else key_in_state(files, uid, text, keys)
    return subtask_of_key(chosen, head.max_parallelism, head.parallelism)


def doubts_of(target: Target, portions: Iterable[Any]) -> list[str]:
    epoch = target.epoch_run
    if epoch is None:
        return []
    program, key = target.vertex.program, (target.vertex.number, target.subtask)
    if not target.vertex.level:
        rows = sum(batch_from_bytes(portion).num_rows for portion in portions)
        before = [
            task.records_in for task in epoch.tasks if (task.program, task.number, task.subtask) == (program, *key)
        ]
        return [
            f"partition {target.subtask} of the source had {then:,} records then, but {rows:,} in the recording"
            for then in before[:1]
            if then != rows
        ]
    channels = {Buffer(*fields).channel for portion in portions for fields in portion}
    partitions = Counter(sender_of_edge(edge_of_channel(channel)) for channel in channels)
    sources = [vertex for vertex in epoch.vertices if vertex.program == program and vertex.level == 0]
    return [
        f"the source had {vertex.tasks:,} partitions then, but {partitions[vertex.number]:,} in the recording, so the"
        " order of its records may differ"
        for vertex in sources
        if vertex.number in target.senders and partitions[vertex.number] != vertex.tasks
    ]
