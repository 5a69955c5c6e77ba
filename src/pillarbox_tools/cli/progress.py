"""A command's progress: completed Spark tasks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.status import Status

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_SECONDS = 0.3


def tasks_of(context: SparkContext) -> tuple[int, int]:
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(number) for number in tracker.getActiveJobsIds()]
    stages = [tracker.getStageInfo(number) for job in jobs if job is not None for number in job.stageIds]
    available = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in available), sum(stage.numTasks for stage in available)


@contextmanager
def progress(spark: SparkSession, status: Status, what: str) -> Iterator[None]:
    if not status.console.is_terminal:
        yield
        return
    has_ended = threading.Event()

    def watch() -> None:
        while not has_ended.wait(_SECONDS):
            done, tasks = tasks_of(spark.sparkContext)
            status.update(f"{what}: {done:,} of {tasks:,} tasks" if tasks else what)

    watcher = threading.Thread(target=watch, name="pillarbox progress", daemon=True)
    status.update(what)
    watcher.start()
    try:
        yield
    finally:
        has_ended.set()
        watcher.join()
