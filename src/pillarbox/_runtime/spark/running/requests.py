"""Requests from the command line to the driver of a running query, in a folder next to its checkpoint.

There is no other way that is open wherever a query runs: both sides can read and write there. Each writes lines of
JSON into files of their own; nothing is ever changed or removed. A request has an ``id``:

- ``{"request": id, "what": "stop", "directory": ..., "drain": ..., "until": epoch ms}``, by the command; without a
  savepoint, the directory is null. With ``"what": "record"`` and ``"task": {...}``, the driver is asked to record a
  task of an epoch into the directory (see ``record_request.py``);
- ``{"taken": id}``, by the driver, before it does anything;
- ``{"withdrawn": id}``, by the command, when nobody has taken it in time. A driver that has taken it meanwhile looks
  for that once more, so one of the two always knows of the other;
- ``{"answer": id, "done": true}``, or ``"done": false`` and ``"error"``: a message;
- ``{"over": [id, ...]}``, by the driver of a query that was started again: requests that are older than its start,
  whatever became of them, do not concern it. A command that still waits asks again, so a query stops for nobody who
  has gone.

A command that was killed finds what it has asked for when it is called again: it waits for that, or learns that it is
done.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pillarbox._errors import CheckpointMismatchError, SavepointError, describe
from pillarbox._graph.description import json_object
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.failures import sentence_of
from pillarbox._runtime.spark.running.ending import end_query
from pillarbox._runtime.spark.running.stop import stop_with_savepoint
from pillarbox._runtime.spark.savepoint.savepoint import open_savepoint
from pillarbox._runtime.spark.session.session import session_of
from pillarbox._runtime.spark.starting.started import StartedQuery
from pillarbox._runtime.spark.tools import needed_tools

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("pillarbox")

# How often the command looks for an answer (seconds).
_LOOK_EVERY = 1.0
# How long the writing of a savepoint is waited for at least (seconds).
_WRITING = 600.0
# The fields that a line has to have; lines with other fields are from other versions.
_NEEDED = (
    {"request", "what", "directory", "drain", "until"},
    {"taken"},
    {"withdrawn"},
    {"answer", "done"},
    {"over"},
)


class Requests:
    """The folder of a checkpoint with requests, and what came of them.

    Args:
        checkpoint: the checkpoint location.
    """

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._folder = session_of(spark).folder(f"{checkpoint.rstrip('/')}/pillarbox/requests")

    def write(self, **facts: Any) -> None:
        """Add a line."""
        self._folder.add_line(json.dumps(facts))

    def files(self) -> frozenset[str]:
        """Return which files there are; Spark runs no job for that."""
        return frozenset(self._folder.names())

    def lines(self) -> list[dict[str, Any]]:
        """Return all lines there are, as far as this version understands them."""
        found = [json_object(line) for _, line in self._folder.lines()]
        return [line for line in found if any(needed <= line.keys() for needed in _NEEDED)]

    def make_folder(self) -> None:
        """Let there be a folder, with a line that says nothing.

        To find that a folder does not exist takes three requests to an object store, and to list one that does takes
        one. Under Spark Connect, Spark's log has a stack trace for each look at one that does not exist.
        """
        self.write(over=[])


@dataclass
class Request:
    """A request to the driver of a query, and what became of it.

    Attributes:
        directory: where the savepoint is to be, or the recording; None: there is to be none.
        until: how long a driver may take it (epoch seconds).
        taken: whether one has.
        withdrawn: whether nobody waits for it any more.
        over: whether the query was started again since.
        answer: the line with the answer; None: there is none yet.
        task: which task is to be recorded, as arguments of ``record``; None: the query is to stop.
    """

    number: str
    directory: str | None
    drain: bool
    until: float
    taken: bool = False
    withdrawn: bool = False
    over: bool = False
    answer: dict[str, Any] | None = None
    task: dict[str, Any] | None = None

    @property
    def is_open(self) -> bool:
        """Whether a driver may still take it, if its time has not run out."""
        return not (self.taken or self.withdrawn or self.over)

    @property
    def is_done(self) -> bool:
        """Whether it was carried out."""
        return self.answer is not None and bool(self.answer["done"])

    @property
    def is_under_way(self) -> bool:
        """Whether a driver has taken it, and has not answered."""
        return self.taken and self.answer is None

    def __str__(self) -> str:
        if self.task is not None:
            return f"to record a task in {self.directory}"
        where = "" if self.directory is None else f" with a savepoint in {self.directory}"
        return f"to {'drain' if self.drain else 'stop'} the query{where}"

    def command(self, checkpoint: str) -> str:
        """Return the command that asks for it."""
        if self.directory is None:
            return f"pillarbox stop {checkpoint}"
        return f"pillarbox savepoint {checkpoint} {self.directory} --stop{' --drain' if self.drain else ''}"

    def outcome(self, checkpoint: str) -> str:
        """Return the message that says how to find out whether it was done."""
        if self.directory is None:
            return f"If the query still runs, call 'pillarbox stop {checkpoint}' again"
        return f"The savepoint is complete if there is {self.directory}/manifest; if not, call this again"


def requests_in(lines: Iterable[dict[str, Any]]) -> dict[str, Request]:
    """Return the requests that lines tell of, by their ids."""
    every = list(lines)
    taken, withdrawn = ({line[kind] for line in every if kind in line} for kind in ("taken", "withdrawn"))
    over = {number for line in every for number in line.get("over", ())}
    answers = {line["answer"]: line for line in every if "answer" in line}
    return {
        number: Request(
            number,
            line["directory"],
            line["drain"],
            line["until"] / 1000,
            taken=number in taken,
            withdrawn=number in withdrawn,
            over=number in over,
            answer=answers.get(number),
            task=line["task"] if line["what"] == "record" else None,
        )
        for line in every
        if (line.get("what") == "stop" or (line.get("what") == "record" and "task" in line))
        and (number := line["request"])
    }


class RequestWatch:
    """The driver's side: carries out what is asked of a running query.

    Args:
        started: the query, which has a checkpoint location.
        clock: epoch seconds.
    """

    def __init__(self, started: StartedQuery, clock: Callable[[], float] = time.time) -> None:
        assert started.checkpoint is not None
        self._requests = Requests(started.start.spark, started.checkpoint)
        self._started = started
        self._clock = clock
        # None: requests that are older than the start have not been looked at.
        self._seen: frozenset[str] | None = None
        self._warned = False

    def look(self) -> None:
        """Look for a request, and have it carried out by another thread, if there is one. It raises nothing.

        Requests that the first look finds were for the query as it ran before: they are said to be over.
        """
        try:
            files = self._requests.files()
            if files == self._seen:
                return
            if self._seen is None:
                if not files:
                    self._requests.make_folder()
                self._pass_over()
                self._seen = frozenset()
                return
            request = self._open_request()
            self._seen = files
        except Exception as error:  # the query can do without; the next look may find it
            quiet = self._warned or not self._started.is_running
            (_log.debug if quiet else _log.warning)("requests to query %s: %s", self._name, describe(error))
            self._warned = True
            return
        if request is not None:
            # The program that waits for the query may be at its end when that has stopped: Python waits for threads
            # like this one.
            threading.Thread(target=self.carry_out, args=(request,), name="pillarbox request", daemon=False).start()

    @property
    def _name(self) -> str:
        return str(self._started.query.id)

    def _pass_over(self) -> None:
        """Say of each request so far that it is over, unless that is known."""
        now = self._clock()
        # (Those that failed, were withdrawn or have run out of time bind nobody.)
        before = [
            request
            for request in requests_in(self._requests.lines()).values()
            if not request.over
            and (request.is_done or request.is_under_way or (request.is_open and request.until > now))
        ]
        if before:
            self._requests.write(over=[request.number for request in before])
        for request in before:
            if request.is_open:
                _log.warning(
                    "query %s: a request that is older than this start, %s, is ignored: a command that still waits for"
                    " it asks again",
                    *(self._name, request),
                )

    def _open_request(self) -> Request | None:
        """Return a request that nobody has taken, whose time has not run out."""
        now, every = self._clock(), requests_in(self._requests.lines()).values()
        return next((request for request in every if request.is_open and request.until > now), None)

    def carry_out(self, request: Request) -> None:
        """Do what is asked for, and write the answer. It raises nothing."""
        number = request.number
        with self._started.held():
            try:
                self._requests.write(taken=number)
                if any(line.get("withdrawn") == number for line in self._requests.lines()):
                    self._requests.write(answer=number, done=False, error="the request was withdrawn")
                    return
                _log.info("query %s: somebody asks %s", self._name, request)
                error = self._stop(request) if request.task is None else self._record(request, request.task)
                told = {} if error is None else {"error": error}
                self._requests.write(answer=number, done=error is None, **told)
            except Exception as failure:
                _log.exception("query %s: the request %s got no answer: %s", self._name, request, describe(failure))

    def _record(self, request: Request, task: dict[str, Any]) -> str | None:
        """Record a task; return the message that says why that could not be done, or None."""
        started = self._started
        assert request.directory is not None
        try:
            if task.get("epoch") is None:
                # (The running epoch is not over.)
                task = {**task, "epoch": Checkpoint(started.start.spark, str(started.checkpoint)).last_committed}
            record = needed_tools("record()").record
            record(started.start.writer, request.directory, checkpointLocation=started.checkpoint, **task)
        except Exception as error:
            _log.warning("query %s: a task could not be recorded: %s", self._name, error)
            return sentence_of(error)
        return None

    def _stop(self, request: Request) -> str | None:
        """Stop the query; return the message that says why not, or None."""
        started = self._started
        try:
            if request.directory is not None:
                left = max(request.until - self._clock(), 0.001)
                stop_with_savepoint(started.query, request.directory, drain=request.drain, timeout=left)
            elif not end_query(started, lambda: self._clock() < request.until):
                failure = started.query.exception()
                if failure is not None:
                    return f"the query failed before it could be stopped: {describe(failure)}"
                _log.warning("query %s: its epoch was interrupted, and the next start runs that one again", self._name)
        except Exception as error:
            how = "" if request.directory is None else " with a savepoint"
            _log.warning("query %s: it could not be stopped%s: %s", self._name, how, error)
            return sentence_of(error)
        return None


def request_stop(
    spark: SparkSession,
    checkpoint: str,
    directory: str | None,
    *,
    drain: bool,
    timeout: float,
    tell: Callable[[str], None] = lambda progress: None,
) -> None:
    """Ask the driver of a running query to stop it, and wait for that.

    If an earlier call has asked for the same with the same arguments, this waits for it, or it is done already.

    Args:
        directory: where the driver is to write a savepoint; None: nowhere.
        timeout: how long to wait (seconds).
        tell: is called with what happens.

    Raises:
        CheckpointMismatchError: no query was ever started there; nothing was asked.
        SavepointError: it was not done; or something else was asked for, and is under way or done.
    """
    Checkpoint(spark, checkpoint).started_query("the query to stop")
    place = None if directory is None else directory.rstrip("/") or directory
    asked = _Asked(spark, checkpoint, Request("", place, drain, time.time() + timeout), timeout, tell)
    if asked.is_done_already():
        return
    try:
        asked.wait()
    except BaseException:
        asked.withdraw()  # whoever asked is not interested any more: no query is to stop for it
        raise


class _Asked:
    """The command's side: one request, or one of an earlier call that was for the same.

    Args:
        mine: what is asked for, and how long.
    """

    def __init__(
        self, spark: SparkSession, checkpoint: str, mine: Request, timeout: float, tell: Callable[[str], None]
    ) -> None:
        self._spark = spark
        self._requests = Requests(spark, checkpoint)
        self._checkpoint = checkpoint
        self._mine = mine
        self._timeout = timeout
        # How long the writing of the savepoint may take (seconds).
        self._writing = max(timeout, _WRITING)
        self._tell = tell
        # The request that is waited for, of this call or of an earlier one; None: there is none yet.
        self._request: Request | None = None
        self._is_withdrawn = False

    def is_done_already(self) -> bool:
        """Return whether an earlier call was for the same, and it is done. If that is under way, it is waited for.

        Raises:
            SavepointError: something else was asked for, and is under way, or done.
        """
        for request in requests_in(self._requests.lines()).values():
            if request.over or request.task is not None:
                continue
            is_same = request.drain == self._mine.drain and request.directory == self._mine.directory
            if is_same and request.taken and (request.is_done if request.directory is None else self._is_written()):
                # (Also if the driver has died after the savepoint, and before its answer.)
                self._tell("an earlier call has asked for it, and it is done")
                return True
            if request.is_done:
                raise self._failed(
                    f"an earlier call has asked {request}, which was done, and no pillarbox.start(...) has started the"
                    " query since; nothing was asked. Of a query that is stopped, 'pillarbox savepoint"
                    f" {self._checkpoint} DIR' writes a savepoint"
                )
            lasts = request.until + (self._writing if request.is_under_way else 0)
            if not (request.is_under_way or request.is_open) or lasts < time.time():
                continue
            if not is_same:
                raise self._failed(
                    f"an earlier call has asked {request}, which is under way: nothing was asked."
                    f" '{request.command(self._checkpoint)}' waits for it, and withdraws it if interrupted before a"
                    " driver takes it"
                )
            self._request = request
        return False

    def _ask(self) -> None:
        """Write a request of this call's own."""
        self._request = mine = replace(self._mine, number=uuid.uuid4().hex)
        self._is_withdrawn = False
        until = int(mine.until * 1000)
        self._requests.write(request=mine.number, what="stop", directory=mine.directory, drain=mine.drain, until=until)

    def withdraw(self) -> None:
        """Withdraw the request, unless somebody has taken it."""
        request = self._request
        if request is not None and request.is_open and not self._is_withdrawn:
            self._is_withdrawn = True
            self._requests.write(withdrawn=request.number)

    def wait(self) -> None:
        """Ask, unless an earlier call has, and wait for the answer.

        Raises:
            SavepointError: it was not done.
        """
        if self._request is None:
            self._ask()
            self._tell("waiting for the query's driver to take the request")
        else:
            self._tell("an earlier call has asked for it: waiting for that")
        while not self._is_answered():
            request, now = self._request, time.time()
            assert request is not None
            if request.over and request.taken:
                raise self._failed(
                    "the query was started again before the driver that had taken the request has answered: that one"
                    f" has died, or is still at it. {request.outcome(self._checkpoint)}"
                )
            if request.over or (request.withdrawn and not self._is_withdrawn and not request.taken):
                self._ask_again()
            elif now <= request.until:
                time.sleep(_LOOK_EVERY)
            elif request.taken:
                # The driver keeps to the same time, but the writing of the savepoint takes as long as it does.
                if now > request.until + self._writing:
                    raise self._failed(
                        "the driver has taken the request, and does not answer: it has died, or is still at it; look at"
                        f" its log. {request.outcome(self._checkpoint)}"
                    )
                time.sleep(_LOOK_EVERY)
            elif self._is_withdrawn:
                self._ask_again()
            else:
                self.withdraw()

    def _ask_again(self) -> None:
        """Ask once more: the query was started since, or whoever has asked for it before has less time, or has gone.

        Raises:
            SavepointError: there is no time left.
        """
        if time.time() > self._mine.until:
            stopped = "; of a query that is stopped, 'pillarbox savepoint' without --stop writes a savepoint"
            raise self._failed(
                f"no driver has accepted the request within {self._timeout:g} seconds, and it is withdrawn. The query"
                " does not run, was not started with pillarbox.start(...), or the clocks of both machines differ"
                f"{'' if self._mine.directory is None else stopped}"
            )
        self._ask()
        self._tell("the query's driver is asked once more")

    def _failed(self, why: str) -> SavepointError:
        return SavepointError(f"checkpoint {self._checkpoint}: {why}")

    def _is_written(self) -> bool:
        """Return whether there is a whole savepoint at the place."""
        assert self._mine.directory is not None
        try:
            open_savepoint(self._spark, self._mine.directory)
        except CheckpointMismatchError:
            return False
        return True

    def _is_answered(self) -> bool:
        """Look at what became of the request; return whether it is done.

        Raises:
            SavepointError: it was not.
        """
        assert self._request is not None
        was_taken = self._request.taken
        self._request = requests_in(self._requests.lines()).get(self._request.number, self._request)
        answer = self._request.answer
        if answer is not None:
            self._request.taken = True
            if not answer["done"]:
                raise SavepointError(answer["error"])
            return True
        if self._request.taken and not was_taken:
            self._tell("the query is being stopped")
        return False
