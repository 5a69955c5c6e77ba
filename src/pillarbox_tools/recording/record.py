"""``record``: records one task of an epoch in a folder."""

from __future__ import annotations

import pickle
import shutil
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pillarbox._errors import (
    CheckpointMismatchError,
    ConfigurationError,
    ProgramError,
    check_count,
    check_text,
    describe,
    shorten,
)
from pillarbox._operators.async_keyed.factory import async_options
from pillarbox._operators.calls.journal import read_entries
from pillarbox._reports.failure import Failure, message_of
from pillarbox._runtime.shipping import ShippedVertex
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.checkpoint.copy import CheckpointCopy, CheckpointCopyError, copied_checkpoint
from pillarbox._runtime.spark.checkpoint.state import CheckpointState
from pillarbox._runtime.spark.homes.broadcasts import use_values, values_of
from pillarbox._runtime.spark.plan.registry import RegisteredProgram, programs_of, shipped
from pillarbox._runtime.spark.session.session import check_classic
from pillarbox._runtime.spark.session.session_settings import alone, session_settings
from pillarbox._runtime.spark.session.writer import WriterStart
from pillarbox._runtime.spark.tasks.replacement import REPLACEMENT
from pillarbox._time.clock_log import ClockLog
from pillarbox_tools.recording.recorded_task import RecordedTask, RecordedTaskReceiver
from pillarbox_tools.recording.recording import Answers, RecordingMetadata, input_of, portions_in, write_recording
from pillarbox_tools.recording.sources import check_sources
from pillarbox_tools.recording.target import Target, doubts_of, epoch_to_record, find_target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_LOOK_EVERY = 0.1
# A running query may remove an epoch that is being copied. The next attempt uses a newer epoch.
_TRIES = 5


def record(
    writer: DataStreamWriter,
    directory: str,
    *,
    epoch: int | None,
    uid: str | None,
    subtask: int | None,
    key: str | None,
    allow_calls: bool,
    limit: int,
    timeout: float,
    **options: Any,
) -> str:
    """Implement :func:`pillarbox.record`."""
    check_count(limit, "record(): limit=")
    check_text(directory, "record(): directory=")
    if not hasattr(writer, "foreachBatch"):
        raise ProgramError(
            f"record() takes the writer of a program, such as to_dataframe(...).writeStream, not {shorten(writer)}"
        )
    start = WriterStart(writer, "start", **options)
    spark = start.spark
    check_classic(spark, "record() needs a classic session: under Spark Connect, tasks cannot reach the driver")
    if start.checkpoint is None:
        raise ProgramError("record() takes a writer with a checkpointLocation: set option('checkpointLocation', ...)")
    folder = Path(directory)
    if folder.exists():
        raise ConfigurationError(f"{directory} exists: pass a new directory")
    checkpoint = start.checkpoint
    for tries in range(_TRIES, 0, -1):
        number = epoch_to_record(spark, checkpoint, epoch, uid)
        is_committed = _is_committed(spark, checkpoint, number)
        try:
            with copied_checkpoint(
                spark, checkpoint, number, before=True, is_committed=is_committed, limit=limit
            ) as copy:
                planned = programs_of(writer)
                target = find_target(spark, checkpoint, planned, number, uid, subtask, key)
                check_sources(spark, writer, checkpoint, copy.path, number)
                _check_calls(planned, target, allow_calls=allow_calls)
                folder.mkdir(parents=True)
                _record(start, copy, target, folder, limit, timeout, is_committed=is_committed)
            break
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if not isinstance(error, CheckpointCopyError) or epoch is not None or tries == 1:
                raise
    return directory


def _is_committed(spark: SparkSession, checkpoint: str, epoch: int) -> bool:
    notes = Checkpoint(spark, checkpoint)
    if epoch not in notes.epochs_begun:
        raise CheckpointMismatchError(
            f"checkpoint {checkpoint}: epoch {epoch} has no offsets: it never began, or Spark has removed it"
            " (spark.sql.streaming.minBatchesToRetain)"
        )
    return epoch <= notes.last_committed


def _check_calls(planned: Sequence[RegisteredProgram], target: Target, *, allow_calls: bool) -> None:
    earlier = target.earlier
    for program in () if allow_calls else planned:
        plan = program.summary.plan
        for vertex in () if plan is None else plan.vertices:
            is_other = program.id != target.program.id
            if not vertex.calls or not (is_other or vertex.number in earlier):
                continue
            caller = next(operator for operator in vertex.operators if operator.uid == vertex.calls[0])
            when = "is in another program of the query" if is_other else f"runs before {target.vertex.uid!r}"
            raise ConfigurationError(
                f"operator {caller.uid!r} ({caller.name}) {when} and calls a service, which would receive the"
                " epoch's requests again: pass allow_calls=True (--allow-calls) to allow them"
            )


def _record(
    start: WriterStart,
    copy: CheckpointCopy,
    target: Target,
    folder: Path,
    limit: int,
    timeout: float,
    *,
    is_committed: bool,
) -> None:
    spark, checkpoint = start.spark, str(start.checkpoint)
    host = spark.sparkContext.getConf().get("spark.driver.host", "127.0.0.1") or "127.0.0.1"
    files = CheckpointState(spark, checkpoint, target.epoch, copy.path) if is_committed else None
    clocks = {} if files is None else _clocks(files, target)
    after = None if files is None or target.vertex.level == 0 else _state_after(files, target)
    receiver = RecordedTaskReceiver(host, input_of(folder), limit, clocks)
    task = RecordedTask(
        target.program.id,
        target.vertex.number,
        target.subtask,
        target.earlier,
        host,
        receiver.port,
        receiver.token,
    )
    epoch_time = Checkpoint(spark, copy.path).offsets([target.epoch])[target.epoch].time
    try:
        copy.rewind()
        _run_again(start, copy.path, task, receiver, timeout)
    finally:
        receiver.close()
    if receiver.error is not None:
        raise receiver.error
    if not receiver.facts:
        of = target.vertex.uid or target.vertex.name
        raise ProgramError(
            f"subtask {target.subtask} of {of!r} did not run in epoch {target.epoch}: it had no input and no due timer"
        )
    vertex = shipped(target.program, target.vertex)
    broadcasts = values_of(vertex.broadcasts.broadcasts)
    answers, doubts = dict[str, Answers](), list[str]()
    if target.vertex.calls:
        use_values(broadcasts)
        answers, doubts = _answers(vertex, Checkpoint(spark, checkpoint).query_id, target.subtask)
    facts = RecordingMetadata(
        checkpoint=checkpoint,
        epoch=target.epoch,
        number=target.vertex.number,
        uid=target.uid,
        name=target.vertex.name,
        subtask=target.subtask,
        level=target.vertex.level,
        layout=receiver.facts["layout"],
        time=receiver.facts.get("time") or epoch_time or 0,
        clock=_clock(clocks, target),
        is_last=receiver.facts["is_last"],
        is_pickled=receiver.facts.get("is_pickled", False),
        failure=target.failure,
        calls=target.vertex.calls,
        doubts=[*doubts_of(target, portions_in(folder)), *doubts],
        bytes=receiver.bytes,
        hash_seed=receiver.facts["hash_seed"],
    )
    write_recording(folder, facts, pickle.dumps(vertex), receiver.state, after, broadcasts, answers)


def _answers(vertex: ShippedVertex, query: str | None, subtask: int) -> tuple[dict[str, Answers], list[str]]:
    answers, doubts = dict[str, Answers](), list[str]()
    for node in vertex.load().nodes:
        options = async_options(node.factory)
        if options is None or options.journal is None or query is None:
            continue
        try:
            answers[node.uid] = read_entries(options.journal, query, node.uid, subtask)
        except Exception as error:
            doubts.append(f"the driver could not read the journal {options.journal!r}: {describe(error)}")
    return answers, doubts


def _run_again(
    start: WriterStart, copy: str, task: RecordedTask, receiver: RecordedTaskReceiver, timeout: float
) -> None:
    deadline = time.monotonic() + timeout
    again = start.again(copy, f"pillarbox recording {uuid.uuid4().hex[:8]}")
    # This prevents snapshots, which Spark's state maintenance would write into the copy.
    settings = {REPLACEMENT: task.setting(), "spark.sql.streaming.stateStore.minDeltasForSnapshot": str(10**9)}
    with alone(), session_settings(start.spark, settings):
        query: Any = again.run()
    try:
        while not receiver.is_done(_LOOK_EVERY) and query.isActive:
            if time.monotonic() > deadline:
                raise ConfigurationError(
                    f"the repeated epoch has run for {timeout:g} seconds, but the recorder has not received all of"
                    " the task's input: raise timeout= of record()"
                )
        if not receiver.is_done(0):
            failure = query.exception()
            if failure is not None:
                raise _not_again(start, failure)
        elif receiver.error is None:
            # Not stopped, because Spark would log killed tasks.
            query.awaitTermination(max(1.0, deadline - time.monotonic()))
    finally:
        query.stop()


def _not_again(start: WriterStart, failure: Exception) -> CheckpointMismatchError:
    text = str(failure)
    noted = Failure.of_text(text)
    why = message_of(text) if noted is None else noted.message
    why = why.rpartition("terminated with exception: ")[2].split("\n", 1)[0].strip(" ;")
    return CheckpointMismatchError(
        f"checkpoint {start.checkpoint}: the epoch could not be repeated: {why}; if its sources no longer have its"
        " input, record a newer epoch"
    )


def _clocks(files: CheckpointState, target: Target) -> dict[tuple[int, int], bytes]:
    clocks: dict[tuple[int, int], bytes] = {}
    for head in files.all_heads():
        if target.vertex.uid not in [uid for uid, *_ in head.program] and target.vertex.level:
            continue
        number = next((number for uid, number, _ in head.program if uid == head.operator), None)
        if number is not None:
            clocks[number, head.subtask] = head.clock
    return clocks


def _clock(clocks: dict[tuple[int, int], bytes], target: Target) -> str | None:
    if target.failure is not None:
        return target.failure.clock
    log = clocks.get((target.vertex.number, target.subtask))
    return None if log is None else ClockLog.of_bytes(log).to_text()


def _state_after(files: CheckpointState, target: Target) -> dict[int, bytes] | None:
    for operator in files.stateful:
        for code, head in files.heads(operator).items():
            if (head.operator, head.subtask) == (target.vertex.uid, target.subtask):
                rows = files.logs(operator).where(f"code = {code}").collect()
                return {row["number"]: bytes(row["payload"]) for row in rows}
    return None
