"""The interface of Spark sessions, which ``classic.py`` and ``connect.py`` implement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from pillarbox._errors import ConfigurationError
from pillarbox._runtime.spark.session.folders import Folder, HadoopFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Session(ABC):
    """A Spark session, classic or Connect."""

    has_jvm: bool

    def __init__(self, spark: Any) -> None:
        self.spark = spark

    @property
    @abstractmethod
    def is_stopped(self) -> bool: ...

    @abstractmethod
    def settings(self) -> dict[str, str]:
        """Return the application's settings, overridden by the session's."""

    @abstractmethod
    def java_version(self) -> str | None: ...

    @abstractmethod
    def default_parallelism(self) -> int | None:
        """Return how many tasks can run concurrently according to Spark, or None if unknown."""

    @abstractmethod
    def worker_python(self) -> str | None: ...

    @abstractmethod
    def local_executor(self) -> int | None:
        """Return the pid of the driver's JVM if that is the only executor, otherwise None."""

    @property
    @abstractmethod
    def shows_progress_bar(self) -> bool: ...

    @abstractmethod
    def job_group(self, description: str) -> AbstractContextManager[None]:
        """If the block raises, cancel the jobs that this thread started in it. Does nothing under Spark Connect."""

    @abstractmethod
    def running_jobs(self, group: str) -> list[int] | None: ...

    @abstractmethod
    def folder(self, path: str) -> Folder: ...

    @abstractmethod
    def hadoop_folder(self, path: str) -> HadoopFolder | None:
        """Return ``path`` as a folder that is read without Spark jobs, or None under Spark Connect."""

    @abstractmethod
    def plan_steps(self, df: DataFrame) -> list[Any] | None:
        """Return the nodes of a DataFrame's analyzed plan as Java objects, or None under Spark Connect.

        Nodes precede their children, as in Spark's numbering of sources.
        """

    @abstractmethod
    def aliases(self, df: DataFrame) -> str:
        """Return text that contains all aliases in a plan and in its views' plans."""

    @abstractmethod
    def analyzed_now(self, df: DataFrame) -> DataFrame: ...

    @abstractmethod
    def writer_class(self) -> type[Any]: ...

    @abstractmethod
    def writer(self, writer: Any) -> SessionWriter: ...


class SessionWriter(ABC):
    """Reads the options of a ``DataStreamWriter``, which has no getters.

    Attributes:
        passes_settings: whether tasks receive the session's settings at the query's start.
    """

    passes_settings: bool

    @property
    @abstractmethod
    def dataframe(self) -> DataFrame: ...

    @property
    @abstractmethod
    def trigger(self) -> str: ...

    @property
    @abstractmethod
    def format(self) -> str: ...

    @abstractmethod
    def option(self, name: str) -> str | None: ...

    @abstractmethod
    def one_batch(self) -> AbstractContextManager[None]:
        """Set a trigger that runs a single micro-batch: the uncommitted one, if any."""


def session_of(spark: Any) -> Session:
    if hasattr(spark, "_jsparkSession"):
        from pillarbox._runtime.spark.session.classic import ClassicSession

        return ClassicSession(spark)
    from pillarbox._runtime.spark.session.connect import ConnectSession

    return ConnectSession(spark)


def spark_of(writer: Any) -> Any:
    return writer._spark if hasattr(writer, "_spark") else writer._session


def dataframe_of(query: Any) -> DataFrame:
    """Return a ``DataStreamWriter``'s DataFrame. Returns a DataFrame unchanged."""
    if hasattr(type(query), "writeStream"):
        return query  # type: ignore[no-any-return]
    return session_of(spark_of(query)).writer(query).dataframe


def check_classic(spark: Any, refusal: str) -> None:
    if not session_of(spark).has_jvm:
        raise ConfigurationError(refusal)
