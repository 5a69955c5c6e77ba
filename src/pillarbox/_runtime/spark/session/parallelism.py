"""Computes how many Spark tasks can run concurrently. Runs no job."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from pillarbox._errors import ConfigurationError
from pillarbox._runtime.spark.session.session import session_of
from pillarbox._runtime.spark.session.spark_names import SHUFFLE_PARTITIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Returns a setting's value, or None.
Get = Callable[[str], "str | None"]

# Limited, because each partition has a state store and may have a process.
_MOST_BY_DEFAULT = 16
# Limited, because `spark.sql.shuffle.partitions` may be set for a whole cluster's batch jobs.
_MOST_PARTITIONS = 128


def cores_of(spark: SparkSession, get: Get | None = None) -> int | None:
    """Return how many tasks can run concurrently after all executors have started, or None if unknown."""
    get = get or (lambda name: spark.conf.get(name, None))
    executors = get("spark.executor.instances")
    if (get("spark.dynamicAllocation.enabled") or "").lower() == "true":
        # Further executors are added when there is work.
        return _in_executors(get("spark.dynamicAllocation.maxExecutors"), get)
    # Executors may still be starting.
    counts = [session_of(spark).default_parallelism(), _in_executors(executors, get)]
    return max((count for count in counts if count is not None), default=None) or local_cores(get)


def _in_executors(number: str | None, get: Get) -> int | None:
    if number is None or not number.isdigit():
        return None
    return int(number) * int(get("spark.executor.cores") or 1)


def local_cores(get: Get) -> int | None:
    local = re.match(r"local\[(\d+|\*)", get("spark.master") or "")
    if local is None:
        return None
    return (os.cpu_count() or 1) if local[1] == "*" else int(local[1])


def default_parallelism(spark: SparkSession) -> tuple[int, str]:
    """Return (default parallelism, reason). The reason is the last part of a log message.

    The default is ``spark.sql.shuffle.partitions`` (at most 128) if set, otherwise the number of cores (at most 16,
    because each subtask makes each epoch longer).
    """
    setting = spark.conf.get(SHUFFLE_PARTITIONS, None)
    partitions = int(setting) if setting is not None and setting.isdigit() else 0
    if partitions > _MOST_PARTITIONS and partitions != 200:
        return _MOST_PARTITIONS, f"the largest default, because {SHUFFLE_PARTITIONS} is {partitions}"
    if partitions not in (0, 200):  # not the user's choice
        return partitions, f"as set by {SHUFFLE_PARTITIONS}"
    cores = cores_of(spark)
    if not cores:
        return _MOST_BY_DEFAULT, "because the cluster's number of cores is unknown"
    return min(cores, _MOST_BY_DEFAULT), "the cluster's number of cores"


def task_slots(spark: SparkSession) -> int:

    def get(name: str) -> str | None:
        return spark.conf.get(name, None)

    setting = get("spark.sql.leafNodeDefaultParallelism")
    slots = int(setting) if setting else session_of(spark).default_parallelism() or local_cores(get)
    if slots is None:
        raise ConfigurationError(
            "job_rate_limit= or a budget is divided among the source's tasks, but Spark does not report their number:"
            " set spark.sql.leafNodeDefaultParallelism to the number of tasks that run at once, or use rate_limit=,"
            " which applies to each task"
        )
    return slots
