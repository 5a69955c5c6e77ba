"""Closes a worker's source tasks when their query ends.

The starter (see `homes`) sends a signal, because the worker's main thread waits for Spark.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pillarbox._runtime.spark.homes.settings import settings_of
from pillarbox._runtime.spark.homes.starter_connection import SIGNAL, NoHomesError, of_this_worker
from pillarbox._runtime.spark.tasks import residency
from pillarbox._runtime.spark.tasks.task_info import TaskInfo, local_property


def hold(facts: TaskInfo) -> None:
    """Ask the homes' starter to signal this worker when the query ends. Does not wait for a reply."""
    is_main = threading.current_thread() is threading.main_thread()
    if not facts.run or not is_main or settings_of(local_property) is None:
        return
    signal.signal(SIGNAL, lambda number, frame: close_ended())
    threading.Thread(target=_announce, args=(facts.run,), name="hold", daemon=True).start()


def _announce(run: str) -> None:
    try:
        of_this_worker().ask("holds", run=run, pid=os.getpid())
    except (NoHomesError, OSError):
        return  # the tasks are closed with the worker
    if residency.here.closes_later:  # the run ended while this thread used the connection
        os.kill(os.getpid(), SIGNAL)


@contextmanager
def working() -> Iterator[None]:
    residency.here.is_busy = True
    try:
        yield
    finally:
        residency.here.is_busy = False
        if residency.here.closes_later:
            close_ended()


def close_ended() -> None:
    """Close the tasks of ended runs, now or when they are no longer in use."""
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
