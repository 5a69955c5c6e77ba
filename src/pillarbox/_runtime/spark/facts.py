"""Names of Spark's settings and of its private things."""

from __future__ import annotations

from typing import Any

__all__ = ["CHECKSUMS", "STATE_FORMAT", "WILDCARDS", "is_classic"]

STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
"""In format 2, state files have unique names, which the commit log refers to."""

CHECKSUMS = "spark.sql.streaming.checkpoint.fileChecksum.enabled"
"""Whether Spark writes the size and the checksum of each file of a checkpoint into a file beside it."""

WILDCARDS = "__globPaths__"
"""The option by which Spark's readers look at a path that they were given and at no other."""


def is_classic(spark: Any) -> bool:
    """Return whether a session is a classic one, whose driver runs in this process's JVM."""
    return hasattr(spark, "_jsparkSession")
