"""A session of Spark: what a classic one and one of Spark Connect do differently.

Two classes implement it, in ``classic.py`` and ``connect.py``. Nothing else asks of which kind a session is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from pillarbox._errors import ConfigurationError
from pillarbox._runtime.spark.session.folders import Folder, HadoopFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Session(ABC):
    """A session of Spark.

    Attributes:
        spark: PySpark's object.
        has_jvm: whether the driver's JVM belongs to this process, and is reachable.
    """

    has_jvm: bool

    def __init__(self, spark: Any) -> None:
        self.spark = spark

    # -- the application --

    @abstractmethod
    def settings(self) -> dict[str, str]:
        """Return the application's settings, and the session's that may differ from them."""

    @abstractmethod
    def java_version(self) -> str | None:
        """Return the version of the driver's Java, or None if it is out of reach."""

    @abstractmethod
    def default_parallelism(self) -> int | None:
        """Return the number of tasks that Spark runs at a time by its own count, or None if no setting has it."""

    @abstractmethod
    def worker_python(self) -> str | None:
        """Return the Python that the driver's workers run, or None if it is out of reach."""

    @abstractmethod
    def local_executor(self) -> int | None:
        """Return the process id of the JVM if it is driver and only executor at once, else None."""

    @property
    @abstractmethod
    def shows_progress_bar(self) -> bool:
        """Whether Spark writes its own progress bar to standard error."""

    # -- jobs --

    @abstractmethod
    def job_group(self, description: str) -> AbstractContextManager[None]:
        """Run this thread's jobs as a group that is cancelled if the block raises. Spark Connect has no groups."""

    @abstractmethod
    def running_jobs(self, group: str) -> list[int] | None:
        """Return the running jobs of a group, or None if they are out of reach."""

    # -- files --

    @abstractmethod
    def folder(self, path: str) -> Folder:
        """Return a folder of small files."""

    @abstractmethod
    def hadoop_folder(self, path: str) -> HadoopFolder | None:
        """Return a folder whose files are read, written by name and removed without a job; None: impossible here."""

    # -- DataFrames --

    @abstractmethod
    def plan_steps(self, df: DataFrame) -> list[Any] | None:
        """Return the steps of a DataFrame's analyzed plan as Java objects, or None if they are out of reach.

        A step precedes those that it reads from: Spark numbers sources in this order.
        """

    @abstractmethod
    def aliases(self, df: DataFrame) -> str:
        """Return a text that contains the aliases in a DataFrame's plan, with views resolved."""

    @abstractmethod
    def analyzed_now(self, df: DataFrame) -> DataFrame:
        """Return a DataFrame whose plan is analyzed with the settings of this moment; rows are read later."""

    # -- queries --

    @abstractmethod
    def writer_class(self) -> type[Any]:
        """Return the class of the session's ``DataStreamWriter``."""

    @abstractmethod
    def writer(self, writer: Any) -> Writer:
        """Return the options of a ``DataStreamWriter``."""


class Writer(ABC):
    """The options of a ``DataStreamWriter``, which has no methods that return them.

    Attributes:
        passes_settings: whether the session's settings at a start reach the tasks of the query.
    """

    passes_settings: bool

    @property
    @abstractmethod
    def dataframe(self) -> DataFrame:
        """What it writes. Without the private name, no query starts."""

    @property
    @abstractmethod
    def trigger(self) -> str:
        """Its trigger by the name of Spark's class, such as ``ProcessingTimeTrigger(1000)``."""

    @property
    @abstractmethod
    def format(self) -> str:
        """The format of its sink; ``foreachbatch`` for a function."""

    @abstractmethod
    def option(self, name: str) -> str | None:
        """Return an option, whatever the case of its name."""

    @abstractmethod
    def one_batch(self) -> AbstractContextManager[None]:
        """Give it a trigger for one micro-batch: an interrupted one first."""


def session_of(spark: Any) -> Session:
    """Return the `Session` of PySpark's object."""
    if hasattr(spark, "_jsparkSession"):
        from pillarbox._runtime.spark.session.classic import ClassicSession

        return ClassicSession(spark)
    from pillarbox._runtime.spark.session.connect import ConnectSession

    return ConnectSession(spark)


def spark_of(writer: Any) -> Any:
    """Return PySpark's session of a ``DataStreamWriter``. Without the private name, no query starts."""
    return writer._spark if hasattr(writer, "_spark") else writer._session


def dataframe_of(query: Any) -> DataFrame:
    """Return the DataFrame of a ``DataStreamWriter``, or a DataFrame itself."""
    if hasattr(type(query), "writeStream"):
        return query  # type: ignore[no-any-return]
    return session_of(spark_of(query)).writer(query).dataframe


def check_classic(spark: Any, refusal: str) -> None:
    """Check that a session is a classic one.

    Raises:
        ConfigurationError: it belongs to Spark Connect; the message is ``refusal``.
    """
    if not session_of(spark).has_jvm:
        raise ConfigurationError(refusal)
