"""Accesses private parts of a running query."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple


def execution_of(query: Any) -> Any:
    """Return the Java object that runs a query, or None under Spark Connect.

    Without this object, a query can only be ended with ``stop()``, which interrupts the running epoch.
    """
    return query._jsq.streamingQuery() if hasattr(query, "_jsq") else None


def pinned_jvm() -> Any:
    """Return the JVM. Raises RuntimeError unless each Python thread has its own JVM thread, as locks require."""
    from py4j.clientserver import ClientServer
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if not isinstance(gateway, ClientServer):
        raise RuntimeError("PYSPARK_PIN_THREAD is false")
    return gateway.jvm


_NOT_COMMITTED = "STATE_STORE_COMMIT_VALIDATION_FAILED"


class QueryStateCommits:
    """Checks whether a classic ``foreachBatch`` query's partitions have all committed their state.

    Spark's own check works only once. Java objects are cached, so that a check takes only three calls to Java.
    """

    def __init__(self, query: Any) -> None:
        from py4j.protocol import Py4JError

        execution = execution_of(query)
        self._unchecked: Any = None
        try:
            states = execution.sparkSession().streams().stateStoreCoordinator()
            self._validate, self._run = states.validateStateStoreCommitForBatch, execution.runId()
            self._unchecked = execution.progressReporter().shouldValidateStateStoreCommit()
        except Py4JError:
            pass

    def are_complete(self, batch: int) -> bool:
        if self._unchecked is None or not self._unchecked.get():  # without state
            return True
        self._unchecked.set(False)
        try:
            self._validate(self._run, batch)
        except Exception as error:
            if _NOT_COMMITTED not in str(error):
                raise
            return False
        return True


_JAVA_ERROR = "py4j.protocol.Py4JJavaError: An error occurred while calling"
_INTERRUPTIONS = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)


def with_short_interruptions(function: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
    """Wrap a ``foreachBatch`` function so that its error is short if ``query.stop()`` interrupts it.

    Spark searches the error's text with a regular expression that recurses for each character, so a Java stack trace in
    the text would overflow the stream thread's stack.
    """

    @wraps(function)
    def call(batch: Any, batch_id: int) -> None:
        try:
            function(batch, batch_id)
        except Exception as error:
            lines = _interruption(traceback.format_exc())
            if not lines:
                raise
            raise InterruptedError("\n".join(lines)).with_traceback(error.__traceback__) from None

    return call


def _interruption(text: str) -> list[str]:
    """Return the lines that Spark recognizes as an interruption, or []."""
    _, called, rest = text.partition(_JAVA_ERROR)
    if not called:
        return []
    first, *others = rest.splitlines()
    for line in others:
        is_cancellation = "org.apache.spark.SparkException" in line and "cancelled" in line
        if is_cancellation or any(name in line for name in _INTERRUPTIONS):
            return [called + first, line]
    return []


class QueryProgressMark(NamedTuple):
    """Identifies a progress report. The batch id is not enough, because several reports may share it."""

    batch: int
    timestamp: str

    @staticmethod
    def of(progress: Any) -> QueryProgressMark:
        return QueryProgressMark(progress["batchId"], progress["timestamp"])


def new_progress(query: Any, seen: QueryProgressMark | None) -> list[Any]:
    """Return the progress reports of a query after ``seen``, oldest first.

    In a classic session, fetches only new reports, because ``recentProgress`` would convert all hundred reports.
    """
    if hasattr(query, "_jsq"):
        recent = query._jsq.recentProgress()
        reports: list[Any] = []
        for index in range(len(recent) - 1, -1, -1):
            if seen is not None and QueryProgressMark(recent[index].batchId(), recent[index].timestamp()) <= seen:
                break
            # JSON omits empty metrics.
            reports.append({"observedMetrics": {}, **json.loads(recent[index].json())})
        return reports[::-1]
    last = query.lastProgress
    if last is None or QueryProgressMark.of(last) == seen:
        return []
    return [report for report in query.recentProgress if seen is None or QueryProgressMark.of(report) > seen]
