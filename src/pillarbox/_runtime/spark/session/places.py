"""The places where checkpoints and savepoints lie, whose names Spark is to take as they are."""

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

# The file in a folder that is being written; names of data do not begin so.
_BEGUN = "_pillarbox_begun"

# Characters that Java escapes in a URI. (It leaves letters of all languages as they are.)
_ESCAPED = re.compile(r"""[\x00-\x1f\x7f\s"#%<>?\[\\\]^`{|}]""")


def check_session(spark: Any, asked_by: str) -> None:
    """Check that an argument is a session of Spark.

    Raises:
        ProgramError: it is something else.
    """
    if not hasattr(spark, "readStream"):
        raise ProgramError(f"{asked_by} takes a SparkSession first, not {shorten(spark)}")


def place_of(directory: Any, what: str) -> str:
    """Return a directory that a user named, without a slash at its end.

    Raises:
        ProgramError: it is none.
    """
    if not isinstance(directory, (str, PathLike)) or not str(directory):
        raise ProgramError(f"{what} is a directory, not {shorten(directory)}")
    return str(fspath(directory)).rstrip("/")


@contextmanager
def new_folder(spark: SparkSession, folder: str) -> Iterator[None]:
    """Let a folder be written into that does not exist yet, or that was begun so and not completed.

    Until it is complete, it has a file in it that says so, which readers of data pass over. The session is a classic
    one.

    Raises:
        PillarboxError: there is something else.
    """
    path, begun = path_class(spark)(folder), path_class(spark)(folder, _BEGUN)
    files = file_system(spark, path)
    if files.exists(path):
        if not files.exists(begun):
            raise PillarboxError(f"{folder} exists: give a new directory")
        files.delete(path, True)
    files.create(begun).close()
    yield
    files.delete(begun, False)


def state_is_found(checkpoint: str) -> bool:
    """Return whether Spark's own readers of state find a checkpoint of this path, and its repartitioning does.

    They escape what a URI has to escape, and look for a path of the escaped name, which may be the name of another.
    (Queries do not.)
    """
    return _ESCAPED.search(checkpoint) is None
