"""Local sessions for examples, tests and the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from pillarbox._errors import check_count, check_text
from pillarbox._runtime.spark.session.requirements import check_java, check_packages
from pillarbox._runtime.spark.session.spark_names import SHUFFLE_PARTITIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def local_session(cores: int = 2, *, app_name: str = "pillarbox", **settings: str) -> SparkSession:
    """Return a local Spark session for examples, tests and experiments.

    Args:
        cores: number of concurrent tasks.
        settings: Spark settings, with ``__`` for each dot, as in ``spark__driver__memory="4g"``.

    Raises:
        ConfigurationError: Java or a Python package is missing or has a wrong version.
    """
    check_count(cores, "local_session(): cores=")
    check_text(app_name, "local_session(): app_name=")
    # Lets workers find the program's modules.
    script_folders = [folder for folder in sys.path[:1] if os.path.isdir(folder)]
    paths = [*script_folders, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    merged = {
        # Workers share the modules that this daemon has imported.
        **({"spark.python.daemon.module": "pillarbox.daemon"} if _daemon_finds_pillarbox() else {}),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.speculation": "false",
        "spark.log.level": "ERROR",
        SHUFFLE_PARTITIONS: str(cores),
        **{name.replace("__", "."): value for name, value in settings.items()},
    }
    # Plain local[n] never retries a task.
    return new_session(app_name, {"spark.master": f"local[{cores}, 4]", **merged})


def new_session(app_name: str, settings: dict[str, str]) -> SparkSession:
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
    """Return whether PySpark's daemon can import pillarbox.

    The daemon can import installed packages and modules on its ``PYTHONPATH``, but not from ``--py-files``. Under
    ``spark-submit``, its ``PYTHONPATH`` is the JVM's.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return False
    check = "import sys, importlib.util; sys.exit(importlib.util.find_spec('pillarbox') is None)"
    return subprocess.run([sys.executable, "-c", check], cwd=os.sep, check=False).returncode == 0
