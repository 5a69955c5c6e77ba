"""Updates the heartbeat of a query's driver, every second in memory and every 15 seconds in the checkpoint.

The tools read heartbeats, because only the driver knows that an epoch hangs. Under Spark Connect, the heartbeat is only
in memory, because files cannot be removed.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pillarbox._errors import describe
from pillarbox._graph.description import json_object
from pillarbox._json import json_of, read
from pillarbox._reports.progress import is_idle, millis
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.homes.processes import OsProcess
from pillarbox._runtime.spark.running.stages import Stage, stages_of
from pillarbox._runtime.spark.session.folders import Folder, HadoopFolder
from pillarbox._runtime.spark.session.session import session_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from pillarbox._runtime.spark.starting.started import StartedQuery
    from pillarbox._runtime.spark.tools import Progress

_log = logging.getLogger("pillarbox")

#: Seconds between two writes, and milliseconds of silence until a driver counts as dead.
WRITE_EVERY = 15.0
FRESH_MS = 150_000
#: Seconds until a living driver has certainly written a heartbeat.
NEXT_BEAT = 2 * WRITE_EVERY
# If an epoch takes longer than this (milliseconds), its stages are read, with some calls to Java each second.
_STAGES_AFTER = 2000


@dataclass(frozen=True)
class Heartbeat:
    """A snapshot of a driver's activity. Times are Unix times in ms, unless noted.

    Attributes:
        process: the driver's pid on ``host``.
        process_start: when that process started (clock ticks since boot), or 0 if unknown.
        reported: time of Spark's last progress report (idle queries also report), or None before the first report.
    """

    at: int
    run: str
    host: str
    process: int
    process_start: int = 0
    epoch: int | None = None
    since: int | None = None
    reported: int | None = None
    stages: list[Stage] = field(default_factory=list)

    @property
    def driver(self) -> str:
        return f"process {self.process} on {self.host}"

    @property
    def age(self) -> int:
        return max(0, time.time_ns() // 1_000_000 - self.at)

    def has_ended(self, host: str) -> bool | None:
        """Return whether the driver's process has ended, or None if ``host`` cannot know this."""
        if self.age > FRESH_MS:
            return True
        if self.host == host and self.process_start:
            return OsProcess(self.process, self.process_start).has_ended()
        return None


class Pulse:
    """Creates and writes the heartbeats of a query. Not thread-safe."""

    def __init__(self, started: StartedQuery, clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._started = started
        self._query: Any = started.query
        self._clock = clock
        self._me = this_process()
        self._epoch: int | None = None
        self._since: int | None = None
        self._reported: int | None = None
        self._finished: int | None = None
        spark, checkpoint = started.start.spark, started.checkpoint
        self._files = None if checkpoint is None else heartbeat_files(spark, checkpoint)
        self._written_at = 0.0

    def take(self, reports: Sequence[Progress]) -> None:
        for report in reports:
            self._reported = max(self._reported or 0, millis(report["timestamp"]))
            self._since = None
            if not is_idle(report):
                self._finished = int(report["batchId"])

    def beat(self) -> Heartbeat:
        now = self._clock()
        if not self._query.status["isTriggerActive"]:
            self._since = None
        elif self._since is None:
            self._since = now
        number = None if self._since is None else self._running
        run, stages = str(self._query.runId), []
        if self._since is not None and now - self._since >= _STAGES_AFTER:
            stages = stages_of(self._started.start.spark, run, self._levels)
        beat = Heartbeat(now, run, *self._me, number, self._since, self._reported, stages)
        if self._files is not None and time.monotonic() - self._written_at >= WRITE_EVERY:
            self._written_at = time.monotonic()
            self._files.write(beat)
        return beat

    @property
    def _running(self) -> int:
        if self._finished is None and self._files is not None:
            # This run has not reported an epoch yet, but an earlier run may have committed some.
            checkpoint = Checkpoint(self._started.start.spark, str(self._started.checkpoint))
            self._finished = checkpoint.last_committed
        return 0 if self._finished is None else self._finished + 1

    @property
    def _levels(self) -> int:
        plans = [program.summary.plan for program in self._started.programs]
        if len(plans) != 1 or plans[0] is None:
            return 0
        return len({vertex.level for vertex in plans[0].vertices})

    def end(self) -> None:
        if self._files is not None:
            self._files.remove()
            self._files = None


def this_process() -> tuple[str, int, int]:
    try:
        start = OsProcess.of(os.getpid()).start
    except (OSError, IndexError):
        start = 0
    return socket.gethostname(), os.getpid(), start


class HeartbeatFiles:
    """The heartbeat files in a checkpoint: one per driver."""

    def __init__(self, folder: HadoopFolder) -> None:
        self._folder = folder
        self._name: str | None = None

    def write(self, beat: Heartbeat) -> None:
        before, self._name = self._name, f"{beat.at:013d}-{beat.run[:8]}.json"
        try:
            self._folder.add(self._name, f"{json_of(beat)}\n")
            if before is not None:
                self._folder.remove(before)
        except Exception as error:
            _log.debug("the heartbeat in %s could not be updated: %s", self._folder.path, describe(error))

    def remove(self) -> None:
        try:
            if self._name is not None:
                self._folder.remove(self._name)
        except Exception as error:  # Spark has ended
            _log.debug("the heartbeat in %s could not be updated: %s", self._folder.path, describe(error))

    def read(self) -> dict[str, Heartbeat]:
        return _read(self._folder)

    def forget(self, names: Sequence[str]) -> None:
        for name in names:
            self._folder.remove(name)

    def names_of(self, beat: Heartbeat) -> list[str]:
        """Return the files of the heartbeat's run. A run has two for a moment."""
        return [name for name in self._folder.names() if name.endswith(f"-{beat.run[:8]}.json")]


def _path(checkpoint: str) -> str:
    return f"{checkpoint.rstrip('/')}/pillarbox/heartbeat"


def heartbeat_files(spark: SparkSession, checkpoint: str) -> HeartbeatFiles | None:
    folder = session_of(spark).hadoop_folder(_path(checkpoint))
    return None if folder is None else HeartbeatFiles(folder)


def _read(folder: Folder) -> dict[str, Heartbeat]:
    beats: dict[str, Heartbeat] = {}
    for name, line in folder.lines():
        try:
            beats[name] = read(Heartbeat, json_object(line))
        except TypeError:  # another version's heartbeat
            continue
    return beats


def newest_heartbeat(spark: SparkSession, checkpoint: str) -> Heartbeat | None:
    beats = _read(session_of(spark).folder(_path(checkpoint)))
    return max(beats.values(), key=lambda beat: beat.at, default=None)


def dead_driver(spark: SparkSession, checkpoint: str) -> Heartbeat | None:
    """Return the last heartbeat of a driver that has died, or None if it may run.

    A driver under Spark Connect may run even so, because it writes no heartbeat.
    """
    beat = newest_heartbeat(spark, checkpoint)
    # Two containers may have the same host name, so a process with a recent heartbeat may still run.
    if beat is None or beat.age <= NEXT_BEAT * 1000 or not beat.has_ended(this_process()[0]):
        return None
    return beat
