"""Context managers that change a session's settings."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pillarbox._errors import ConfigurationError
from pillarbox._runtime.spark.session.spark_names import PROVIDER, PROVIDER_KEY, STATE_FORMAT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# While a query starts, the session has its settings, so no other query may start.
_starting = threading.RLock()
_STARTING_SECONDS = 600.0


@contextmanager
def session_settings(
    spark: SparkSession, settings: dict[str, str], before: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Change the session's settings within the block.

    ``before`` are the current settings, if the caller has read them. Reading a setting takes a call to Java.
    """
    if before is None:
        before = spark.conf.getAll if settings else {}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name in settings:
            if name in before:
                spark.conf.set(name, before[name])
            else:
                spark.conf.unset(name)


def session_with(spark: SparkSession, settings: dict[str, str]) -> SparkSession:
    """Return a new session with a classic session's settings, overridden by ``settings``."""
    from pyspark.errors import AnalysisException

    own = spark.newSession()
    fresh = own.conf.getAll
    for name, value in spark.conf.getAll.items():
        if fresh.get(name) != value:
            try:
                own.conf.set(name, value)
            except AnalysisException:  # can be set only for the whole application
                continue
    for name, value in settings.items():
        own.conf.set(name, value)
    return own


@contextmanager
def without_setting(spark: SparkSession, name: str) -> Iterator[None]:
    conf = spark.conf
    value = conf.getAll.get(name)
    if value is None:
        yield
        return
    conf.unset(name)
    try:
        yield
    finally:
        conf.set(name, value)


def spark_version(spark: SparkSession) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", spark.version)[:2]))


def time_zone(spark: SparkSession) -> str:
    # No default value is passed, because Spark's own default is the driver's time zone.
    return str(spark.conf.get("spark.sql.session.timeZone"))


@contextmanager
def alone() -> Iterator[None]:
    """Keep other threads from starting queries within the block."""
    if not _starting.acquire(timeout=_STARTING_SECONDS):
        raise ConfigurationError(
            f"another query has been starting for {_STARTING_SECONDS:.0f} seconds, but a process with pillarbox"
            " programs starts only one query at a time: does a listener start a query in onQueryStarted()?"
        )
    try:
        yield
    finally:
        _starting.release()


@contextmanager
def state_settings(spark: SparkSession, state_format: str) -> Iterator[None]:
    """Apply the settings that Spark needs when it plans to read a checkpoint's state, within the block.

    Other threads cannot start queries during the block, so do not run a job in it.
    """
    with alone(), session_settings(spark, settings_of_state(state_format)):
        yield


def settings_of_state(state_format: str) -> dict[str, str]:
    return {PROVIDER_KEY: PROVIDER, STATE_FORMAT: state_format}
