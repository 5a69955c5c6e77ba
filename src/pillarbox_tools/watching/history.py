"""The history of a checkpoint's queries: small files in ``pillarbox/history/`` of the checkpoint.

The driver writes what the model knows of a run at most once a minute, and at the end of the run: each time a new file,
after which it removes the one before. So the folder has a file for each of the last runs, each with a bounded number of
moments and epochs; whoever reads one has all of it. Under Spark Connect nothing can be removed, so the driver writes
only at the end. A history that cannot be written costs a query nothing: the log tells once.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pillarbox._elements import TaskReport
from pillarbox._errors import describe
from pillarbox._graph.description import json_object
from pillarbox._json import plain, read
from pillarbox._runtime.spark.session.folders import HadoopFolder
from pillarbox._runtime.spark.session.session import session_of
from pillarbox_tools.model.query_model import QueryModel, now_ms
from pillarbox_tools.model.snapshot import FORMAT, EpochRun, Run, Snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("pillarbox")

_EVERY = 60_000
# How many runs are kept, and of a run how many epochs. Of the tasks of an epoch those that were busy for longest.
_RUNS = 20
_EPOCHS = 20
_TASKS = 64


def folder_of(checkpoint: str) -> str:
    """Return the folder with the history of a checkpoint."""
    return f"{checkpoint.rstrip('/')}/pillarbox/history"


class HistoryWriter:
    """Writes the history of one run. One thread uses it."""

    def __init__(self, spark: SparkSession, checkpoint: str, model: QueryModel) -> None:
        self._spark = spark
        self._folder = folder_of(checkpoint)
        self._model = model
        self._written = 0
        self._version = 0
        self._next = now_ms() + _EVERY
        # The file that holds the run; None: there is none yet.
        self._file: str | None = None
        self._warned = False

    def write_if_due(self) -> None:
        """Write what is new, if a minute has passed since the last time. It raises nothing."""
        if session_of(self._spark).has_jvm and now_ms() >= self._next:
            self.write()

    def write(self, *, is_end: bool = False) -> None:
        """Write what is new. It raises nothing.

        Args:
            is_end: whether the query has ended: its session may have ended as well, which is nothing to warn of.
        """
        self._next = now_ms() + _EVERY
        version = self._model.look()
        if version == self._version:
            return
        try:
            content = {**plain(condensed(self._model.snapshot())), "format": FORMAT}
            self._write(json.dumps(content, separators=(",", ":")))
            self._version = version
        except Exception as error:  # the query can do without
            is_quiet = self._warned or is_end
            (_log.debug if is_quiet else _log.warning)("history in %s: %s", self._folder, describe(error))
            self._warned = True

    def _write(self, text: str) -> None:
        session = session_of(self._spark)
        folder = session.hadoop_folder(self._folder)
        if folder is None:
            session.folder(self._folder).add_line(text)
            return
        began, before = self._model.snapshot().run.began, self._file
        self._written += 1
        name = f"{began:013d}-{self._model.run_id[:8]}-{self._written:06d}.txt"
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
    """Return a snapshot as the history keeps it: of one run, with fewer epochs and tasks."""
    epochs = snapshot.epochs[-_EPOCHS:]
    return replace(snapshot, is_live=False, earlier=[], epochs=[_condensed(each) for each in epochs])


def _condensed(epoch: EpochRun) -> EpochRun:
    """Return an epoch with the tasks that findings are about; sums over all tasks are in its vertices."""
    if len(epoch.tasks) <= _TASKS:
        return epoch
    kept = sorted(epoch.tasks, key=lambda task: -task.busy_ms)[:_TASKS]
    kept += sorted(epoch.tasks, key=lambda task: -task.records_in)[: _TASKS // 4]
    by_place = {(each.program, each.number, each.subtask): each for each in epoch.tasks}
    for lowest in _lowest(epoch):
        task: TaskReport | None = lowest
        while task is not None and task not in kept:
            kept.append(task)
            task = None if task.held_by is None else by_place.get((task.program, task.held_by[0], task.held_by[1]))
    fullest = max(epoch.tasks, key=lambda task: task.process_bytes or 0)
    places = {id(each) for each in (*kept, fullest)}
    return replace(epoch, tasks=[each for each in epoch.tasks if id(each) in places])


def _lowest(epoch: EpochRun) -> list[TaskReport]:
    """Return the task of each vertex whose watermark is the lowest: it shows what holds event time."""
    found: dict[tuple[str, int], TaskReport] = {}
    for task in epoch.tasks:
        known = found.get((task.program, task.number))
        if task.watermark is not None and (known is None or task.watermark < (known.watermark or 0)):
            found[task.program, task.number] = task
    return list(found.values())


def read_history(spark: SparkSession, checkpoint: str) -> list[Snapshot]:
    """Return what the history of a checkpoint has of each run, the newest first, without files of other formats."""
    newest: dict[str, Snapshot] = {}
    for _, line in session_of(spark).folder(folder_of(checkpoint)).lines():
        found: dict[str, Any] = json_object(line)
        if found.get("format") != FORMAT:
            continue
        try:
            snapshot = read(Snapshot, found)
        except (TypeError, ValueError, StopIteration) as error:  # half of one
            _log.debug("history in %s: %s", folder_of(checkpoint), describe(error))
            continue
        known = newest.get(snapshot.run.id)
        if known is None or known.at < snapshot.at:
            newest[snapshot.run.id] = snapshot
    return sorted(newest.values(), key=lambda each: -each.run.began)


def with_earlier(snapshot: Snapshot, history: list[Snapshot]) -> Snapshot:
    """Return a snapshot with the runs before its own, the newest first."""
    runs = [_over(each) for each in history if each.run.id != snapshot.run.id]
    return replace(snapshot, earlier=runs)


def _over(snapshot: Snapshot) -> Run:
    """Return a run that another one has followed: without an end, its driver is lost."""
    run = snapshot.run
    return run if run.ended is not None else replace(run, status="lost", ended=snapshot.at)
