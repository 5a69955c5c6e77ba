"""The small files of a checkpoint, and of a savepoint: how they are listed, read and written.

This module alone knows how Spark keeps such files. In a classic session the driver reads and writes them through
Hadoop's ``FileSystem``, without a job. Under Spark Connect there are only DataFrames.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from pillarbox._errors import PillarboxError
from pillarbox._runtime.spark.facts import WILDCARDS, file_system, is_classic, path_class
from pillarbox._state.savepoint.manifest import MANIFEST, STARTED

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession

T = TypeVar("T")


def reader(spark: SparkSession) -> DataFrameReader:
    """Return a reader of files that takes a path for what it is.

    Without it, Spark takes ``[1]``, ``{a,b}``, ``*`` and ``?`` for wildcards when it reads, and not when it writes: so
    it would not find what was written there, and the checkpoint would seem to be a new one.
    """
    return spark.read.option(WILDCARDS, "false")


def unless_missing(read: Callable[[], T], otherwise: T) -> T:
    """Return what ``read()`` does, or something else where Spark says that a path does not exist."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        return read()
    except PySparkException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
    except Py4JJavaError as error:
        if error.java_exception.getClass().getName() != "java.io.FileNotFoundException":
            raise
    return otherwise


def file_names(spark: SparkSession, folder: str) -> list[str]:
    """Return the names of the files in a folder, without hidden ones; no file is opened. No folder has no files."""
    if is_classic(spark):
        return _Folder(spark, folder).names()
    paths: list[str] = unless_missing(lambda: _texts(spark, folder).inputFiles(), [])
    return [unquote(path.rpartition("/")[2]) for path in paths]


def read_lines(spark: SparkSession, folder: str, names: Iterable[str] | None = None) -> list[tuple[str, str]]:
    """Return the lines of the files in a folder, each with the name of its file.

    A file that somebody removes meanwhile has no lines, nor has a folder that does not exist.

    Args:
        names: the files to read; None: all that are not hidden.
    """
    if is_classic(spark):
        files = _Folder(spark, folder)
        found = ((name, files.text(name)) for name in (files.names() if names is None else names))
        return [(name, line) for name, text in found if text for line in text.removesuffix("\n").split("\n")]
    glob = "*" if names is None else f"{{{','.join(names)}}}"
    texts = _texts(spark, folder, pathGlobFilter=glob)
    rows: list[Any] = unless_missing(texts.select("_metadata.file_name", "value").collect, [])
    return [(name, line) for name, line in rows]


def text_of(spark: SparkSession, path: str) -> str | None:
    """Return the text of a file, or of the only file in a folder; None: there is none."""
    rows: list[Any] = unless_missing(lambda: reader(spark).text(path, wholetext=True).collect(), [])
    return next((row[0] for row in rows if row[0]), None)


def is_savepoint(spark: SparkSession, directory: str) -> bool:
    """Return whether there is a savepoint in a directory, complete or not."""
    return any(text_of(spark, f"{directory.rstrip('/')}/{name}") is not None for name in (MANIFEST, STARTED))


def add_line(spark: SparkSession, folder: str, text: str) -> None:
    """Write a line of text into a file of its own in a folder: all of it, or nothing.

    Several applications may do so at the same time.
    """
    if is_classic(spark):
        _Folder(spark, folder).add(f"{uuid.uuid4().hex}.txt", f"{text}\n")
        return
    # As base64 it needs no quoting, and no parameter: parsers of session extensions, such as Delta's, may lose those.
    encoded = base64.b64encode(text.encode()).decode()
    line = spark.sql(f"SELECT CAST(unbase64('{encoded}') AS STRING) AS value")
    line.coalesce(1).write.mode("append").option("compression", "none").text(folder)


def add_file(spark: SparkSession, folder: str, name: str, text: str) -> None:
    """Write a file of a certain name into a folder: all of it, or nothing. The session is a classic one.

    Raises:
        PillarboxError: there is such a file.
    """
    files = _Folder(spark, folder)
    if files.has(name):
        raise PillarboxError(f"{folder}/{name} exists")
    files.add(name, text)


def remove_file(spark: SparkSession, folder: str, name: str) -> None:
    """Remove a file from a folder; a missing one is no error. The session is a classic one."""
    _Folder(spark, folder).remove(name)


def _texts(spark: SparkSession, folder: str, **options: str) -> Any:
    # A query that runs removes old files of its logs while they are read.
    read = reader(spark).options(ignoreMissingFiles="true", **options)
    return read.schema("value STRING").text(folder)


class _Folder:
    """A folder of small files, through Hadoop's ``FileSystem`` with the session's settings.

    Args:
        spark: a classic session.
    """

    def __init__(self, spark: Any, folder: str) -> None:
        self._path_class = path_class(spark)
        self._folder = self._path_class(folder)
        self._files = file_system(spark, self._folder)

    def _path(self, name: str) -> Any:
        return self._path_class(self._folder, name)

    def names(self) -> list[str]:
        """Return the names of its files that are not hidden."""
        found: Sequence[Any] = unless_missing(lambda: self._files.listStatus(self._folder), ())
        names = [str(each.getPath().getName()) for each in found if each.isFile()]
        return [name for name in names if not name.startswith((".", "_"))]

    def text(self, name: str) -> str | None:
        """Return what is in a file; None: there is no such file."""

        def read() -> bytes:
            stream = self._files.open(self._path(name))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

        content = unless_missing(read, None)
        return None if content is None else content.decode()

    def has(self, name: str) -> bool:
        """Return whether there is a file."""
        return bool(self._files.exists(self._path(name)))

    def remove(self, name: str) -> None:
        """Remove a file; a missing one is no error."""
        self._files.delete(self._path(name), False)

    def add(self, name: str, text: str) -> None:
        """Write a file under a hidden name, then rename it: nobody reads half of it.

        Raises:
            PillarboxError: the file system did not rename it.
        """
        hidden, place = self._path(f".{name}.tmp"), self._path(name)
        stream = self._files.create(hidden, False)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        if not self._files.rename(hidden, place):
            raise PillarboxError(f"{place}: the file system did not rename {hidden} to it: look at its permissions")
