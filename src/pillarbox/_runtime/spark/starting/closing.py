"""What the driver does about the end of a query: it ends the homes, and has workers close the sources' tasks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pillarbox._errors import ConfigurationError, describe
from pillarbox._runtime.spark.homes.keeper import Keeper, NoHomesError
from pillarbox._runtime.spark.homes.sockets import daemons_of, executor_pid
from pillarbox._runtime.spark.rows.any_names import map_in_arrow
from pillarbox._runtime.spark.session.parallelism import task_slots
from pillarbox._runtime.spark.session.session import session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pillarbox._runtime.spark.starting.started import StartedQuery

# How long the functions of a query have to be closed when it has ended.
_CLOSE_SECONDS = 5.0

_log = logging.getLogger("pillarbox")

# The tasks of the job that asks the starters, where nobody knows how many run at a time.
_TASKS = 32


def _end_here(request: dict[str, Any], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """End a run in the executor where this is called."""
    for _ in batches:
        pass
    with suppress(OSError):  # the executor has ended
        _end(executor_pid(), request)
    yield pa.RecordBatch.from_pydict({"ended": [True]})


def _end(executor: int, request: dict[str, Any]) -> None:
    """Ask all starters of an executor of this machine: each of its daemons has one."""
    for daemon in daemons_of(executor):
        # Where a daemon has ended, so have its homes. A starter that was lost comes again with the next epoch.
        with suppress(OSError, NoHomesError):
            keeper = Keeper(executor, daemon)
            keeper.ask("end", starts=False, timeout=2 * _CLOSE_SECONDS, within=_CLOSE_SECONDS, **request)


def close_ended_queries(ended: Sequence[StartedQuery]) -> None:
    """Have a thread close what executors hold of queries that have ended, unless somebody has."""

    def close() -> None:
        for started in ended:
            close_started(started)

    if not all(started.is_closed for started in ended):
        threading.Thread(target=close, name="pillarbox end of queries", daemon=True).start()


def close_started(started: StartedQuery) -> None:
    """Close what executors hold of a query that has ended, once. It raises nothing."""
    if started.is_closed:
        return
    started.is_closed = True
    secrets = [one.secret for one in started.programs]
    try:
        close_query(started.start.spark, started.run, secrets)
    except Exception as error:  # Spark has gone
        _log.debug("the functions of query %s were not closed: %s", started.query.id, describe(error))


def close_query(spark: SparkSession, run: str, secrets: Sequence[str]) -> None:
    """Close what executors hold of a run that has ended, within five seconds.

    The driver asks the starters of its own process, if that is the only executor. Else a job asks the starters of all
    executors. Nobody can have Spark run a task in each, so one may be missed if it is busy: its homes end when they
    are idle.

    Args:
        secrets: of the run's programs, whose homes may not know the run.
    """
    request = {"run": run, "secrets": list(secrets)}
    executor = session_of(spark).local_executor()
    if executor is not None:
        _end(executor, request)
        return
    try:
        tasks = 2 * task_slots(spark)
    except ConfigurationError:  # nobody knows
        tasks = _TASKS
    rows = spark.range(0, tasks, 1, tasks)
    map_in_arrow(rows, "the end of a query", partial(_end_here, request), "ended BOOLEAN").collect()
