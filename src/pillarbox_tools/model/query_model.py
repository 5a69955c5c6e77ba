"""The model of a running query. The driver feeds it as epochs end; readers take snapshots."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pillarbox._reports.failure import Failure, message_of
from pillarbox._reports.plan import Plan
from pillarbox._reports.progress import is_idle
from pillarbox._runtime.spark.running.heartbeat import Heartbeat
from pillarbox_tools.model.epochs import epoch_of
from pillarbox_tools.model.moments import Moments
from pillarbox_tools.model.snapshot import EpochRun, Run, Snapshot
from pillarbox_tools.model.subtasks import Subtasks

# Epochs in a snapshot, and how many of them include their tasks.
EPOCHS = 60
_WITH_TASKS = 5
_FAILURES = 20
_VERSIONS = 5


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class QueryModel:
    """One run of a query. Any thread may call its methods.

    Args:
        checkpoint: its checkpoint location; empty if temporary.
        plan: the plan of its programs, or None if unknown.
        earlier: the earlier runs, newest first.
        clock: returns epoch milliseconds.
    """

    def __init__(
        self,
        id: str,
        name: str,
        checkpoint: str,
        plan: Plan | None,
        run: Run,
        *,
        earlier: Sequence[Run] = (),
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self.id = id
        self._name = name
        self._checkpoint = checkpoint
        self._plan = plan
        self._run = run
        self._earlier = list(earlier)
        self._clock = clock
        self._epochs: deque[EpochRun] = deque(maxlen=EPOCHS)
        self._moments = Moments()
        self._subtasks = Subtasks()
        self._heartbeat: Heartbeat | None = None
        self._followers: list[Callable[[EpochRun], None]] = []
        self._feeding = threading.Lock()  # guards all fields
        self._version = 0

    # -- called by the driver --

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """Add an epoch from Spark's progress report. Ignores idle, repeated and older reports."""
        if is_idle(progress):
            return
        epoch = epoch_of(progress)
        with self._feeding:
            if self._epochs and epoch.number <= self._epochs[-1].number:
                return
            epoch = self._subtasks.add(epoch)
            self._epochs.append(epoch)
            if len(self._epochs) > _WITH_TASKS:
                self._epochs[-1 - _WITH_TASKS] = replace(self._epochs[-1 - _WITH_TASKS], tasks=[])
            self._moments.add(epoch, self._plan)
            self._take_versions(epoch)
            self._version += 1
            for follower in self._followers:
                follower(epoch)

    def follows(self, earlier: Sequence[Run]) -> None:
        with self._feeding:
            self._earlier = list(earlier)
            if earlier:
                before = earlier[0]
                crashes = before.crashes + before.has_crashed
                self._run = replace(self._run, starts=before.starts + 1, crashes=crashes)
            self._version += 1

    def beat(self, heartbeat: Heartbeat) -> None:
        with self._feeding:
            previous = self._heartbeat
            self._heartbeat = heartbeat
            if previous is None or (previous.epoch, previous.since) != (heartbeat.epoch, heartbeat.since):
                self._version += 1

    def _take_versions(self, epoch: EpochRun) -> None:
        previous = self._run.worker_versions
        versions = [*previous]
        for task in epoch.tasks:
            if task.versions and task.versions not in versions:
                versions.append(task.versions)
        if len(versions) > len(previous):
            self._run = replace(self._run, worker_versions=versions[:_VERSIONS])

    def failed(self, text: str) -> None:
        failure = Failure.of_text(text) or Failure("StreamingQueryException", message=message_of(text))
        with self._feeding:
            self._run = replace(self._run, failures=[*self._run.failures, failure][-_FAILURES:])
            self._end("failed")

    def ended(self) -> None:
        """Record the end of the query. Does nothing after ``failed``."""
        with self._feeding:
            if self._run.ended is None:
                self._end("stopped")

    def _end(self, status: str) -> None:
        if self._run.ended is None:
            self._heartbeat = None
            self._run = replace(self._run, status=status, ended=self._clock())
        self._version += 1

    # -- called by readers --

    @property
    def has_ended(self) -> bool:
        return self._run.ended is not None

    @property
    def run_id(self) -> str:
        return self._run.id

    @property
    def heartbeat(self) -> Heartbeat | None:
        return self._heartbeat

    def refresh(self) -> int:
        return self._version

    def follow(self, follower: Callable[[EpochRun], None]) -> None:
        """Add a follower. It receives the stored epochs at once, and new ones in the thread that feeds the model."""
        with self._feeding:
            for epoch in self._epochs:
                follower(epoch)
            self._followers.append(follower)

    def snapshot(self) -> Snapshot:
        with self._feeding:
            run = replace(self._run, moments=self._moments.all(), executors=self._subtasks.executors())
            return Snapshot(
                id=self.id,
                name=self._name,
                checkpoint=self._checkpoint,
                at=self._clock(),
                is_live=True,
                plan=self._plan,
                run=run,
                earlier=list(self._earlier),
                epochs=list(self._epochs),
                heartbeat=self._heartbeat,
            )
