"""Checks and creates directories of checkpoints and savepoints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from pillarbox._errors import PillarboxError, ProgramError, shorten
from pillarbox._runtime.spark.session.java import file_system, path_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Marks an incomplete folder.
_BEGUN = "_pillarbox_begun"

# Characters that Java escapes in a URI.
_ESCAPED = re.compile(r"""[\x00-\x1f\x7f\s"#%<>?\[\\\]^`{|}]""")


def check_session(spark: Any, asked_by: str) -> None:
    if not hasattr(spark, "readStream"):
        raise ProgramError(f"{asked_by} takes a SparkSession as its first argument, not {shorten(spark)}")


def checked_directory(directory: Any, what: str) -> str:
    if not isinstance(directory, (str, PathLike)) or not str(directory):
        raise ProgramError(f"{what} must be a path, not {shorten(directory)}")
    return str(fspath(directory)).rstrip("/")


@contextmanager
def new_folder(spark: SparkSession, folder: str) -> Iterator[None]:
    """Create a folder for the block to fill, or overwrite an incomplete folder. Needs a classic session.

    A file marks the folder as incomplete until the block ends without an error.
    """
    path, begun = path_class(spark)(folder), path_class(spark)(folder, _BEGUN)
    files = file_system(spark, path)
    if files.exists(path):
        if not files.exists(begun):
            raise PillarboxError(f"{folder} exists: pass a new directory")
        files.delete(path, True)
    files.create(begun).close()
    yield
    files.delete(begun, False)


def is_readable_by_spark(checkpoint: str) -> bool:
    """Return whether Spark's state readers and repartitioning can find this path."""
    return _ESCAPED.search(checkpoint) is None
