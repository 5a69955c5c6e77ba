"""Requests from the command line to the driver of a running query, in a folder beside its checkpoint.

There is no other way that is open wherever a query runs: both sides can read and write there. Each writes lines of
JSON, by Spark, into files of their own; nothing is ever changed or removed. A request has an ``id``:

- ``{"request": id, "what": "stop", "directory": ..., "drain": ..., "until": epoch ms}``, by the command;
- ``{"taken": id}``, by the driver, before it does anything;
- ``{"withdrawn": id}``, by the command, when nobody has taken it in time. A driver that has taken it meanwhile looks
  for that once more, so one of the two always knows of the other;
- ``{"answer": id, "done": true}``, or ``"done": false`` and ``"error"``: a sentence.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pillarbox._errors import CheckpointMismatchError, PillarboxError, SavepointError, describe
from pillarbox._runtime.spark.description import Description
from pillarbox._runtime.spark.places import add_line, reader
from pillarbox._runtime.spark.started import StartedQuery
from pillarbox._runtime.spark.stop import stop_with_savepoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["RequestWatch", "Requests", "request_stop"]

_log = logging.getLogger("pillarbox")

# How often the command looks for an answer (seconds).
_LOOK_EVERY = 1.0
# How long the writing of a savepoint is waited for at least (seconds).
_WRITING = 600.0


class Requests:
    """The folder of a checkpoint with requests, and what came of them.

    Args:
        checkpoint: the checkpoint location.
    """

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._spark = spark
        self._folder = f"{checkpoint.rstrip('/')}/pillarbox/requests"

    def write(self, **facts: Any) -> None:
        """Add a line."""
        add_line(self._spark, self._folder, json.dumps(facts))

    def files(self) -> frozenset[str]:
        """Return which files there are; Spark runs no job for that."""
        return frozenset(self._read(lambda found: found.inputFiles()))

    def lines(self) -> list[dict[str, Any]]:
        """Return all lines there are."""
        lines = [json.loads(row.value) for row in self._read(lambda found: found.collect())]
        return [line for line in lines if isinstance(line, dict)]

    def _read(self, take: Callable[[Any], list[Any]]) -> list[Any]:
        """Return what is taken of the files; nothing where there is no folder yet."""
        from pyspark.errors import AnalysisException

        try:
            # Under Spark Connect the folder is looked for when something is taken.
            return take(reader(self._spark).schema("value STRING").text(self._folder))
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            return []


class RequestWatch:
    """The driver's side: carries out what is asked of a running query.

    Args:
        started: the query, which has a checkpoint location.
        clock: epoch seconds.
    """

    def __init__(self, spark: SparkSession, started: StartedQuery, clock: Callable[[], float] = time.time) -> None:
        assert started.checkpoint is not None
        self._requests = Requests(spark, started.checkpoint)
        self._started = started
        self._clock = clock
        self._seen: frozenset[str] = frozenset()
        self._warned = False

    def look(self) -> None:
        """Look for a request, and have it carried out by another thread, if there is one. It raises nothing."""
        try:
            files = self._requests.files()
            if files == self._seen:
                return
            request = self._open_request()
            self._seen = files
        except Exception as error:  # the query can do without; the next look may find it
            (_log.debug if self._warned else _log.warning)("requests to query %s: %s", self._name, describe(error))
            self._warned = True
            return
        if request is not None:
            # The program that waits for the query may be at its end when that has stopped: Python waits for threads
            # like this one.
            threading.Thread(target=self.carry_out, args=(request,), name="pillarbox request", daemon=False).start()

    @property
    def _name(self) -> str:
        return str(self._started.query.id)

    def _open_request(self) -> dict[str, Any] | None:
        """Return a request that nobody has taken, whose time has not run out."""
        lines = self._requests.lines()
        closed = {line.get(kind) for line in lines for kind in ("taken", "withdrawn")}
        now = self._clock() * 1000
        for line in lines:
            if line.get("what") == "stop" and line.get("request") not in closed and line.get("until", 0) > now:
                return line
        return None

    def carry_out(self, request: dict[str, Any]) -> None:
        """Do what is asked for, and write the answer. It raises nothing."""
        number = request["request"]
        with self._started.held():
            try:
                self._requests.write(taken=number)
                if any(line.get("withdrawn") == number for line in self._requests.lines()):
                    self._requests.write(answer=number, done=False, error="the request was withdrawn")
                    return
                _log.info("query %s: stopping with a savepoint in %s", self._name, request["directory"])
                error = self._stop(request)
                told = {} if error is None else {"error": error}
                self._requests.write(answer=number, done=error is None, **told)
            except Exception as failure:
                _log.exception("query %s: the request for a savepoint got no answer: %s", self._name, describe(failure))

    def _stop(self, request: dict[str, Any]) -> str | None:
        """Stop the query; return the sentence that says why not, or None."""
        left = request["until"] / 1000 - self._clock()
        try:
            stop_with_savepoint(
                self._started.query, request["directory"], drain=request["drain"], timeout=max(left, 0.001)
            )
        except Exception as error:
            _log.warning("query %s: it could not be stopped with a savepoint: %s", self._name, error)
            return str(error) if isinstance(error, PillarboxError) else describe(error)
        return None


def request_stop(
    spark: SparkSession,
    checkpoint: str,
    directory: str,
    *,
    drain: bool,
    timeout: float,
    tell: Callable[[str], None] = lambda progress: None,
) -> None:
    """Ask the driver of a running query to stop it with a savepoint, and wait for that.

    Args:
        timeout: how long to wait (seconds).
        tell: is called with what happens.

    Raises:
        CheckpointMismatchError: no query was ever started there; nothing was asked.
        SavepointError: it was not done.
    """
    if Description(spark, checkpoint).query_id is None:
        raise CheckpointMismatchError(
            f"{checkpoint} is no checkpoint of a query: give the checkpointLocation of the one that is to be stopped"
        )
    asked = _Asked(Requests(spark, checkpoint), checkpoint, directory, timeout, tell)
    asked.ask(drain=drain)
    try:
        asked.wait()
    except BaseException:
        asked.withdraw()  # whoever asked is not interested any more: no later start is to stop for it
        raise


class _Asked:
    """The command's side: one request."""

    def __init__(
        self, requests: Requests, checkpoint: str, directory: str, timeout: float, tell: Callable[[str], None]
    ) -> None:
        self._requests = requests
        self._checkpoint = checkpoint
        self._directory = directory
        self._timeout = timeout
        self._tell = tell
        self._number = uuid.uuid4().hex
        self._until = time.time() + timeout
        self._is_taken = self._is_withdrawn = False

    def ask(self, *, drain: bool) -> None:
        """Write the request."""
        until = int(self._until * 1000)
        self._requests.write(request=self._number, what="stop", directory=self._directory, drain=drain, until=until)
        self._tell("waiting for the query's driver to take the request")

    def withdraw(self) -> None:
        """Withdraw the request, unless somebody has taken it."""
        if not self._is_taken and not self._is_withdrawn:
            self._is_withdrawn = True
            self._requests.write(withdrawn=self._number)

    def wait(self) -> None:
        """Wait for the answer.

        Raises:
            SavepointError: it was not done.
        """
        while not self._is_answered():
            if time.time() <= self._until:
                time.sleep(_LOOK_EVERY)
            elif self._is_taken:
                # The driver keeps to the same time, but the writing of the savepoint takes as long as it does.
                if time.time() > self._until + max(self._timeout, _WRITING):
                    raise SavepointError(
                        f"checkpoint {self._checkpoint}: the driver has taken the request, and does not answer: it has"
                        " died, or is still writing; look at its log. The savepoint is complete if there is"
                        f" {self._directory}/manifest"
                    )
                time.sleep(_LOOK_EVERY)
            elif self._is_withdrawn:
                raise SavepointError(
                    f"checkpoint {self._checkpoint}: nobody has taken the request within {self._timeout:g} seconds, and"
                    " it is withdrawn. The query does not run, was not started with pillarbox.start(...), or the clocks"
                    " of both machines differ; of a query that is stopped, 'pillarbox savepoint' without --stop writes"
                    " a savepoint"
                )
            else:
                self.withdraw()

    def _is_answered(self) -> bool:
        lines = self._requests.lines()
        for line in lines:
            if line.get("answer") == self._number:
                self._is_taken = True
                if line["done"]:
                    return True
                raise SavepointError(line["error"])
        if not self._is_taken and any(line.get("taken") == self._number for line in lines):
            self._is_taken = True
            self._tell("the query is being stopped")
        return False
