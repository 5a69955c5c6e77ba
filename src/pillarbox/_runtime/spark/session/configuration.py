"""A query's settings and versions, for problem reports."""

from __future__ import annotations

import platform
import re
from typing import TYPE_CHECKING, NamedTuple

from pillarbox._runtime.spark.session.packages import packages_here
from pillarbox._runtime.spark.session.parallelism import cores_of
from pillarbox._runtime.spark.session.session import session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Settings that reports contain.
_SHOWN = re.compile(
    r"cores$|spark\.(master$|app\.|driver\.(cores|memory)|executor\.(cores|instances|memory|pyspark)|cores\.max|task\.cpus"
    r"|default\.parallelism|dynamicAllocation\.enabled|speculation|shuffle\.push\.enabled|python\.|pyspark\.|submit\.deployMode|pillarbox\."
    r"|locality\.wait$|sql\.(shuffle\.partitions|session\.timeZone|streaming\.|execution\.(arrow|pyspark)\.))"
)
_SECRET = re.compile(r"secret|password|passwd|token|credential|(access|api|private|account)[._-]?key", re.IGNORECASE)
# User and password in a URL.
_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_MASK = "*********"
_LONGEST = 500


class SessionConfiguration(NamedTuple):
    """A query's settings and versions. Secrets are masked."""

    settings: dict[str, str]
    versions: dict[str, str]


def configuration_of(spark: SparkSession, **of_query: str) -> SessionConfiguration:
    """Return a query's configuration. Runs no job, and does not access storage."""
    return SessionConfiguration({**settings_of(spark), **of_query}, versions_of(spark))


def masked(name: str, value: str) -> str:
    return _MASK if _SECRET.search(name) else _IN_URL.sub(_MASK, value)[:_LONGEST]


def settings_of(spark: SparkSession) -> dict[str, str]:
    settings = session_of(spark).settings()
    cores = cores_of(spark, settings.get)
    if cores is not None:
        settings["cores"] = str(cores)
    return {name: masked(name, value) for name, value in sorted(settings.items()) if _SHOWN.match(name)}


def versions_of(spark: SparkSession) -> dict[str, str]:
    versions = {**packages_here(), "platform": platform.platform(), "spark": spark.version}
    java = session_of(spark).java_version()
    return versions if java is None else {**versions, "java": java}
