"""A command's progress: completed Spark tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from rich.status import Status

from pillarbox_tools.repeating import repeated

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
    def show() -> None:
        done, tasks = tasks_of(spark.sparkContext)
        status.update(f"{what}: {done:,} of {tasks:,} tasks" if tasks else what)

    status.update(what)
    with repeated(show, _SECONDS) if status.console.is_terminal else nullcontext():
        yield
