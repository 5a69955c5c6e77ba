"""The files by which a directory is known as a savepoint, complete or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pillarbox._runtime.spark.facts import is_missing, reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MANIFEST", "STARTED", "is_savepoint", "text_of"]

STARTED = "started"
MANIFEST = "manifest"


def is_savepoint(spark: SparkSession, directory: str) -> bool:
    """Return whether there is a savepoint in a directory, complete or not."""
    return any(text_of(spark, f"{directory.rstrip('/')}/{name}") is not None for name in (MANIFEST, STARTED))


def text_of(spark: SparkSession, path: str) -> str | None:
    """Return the text of a file, or of the only file in a folder; None: there is none."""
    try:
        rows = reader(spark).text(path, wholetext=True).collect()
    except Exception as error:
        if not is_missing(error):
            raise
        return None
    texts = [row[0] for row in rows if row[0]]
    return texts[0] if texts else None
