"""How many tasks Spark runs at a time, as far as its settings and its executors tell. No job is run to find it out."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Returns the value of a setting of the session; None: it is not set.
Get = Callable[[str], "str | None"]


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
    known = [default_slots(spark, get), _in_executors(executors, get)]
    return max((each for each in known if each is not None), default=None) or local_cores(get)


def _in_executors(number: str | None, get: Get) -> int | None:
    if number is None or not number.isdigit():
        return None
    return int(number) * int(get("spark.executor.cores") or 1)


def default_slots(spark: SparkSession, get: Get) -> int | None:
    """Return how many tasks Spark takes for granted that run at a time; None: (Spark Connect) no setting tells."""
    context = getattr(spark, "sparkContext", None)  # there is none under Spark Connect
    said = get("spark.default.parallelism") if context is None else context.defaultParallelism
    return None if said is None else int(said)


def local_cores(get: Get) -> int | None:
    """Return the cores of a local master; None: the master is another one."""
    local = re.match(r"local\[(\d+|\*)", get("spark.master") or "")
    if local is None:
        return None
    return (os.cpu_count() or 1) if local[1] == "*" else int(local[1])
