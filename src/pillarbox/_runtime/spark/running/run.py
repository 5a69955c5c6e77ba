"""``run``: ends a query between two epochs on a signal."""

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
from pillarbox._runtime.spark.failures import message_for_user
from pillarbox._runtime.spark.notices import notify
from pillarbox._runtime.spark.running.ending import end_query
from pillarbox._runtime.spark.running.monitoring import record
from pillarbox._runtime.spark.starting.started import StartedQuery, find
from pillarbox._runtime.spark.tools import installed_tools, needed_tools
from pillarbox._time.duration import DurationLike, to_millis

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("pillarbox")

_LOOK_EVERY = 0.2


def run(query: StreamingQuery, *, grace: DurationLike = "30 seconds", recordings: str | None = None) -> None:
    """Wait until a query ends. On SIGTERM or SIGINT, end it between two epochs.

    Kubernetes, systemd and Ctrl-C send these signals. After the first signal, no epoch begins, and the query ends when
    the running epoch is committed, so the next start repeats nothing. If the epoch takes longer than ``grace``, or a
    second signal arrives, the query stops immediately, and the next start repeats the epoch, with correct results. The
    functions' ``close()`` is called in all cases.

    In a terminal, a line on standard error shows a query's progress while it lags behind its input, and always with
    ``trigger(availableNow=True)``.

    Only the main thread receives signals; in another thread, ``run`` just waits for the end. It restores the previous
    signal handlers on return, and on a second signal.

    Args:
        query: a query from :func:`pillarbox.start`.
        grace: time for the running epoch to end. Allow the process a few seconds more, with
            ``terminationGracePeriodSeconds`` in Kubernetes or ``TimeoutStopSec`` in systemd.
        recordings: a folder on this machine, or None. If a task makes the query fail, the task is recorded there, as by
            :func:`pillarbox.record`, in at most ten minutes and with at most 1 GiB of input. A failure to record is
            logged.

    Raises:
        StreamingQueryException: the query has failed.
        ProgramError: an argument is wrong, or another process has started the query.
        ConfigurationError: ``recordings`` requires the package ``pillarbox_tools``, which is not installed.

    Example:
        >>> query = pillarbox.start(writer)  # doctest: +SKIP
        >>> pillarbox.run(query, grace="1 minute")  # doctest: +SKIP
    """
    seconds = to_millis(grace, "run(): grace=") / 1000
    if recordings is not None:
        check_text(recordings, "run(): recordings=")
        needed_tools("run(recordings=...)")
    if not hasattr(query, "awaitTermination"):
        raise ProgramError(f"run() takes a query that start() returned, not {shorten(query)}")
    started = find(query)
    if started is None:
        raise ProgramError(
            f"run() needs a query that start() returned in this process, but query {query.id} has no pillarbox"
            " program, or another process started it"
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
    query = started.query
    directory = os.path.join(recordings, f"{query.name or query.id}-{str(query.runId)[:8]}")
    notify(f"query {query.id}: the task that failed is being recorded in {directory}")
    try:
        record(started.start.writer, directory, checkpointLocation=started.checkpoint)
    except Exception as error:
        _log.warning("query %s: the failed task could not be recorded: %s", query.id, message_for_user(error))
        return
    notify(f"query {query.id}: replay the task with 'pillarbox replay {directory}'")


def _end(started: StartedQuery, seconds: float, signals: _Signals) -> None:
    notify(
        f"{signals.name}: query {started.query.id} ends after the running epoch, within {seconds:g} seconds; another"
        " signal ends it at once"
    )
    deadline = time.monotonic() + seconds
    is_whole = end_query(started, lambda: signals.count < 2 and time.monotonic() < deadline)
    if not is_whole and started.query.exception() is None:
        why = f"a second {signals.name} arrived" if signals.count > 1 else f"it took longer than {seconds:g} seconds"
        _log.warning(
            "query %s: its epoch was interrupted, because %s. The next start repeats it", started.query.id, why
        )


class _Signals:
    """Counts termination signals. Does nothing outside of the main thread.

    The handler only counts, because it may run during a call to Java, or while any lock is held.
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
            self._restore()  # so that a third signal calls the previous handler

    def _restore(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            # None means that the handler was not installed from Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
