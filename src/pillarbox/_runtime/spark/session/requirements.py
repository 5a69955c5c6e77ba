"""Checks Spark, Java and Python packages.

Functions named ``...problem`` return an error message or None, and are also called by ``pillarbox doctor``.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from pillarbox._errors import ConfigurationError
from pillarbox._runtime.spark.session.session import session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Settings that a streaming program needs.
NEEDED = {"spark.speculation": "false", "spark.shuffle.push.enabled": "false", "spark.python.use.daemon": "true"}


def numbers_of(version: str | None) -> tuple[int, ...] | None:
    """Return the leading numbers of a version, such as (3, 11, 7), or None."""
    match = re.match(r"\d+(\.\d+)*", version or "")
    return None if match is None else tuple(map(int, match[0].split(".")))


def java_problem(version: str) -> str | None:
    if (numbers_of(version) or (17,))[0] >= 17:
        return None
    return f"Java {version} is too old: Spark 4 needs Java 17 or newer, so install it and set JAVA_HOME"


def pandas_problem(version: str) -> str | None:
    if (numbers_of(version) or (2,))[0] < 3:
        return None
    return (
        f"pandas {version} is too new: Spark's stateful Python API needs pandas before 3, so run pip install 'pandas<3'"
    )


def speculation_problem(settings: Mapping[str, str]) -> str | None:
    if not _is_true(settings, "spark.speculation"):
        return None
    return "spark.speculation is true: 2 attempts of one task would work on the same state, so set it to false"


def push_based_shuffle_problem(settings: Mapping[str, str]) -> str | None:
    if not _is_true(settings, "spark.shuffle.push.enabled"):
        return None
    return (
        "spark.shuffle.push.enabled is true: if an executor is lost, Spark may mix the output of 2 attempts of one"
        " task, so set it to false"
    )


def daemon_problem(settings: Mapping[str, str]) -> str | None:
    if _is_true({"spark.python.use.daemon": "true", **settings}, "spark.python.use.daemon"):
        return None
    return (
        "spark.python.use.daemon is false: PySpark's daemon owns the processes that run your functions, so set it to"
        " true"
    )


def _is_true(settings: Mapping[str, str], name: str) -> bool:
    return settings.get(name, "false").strip().lower() == "true"


def check_settings(settings: Mapping[str, str]) -> None:
    _refuse(speculation_problem(settings) or push_based_shuffle_problem(settings) or daemon_problem(settings))


def check_packages() -> None:
    """Raise if a package that Spark's stateful Python API needs is missing or too old."""
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
    _refuse(pandas_problem(importlib.import_module("pandas").__version__))


def check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.path.exists(java):
        raise ConfigurationError("Spark needs Java 17 or newer: install it, or set JAVA_HOME to its directory")
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(\d[^"]*)', output)
    if match is not None:
        _refuse(java_problem(match[1]), f"{java}: ")


def check_python(worker: str) -> None:
    """Raise if the workers' Python (a path or command) lacks this process's packages."""
    path = shutil.which(worker)
    # Environments may share a base Python, or an environment may have several paths.
    if path is None or (path != sys.executable and _prefix(path) != sys.prefix):
        raise ConfigurationError(
            f"Spark's Python workers run {path or worker}, but this program runs {sys.executable}: set"
            ' os.environ["PYSPARK_PYTHON"] = sys.executable before creating the session'
        )


def check_requirements(spark: SparkSession, *, streaming: bool) -> None:
    check_packages()
    if streaming:
        check_settings({name: str(spark.conf.get(name, default)) for name, default in NEEDED.items()})
    # On other machines, the path may differ.
    worker = session_of(spark).worker_python()
    if worker is not None and re.match(r"local(\[|$)", spark.conf.get("spark.master", "") or ""):
        check_python(worker)


@cache
def _prefix(python: str) -> str:
    process = subprocess.run(
        [python, "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=False
    )
    return process.stdout.strip()


def _refuse(problem: str | None, where: str = "") -> None:
    if problem is not None:
        raise ConfigurationError(f"{where}{problem}")
