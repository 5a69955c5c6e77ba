"""Opens a command's Spark session: local by default, with progress shown and Spark's log hidden."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from rich.status import Status

from pillarbox._runtime.spark.session.local_session import new_session
from pillarbox_tools.repeating import repeated

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_QUIET = {"spark.log.level": "OFF", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}

_CONNECT = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
_SECONDS = 0.3
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


@contextmanager
def session(master: str, settings: dict[str, str], *, verbose: bool) -> Iterator[SparkSession]:
    """Open a session for the block, then stop it.

    ``settings`` override the command's own settings. ``verbose`` shows Spark's log.
    """
    # Opens a classic session even in a shell that is configured for Spark Connect.
    for name in _CONNECT:
        os.environ.pop(name, None)
    with nullcontext() if verbose else _hidden_standard_error():
        spark = new_session("pillarbox", {"spark.master": master, **({} if verbose else _QUIET), **settings})
    if not verbose:
        from pyspark.logger import PySparkLogger

        # PySpark not only raises SQL errors, but also writes them to standard error.
        for logger in _LOGGERS:
            PySparkLogger.getLogger(logger).setLevel(logging.CRITICAL)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _hidden_standard_error() -> Iterator[None]:
    """Discard the standard error of processes started in the block, unless the block raises."""
    sys.stderr.flush()
    ours = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(ours, 2)
            captured.seek(0)
            sys.stderr.write(captured.read().decode(errors="replace"))
            raise
        finally:
            os.dup2(ours, 2)
            os.close(ours)


def tasks_of(context: SparkContext) -> tuple[int, int]:
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(number) for number in tracker.getActiveJobsIds()]
    stages = [tracker.getStageInfo(number) for job in jobs if job is not None for number in job.stageIds]
    available = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in available), sum(stage.numTasks for stage in available)


@contextmanager
def progress(spark: SparkSession, status: Status, what: str) -> Iterator[None]:
    def show() -> None:
        done, tasks = tasks_of(spark.sparkContext)
        status.update(f"{what}: {done:,} of {tasks:,} tasks" if tasks else what)

    status.update(what)
    with repeated(show, _SECONDS) if status.console.is_terminal else nullcontext():
        yield
