"""Cleans up after a query: ends its home processes, and closes source tasks in workers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pillarbox._errors import ConfigurationError, describe
from pillarbox._runtime.spark.homes.sockets import daemons_of, executor_pid
from pillarbox._runtime.spark.homes.starter_connection import NoHomesError, StarterConnection
from pillarbox._runtime.spark.rows.any_names import map_in_arrow
from pillarbox._runtime.spark.session.parallelism import task_slots
from pillarbox._runtime.spark.session.session import session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pillarbox._runtime.spark.starting.started import StartedQuery

# Maximum seconds for the `close()` of an ended query's functions.
_CLOSE_SECONDS = 5.0

_log = logging.getLogger("pillarbox")

# Tasks of the job that asks the starters, if the number of slots is unknown.
_TASKS = 32


def _end_here(request: dict[str, Any], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    with suppress(OSError):
        _end(executor_pid(), request)
    yield pa.RecordBatch.from_pydict({"ended": [True]})


def _end(executor: int, request: dict[str, Any]) -> None:
    for daemon in daemons_of(executor):
        # The homes of a dead daemon have also ended.
        with suppress(OSError, NoHomesError):
            keeper = StarterConnection(executor, daemon)
            keeper.ask("end", starts=False, timeout=2 * _CLOSE_SECONDS, within=_CLOSE_SECONDS, **request)


def close_ended_queries(ended: Sequence[StartedQuery]) -> None:
    """Close the functions of ended queries on the executors, in another thread."""

    def close() -> None:
        for started in ended:
            close_started(started)

    if not all(started.is_closed for started in ended):
        threading.Thread(target=close, name="pillarbox end of queries", daemon=True).start()


def close_started(started: StartedQuery) -> None:
    """Close an ended query's functions on the executors, once. Never raises."""
    if started.is_closed:
        return
    started.is_closed = True
    secrets = [program.secret for program in started.programs]
    try:
        close_query(started.start.spark, started.run, secrets)
    except Exception as error:  # Spark has ended
        _log.debug("the functions of query %s were not closed: %s", started.query.id, describe(error))


def close_query(spark: SparkSession, run: str, secrets: Sequence[str]) -> None:
    """Close the functions of an ended run on the executors, in at most five seconds.

    On a cluster, this runs a Spark job, which may miss busy executors. Their homes end after an idle time. ``secrets``
    (of the run's programs) identify homes without a run id.
    """
    request = {"run": run, "secrets": list(secrets)}
    executor = session_of(spark).local_executor()
    if executor is not None:
        _end(executor, request)
        return
    try:
        tasks = 2 * task_slots(spark)
    except ConfigurationError:
        tasks = _TASKS
    rows = spark.range(0, tasks, 1, tasks)
    map_in_arrow(rows, "the end of a query", partial(_end_here, request), "ended BOOLEAN").collect()
