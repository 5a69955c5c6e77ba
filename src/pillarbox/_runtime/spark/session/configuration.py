"""The settings and versions that a query runs with, as far as they matter when something goes wrong."""

from __future__ import annotations

import platform
import re
from typing import TYPE_CHECKING, NamedTuple

from pillarbox._runtime.spark.session.packages import packages_here
from pillarbox._runtime.spark.session.parallelism import cores_of
from pillarbox._runtime.spark.session.session import session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Settings of which the name begins so.
_TOLD = re.compile(
    r"cores$|spark\.(master$|app\.|driver\.(cores|memory)|executor\.(cores|instances|memory|pyspark)|cores\.max|task\.cpus"
    r"|default\.parallelism|dynamicAllocation\.enabled|speculation|shuffle\.push\.enabled|python\.|pyspark\.|submit\.deployMode|pillarbox\."
    r"|locality\.wait$|sql\.(shuffle\.partitions|session\.timeZone|streaming\.|execution\.(arrow|pyspark)\.))"
)
_SECRET = re.compile(r"secret|password|passwd|token|credential|(access|api|private|account)[._-]?key", re.IGNORECASE)
# A user and a password in a URL.
_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_MASK = "*********"
_LONGEST = 500


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
    found = session_of(spark).settings()
    cores = cores_of(spark, found.get)
    if cores is not None:
        found["cores"] = str(cores)
    return {name: masked(name, value) for name, value in sorted(found.items()) if _TOLD.match(name)}


def versions_of(spark: SparkSession) -> dict[str, str]:
    """Return the versions of what the driver runs on, and where that is."""
    found = {**packages_here(), "platform": platform.platform(), "spark": spark.version}
    java = session_of(spark).java_version()
    return found if java is None else {**found, "java": java}
