"""Names of Spark's settings, and the small files of a checkpoint: how they are listed, read and written.

This module alone knows how Spark keeps such files. In a classic session the driver reads and writes them through
Hadoop's ``FileSystem``, without a job. Under Spark Connect there are only DataFrames.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pillarbox._errors import PillarboxError

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession

__all__ = [
    "CHECKSUMS",
    "STATE_FORMAT",
    "add_file",
    "add_line",
    "executor_here",
    "file_names",
    "is_classic",
    "is_missing",
    "json_object",
    "read_lines",
    "reader",
]

STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
"""In format 2, state files have unique names, which the commit log refers to."""

CHECKSUMS = "spark.sql.streaming.checkpoint.fileChecksum.enabled"
"""Whether Spark writes the size and the checksum of each file of a checkpoint into a file beside it."""

# Spark's own name of the option by which its readers look at a path that they were given and at no other.
_WILDCARDS = "__globPaths__"


def is_classic(spark: Any) -> bool:
    """Return whether a session is a classic one, whose driver runs in this process's JVM."""
    return hasattr(spark, "_jsparkSession")


def executor_here(spark: Any) -> int | None:
    """Return the process of the only executor, if that is the driver's own JVM; None: executors are elsewhere."""
    if not is_classic(spark) or not re.match(r"local(\[|$)", spark.sparkContext.master):
        return None
    return int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())


def reader(spark: SparkSession) -> DataFrameReader:
    """Return a reader of files that takes a path for what it is.

    Without it, Spark takes ``[1]``, ``{a,b}``, ``*`` and ``?`` for wildcards when it reads, and not when it writes: so
    it would not find what was written there, and the checkpoint would seem to be a new one.
    """
    return spark.read.option(_WILDCARDS, "false")


def is_missing(error: Exception) -> bool:
    """Return whether an error of Spark says that a path does not exist."""
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException) and error.getCondition() == "PATH_NOT_FOUND"


def json_object(line: str) -> dict[str, Any]:
    """Return a line that is a JSON object; an empty dictionary if it is something else."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def file_names(spark: SparkSession, folder: str) -> list[str]:
    """Return the names of the files in a folder, without hidden ones; no file is opened. No folder has no files."""
    if is_classic(spark):
        return _Folder(spark, folder).names()
    try:
        paths = _texts(spark, folder).inputFiles()
    except Exception as error:
        if not is_missing(error):
            raise
        return []
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
    try:
        rows = _texts(spark, folder, pathGlobFilter=glob).select("_metadata.file_name", "value").collect()
    except Exception as error:
        if not is_missing(error):
            raise
        return []
    return [(name, line) for name, line in rows]


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
        self._path_class: Any = spark.sparkContext._jvm.org.apache.hadoop.fs.Path
        self._folder = self._path_class(folder)
        self._files = self._folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())

    def names(self) -> list[str]:
        """Return the names of its files that are not hidden."""
        found = self._unless_missing(lambda: self._files.listStatus(self._folder)) or ()
        names = [str(each.getPath().getName()) for each in found if each.isFile()]
        return [name for name in names if not name.startswith((".", "_"))]

    def text(self, name: str) -> str | None:
        """Return what is in a file; None: there is no such file."""

        def read() -> bytes:
            stream = self._files.open(self._path_class(self._folder, name))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

        content = self._unless_missing(read)
        return None if content is None else content.decode()

    def has(self, name: str) -> bool:
        """Return whether there is a file."""
        return bool(self._files.exists(self._path_class(self._folder, name)))

    def add(self, name: str, text: str) -> None:
        """Write a file under a hidden name, then rename it: nobody reads half of it.

        Raises:
            PillarboxError: the file system did not rename it.
        """
        hidden, place = (self._path_class(self._folder, each) for each in (f".{name}.tmp", name))
        stream = self._files.create(hidden, False)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        if not self._files.rename(hidden, place):
            raise PillarboxError(f"{place}: the file system did not rename {hidden} to it: look at its permissions")

    @staticmethod
    def _unless_missing(read: Any) -> Any:
        from py4j.protocol import Py4JJavaError

        try:
            return read()
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() != "java.io.FileNotFoundException":
                raise
            return None
