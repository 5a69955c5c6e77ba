"""The files by which a directory is known as a savepoint, complete or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pillarbox._runtime.spark.files import text_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MANIFEST", "STARTED", "is_savepoint"]

STARTED = "started"
MANIFEST = "manifest"


def is_savepoint(spark: SparkSession, directory: str) -> bool:
    """Return whether there is a savepoint in a directory, complete or not."""
    return any(text_of(spark, f"{directory.rstrip('/')}/{name}") is not None for name in (MANIFEST, STARTED))
