"""``run``: a query that ends in good order when its process is asked to end."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from contextlib import nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException

from pillarbox._errors import ProgramError, check_text, shorten
from pillarbox._runtime.spark.failures import sentence_of
from pillarbox._runtime.spark.running.ending import end_query
from pillarbox._runtime.spark.running.observing import record
from pillarbox._runtime.spark.starting.started import StartedQuery, find
from pillarbox._runtime.spark.telling import tell
from pillarbox._runtime.spark.tools import installed_tools, needed_tools
from pillarbox._time.duration import DurationLike, to_millis

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("pillarbox")

# How often it is looked whether a signal has come (seconds).
_LOOK_EVERY = 0.2


def run(query: StreamingQuery, *, grace: DurationLike = "30 seconds", recordings: str | None = None) -> None:
    """Wait until a query ends; at SIGTERM or SIGINT, end it between two epochs.

    It is the last line of a program that runs as a service: Kubernetes, systemd and Ctrl-C end a process by these
    signals. At the first signal no other epoch begins, and the query ends when the running epoch has ended and is
    committed. So the checkpoint is whole: the next start runs nothing again, and :func:`pillarbox.rescale` takes it. If
    that epoch takes longer than ``grace``, or another signal comes, the query is stopped at once, and its next start
    runs that epoch again; results are right all the same. The ``close()`` of the query's functions is called in either
    case, as when it ends by itself.

    In a terminal, a line on standard error shows how far the query is while it has to catch up: with
    ``trigger(availableNow=True)``, or when it is behind its input. It has the epochs, the rows, the rows per second,
    and the share that is done, where the source tells how much there is.

    Signals reach the main thread alone: in another thread this waits for the end of the query, and no more. When it
    returns, and at a second signal, the process handles signals as it did before.

    Args:
        query: as :func:`pillarbox.start` has returned it.
        grace: how long the epoch that runs may take to its end. Let whoever sends the signal wait for some seconds
            more: ``terminationGracePeriodSeconds`` of Kubernetes, ``TimeoutStopSec`` of systemd.
        recordings: a folder on this machine. If a task makes the query fail, it is recorded there before the error is
            raised, in a folder of its own, as by :func:`pillarbox.record` with its limits: within ten minutes, and with
            at most 1 GiB of input. A task that cannot be recorded is a warning in the log. None: none is recorded.

    Raises:
        StreamingQueryException: the query has failed.
        ProgramError: an argument is wrong, or another process has started the query.
        ConfigurationError: ``recordings`` needs the package ``pillarbox_tools``, which is not installed.

    Example:
        >>> query = pillarbox.start(writer)  # doctest: +SKIP
        >>> pillarbox.run(query, grace="1 minute")  # doctest: +SKIP
    """
    seconds = to_millis(grace, "run(): grace") / 1000
    if recordings is not None:
        check_text(recordings, "run(): recordings")
        needed_tools("run(recordings=...)")
    if not hasattr(query, "awaitTermination"):
        raise ProgramError(f"run() takes a query, as start() returned it, not {shorten(query)}")
    started = find(query)
    if started is None:
        raise ProgramError(
            f"run() takes a query with a program of pillarbox, as start() returned it, and query {query.id} is none, or"
            " another process has started it"
        )
    waiting: Any = query
    tools = installed_tools()
    try:
        with _Signals() as signals:
            with nullcontext() if tools is None else tools.progress_line(started):
                while not (has_ended := waiting.awaitTermination(_LOOK_EVERY)) and not signals.count:
                    pass
            if not has_ended:
                _end(started, seconds, signals)
            waiting.awaitTermination()
    except StreamingQueryException:
        if recordings is not None:
            _record_failure(started, recordings)
        raise


def _record_failure(started: StartedQuery, recordings: str) -> None:
    """Record the task that made a query fail. It raises nothing: the query's own error is to be raised."""
    query = started.query
    directory = os.path.join(recordings, f"{query.name or query.id}-{str(query.runId)[:8]}")
    tell(f"query {query.id}: the task that failed is being recorded in {directory}")
    try:
        record(started.start.writer, directory, checkpointLocation=started.checkpoint)
    except Exception as error:
        _log.warning("query %s: the task that failed could not be recorded: %s", query.id, sentence_of(error))
        return
    tell(f"query {query.id}: run the task again with 'pillarbox replay {directory}'")


def _end(started: StartedQuery, seconds: float, signals: _Signals) -> None:
    tell(
        f"{signals.name}: query {started.query.id} ends after the running epoch, within {seconds:g} seconds; another"
        " signal ends it at once"
    )
    deadline = time.monotonic() + seconds
    is_whole = end_query(started, lambda: signals.count < 2 and time.monotonic() < deadline)
    if not is_whole and started.query.exception() is None:
        why = f"{signals.name} came again" if signals.count > 1 else f"it took longer than {seconds:g} seconds"
        _log.warning(
            "query %s: its epoch was interrupted, as %s; the next start runs that one again", started.query.id, why
        )


class _Signals:
    """Counts the signals to end, in the main thread; elsewhere none comes.

    A handler may come at any point of the main thread, in a call to Java or with any lock held. So it does nothing but
    count, and whoever waits looks at the count.

    Attributes:
        count: how many have come.
        name: the name of the last signal.
    """

    def __init__(self) -> None:
        self.count = 0
        self.name = ""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.name = signal.Signals(number).name
        if self.count > 1:
            self._restore()  # who asks a third time gets what there was before

    def _restore(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            # None: it was not made by Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
