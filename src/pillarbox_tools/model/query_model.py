"""The model of a query that runs: the driver feeds it as epochs end; whoever wants to know takes snapshots of it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from pillarbox._reports.failure import Failure, message_of
from pillarbox._reports.plan import Plan
from pillarbox._reports.progress import is_idle
from pillarbox._runtime.spark.running.heartbeat import Heartbeat
from pillarbox_tools.model.epochs import epoch_of
from pillarbox_tools.model.moments import Moments
from pillarbox_tools.model.snapshot import EpochRun, Run, Snapshot
from pillarbox_tools.model.subtasks import Subtasks

# How many epochs there are in a snapshot, and in how many of these the tasks are.
EPOCHS = 60
_WITH_TASKS = 5
# How many failures of one run are kept.
_FAILURES = 20
# How many combinations of versions in workers are kept.
_VERSIONS = 5


def now_ms() -> int:
    """Return the time (epoch ms)."""
    return time.time_ns() // 1_000_000


class Follower(Protocol):
    """Whoever gets each epoch of a model once. The thread that feeds the model calls it, and waits for it meanwhile."""

    def progressed(self, epoch: EpochRun) -> None:
        """Take an epoch, which has its tasks."""

    def ended(self, status: str) -> None:
        """Note that the query has ended: ``stopped`` or ``failed``."""


class QueryModel:
    """A query, from a start to its end. Any thread may call its methods.

    Args:
        id: Spark's id of the query; ``name``: the name that the user gave it.
        checkpoint: its checkpoint location; empty: it has none that lasts.
        plan: of its programs; None: it is not known.
        run: the run, with its settings and versions.
        earlier: the runs before it, the newest first.
        clock: epoch milliseconds.
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
        self._followers: list[Follower] = []
        self._feeding = threading.Lock()  # guards all of these
        self._version = 0

    # -- what the driver tells --

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """Take the progress that Spark reports of an epoch; one that is known, or older than another, is left out."""
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
                follower.progressed(epoch)

    def follows(self, earlier: Sequence[Run]) -> None:
        """Take the runs before this one, the newest first."""
        with self._feeding:
            self._earlier = list(earlier)
            if earlier:
                before = earlier[0]
                crashes = before.crashes + before.has_crashed
                self._run = replace(self._run, starts=before.starts + 1, crashes=crashes)
            self._version += 1

    def beat(self, heartbeat: Heartbeat) -> None:
        """Take the newest heartbeat of the driver."""
        with self._feeding:
            known = self._heartbeat
            self._heartbeat = heartbeat
            # (Each has a later time: pages need no news of that alone.)
            if known is None or (known.epoch, known.since) != (heartbeat.epoch, heartbeat.since):
                self._version += 1

    def _take_versions(self, epoch: EpochRun) -> None:
        known = self._run.worker_versions
        found = [*known]
        for task in epoch.tasks:
            if task.versions and task.versions not in found:
                found.append(task.versions)
        if len(found) > len(known):
            self._run = replace(self._run, worker_versions=found[:_VERSIONS])

    def failed(self, text: str) -> None:
        """Note that the query has failed with an error, which Spark told as text."""
        failure = Failure.of_text(text) or Failure("StreamingQueryException", message=message_of(text))
        with self._feeding:
            self._run = replace(self._run, failures=[*self._run.failures, failure][-_FAILURES:])
            self._end("failed")

    def ended(self) -> None:
        """Note that the query has ended. A query that has failed has ended then."""
        with self._feeding:
            if self._run.ended is None:
                self._end("stopped")

    def _end(self, status: str) -> None:
        if self._run.ended is None:
            self._heartbeat = None
            self._run = replace(self._run, status=status, ended=self._clock())
            for follower in self._followers:
                follower.ended(status)
        self._version += 1

    # -- what others ask --

    @property
    def has_ended(self) -> bool:
        """Whether the query has ended."""
        return self._run.ended is not None

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._run.id

    @property
    def heartbeat(self) -> Heartbeat | None:
        """The newest heartbeat of the driver, or None."""
        return self._heartbeat

    def look(self) -> int:
        """Return a number that grows with each change."""
        return self._version

    def follow(self, follower: Follower) -> None:
        """Let a follower have each epoch once from now on; those that the model still has, it gets at once."""
        with self._feeding:
            for epoch in self._epochs:
                follower.progressed(epoch)
            if self._run.ended is not None:
                follower.ended(self._run.status)
            self._followers.append(follower)

    def snapshot(self) -> Snapshot:
        """Return what is known now."""
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
