"""Rules about the machine, its Python and Spark's settings."""

from __future__ import annotations

from pillarbox._runtime.spark.session.requirements import (
    java_problem,
    numbers_of,
    pandas_problem,
    push_based_shuffle_problem,
    speculation_problem,
)
from pillarbox_tools.doctor.finding import MissingFactError, require
from pillarbox_tools.model.settings import number_in
from pillarbox_tools.model.snapshot import Snapshot

# The oldest tested versions.
_OLDEST = {"pyarrow": (18,), "pandas": (2, 2), "numpy": (1, 23, 2), "pyspark": (4, 1)}
# Packages whose versions must match in driver and workers, which exchange state and buffers.
_SHARED = ("pillarbox", "pyspark", "pandas", "pyarrow", "numpy")


def java(snapshot: Snapshot) -> str | None:
    version = snapshot.run.versions.get("java")
    require(numbers_of(version), "the version of Java")
    return java_problem(version or "")


def pandas(snapshot: Snapshot) -> str | None:
    """Check that pandas is older than 3, which Spark's stateful Python API does not support."""
    version = snapshot.run.versions.get("pandas")
    require(numbers_of(version), "the version of pandas")
    return pandas_problem(version or "")


def packages(snapshot: Snapshot) -> str | None:
    versions = {name: snapshot.run.versions[name] for name in _OLDEST if name in snapshot.run.versions}
    if not versions:
        raise MissingFactError("the versions of packages")
    for name, version in versions.items():
        installed, oldest = numbers_of(version), _OLDEST[name]
        if installed is not None and installed < oldest:
            least = ".".join(map(str, oldest))
            return (
                f"{name} {version} is too old: pillarbox needs {least} or newer, so run pip install '{name}>={least}'"
            )
    return None


def workers_python(snapshot: Snapshot) -> str | None:
    workers = require(snapshot.run.worker_versions or None, "the workers' Python: no task has reported it")
    driver = require(snapshot.run.versions.get("python"), "the Python of the driver")
    for worker in (report["python"] for report in workers if "python" in report):
        if (numbers_of(worker) or ())[:2] != (numbers_of(driver) or ())[:2]:
            return (
                f"workers run Python {worker}, but the driver runs Python {driver}: functions are pickled by one and"
                " unpickled by the other, so set PYSPARK_PYTHON to the driver's version on all machines"
            )
    return None


def version_skew(snapshot: Snapshot) -> str | None:
    for worker in require(snapshot.run.worker_versions or None, "the workers' packages: no task has reported them"):
        differing = [
            f"{name} {worker.get(name, 'is missing')} (driver: {snapshot.run.versions[name]})"
            for name in _SHARED
            if name in snapshot.run.versions and worker.get(name) != snapshot.run.versions[name]
        ]
        if differing:
            count = f"{len(differing)} package{'s differ' if len(differing) > 1 else ' differs'}"
            return (
                f"{count} between workers and driver: {', '.join(differing)}; install the same versions on all machines"
            )
    return None


def spark_skew(snapshot: Snapshot) -> str | None:
    spark, pyspark = (
        require(snapshot.run.versions.get(name), f"the version of {name}") for name in ("spark", "pyspark")
    )
    if (numbers_of(spark) or ())[:2] == (numbers_of(pyspark) or ())[:2]:
        return None
    minor = ".".join(map(str, (numbers_of(spark) or ())[:2]))
    return (
        f"PySpark {pyspark} is connected to Spark {spark}: install the same minor version with pip install"
        f" 'pyspark=={minor}.*'"
    )


def speculation(snapshot: Snapshot) -> str | None:
    """Check that speculation is off, because two attempts of a task would change the same state."""
    return speculation_problem(snapshot.run.settings)


def push_based_shuffle(snapshot: Snapshot) -> str | None:
    """Check that push-based shuffle is off, because with it, Spark cannot compare a repeated task's output."""
    return push_based_shuffle_problem(snapshot.run.settings)


def worker_reuse(snapshot: Snapshot) -> str | None:
    name = "spark.python.worker.reuse"
    if snapshot.run.settings.get(name, "true").strip().lower() == "true":
        return None
    return (
        f"{name} is false: each Spark task starts a new Python process, which needs 1 second or more to import pandas"
        " and to open the functions again, so set it to true"
    )


def retention(snapshot: Snapshot) -> str | None:
    """Check that Spark retains enough epochs to return to an older epoch, but not too many files."""
    retained = number_in(snapshot.run.settings, "spark.sql.streaming.minBatchesToRetain")
    if retained is None:
        return None
    if retained < 10:
        return (
            f"Spark keeps {retained} epochs: older epochs can be neither inspected nor written to a savepoint, so set"
            " spark.sql.streaming.minBatchesToRetain to 10 or more"
        )
    if retained > 1000:
        return (
            f"Spark keeps {retained:,} epochs, each with files for each state partition: set"
            " spark.sql.streaming.minBatchesToRetain to 1000 or less"
        )
    return None


MACHINE_RULES = (
    java,
    pandas,
    packages,
    workers_python,
    version_skew,
    spark_skew,
    speculation,
    push_based_shuffle,
    worker_reuse,
    retention,
)
