"""The Spark session that a program runs in, which is the user's own: its settings, and the checks of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from pillarbox._errors import ConfigurationError, check_count, check_text
from pillarbox._runtime.spark.cores import cores_of, default_slots, local_cores
from pillarbox._runtime.spark.facts import SHUFFLE_PARTITIONS
from pillarbox._runtime.spark.settings.requirements import (
    NEEDED,
    check_java,
    check_packages,
    check_python,
    check_settings,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A program sets a higher parallelism by itself: each partition has a state store and may have a home of its own.
_MOST_BY_DEFAULT = 16
# `spark.sql.shuffle.partitions` may be meant for the batch jobs of a whole cluster; each of ours has a state store.
_MOST_PARTITIONS = 128


def local_session(cores: int = 2, *, app_name: str = "pillarbox", **settings: str) -> SparkSession:
    """Return a local Spark session with everything set as programs like it: for examples, tests and trying out.

    Args:
        cores: number of tasks at once.
        settings: more Spark settings, with ``__`` for each dot, such as ``spark__driver__memory="4g"``.

    Raises:
        ConfigurationError: Java or a Python package is missing or of a wrong version.
    """
    check_count(cores, "local_session(): cores")
    check_text(app_name, "local_session(): app_name")
    # Workers find the program's own modules where the driver does: next to the script.
    beside = [folder for folder in sys.path[:1] if os.path.isdir(folder)]
    paths = [*beside, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    merged = {
        # Modules that workers import are imported once, and shared.
        **({"spark.python.daemon.module": "pillarbox.daemon"} if _daemon_finds_pillarbox() else {}),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.speculation": "false",
        "spark.log.level": "ERROR",
        SHUFFLE_PARTITIONS: str(cores),
        **{name.replace("__", "."): value for name, value in settings.items()},
    }
    # Four attempts a task: plain local[n] never tries again.
    return new_session(app_name, {"spark.master": f"local[{cores}, 4]", **merged})


def new_session(app_name: str, settings: dict[str, str]) -> SparkSession:
    """Return a classic session.

    Args:
        settings: settings of Spark; a local master gets what it needs besides.

    Raises:
        ConfigurationError: Java or a Python package is missing or of a wrong version.
    """
    check_packages()
    check_java()
    from pyspark.sql import SparkSession

    if settings["spark.master"].startswith("local"):
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", **settings}
    builder: Any = SparkSession.builder.appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    return session


def _daemon_finds_pillarbox() -> bool:
    """Return whether the daemon of Python workers will find pillarbox when it starts.

    It has what is installed and what is on ``PYTHONPATH``. What ``--py-files`` ships reaches only workers, and after
    ``spark-submit`` the JVM has an environment of its own.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return False
    look = "import sys, importlib.util; sys.exit(importlib.util.find_spec('pillarbox') is None)"
    return subprocess.run([sys.executable, "-c", look], cwd=os.sep, check=False).returncode == 0


def check_session(spark: SparkSession, *, streaming: bool) -> None:
    """Check that the application can run a program.

    Raises:
        ConfigurationError: a package is missing, or a setting of the application stands in the way.
    """
    check_packages()
    if streaming:
        check_settings({name: str(spark.conf.get(name, default)) for name, default in NEEDED.items()})
    # On this machine the workers can be compared with the driver; elsewhere the interpreter's path may well differ.
    context = getattr(spark, "sparkContext", None)  # there is none under Spark Connect
    if context is not None and re.match(r"local(\[|$)", spark.conf.get("spark.master", "") or ""):
        check_python(context.pythonExec)


def default_parallelism(spark: SparkSession) -> tuple[int, str]:
    """Return the parallelism of a program that sets none, and what it is taken from, as the end of a message.

    It is ``spark.sql.shuffle.partitions`` where somebody has set it, at most 128; else the cores, at most 16. Each
    subtask costs an epoch some time, and how much there is to do nobody knows: more cores than that are used where the
    user says so. No job is run to find them out.
    """
    said = spark.conf.get(SHUFFLE_PARTITIONS, None)
    partitions = int(said) if said is not None and said.isdigit() else 0
    if partitions > _MOST_PARTITIONS and partitions != 200:
        return _MOST_PARTITIONS, f"the most by default, as {SHUFFLE_PARTITIONS} is {partitions}"
    if partitions not in (0, 200):  # Spark's own, or ``auto``: nobody has chosen it
        return partitions, f"as {SHUFFLE_PARTITIONS} says"
    cores = cores_of(spark)
    if not cores:
        return _MOST_BY_DEFAULT, "as nobody knows the cluster's cores"
    return min(cores, _MOST_BY_DEFAULT), "by the cluster's cores"


def task_slots(spark: SparkSession) -> int:
    """Return how many tasks a source has at a time: the number of partitions that Spark deals rows out to by itself.

    No job is run to find it out.

    Raises:
        ConfigurationError: (Spark Connect) no setting tells.
    """

    def get(name: str) -> str | None:
        return spark.conf.get(name, None)

    said = get("spark.sql.leafNodeDefaultParallelism")
    slots = int(said) if said else default_slots(spark, get) or local_cores(get)
    if slots is None:
        raise ConfigurationError(
            "job_rate_limit, or a budget, is shared by the tasks of the source, and their number is not known: set"
            " spark.sql.leafNodeDefaultParallelism to it, or use rate_limit, which applies to each task"
        )
    return slots


def time_zone(spark: SparkSession) -> str:
    """Return the time zone of a session, in which naive datetimes are meant."""
    return spark.conf.get("spark.sql.session.timeZone", "UTC") or "UTC"
