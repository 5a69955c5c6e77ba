"""Records all tasks of local jobs, and replays epochs of queries."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

import pillarbox
from pillarbox import ProgramError
from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._reports.failure import FailedAttempt, Failure
from pillarbox._rows import batch_to_bytes
from pillarbox._runtime.local import LocalJob
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox_tools.recording.recorded_task import chunks_of
from pillarbox_tools.recording.recording import RecordingMetadata, input_of, read_recording, write_recording
from pillarbox_tools.replay.replay import replay


@contextmanager
def recorded(folder: Path) -> Iterator[list[Path]]:
    results: list[Path] = []
    run_partition, sent_by = LocalJob._run_partition, LocalJob._buffers_of

    def record(job: LocalJob, number: int, subtask: int, level: int, portions: list[Any], **facts: Any) -> Any:
        path = folder / f"{len(list(folder.iterdir())):04d}"
        path.mkdir()
        input_of(path).write_bytes(b"".join(map(pickle.dumps, portions)))
        vertex = job.program.vertices[number]
        return path, RecordingMetadata(
            checkpoint="none",
            epoch=job.epoch,
            number=number,
            uid=vertex.uid,
            name=vertex.name,
            subtask=subtask,
            level=level,
            layout=list(job.program.layout),
            bytes=input_of(path).stat().st_size,
            hash_seed=os.environ.get("PYTHONHASHSEED"),
            calls=[node.uid for node in vertex.nodes if node.factory.wakes_up],
            **facts,
        )

    def write(job: LocalJob, path: Path, facts: RecordingMetadata, before: Any, after: Any) -> None:
        write_recording(path, facts, pickle.dumps(job._shipped[facts.number]), before, after)
        results.append(path)

    def of_partition(job: LocalJob, number: int, partition: int, runs: Any, bounded: bool) -> Iterator[Any]:
        batch_of_runs = list(runs)
        is_pickled = not all(isinstance(run, ArrowRecords) for run in batch_of_runs)
        batches = [pickled(run) if is_pickled else run.batch for run in batch_of_runs]
        portions = [batch_to_bytes(batch) for batch in batches]
        identity, facts = record(
            *(job, number, partition, 0, portions), time=0, clock=None, is_last=bounded, is_pickled=is_pickled
        )
        yield from run_partition(job, number, partition, iter(batch_of_runs), bounded)
        write(job, identity, facts, {}, None)

    def of_subtask(job: LocalJob, vertex: Any, subtask: int, arrived: Any, store: Any) -> Iterator[Any]:
        before = dict(chunks_of(store))
        time = job._epoch_time
        assert time is not None
        identity, facts = record(
            *(job, vertex.number, subtask, vertex.level, [[tuple(values) for values in arrived]]), time=time, clock=None
        )
        try:
            yield from sent_by(job, vertex, subtask, arrived, store)
        except Exception as error:
            failure = Failure.of(error, subtask, FailedAttempt(vertex.number, job.epoch, 0))
            failed = replace(facts, failure=vars(failure), clock=clock_of(job, vertex.number, subtask))
            write(job, identity, failed, before, None)
            raise
        done = replace(facts, clock=clock_of(job, vertex.number, subtask))
        write(job, identity, done, before, dict(chunks_of(store)))

    with (
        mock.patch.object(LocalJob, "_run_partition", of_partition),
        mock.patch.object(LocalJob, "_buffers_of", of_subtask),
    ):
        yield results


def clock_of(job: LocalJob, number: int, subtask: int) -> str | None:
    return job._tasks[number, subtask].clock.log.to_text()


def pickled(run: Records) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(list(map(pickle.dumps, run.values)), pa.binary())})


def replay_epochs(
    writer: Any,
    checkpoint: str,
    tasks: Iterable[tuple[str, int]],
    folder: Path,
    *,
    newest: int = 100,
    epochs: Iterable[int] | None = None,
) -> int:
    """Record some tasks in committed epochs, and replay the recordings. Returns the number of recordings.

    A task without work in an epoch is not recorded.

    Args:
        tasks: (uid, subtask or partition) of each task.
        epochs: epoch numbers. By default, the ``newest`` epochs.
    """
    count = 0
    last = Checkpoint(writer._spark, checkpoint).last_committed
    for epoch in range(max(0, last - newest + 1), last + 1) if epochs is None else epochs:
        for uid, subtask in tasks:
            path = folder / f"{uid}-{subtask}-{epoch}"
            try:
                pillarbox.record(
                    writer, str(path), epoch=epoch, uid=uid, subtask=subtask, checkpointLocation=checkpoint
                )
            except ProgramError as error:
                assert "it had no input and no due timer" in str(error)
                continue
            recording = read_recording(path)
            result = replay(recording, diff=True)
            assert (result.error, result.differs, result.state or []) == (None, [], []), (
                path,
                result.reasons,
            )
            assert result.state is not None or not recording.facts.level
            count += 1
    return count
