"""How many tasks Spark runs at a time, by its settings and its executors. No job is run to find it out."""

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

#: Returns the value of a setting of the session; None: it is not set.
Get = Callable[[str], "str | None"]

# A program sets a higher parallelism by itself: each partition has a state store and may have a home of its own.
_MOST_BY_DEFAULT = 16
# `spark.sql.shuffle.partitions` may be meant for the batch jobs of a whole cluster; each of ours has a state store.
_MOST_PARTITIONS = 128


def cores_of(spark: SparkSession, get: Get | None = None) -> int | None:
    """Return how many tasks run at a time with all executors; None: nobody knows.

    Args:
        get: of the settings, if the caller has them at hand.
    """
    get = get or (lambda name: spark.conf.get(name, None))
    executors = get("spark.executor.instances")
    if (get("spark.dynamicAllocation.enabled") or "").lower() == "true":
        # Executors come when there is work: the present ones tell nothing.
        return _in_executors(get("spark.dynamicAllocation.maxExecutors"), get)
    # Executors may not have come yet.
    known = [session_of(spark).default_parallelism(), _in_executors(executors, get)]
    return max((each for each in known if each is not None), default=None) or local_cores(get)


def _in_executors(number: str | None, get: Get) -> int | None:
    if number is None or not number.isdigit():
        return None
    return int(number) * int(get("spark.executor.cores") or 1)


def local_cores(get: Get) -> int | None:
    """Return the cores of a local master; None: the master is another one."""
    local = re.match(r"local\[(\d+|\*)", get("spark.master") or "")
    if local is None:
        return None
    return (os.cpu_count() or 1) if local[1] == "*" else int(local[1])


def default_parallelism(spark: SparkSession) -> tuple[int, str]:
    """Return the parallelism of a program that sets none, and what it is taken from, as the end of a message.

    It is ``spark.sql.shuffle.partitions`` where somebody has set it, at most 128; else the cores, at most 16. Each
    subtask costs an epoch some time, and how much there is to do nobody knows: more cores than that are used where the
    user says so. No job is run to find them out.
    """
    said = spark.conf.get(SHUFFLE_PARTITIONS, None)
    partitions = int(said) if said is not None and said.isdigit() else 0
    if partitions > _MOST_PARTITIONS and partitions != 200:
        return _MOST_PARTITIONS, f"the most by default, as {SHUFFLE_PARTITIONS} is {partitions}"
    if partitions not in (0, 200):  # Spark's own, or ``auto``: nobody has chosen it
        return partitions, f"as {SHUFFLE_PARTITIONS} says"
    cores = cores_of(spark)
    if not cores:
        return _MOST_BY_DEFAULT, "as nobody knows the cluster's cores"
    return min(cores, _MOST_BY_DEFAULT), "by the cluster's cores"


def task_slots(spark: SparkSession) -> int:
    """Return how many tasks a source has at a time: the number of partitions that Spark deals rows out to by itself.

    No job is run to find it out.

    Raises:
        ConfigurationError: (Spark Connect) no setting tells.
    """

    def get(name: str) -> str | None:
        return spark.conf.get(name, None)

    said = get("spark.sql.leafNodeDefaultParallelism")
    slots = int(said) if said else session_of(spark).default_parallelism() or local_cores(get)
    if slots is None:
        raise ConfigurationError(
            "job_rate_limit is shared by the tasks of the source, and their number is not known: set"
            " spark.sql.leafNodeDefaultParallelism to it, or use rate_limit, which applies to each task"
        )
    return slots
