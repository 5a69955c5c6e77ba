"""The settings and versions that a query runs with, as far as they matter when something goes wrong."""

from __future__ import annotations

import platform
import re
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from pillarbox._runtime.spark.cores import cores_of
from pillarbox._runtime.spark.facts import is_classic, java_class

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

# Settings of which the name begins so.
_TOLD = re.compile(
    r"cores$|spark\.(master$|app\.|driver\.(cores|memory)|executor\.(cores|instances|memory|pyspark)|cores\.max|task\.cpus"
    r"|default\.parallelism|dynamicAllocation\.enabled|speculation|shuffle\.push\.enabled|python\.|pyspark\.|submit\.deployMode|pillarbox\."
    r"|locality\.wait$|sql\.(shuffle\.partitions|session\.timeZone|streaming\.|execution\.(arrow|pyspark)\.))"
)
# Settings that a session may have of its own.
_OF_SESSION = (
    "spark.pillarbox.homes",
    "spark.sql.shuffle.partitions",
    "spark.sql.session.timeZone",
    "spark.sql.execution.arrow.maxRecordsPerBatch",
    "spark.sql.execution.arrow.maxBytesPerBatch",
    "spark.sql.streaming.minBatchesToRetain",
    "spark.sql.streaming.numRecentProgressUpdates",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
)
_SECRET = re.compile(r"secret|password|passwd|token|credential|(access|api|private|account)[._-]?key", re.IGNORECASE)
# A user and a password in a URL.
_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_MASK = "*********"
_LONGEST = 500
_PACKAGES = ("pillarbox", "pyspark", "pandas", "pyarrow", "numpy", "protobuf")


class Configuration(NamedTuple):
    """What a query runs with.

    Attributes:
        settings: of Spark and of the query, with secrets masked.
        versions: of what the driver runs on, by name.
    """

    settings: dict[str, str]
    versions: dict[str, str]


def configuration_of(spark: SparkSession, **of_query: str) -> Configuration:
    """Return the configuration of a query that a session starts. It costs no job, and no request to a store.

    Args:
        of_query: settings of the query's own.
    """
    return Configuration({**settings_of(spark), **of_query}, versions_of(spark))


def masked(name: str, value: str) -> str:
    """Return the value of a setting; a mask where it is a secret, by the name or by the look of it."""
    return _MASK if _SECRET.search(name) else _IN_URL.sub(_MASK, value)[:_LONGEST]


def settings_of(spark: SparkSession) -> dict[str, str]:
    """Return the settings of a session that matter for a query, with secrets masked."""
    if is_classic(spark):
        conf = spark.sparkContext.getConf()
        # As one text: a call to Java for each setting would take as long as an epoch.
        pairs = (line.partition("=") for line in conf.toDebugString().splitlines())
        found = {name: value for name, _, value in pairs}
        found |= {name: value for name in _OF_SESSION if (value := spark.conf.get(name, None)) is not None}
    else:
        found = {str(name): str(value) for name, value in spark.conf.getAll.items()}
    cores = cores_of(spark, found.get)
    if cores is not None:
        found["cores"] = str(cores)
    return {name: masked(name, value) for name, value in sorted(found.items()) if _TOLD.match(name)}


@cache
def packages_here() -> Mapping[str, str]:
    """Return the versions of Python and of packages in this process."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            # A platform brings its own, and --py-files ships pillarbox without its metadata.
            module = sys.modules.get(package)
            if module is not None and hasattr(module, "__version__"):
                found[package] = str(module.__version__)
    return MappingProxyType(found)


def versions_of(spark: SparkSession) -> dict[str, str]:
    """Return the versions of what the driver runs on, and where that is."""
    found = {**packages_here(), "platform": platform.platform(), "spark": spark.version}
    if is_classic(spark):
        found["java"] = str(java_class(spark, "java.lang.System").getProperty("java.version"))
    return found
