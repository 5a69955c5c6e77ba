"""Progress of the running epoch, by Spark stage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pillarbox._runtime.spark.session.java import hosts_of_running_tasks
from pillarbox._runtime.spark.session.session import session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Stage:
    """A Spark stage of the running epoch."""

    number: int
    tasks: int
    active: int
    completed: int
    failed: int
    level: int | None = None
    hosts: list[str] = field(default_factory=list)


def stages_of(spark: SparkSession, run: str, levels: int = 0) -> list[Stage]:
    """Return the stages of a query's running jobs, or [] under Spark Connect. Thread-safe.

    ``levels`` is the number of the program's levels, or 0 for several programs.
    """
    jobs = session_of(spark).running_jobs(run)
    if not jobs:
        return []
    tracker = spark.sparkContext.statusTracker()
    stages: list[Stage] = []
    for job in jobs:
        info = tracker.getJobInfo(job)
        numbers = [] if info is None else sorted(info.stageIds)
        for index, number in enumerate(numbers):
            stage = tracker.getStageInfo(number)
            if stage is None:
                continue
            # Without shuffles of sources or sinks, each level is a stage.
            level = index if len(numbers) == levels else None
            attempt = stage.currentAttemptId
            hosts = hosts_of_running_tasks(spark, number, attempt) if stage.numActiveTasks else []
            counts = (
                stage.numTasks,
                stage.numActiveTasks,
                stage.numCompletedTasks,
                stage.numFailedTasks,
            )
            stages.append(Stage(number, *counts, level, hosts))
    return stages
