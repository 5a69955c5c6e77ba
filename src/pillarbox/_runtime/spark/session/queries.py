"""Private access to a running query's progress reports and Java object."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


def execution_of(query: Any) -> Any:
    """Return the Java object that runs a classic query, or None under Spark Connect.

    Without this object, queries can only be ended with ``stop()``, which interrupts an epoch.
    """
    return query._jsq.streamingQuery() if hasattr(query, "_jsq") else None


def pinned_jvm() -> Any:
    """Return the JVM. Raises RuntimeError unless each Python thread has its own JVM thread, which locks need."""
    from py4j.clientserver import ClientServer
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if not isinstance(gateway, ClientServer):
        raise RuntimeError("PYSPARK_PIN_THREAD is false")
    return gateway.jvm


_NOT_COMMITTED = "STATE_STORE_COMMIT_VALIDATION_FAILED"


class StateCommits:
    """Checks whether the partitions of a classic query with ``foreachBatch`` have committed their state.

    Spark's own check only works once. Java objects are kept, so that a batch takes three calls to Java.
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


class ProgressMark(NamedTuple):
    """Identifies a progress report. The batch id is not enough, because it may be repeated."""

    batch: int
    timestamp: str

    @staticmethod
    def of(progress: Any) -> ProgressMark:
        return ProgressMark(progress["batchId"], progress["timestamp"])


def new_progress(query: Any, seen: ProgressMark | None) -> list[Any]:
    """Return the progress reports of a query after ``seen``, oldest first.

    In a classic session, only these are fetched. ``recentProgress`` would convert all hundred reports.
    """
    if hasattr(query, "_jsq"):
        recent = query._jsq.recentProgress()
        reports: list[Any] = []
        for index in range(len(recent) - 1, -1, -1):
            if seen is not None and ProgressMark(recent[index].batchId(), recent[index].timestamp()) <= seen:
                break
            # JSON omits empty metrics.
            reports.append({"observedMetrics": {}, **json.loads(recent[index].json())})
        return reports[::-1]
    last = query.lastProgress
    if last is None or ProgressMark.of(last) == seen:
        return []
    return [report for report in query.recentProgress if seen is None or ProgressMark.of(report) > seen]
