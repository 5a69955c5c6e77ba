"""The history of a checkpoint's query: small files in the checkpoint's folder ``pillarbox/history/``.

At the start of a run, then at most once a minute, and at the end, the driver writes its model of the run to a new file
and removes the previous file. Under Spark Connect, files cannot be removed, so the driver writes only at the end. A
failed write does not affect the query.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pillarbox._elements.task_report import TaskReport
from pillarbox._errors import describe
from pillarbox._graph.description import json_object
from pillarbox._json import plain, read
from pillarbox._runtime.spark.session.folders import HadoopFolder
from pillarbox._runtime.spark.session.session import session_of
from pillarbox_tools.model.held_watermarks import lowest_tasks
from pillarbox_tools.model.query_model import QueryModel, now_ms
from pillarbox_tools.model.snapshot import FORMAT, Snapshot, SnapshotEpoch, SnapshotRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("pillarbox")

_EVERY = 60_000
# Maximum number of runs, of epochs per run, and of (the busiest) tasks per epoch.
_RUNS = 20
_EPOCHS = 20
_TASKS = 64


def folder_of(checkpoint: str) -> str:
    return f"{checkpoint.rstrip('/')}/pillarbox/history"


class HistoryWriter:
    """Writes the history of one run. Not thread-safe."""

    def __init__(self, spark: SparkSession, checkpoint: str, model: QueryModel) -> None:
        self._spark = spark
        self._folder = folder_of(checkpoint)
        self._model = model
        self._written = 0
        self._version = 0
        # The first write records the start, even of a run that lasts less than a minute.
        self._next = 0
        self._file: str | None = None
        self._warned = False

    def write_if_due(self) -> None:
        """Write changes if the last write was at least a minute ago. Never raises."""
        if session_of(self._spark).has_jvm and now_ms() >= self._next:
            self.write()

    def write(self, *, is_end: bool = False) -> None:
        """Write changes. Never raises.

        Does not warn of failures at the query's end, because the session may also have ended.
        """
        self._next = now_ms() + _EVERY
        version = self._model.refresh()
        if version == self._version:
            return
        try:
            content = {**plain(condensed(self._model.snapshot())), "format": FORMAT}
            self._write(json.dumps(content, separators=(",", ":")))
            self._version = version
        except Exception as error:
            is_quiet = self._warned or is_end
            (_log.debug if is_quiet else _log.warning)(
                "the history in %s cannot be written: %s", self._folder, describe(error)
            )
            self._warned = True

    def _write(self, text: str) -> None:
        session = session_of(self._spark)
        folder = session.hadoop_folder(self._folder)
        if folder is None:
            session.folder(self._folder).add_line(text)
            return
        run, before = self._model.snapshot().run, self._file
        self._written += 1
        name = f"{run.began:013d}-{run.id[:8]}-{self._written:06d}.txt"
        if before is None:
            _forget_old_runs(folder)
        folder.add(name, f"{text}\n")
        self._file = name
        if before is not None:
            folder.remove(before)


def _forget_old_runs(folder: HadoopFolder) -> None:
    for name in sorted(folder.names())[: -(_RUNS - 1)]:
        folder.remove(name)


def condensed(snapshot: Snapshot) -> Snapshot:
    epochs = snapshot.epochs[-_EPOCHS:]
    return replace(snapshot, is_live=False, earlier=[], epochs=[_condensed(epoch) for epoch in epochs])


def _condensed(epoch: SnapshotEpoch) -> SnapshotEpoch:
    """Drop task reports that the doctor does not need, but keep the sums over all tasks."""
    if len(epoch.tasks) <= _TASKS:
        return epoch
    tasks = sorted(epoch.tasks, key=lambda task: -task.busy_ms)[:_TASKS]
    tasks += sorted(epoch.tasks, key=lambda task: -task.records_in)[: _TASKS // 4]
    by_place = {(task.program, task.number, task.subtask): task for task in epoch.tasks}
    for lowest in lowest_tasks(epoch.tasks):
        task: TaskReport | None = lowest
        while task is not None and task not in tasks:
            tasks.append(task)
            task = None if task.held_by is None else by_place.get((task.program, task.held_by[0], task.held_by[1]))
    fullest = max(epoch.tasks, key=lambda task: task.process_bytes or 0)
    places = {id(task) for task in (*tasks, fullest)}
    return replace(epoch, tasks=[task for task in epoch.tasks if id(task) in places])


def read_history(spark: SparkSession, checkpoint: str) -> list[Snapshot]:
    """Return each run's last snapshot, newest first. Files of other format versions are skipped."""
    newest: dict[str, Snapshot] = {}
    for _, line in session_of(spark).folder(folder_of(checkpoint)).lines():
        document: dict[str, Any] = json_object(line)
        if document.get("format") != FORMAT:
            continue
        try:
            snapshot = read(Snapshot, document)
        except (TypeError, ValueError, StopIteration) as error:
            _log.debug("the history in %s cannot be read: %s", folder_of(checkpoint), describe(error))
            continue
        previous = newest.get(snapshot.run.id)
        if previous is None or previous.at < snapshot.at:
            newest[snapshot.run.id] = snapshot
    return sorted(newest.values(), key=lambda snapshot: -snapshot.run.began)


def with_earlier(snapshot: Snapshot, history: list[Snapshot]) -> Snapshot:
    runs = [_over(entry) for entry in history if entry.run.id != snapshot.run.id]
    return replace(snapshot, earlier=runs)


def _over(snapshot: Snapshot) -> SnapshotRun:
    run = snapshot.run
    return run if run.ended is not None else replace(run, status="lost", ended=snapshot.at)
