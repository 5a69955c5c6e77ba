"""Updates the heartbeat of a query's driver, every second in memory and every 15 seconds in the checkpoint.

A starting query checks for another driver's heartbeat, because a second driver on a checkpoint makes the first driver
fail minutes later. The tools read heartbeats, because only the driver knows that an epoch hangs. Under Spark Connect,
the heartbeat is only in memory, because files cannot be removed.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pillarbox._errors import ConfigurationError, SavepointError, describe
from pillarbox._graph.description import json_object
from pillarbox._json import json_of, read
from pillarbox._reports.progress import is_idle, millis
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.homes.processes import Process
from pillarbox._runtime.spark.notices import notify
from pillarbox._runtime.spark.running.asking import stop_query
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
# Seconds that a starting query waits for another driver's heartbeat or end.
_NEXT_BEAT = 2 * WRITE_EVERY
_STOPPING = 120.0
_LOOK_EVERY = 1.0
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


class Pulse:
    """Creates and writes the heartbeats of a query. Not thread-safe."""

    def __init__(self, started: StartedQuery, clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._started = started
        self._query: Any = started.query
        self._clock = clock
        self._me = _this_process()
        self._epoch: int | None = None
        self._since: int | None = None
        self._reported: int | None = None
        self._finished: int | None = None
        spark, checkpoint = started.start.spark, started.checkpoint
        self._files = None if checkpoint is None else _files_of(spark, checkpoint)
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


def _this_process() -> tuple[str, int, int]:
    try:
        start = Process.of(os.getpid()).start
    except (OSError, IndexError):
        start = 0
    return socket.gethostname(), os.getpid(), start


class _Files:
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

    def names(self) -> list[str]:
        return self._folder.names()


def _path(checkpoint: str) -> str:
    return f"{checkpoint.rstrip('/')}/pillarbox/heartbeat"


def _files_of(spark: SparkSession, checkpoint: str) -> _Files | None:
    folder = session_of(spark).hadoop_folder(_path(checkpoint))
    return None if folder is None else _Files(folder)


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


def check_no_other_driver(spark: SparkSession, checkpoint: str | None, *, take_over: bool) -> None:
    """Raise if another driver is running the checkpoint's query.

    A killed driver leaves its last heartbeat behind. So if the last heartbeat is from another machine, this waits for a
    newer one. With ``take_over``, it asks the other driver to stop instead of raising.
    """
    files = None if checkpoint is None else _files_of(spark, checkpoint)
    if checkpoint is None or files is None:
        return
    me = _this_process()
    # Restarted containers often have the same host name and pid.
    beats = {name: beat for name, beat in files.read().items() if (beat.host, beat.process, beat.process_start) != me}
    alive = [beat for beat in beats.values() if _is_alive(files, beat, me[0])]
    if not alive:
        files.forget([*beats])
        return
    [other, *_] = sorted(alive, key=lambda beat: -beat.at)
    age = max(0, time.time_ns() // 1_000_000 - other.at) // 1000
    if not take_over:
        raise ConfigurationError(
            f"checkpoint {checkpoint}: {other.driver} was running this query {age} seconds ago. Two drivers on one"
            " checkpoint make each other fail: stop the other driver with 'pillarbox stop CHECKPOINT', or pass"
            " pillarbox.start(..., take_over=True)"
        )
    notify(f"checkpoint {checkpoint}: {other.driver} runs this query: asking it to stop")
    try:
        stop_query(spark, checkpoint, timeout=_STOPPING)
    except SavepointError as error:
        raise ConfigurationError(
            f"checkpoint {checkpoint}: {other.driver} runs this query, and did not stop it when asked: end"
            f" {other.driver}, and start the query again"
        ) from error


def _is_alive(files: _Files, beat: Heartbeat, host: str) -> bool:
    if time.time_ns() // 1_000_000 - beat.at > FRESH_MS:
        return False
    if beat.host == host and beat.process_start:
        return not Process(beat.process, beat.process_start).has_ended()
    notify(f"{beat.driver} ran this query: waiting for a heartbeat, to see whether it still does")
    suffix = f"-{beat.run[:8]}.json"
    deadline = time.monotonic() + _NEXT_BEAT
    while time.monotonic() < deadline:
        of_run = [name for name in files.names() if name.endswith(suffix)]
        if not of_run:
            return False
        if any(int(name.partition("-")[0]) > beat.at for name in of_run):
            return True
        time.sleep(_LOOK_EVERY)
    return False
