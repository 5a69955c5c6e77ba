"""The end of what a query leaves in executors when it has ended: its homes, and tasks of sources in workers.

The starter of an executor ends homes. Tasks of sources live in Spark's workers, and each belongs to its worker's main
thread, which waits for Spark: so a worker tells the starter what it holds, and the starter interrupts it by a signal.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pillarbox._errors import ConfigurationError, describe
from pillarbox._runtime.spark import residency
from pillarbox._runtime.spark.facts import executor_here
from pillarbox._runtime.spark.homes.keeper import SIGNAL, Keeper, NoHomesError, of_this_worker
from pillarbox._runtime.spark.homes.settings import settings_of
from pillarbox._runtime.spark.layouts import local_property, run_of_query
from pillarbox._runtime.spark.session import task_slots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pillarbox._runtime.spark.started import StartedQuery

__all__ = ["close_ended", "close_ended_queries", "close_query", "close_started", "hold", "prepare_homes", "working"]

# How long the functions of a query have to be closed when it has ended.
_CLOSE_SECONDS = 5.0

_log = logging.getLogger("pillarbox")

# The tasks of the job that asks the starters, where nobody knows how many run at a time.
_TASKS = 32


# -- a worker --


def prepare_homes() -> None:
    """Let homes be made ready, which takes a second, while this worker reads a source."""
    if local_property("streaming.sql.batchId") is not None and settings_of(local_property) is not None:
        try:
            of_this_worker().prepare()
        except (NoHomesError, OSError):
            pass  # whoever needs one will say so


def hold() -> None:
    """Have this worker told when the running query has ended, as it holds a task of it."""
    run = run_of_query()
    is_main = threading.current_thread() is threading.main_thread()
    if not run or not is_main or settings_of(local_property) is None:
        return
    try:
        of_this_worker().ask("holds", run=run, pid=os.getpid())
    except (NoHomesError, OSError):
        return  # it is closed when Spark lets the worker go
    signal.signal(SIGNAL, lambda number, frame: close_ended())


@contextmanager
def working() -> Iterator[None]:
    """Use residents of this worker meanwhile: those of runs that end are closed afterwards."""
    residency.here.is_busy = True
    try:
        yield
    finally:
        residency.here.is_busy = False
        if residency.here.closes_later:
            close_ended()


def close_ended() -> None:
    """Close the tasks of runs that have ended, now, or, if the worker uses some, when it has done that."""
    keeper = of_this_worker()
    residency.here.closes_later = residency.here.is_busy or keeper.is_asked
    if residency.here.closes_later:
        return
    try:
        over = keeper.ask("over", starts=False, runs=residency.here.runs)["over"]
        for run in over:
            residency.here.close_run(run)
            keeper.ask("closed", starts=False, run=run, pid=os.getpid())
    except (NoHomesError, OSError):
        pass


# -- the driver --


class _Closer:
    """The function for ``mapInArrow`` that ends a run in the executor where it is called."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._request = request

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        _end(of_this_worker(), self._request)
        yield pa.RecordBatch.from_pydict({"ended": [True]})


def _end(keeper: Keeper, request: dict[str, Any]) -> None:
    try:
        keeper.ask("end", starts=False, timeout=2 * _CLOSE_SECONDS, within=_CLOSE_SECONDS, **request)
    except (NoHomesError, OSError):
        pass  # there never were any homes


def close_ended_queries(spark: SparkSession, ended: Sequence[StartedQuery]) -> None:
    """Have a thread close what executors hold of queries that have ended, unless somebody has."""

    def close() -> None:
        for started in ended:
            close_started(spark, started)

    if not all(started.is_closed for started in ended):
        threading.Thread(target=close, name="pillarbox end of queries", daemon=True).start()


def close_started(spark: SparkSession, started: StartedQuery) -> None:
    """Close what executors hold of a query that has ended, once. It raises nothing."""
    if started.is_closed:
        return
    started.is_closed = True
    secrets = [one.secret for one in started.programs if one.secret is not None]
    try:
        close_query(spark, started.run, secrets)
    except Exception as error:  # Spark has gone
        _log.debug("the functions of query %s were not closed: %s", started.query.id, describe(error))


def close_query(spark: SparkSession, run: str, secrets: Sequence[str]) -> None:
    """Close what executors hold of a run that has ended, within five seconds.

    Where the only executor is the driver's own process, its starter is asked. Else a job asks those of all executors;
    nobody can have Spark run a task in each, so one may be missed if it is busy, and its homes end when they are idle.

    Args:
        secrets: of the run's programs, whose homes may not know the run.
    """
    request = {"run": run, "secrets": list(secrets)}
    executor = executor_here(spark)
    if executor is not None:
        _end(Keeper(executor), request)
        return
    try:
        tasks = 2 * task_slots(spark)
    except ConfigurationError:  # nobody knows
        tasks = _TASKS
    spark.range(0, tasks, 1, tasks).mapInArrow(_Closer(request), "ended BOOLEAN").collect()
