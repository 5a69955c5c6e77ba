"""Rules about the machine, its Python and Spark's settings."""

from __future__ import annotations

from pillarbox._runtime.spark.session.requirements import (
    java_problem,
    numbers_of,
    pandas_problem,
    push_based_shuffle_problem,
    speculation_problem,
)
from pillarbox_tools.doctor.facts import Facts
from pillarbox_tools.doctor.unknown import UnknownFactsError, known

# The oldest versions that pillarbox is tested with.
_OLDEST = {"pyarrow": (18,), "pandas": (2, 2), "numpy": (1, 23, 2), "pyspark": (4, 1)}
# Versions that driver and workers share: state and buffers go from one to the other.
_SHARED = ("pillarbox", "pyspark", "pandas", "pyarrow", "numpy")


def java(facts: Facts) -> str | None:
    """Check that Java is new enough for Spark 4."""
    version = facts.versions.get("java")
    known(numbers_of(version), "the version of Java")
    return java_problem(version or "")


def pandas(facts: Facts) -> str | None:
    """Check that pandas is older than 3, which Spark's stateful Python API does not work with."""
    version = facts.versions.get("pandas")
    known(numbers_of(version), "the version of pandas")
    return pandas_problem(version or "")


def packages(facts: Facts) -> str | None:
    """Check that packages are at least as new as pillarbox needs them."""
    told = {name: facts.versions[name] for name in _OLDEST if name in facts.versions}
    if not told:
        raise UnknownFactsError("the versions of packages")
    for name, version in told.items():
        found, oldest = numbers_of(version), _OLDEST[name]
        if found is not None and found < oldest:
            least = ".".join(map(str, oldest))
            return (
                f"{name} {version} is too old: pillarbox needs {least} or newer, so run pip install '{name}>={least}'"
            )
    return None


def workers_python(facts: Facts) -> str | None:
    """Check that workers run the driver's Python."""
    workers = known(facts.worker_versions, "the Python of the workers: none has told")
    driver = known(facts.versions.get("python"), "the Python of the driver")
    for worker in (each["python"] for each in workers if "python" in each):
        if (numbers_of(worker) or ())[:2] != (numbers_of(driver) or ())[:2]:
            return (
                f"workers run Python {worker}, and the driver runs Python {driver}: functions are pickled by one and"
                " read by the other, so set PYSPARK_PYTHON to the driver's version on all machines"
            )
    return None


def version_skew(facts: Facts) -> str | None:
    """Check that driver and workers have the same versions of what they share."""
    for worker in known(facts.worker_versions, "the packages of the workers: none has told"):
        differing = [
            f"{name} {worker.get(name, 'is missing')} (driver: {facts.versions[name]})"
            for name in _SHARED
            if name in facts.versions and worker.get(name) != facts.versions[name]
        ]
        if differing:
            count = f"{len(differing)} package{'s differ' if len(differing) > 1 else ' differs'}"
            return (
                f"{count} between workers and driver: {', '.join(differing)}; install the same versions on all machines"
            )
    return None


def spark_skew(facts: Facts) -> str | None:
    """Check that PySpark is of the version of Spark."""
    spark, pyspark = (known(facts.versions.get(name), f"the version of {name}") for name in ("spark", "pyspark"))
    if (numbers_of(spark) or ())[:2] == (numbers_of(pyspark) or ())[:2]:
        return None
    minor = ".".join(map(str, (numbers_of(spark) or ())[:2]))
    return f"PySpark {pyspark} talks to Spark {spark}: install the same minor version, pip install 'pyspark=={minor}.*'"


def speculation(facts: Facts) -> str | None:
    """Check that speculation is off: two attempts of a task would work on the same state."""
    return speculation_problem(facts.settings)


def push_based_shuffle(facts: Facts) -> str | None:
    """Check that no shuffle is pushed: Spark then does not compare what a task sends that runs again."""
    return push_based_shuffle_problem(facts.settings)


def worker_reuse(facts: Facts) -> str | None:
    """Check that Python workers are used again."""
    name = "spark.python.worker.reuse"
    if facts.settings.get(name, "true").strip().lower() == "true":
        return None
    return (
        f"{name} is false: each task of Spark's gets a new Python process, which takes 1 second or more to import"
        " pandas and to open the functions again, so leave it true"
    )


def retention(facts: Facts) -> str | None:
    """Check that Spark keeps enough epochs to go back to, and not too many files."""
    retained = facts.retained
    if retained < 10:
        return (
            f"Spark keeps {retained} epochs: an older one can neither be inspected nor go into a savepoint, so set"
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
