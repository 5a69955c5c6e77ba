"""``record``: brings one task of an epoch home, with its input, its state and its program."""

from __future__ import annotations

import pickle
import shutil
import time
import uuid
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pillarbox._errors import (
    CheckpointMismatchError,
    ConfigurationError,
    ProgramError,
    check_count,
    check_text,
    shorten,
)
from pillarbox._reports.failure import Failure, message_of
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.checkpoint.state import CheckpointState
from pillarbox._runtime.spark.facts import is_classic
from pillarbox._runtime.spark.homes.broadcasts import values_of
from pillarbox._runtime.spark.plan.registry import PlannedProgram, programs_of, shipped
from pillarbox._runtime.spark.reading.state_reader import operator_with
from pillarbox._runtime.spark.running.observing import LIMIT, TIMEOUT
from pillarbox._runtime.spark.settings.session_settings import session_settings
from pillarbox._runtime.spark.settings.writer import Start
from pillarbox._runtime.spark.tasks.replacement import REPLACEMENT
from pillarbox._time.clock_log import ClockLog
from pillarbox_tools.recording.copy import copied_checkpoint
from pillarbox_tools.recording.receiver import Receiver
from pillarbox_tools.recording.recorded import RecordedTask
from pillarbox_tools.recording.recording import RecordingFacts, input_of, write_recording
from pillarbox_tools.recording.sources import check_sources
from pillarbox_tools.recording.target import Target, doubts_of, find_target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.streaming.readwriter import DataStreamWriter

_LOOK_EVERY = 0.1


def record(
    writer: DataStreamWriter,
    directory: str,
    *,
    epoch: int | None = None,
    uid: str | None = None,
    subtask: int | None = None,
    key: str | None = None,
    allow_calls: bool = False,
    limit: int = LIMIT,
    timeout: float = TIMEOUT,
    **options: Any,
) -> str:
    """See :func:`pillarbox.record`."""
    check_count(limit, "record(): limit")
    check_text(directory, "record(): directory")
    if not hasattr(writer, "foreachBatch"):
        raise ProgramError(
            f"record() takes the writer of a program, such as to_dataframe(...).writeStream, not {shorten(writer)}"
        )
    start = Start(writer, "start", **options)
    spark = start.spark
    if not is_classic(spark):
        raise ConfigurationError("record() takes a classic session: under Spark Connect the driver cannot be reached")
    if start.checkpoint is None:
        raise ProgramError("record() takes a writer with a checkpointLocation, whose epochs it records")
    folder = Path(directory)
    if folder.exists():
        raise ConfigurationError(f"{directory} exists: give a folder that does not")
    checkpoint = start.checkpoint
    planned = programs_of(writer)
    target = find_target(spark, checkpoint, planned, epoch, uid, subtask, key)
    check_sources(spark, writer, checkpoint, target.epoch)
    _check_calls(planned, target, allow_calls=allow_calls)
    folder.mkdir(parents=True)
    try:
        _record(start, checkpoint, target, folder, limit, timeout)
    except BaseException:
        shutil.rmtree(folder)
        raise
    return directory


def _check_calls(planned: Sequence[PlannedProgram], target: Target, *, allow_calls: bool) -> None:
    """Refuse an epoch in which operators would call services that run again: before the task, or in other programs."""
    earlier = target.earlier
    for program in () if allow_calls else planned:
        plan = None if program.facts is None else program.facts.plan
        for vertex in () if plan is None else plan.vertices:
            is_other = program.id != target.program.id
            if not vertex.calls or not (is_other or vertex.number in earlier):
                continue
            caller = next(each for each in vertex.operators if each.uid == vertex.calls[0])
            when = "is in another program of the query" if is_other else f"runs before {target.vertex.uid!r}"
            raise ConfigurationError(
                f"operator {caller.uid!r} ({caller.name}) {when} and calls a service, which would get the requests of"
                " the epoch again: pass allow_calls=True (--allow-calls) to make them"
            )


def _record(start: Start, checkpoint: str, target: Target, folder: Path, limit: int, timeout: float) -> None:
    spark = start.spark
    if target.epoch > 0:
        _ = CheckpointState(spark, checkpoint, target.epoch - 1).stateful  # or it says that the state no longer exists
    host = spark.sparkContext.getConf().get("spark.driver.host", "127.0.0.1") or "127.0.0.1"
    notes = Checkpoint(spark, checkpoint)
    # None: it was not committed.
    files = None if target.epoch > notes.last_committed else CheckpointState(spark, checkpoint, target.epoch)
    clocks = {} if files is None else _clocks(files, target)
    receiver = Receiver(host, input_of(folder), limit, clocks)
    task = RecordedTask(
        target.program.id,
        target.vertex.number,
        target.subtask,
        target.earlier,
        host,
        receiver.port,
        receiver.token,
    )
    try:
        with copied_checkpoint(spark, checkpoint, target.epoch, limit) as copy:
            _run_again(start, copy, task, receiver, timeout)
    finally:
        receiver.close()
    if receiver.error is not None:
        raise receiver.error
    if not receiver.facts:
        of = target.vertex.uid or target.vertex.name
        raise ProgramError(
            f"subtask {target.subtask} of {of!r} did not run in epoch {target.epoch}: it had no input, and nothing was"
            " due"
        )
    after = None if files is None or target.vertex.level == 0 else _state_after(files, target)
    facts = RecordingFacts(
        checkpoint=checkpoint,
        epoch=target.epoch,
        number=target.vertex.number,
        uid=target.uid,
        name=target.vertex.name,
        subtask=target.subtask,
        level=target.vertex.level,
        layout=receiver.facts["layout"],
        time=receiver.facts.get("time") or notes.offsets([target.epoch])[target.epoch].time or 0,
        clock=_clock(clocks, target),
        is_last=receiver.facts["is_last"],
        is_pickled=receiver.facts.get("is_pickled", False),
        failure=None if target.failure is None else asdict(target.failure),
        calls=target.vertex.calls,
        doubts=doubts_of(target, receiver.end),
        bytes=receiver.bytes,
        hash_seed=receiver.facts["hash_seed"],
    )
    vertex = shipped(target.program, target.vertex)
    broadcasts = values_of(vertex.broadcasts.broadcasts)
    write_recording(folder, facts, pickle.dumps(vertex), receiver.state, after, broadcasts)


def _run_again(start: Start, copy: str, task: RecordedTask, receiver: Receiver, timeout: float) -> None:
    """Run the epoch again on the copy: the task sends what it has, and the epoch ends without any output.

    Raises:
        ConfigurationError: it takes too long.
    """
    deadline = time.monotonic() + timeout
    again = Start(
        start.writer, "start", checkpointLocation=copy, queryName=f"pillarbox recording {uuid.uuid4().hex[:8]}"
    )
    with _once(again), session_settings(start.spark, {REPLACEMENT: task.setting()}):
        query: Any = again.run()
    try:
        while not receiver.is_done(_LOOK_EVERY) and query.isActive:
            if time.monotonic() > deadline:
                raise ConfigurationError(
                    f"the epoch was run again for {timeout:g} seconds, and the task has not sent all of its input:"
                    " give it more time, as in record(..., timeout=...)"
                )
        if not receiver.is_done(0):
            failure = query.exception()
            if failure is not None:
                raise _not_again(start, failure)
        elif receiver.error is None:
            # Nothing is left to do: to stop it would make Spark tell of tasks that were killed.
            query.awaitTermination(max(1.0, deadline - time.monotonic()))
    finally:
        query.stop()


def _not_again(start: Start, failure: Exception) -> CheckpointMismatchError:
    """Return the error that says why an epoch could not run again."""
    text = str(failure)
    told = Failure.of_text(text)
    why = message_of(text) if told is None else told.message
    why = why.rpartition("terminated with exception: ")[2].split("\n", 1)[0].strip(" ;")
    return CheckpointMismatchError(
        f"checkpoint {start.checkpoint}: the epoch could not run again: {why}; if its sources no longer have"
        " what it read, record a newer one"
    )


@contextmanager
def _once(start: Start) -> Iterator[None]:
    with start.without_sink(), start.one_batch():
        yield


def _clocks(files: CheckpointState, target: Target) -> dict[tuple[int, int], bytes]:
    """Return what the clocks of tasks showed in the epoch, by vertex and subtask."""
    found: dict[tuple[int, int], bytes] = {}
    for head in files.every_head():
        if target.vertex.uid not in [uid for uid, *_ in head.program] and target.vertex.level:
            continue  # it is of another program
        number = next((number for uid, number, _ in head.program if uid == head.operator), None)
        if number is not None:
            found[number, head.subtask] = head.clock
    return found


def _clock(clocks: dict[tuple[int, int], bytes], target: Target) -> str | None:
    if target.failure is not None:
        return target.failure.clock
    log = clocks.get((target.vertex.number, target.subtask))
    return None if log is None else ClockLog.of_bytes(log).to_text()


def _state_after(files: CheckpointState, target: Target) -> dict[int, bytes] | None:
    """Return the log of the task after the epoch; None: the task has no state."""
    operator, heads = operator_with(files, target.vertex.uid)
    codes = [code for code, head in heads.items() if head.subtask == target.subtask]
    if not codes:
        return None
    rows = files.logs(operator).where(f"code = {codes[0]}").collect()
    return {row["number"]: bytes(row["payload"]) for row in rows}
