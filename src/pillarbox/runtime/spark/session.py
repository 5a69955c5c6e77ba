"""Sessions: what pillarbox needs of Spark, and how it gets it without touching the user's own settings.

Parallelism, state store and batch bounds are settings of a Spark session. A program therefore runs in a session of its
own, which shares the user's Spark application and has the user's settings, with the needed ones on top.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pillarbox.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["check_packages", "default_parallelism", "local_session", "program_session", "time_zone", "worker_pool"]

_PARTITIONS = "spark.sql.shuffle.partitions"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

# On top of the user's settings, for programs only.
NEEDED = {
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    # An epoch writes the changes of the state store, not its files.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # A row is a buffer of up to a megabyte here: without this bound Spark gathers thousands into one Arrow batch.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(8 * 1024 * 1024),
    # Subtask i is partition i; merged partitions would run their subtasks one after the other.
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
}


def local_session(cores: int = 2, *, app_name: str = "pillarbox", **settings: str) -> SparkSession:
    """Give a local Spark session with everything set as pillarbox needs it: for examples, tests and trying out.

    Args:
        cores: number of tasks at once.
        settings: more Spark settings, with ``__`` for each dot, such as ``spark__driver__memory="4g"``.

    Raises:
        ConfigurationError: Java or a Python package is missing or of a wrong version.
    """
    check_packages()
    check_java()
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Workers find the program's own modules where the driver does: beside the script.
    beside = [folder for folder in sys.path[:1] if os.path.isdir(folder)]
    paths = [*beside, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    builder: Any = SparkSession.builder.appName(app_name)
    merged = {
        # Four attempts a task: plain local[n] never tries again.
        "spark.master": f"local[{cores}, 4]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.speculation": "false",
        "spark.log.level": "ERROR",
        _PARTITIONS: str(cores),
        **NEEDED,
        **{name.replace("__", "."): value for name, value in settings.items()},
    }
    for name, value in merged.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    return session


def check_packages() -> None:
    """Look whether the Python packages that Spark's stateful Python API needs are there.

    Raises:
        ConfigurationError: one is missing, or pandas is too new.
    """
    for module, package in (
        ("pandas", "pandas<3"),
        ("pyarrow", "pyarrow"),
        ("google.protobuf", "protobuf"),
    ):
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConfigurationError(
                f"Spark's stateful Python API needs {package}, which cannot be imported ({error}):"
                f" pip install '{package}'"
            ) from error
    import pandas

    if int(pandas.__version__.split(".")[0]) >= 3:
        raise ConfigurationError(
            f"Spark's stateful Python API does not work with pandas {pandas.__version__}: pip install 'pandas<3'"
        )


def check_java() -> None:
    """Look whether there is a Java for Spark 4: version 17 or newer.

    Raises:
        ConfigurationError: there is none, or it is older.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.path.exists(java):
        raise ConfigurationError("Spark needs Java 17 or newer: install it, or set JAVA_HOME to where it is")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    version = int(found[2] or 0) if found and found[1] == "1" else int(found[1]) if found else 17
    if version < 17:
        raise ConfigurationError(
            f"Spark needs Java 17 or newer, {java} is Java {version}: install a newer one, or set JAVA_HOME to it"
        )


def _check_session(spark: SparkSession) -> None:
    if spark.conf.get("spark.speculation", "false") == "true":
        raise ConfigurationError(
            "spark.speculation is on: two attempts of one task would work on the same state; set it to false"
        )
    master = spark.conf.get("spark.master", "") or ""
    # On this machine the workers can be compared with the driver; elsewhere the interpreter's path may well differ.
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    worker = getattr(context, "pythonExec", None)
    if master.startswith("local") and worker is not None:
        found = shutil.which(worker)
        if found is None or not os.path.samefile(found, sys.executable):
            raise ConfigurationError(
                f"Spark's Python workers run {found or worker}, this program runs {sys.executable}: set"
                " PYSPARK_PYTHON to it before the session is made"
            )


def default_parallelism(spark: SparkSession) -> int:
    """Give ``spark.sql.shuffle.partitions`` where it is not Spark's 200, else the cores of a local master."""
    partitions = int(spark.conf.get(_PARTITIONS, "200") or 200)
    if partitions != 200:
        return partitions
    return _local_cores(spark) or partitions


def _local_cores(spark: SparkSession) -> int | None:
    """Return the cores of a local master, or None."""
    local = re.match(r"local\[(\d+|\*)", spark.conf.get("spark.master", "") or "")
    if local is None:
        return None
    return (os.cpu_count() or 1) if local[1] == "*" else int(local[1])


def task_slots(spark: SparkSession) -> int:
    """Return how many tasks a source has at a time: the number of partitions that Spark deals rows out to by itself.

    No job is run to find it out.

    Raises:
        ConfigurationError: (Spark Connect) no setting tells.
    """
    from pyspark.sql.utils import is_remote

    said = spark.conf.get("spark.sql.leafNodeDefaultParallelism", None)
    if said is None and not is_remote():
        return int(spark.sparkContext.defaultParallelism)
    said = said or spark.conf.get("spark.default.parallelism", None)
    if said is not None:
        return int(said)
    cores = _local_cores(spark)
    if cores is None:
        raise ConfigurationError(
            "job_rate_limit is shared by the tasks of the source, and their number is not known: set"
            " spark.sql.leafNodeDefaultParallelism to it, or use rate_limit, which is that of each task"
        )
    return cores


def time_zone() -> str:
    """Give the time zone of the active session, in which naive datetimes are meant."""
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    return (spark.conf.get("spark.sql.session.timeZone", "UTC") or "UTC") if spark is not None else "UTC"


def program_session(spark: SparkSession, parallelism: int) -> SparkSession:
    """Give a session with the user's settings and those that a program needs: the user's own if it has them.

    Raises:
        ConfigurationError: a setting of the application stands in the way.
    """
    check_packages()
    _check_session(spark)
    needed = {**NEEDED, _PARTITIONS: str(parallelism)}
    if all(spark.conf.get(name, None) == value for name, value in needed.items()):
        return spark
    session = spark.newSession()
    for name, value in _settings(spark).items():
        if session.conf.get(name, None) != value and session.conf.isModifiable(name):
            session.conf.set(name, value)
    for name, value in needed.items():
        session.conf.set(name, value)
    return session


@contextmanager
def worker_pool(name: str) -> Iterator[None]:
    """Have the Python functions of the plans that are built meanwhile run in workers of their own.

    Spark hands a task to any idle worker of a pool, and keeps a pool for each set of environment variables. Keyed
    tasks live in their workers: in a pool with sources and outputs there would be several times as many workers to be
    warm in. Under Spark Connect there is one pool for all.
    """
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        yield
        return
    context.environment["PILLARBOX_POOL"] = name
    try:
        yield
    finally:
        del context.environment["PILLARBOX_POOL"]


def _settings(spark: SparkSession) -> dict[str, str]:
    every: Any = spark.conf.getAll
    return dict(every() if callable(every) else every)


def move(df: DataFrame, session: SparkSession) -> DataFrame:
    """Give a DataFrame, streaming or not, as one of another session of the same application."""
    if df.sparkSession is session:
        return df
    from pyspark.sql.utils import is_remote

    name = f"pillarbox_{uuid.uuid4().hex}"
    df.createGlobalTempView(name)
    database = session.conf.get("spark.sql.globalTempDatabase", "global_temp")
    moved = session.table(f"{database}.{name}")
    # Spark Connect looks the view up whenever the plan is used, so there it has to stay.
    if not is_remote():
        session.catalog.dropGlobalTempView(name)
    return moved
