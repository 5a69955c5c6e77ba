"""Spark sessions for tests, which ignore this machine's Spark settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j import java_gateway
from pyspark.sql import SparkSession

from pillarbox._runtime.spark.session.java import java_session, jvm
from pillarbox._runtime.spark.session.local_session import local_session

__all__ = [
    "active_session",
    "only_session",
    "session_with_package",
    "setting_of_application",
    "tasks_are_tried_once",
]

_ROOT = Path(__file__).resolve().parents[2]

# Settings of another Spark on this machine, which would affect the tests.
_FOREIGN = (
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_CONF_DIR",
    "SPARK_HOME",
    "SPARK_LOCAL_DIRS",
    "SPARK_REMOTE",
)


@contextmanager
def only_session(make: Callable[[], SparkSession]) -> Iterator[SparkSession]:
    import pytest  # not in workers, which import this with a job

    with pytest.MonkeyPatch.context() as env:
        for name in _FOREIGN:
            env.delenv(name, raising=False)
        env.setenv("PYSPARK_PYTHON", sys.executable)
        env.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        # Workers import the modules of a test's functions.
        env.setenv("PYTHONPATH", str(_ROOT), prepend=os.pathsep)
        env.setenv("SPARK_LOCAL_IP", "127.0.0.1")  # a host name need not resolve
        env.setattr(java_gateway, "is_instance_of", _is_instance_of)
        session = make()
        try:
            yield session
        finally:
            for query in session.streams.active:
                query.stop()
            session.stop()


def _is_instance_of(gateway: Any, java_object: Any, name: str) -> bool:
    """Check a Java object's class by name. Replaces py4j's ``is_instance_of``.

    PySpark calls this function a dozen times for each exception. In each call, py4j's own function makes Java search
    all of Spark's jars for a class ``py4j``.
    """
    return bool(getattr(gateway.jvm, "py4j.reflection.TypeUtil").isInstanceOf(name, java_object))


@contextmanager
def tasks_are_tried_once(session: SparkSession) -> Iterator[None]:
    # Spark reads `local[2, 4]` once for all; the scheduler hands the number on to each set of tasks.
    scheduler = session.sparkContext._jsc.sc().taskScheduler()
    attempts = scheduler.getClass().getDeclaredField("maxTaskFailures")
    attempts.setAccessible(True)
    before = attempts.getInt(scheduler)
    attempts.setInt(scheduler, 1)
    try:
        yield
    finally:
        attempts.setInt(scheduler, before)


def active_session(session: SparkSession) -> None:
    """Make a session this thread's active session, whose settings Spark reads if a call has no session."""
    jvm(session).SparkSession.setActiveSession(java_session(session))
    SparkSession._activeSession = session


def session_with_package(home: Path, name: str, package: str, **settings: str) -> SparkSession:
    """Return a session with a package from Maven Central.

    Args:
        settings: Spark settings, as in ``local_session``.
    """
    return local_session(
        2,
        app_name=f"pillarbox-{name}",
        spark__jars__packages=package,
        spark__driver__memory="1g",
        spark__python__daemon__module="tests.support.daemon",
        spark__local__dir=str(home / "local"),
        spark__sql__warehouse__dir=str(home / "warehouse"),
        **settings,
    )


def environment_without_spark(**more: str) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return {**env, **more}


@contextmanager
def setting_of_application(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    conf: Any = spark.sparkContext._conf
    before = conf.get(name)
    conf.set(name, value)
    try:
        yield
    finally:
        if before is None:
            conf._jconf.remove(name)
        else:
            conf.set(name, before)
