"""Names of Spark's settings and of its private things."""

from __future__ import annotations

from typing import Any

__all__ = [
    "BATCH_ID",
    "CHECKSUMS",
    "JOB_GROUP",
    "QUERY_ID",
    "STATE_FORMAT",
    "STATE_PARTITIONS",
    "WILDCARDS",
    "is_classic",
]

STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
"""In format 2, state files have unique names, which the commit log refers to."""

CHECKSUMS = "spark.sql.streaming.checkpoint.fileChecksum.enabled"
"""Whether Spark writes the size and the checksum of each file of a checkpoint into a file beside it."""

STATE_PARTITIONS = "spark.sql.streaming.internal.stateStore.partitions"
"""The number of state partitions, which is that of tasks of a level."""

QUERY_ID = "sql.streaming.queryId"
"""The local property with the query's id."""

BATCH_ID = "streaming.sql.batchId"
"""The local property with the number of the micro-batch."""

JOB_GROUP = "spark.jobGroup.id"
"""The local property with the group of the task's job, which is the id of the query's run."""

WILDCARDS = "__globPaths__"
"""The option by which Spark's readers look at a path that they were given and at no other."""


def is_classic(spark: Any) -> bool:
    """Return whether a session is a classic one, whose driver runs in this process's JVM."""
    return hasattr(spark, "_jsparkSession")
