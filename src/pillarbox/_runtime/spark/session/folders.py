"""Lists, reads and writes the small files of checkpoints and savepoints.

A classic session uses Hadoop's ``FileSystem``, without jobs. Spark Connect uses DataFrames.
"""

from __future__ import annotations

import base64
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from pillarbox._errors import PillarboxError
from pillarbox._runtime.spark.session.java import file_system, path_class
from pillarbox._runtime.spark.session.spark_names import WILDCARDS
from pillarbox._state.savepoint.manifest import MANIFEST, STARTED

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession

T = TypeVar("T")


def reader(spark: SparkSession) -> DataFrameReader:
    """Return a reader that does not interpret wildcards in paths. Spark's writers never interpret wildcards."""
    return spark.read.option(WILDCARDS, "false")


def unless_missing(read: Callable[[], T], otherwise: T) -> T:
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


def text_of(spark: SparkSession, path: str) -> str | None:
    """Return the text of a file, or of the only file in a folder, or None if there is no file."""
    rows: list[Any] = unless_missing(lambda: reader(spark).text(path, wholetext=True).collect(), [])
    return next((row[0] for row in rows if row[0]), None)


def is_savepoint(spark: SparkSession, directory: str) -> bool:
    return any(text_of(spark, f"{directory.rstrip('/')}/{name}") is not None for name in (MANIFEST, STARTED))


class Folder(ABC):
    """A folder of small files, such as a checkpoint's log. Ignores hidden files."""

    path: str

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of the files, or [] if the folder does not exist."""

    @abstractmethod
    def lines(self, names: Iterable[str] | None = None) -> list[tuple[str, str]]:
        """Return (file name, line) pairs of the named files, or of all files."""

    @abstractmethod
    def add_line(self, text: str) -> None:
        """Write a line into a new file. Atomic, even if several applications write concurrently."""


class SparkFolder(Folder):
    """A folder that is accessed with Spark jobs."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self.path = path

    def names(self) -> list[str]:
        paths: list[str] = unless_missing(lambda: self._texts().inputFiles(), [])
        return [unquote(path.rpartition("/")[2]) for path in paths]

    def lines(self, names: Iterable[str] | None = None) -> list[tuple[str, str]]:
        glob = "*" if names is None else f"{{{','.join(names)}}}"
        texts = self._texts(pathGlobFilter=glob)
        rows: list[Any] = unless_missing(texts.select("_metadata.file_name", "value").collect, [])
        return [(name, line) for name, line in rows]

    def add_line(self, text: str) -> None:
        # Base64 avoids quoting and parameters.
        encoded = base64.b64encode(text.encode()).decode()
        line = self._spark.sql(f"SELECT CAST(unbase64('{encoded}') AS STRING) AS value")
        line.coalesce(1).write.mode("append").option("compression", "none").text(self.path)

    def _texts(self, **options: str) -> Any:
        # A running query removes old files.
        read = reader(self._spark).options(ignoreMissingFiles="true", **options)
        return read.schema("value STRING").text(self.path)


class HadoopFolder(Folder):
    """A folder that is accessed with Hadoop's ``FileSystem``."""

    def __init__(self, spark: Any, path: str) -> None:
        self.path = path
        self._path_class = path_class(spark)
        self._folder = self._path_class(path)
        self._files = file_system(spark, self._folder)

    def names(self) -> list[str]:
        return self._names(lambda status: bool(status.isFile()))

    def folders(self) -> list[str]:
        """Return the names of the folders in this folder, or [] if it does not exist."""
        return self._names(lambda status: bool(status.isDirectory()))

    def _names(self, takes: Callable[[Any], bool]) -> list[str]:
        statuses: Sequence[Any] = unless_missing(lambda: self._files.listStatus(self._folder), ())
        names = [str(status.getPath().getName()) for status in statuses if takes(status)]
        return [name for name in names if not name.startswith((".", "_"))]

    def lines(self, names: Iterable[str] | None = None) -> list[tuple[str, str]]:
        texts = ((name, self._text(name)) for name in (self.names() if names is None else names))
        return [(name, line) for name, text in texts if text for line in text.removesuffix("\n").split("\n")]

    def add_line(self, text: str) -> None:
        self._write(f"{uuid.uuid4().hex}.txt", f"{text}\n")

    def add(self, name: str, text: str) -> None:
        if self._files.exists(self._path(name)):
            raise PillarboxError(f"{self._folder}/{name} exists")
        self._write(name, text)

    def remove(self, name: str) -> None:
        self._files.delete(self._path(name), False)

    def _write(self, name: str, text: str) -> None:
        # Hidden and then renamed, so that readers never see half a file.
        hidden, path = self._path(f".{name}.tmp"), self._path(name)
        stream = self._files.create(hidden, False)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        if not self._files.rename(hidden, path):
            raise PillarboxError(f"{path}: the file system did not rename {hidden} to this path: check its permissions")

    def _text(self, name: str) -> str | None:
        def read() -> bytes:
            stream = self._files.open(self._path(name))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

        content = unless_missing(read, None)
        return None if content is None else content.decode()

    def _path(self, name: str) -> Any:
        return self._path_class(self._folder, name)
