"""The command's side of a recording of a running query: it asks the query's driver, which has the program."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pillarbox._errors import ConfigurationError
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.running.requests import Requests, requests_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How often it is looked for an answer (seconds).
_LOOK_EVERY = 1.0


def request_record(
    spark: SparkSession,
    checkpoint: str,
    directory: str,
    *,
    timeout: float,
    tell: Callable[[str], None] = lambda progress: None,
    **task: Any,
) -> None:
    """Ask the driver of a running query to record a task, and wait for that.

    Args:
        directory: where the recording is to be, on the driver's machine.
        timeout: how long to wait for a driver to take the request, and again for it to be done (seconds).
        tell: is called with what happens.
        task: which task, as arguments of ``record``.

    Raises:
        CheckpointMismatchError: no query was ever started there; nothing was asked.
        ConfigurationError: it was not done.
    """
    Checkpoint(spark, checkpoint).started_query("the query to record")
    requests, number, until = Requests(spark, checkpoint), uuid.uuid4().hex, time.time() + timeout
    # (Drivers of other versions pass over a line that lacks something.)
    task["timeout"] = timeout
    requests.write(request=number, what="record", directory=directory, drain=False, until=int(until * 1000), task=task)
    tell("waiting for the query's driver to take the request")
    is_taken = False
    try:
        while True:
            request = requests_in(requests.lines())[number]
            if request.answer is not None:
                if not request.is_done:
                    raise ConfigurationError(request.answer["error"])
                return
            if request.taken and not is_taken:
                is_taken, until = True, time.time() + timeout
                tell("the driver runs the epoch again")
            if request.over or time.time() > until:
                break
            time.sleep(_LOOK_EVERY)
    finally:
        if not is_taken:
            requests.write(withdrawn=number)
    raise ConfigurationError(
        f"checkpoint {checkpoint}: "
        + (
            "the driver has taken the request, and does not answer: look at its log"
            if is_taken
            else f"no driver has accepted the request within {timeout:g} seconds, and it is withdrawn. The query does"
            " not run, or was not started with pillarbox.start(...): if it has ended, give its script by --program"
        )
    )
