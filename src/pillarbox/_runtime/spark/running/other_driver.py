"""Checks that no other driver runs a starting query, because two drivers on a checkpoint make each other fail."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pillarbox._errors import ConfigurationError, SavepointError
from pillarbox._runtime.spark.notices import notify
from pillarbox._runtime.spark.running.heartbeat import (
    NEXT_BEAT,
    Heartbeat,
    HeartbeatFiles,
    heartbeat_files,
    this_process,
)
from pillarbox._runtime.spark.running.query_command import stop_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Seconds that another driver gets to stop its query, and to remove its heartbeat after the query has failed.
_STOPPING = 120.0
_LEAVING = 15.0
_LOOK_EVERY = 1.0


def check_no_other_driver(spark: SparkSession, checkpoint: str | None, *, take_over: bool) -> None:
    """Raise if another driver is running the checkpoint's query.

    A killed driver leaves its last heartbeat behind. So if the last heartbeat is from another machine, this waits for a
    newer one. With ``take_over``, it asks the other driver to stop instead of raising.
    """
    files = None if checkpoint is None else heartbeat_files(spark, checkpoint)
    if checkpoint is None or files is None:
        return
    me = this_process()
    # Restarted containers often have the same host name and pid.
    beats = {name: beat for name, beat in files.read().items() if (beat.host, beat.process, beat.process_start) != me}
    alive = [beat for beat in beats.values() if _is_alive(files, beat, me[0])]
    if not alive:
        files.forget([*beats])
        return
    [other, *_] = sorted(alive, key=lambda beat: -beat.at)
    if not take_over:
        raise ConfigurationError(
            f"checkpoint {checkpoint}: {other.driver} was running this query {other.age // 1000} seconds ago. Two"
            " drivers on one checkpoint make each other fail: stop the other driver with 'pillarbox stop CHECKPOINT',"
            " or pass pillarbox.start(..., take_over=True)"
        )
    notify(f"checkpoint {checkpoint}: {other.driver} runs this query: asking it to stop")
    try:
        stop_query(spark, checkpoint, timeout=_STOPPING)
    except SavepointError as error:
        if _leaves(files, other):  # its query failed by itself
            check_no_other_driver(spark, checkpoint, take_over=True)
            return
        raise ConfigurationError(
            f"checkpoint {checkpoint}: {other.driver} runs this query, and did not stop it when asked: end"
            f" {other.driver}, and start the query again"
        ) from error


def _is_alive(files: HeartbeatFiles, beat: Heartbeat, host: str) -> bool:
    has_ended = beat.has_ended(host)
    if has_ended is not None:
        return not has_ended
    notify(f"{beat.driver} ran this query: waiting for a heartbeat, to see whether it still does")
    deadline = time.monotonic() + NEXT_BEAT
    while time.monotonic() < deadline:
        of_run = files.names_of(beat)
        if not of_run:
            return False
        if any(int(name.partition("-")[0]) > beat.at for name in of_run):
            return True
        time.sleep(_LOOK_EVERY)
    return False


def _leaves(files: HeartbeatFiles, beat: Heartbeat) -> bool:
    deadline = time.monotonic() + _LEAVING
    while files.names_of(beat):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_EVERY)
    return True
