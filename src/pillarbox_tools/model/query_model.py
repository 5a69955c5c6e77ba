"""The model of a running query. The driver adds epochs; readers take snapshots."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pillarbox._errors import ConfigurationError
from pillarbox._reports.failure import Failure, message_of
from pillarbox._reports.progress import is_idle
from pillarbox._runtime.spark.running.heartbeat import Heartbeat
from pillarbox_tools.model.epochs import epoch_of
from pillarbox_tools.model.moments import Moments
from pillarbox_tools.model.snapshot import Snapshot, SnapshotEpoch, SnapshotRun
from pillarbox_tools.model.subtasks import Subtasks

# Number of epochs in a snapshot, and number of these epochs that include their tasks.
EPOCHS = 60
_WITH_TASKS = 5
_FAILURES = 20
_VERSIONS = 5


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class StaticQueryModel:
    """A query on a dashboard. In this base class, the snapshot is constant, as in a bundle. Thread-safe."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._version = 0

    @property
    def id(self) -> str:
        return self._snapshot.id

    @property
    def has_ended(self) -> bool:
        return self._snapshot.run.ended is not None

    @property
    def heartbeat(self) -> Heartbeat | None:
        return self._snapshot.heartbeat

    def refresh(self) -> int:
        """Check for changes, and return the snapshot's version, which increases with each change."""
        return self._version

    def snapshot(self) -> Snapshot:
        return self._snapshot

    def key_life(self, uid: str, key: str) -> dict[str, Any]:
        """Return the state and history of an operator's key. Raises ``PillarboxError`` if that fails."""
        raise ConfigurationError(
            "a bundle has no state: to see a key's state, open the checkpoint with 'pillarbox dashboard CHECKPOINT'"
        )


class QueryModel(StaticQueryModel):
    """The model of one run of a query. Thread-safe.

    Args:
        clock: returns the time (Unix time in ms).
    """

    def __init__(self, snapshot: Snapshot, *, clock: Callable[[], int] = now_ms) -> None:
        super().__init__(snapshot)
        self._clock = clock
        self._moments = Moments()
        self._subtasks = Subtasks()
        self._followers: list[Callable[[SnapshotEpoch], None]] = []
        self._feeding = threading.Lock()  # guards all fields

    # -- called by the driver --

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """Add the epoch in Spark's progress report. Idle, repeated and older reports are ignored."""
        if is_idle(progress):
            return
        epoch = epoch_of(progress)
        with self._feeding:
            newest = self._snapshot.newest
            if newest is not None and epoch.number <= newest.number:
                return
            epoch = self._subtasks.add(epoch)
            epochs = [*self._snapshot.epochs, epoch][-EPOCHS:]
            if len(epochs) > _WITH_TASKS:
                epochs[-1 - _WITH_TASKS] = replace(epochs[-1 - _WITH_TASKS], tasks=[])
            self._moments.add(epoch, self._snapshot.plan)
            versions = [*self._snapshot.run.worker_versions]
            for task in epoch.tasks:
                if task.versions and task.versions not in versions:
                    versions.append(task.versions)
            self._change(replace(self._snapshot.run, worker_versions=versions[:_VERSIONS]), epochs=epochs)
            for follower in self._followers:
                follower(epoch)

    def _change(self, run: SnapshotRun | None = None, **changes: Any) -> None:
        self._snapshot = replace(self._snapshot, run=run or self._snapshot.run, **changes)
        self._version += 1

    def follows(self, earlier: Sequence[SnapshotRun]) -> None:
        with self._feeding:
            run = self._snapshot.run
            if earlier:
                before = earlier[0]
                run = replace(run, starts=before.starts + 1, crashes=before.crashes + before.has_crashed)
            self._change(run, earlier=list(earlier))

    def beat(self, heartbeat: Heartbeat) -> None:
        with self._feeding:
            previous = self._snapshot.heartbeat
            self._snapshot = replace(self._snapshot, heartbeat=heartbeat)
            self._version += previous is None or (previous.epoch, previous.since) != (heartbeat.epoch, heartbeat.since)

    def failed(self, text: str) -> None:
        failure = Failure.of_text(text) or Failure("StreamingQueryException", message=message_of(text))
        with self._feeding:
            run = self._snapshot.run
            self._change(replace(run, failures=[*run.failures, failure][-_FAILURES:]))
            self._end("failed")

    def ended(self) -> None:
        """Record the end of the query. Does nothing if ``failed`` has been called."""
        with self._feeding:
            self._end("stopped")

    def _end(self, status: str) -> None:
        if not self.has_ended:
            self._change(replace(self._snapshot.run, status=status, ended=self._clock()), heartbeat=None)

    # -- called by readers --

    def follow(self, follower: Callable[[SnapshotEpoch], None]) -> None:
        """Call ``follower`` with each stored epoch now, and later with each new epoch."""
        with self._feeding:
            for epoch in self._snapshot.epochs:
                follower(epoch)
            self._followers.append(follower)

    def snapshot(self) -> Snapshot:
        with self._feeding:
            moments, executors = self._moments.all(), self._subtasks.executors()
            run = replace(self._snapshot.run, moments=moments, executors=executors)
            return replace(self._snapshot, at=self._clock(), run=run)
