"""Spark's stages of the running epoch: which tasks are not done, of which operators, and on which hosts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pillarbox._runtime.spark.session.java import hosts_of_running_tasks
from pillarbox._runtime.spark.session.session import session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Stage:
    """A stage of Spark that belongs to the running epoch.

    Attributes:
        level: the level of the program, or None if it is unknown: Spark runs other stages than the program's levels.
        hosts: some hosts on which its tasks run.
    """

    number: int
    tasks: int
    active: int
    completed: int
    failed: int
    level: int | None = None
    hosts: list[str] = field(default_factory=list)


def stages_of(spark: SparkSession, run: str, levels: int = 0) -> list[Stage]:
    """Return the stages of the jobs of a query that run; none under Spark Connect. Any thread.

    Args:
        levels: how many levels its program has; 0: it has several programs.
    """
    jobs = session_of(spark).running_jobs(run)
    if not jobs:
        return []
    tracker = spark.sparkContext.statusTracker()
    stages: list[Stage] = []
    for job in jobs:
        info = tracker.getJobInfo(job)
        numbers = [] if info is None else sorted(info.stageIds)
        for place, number in enumerate(numbers):
            known = tracker.getStageInfo(number)
            if known is None:
                continue
            # Without shuffles of sources or sinks, each level is a stage.
            level = place if len(numbers) == levels else None
            attempt = known.currentAttemptId
            hosts = hosts_of_running_tasks(spark, number, attempt) if known.numActiveTasks else []
            counts = known.numTasks, known.numActiveTasks, known.numCompletedTasks, known.numFailedTasks
            stages.append(Stage(number, *counts, level, hosts))
    return stages
