"""A running query, beyond Spark's API: its progress reports after one, and the Java object of a classic one."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


def execution_of(query: Any) -> Any:
    """Return the Java object that runs a classic query, or None under Spark Connect.

    Without it, queries end by ``stop()``, in the middle of an epoch.
    """
    return query._jsq.streamingQuery() if hasattr(query, "_jsq") else None


def pinned_jvm() -> Any:
    """Return the JVM in which each thread of this process has one of its own, which can hold locks there.

    Without it, queries end by ``stop()``, in the middle of an epoch.

    Raises:
        RuntimeError: Python threads share JVM threads (``PYSPARK_PIN_THREAD=false``).
    """
    from py4j.clientserver import ClientServer
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if not isinstance(gateway, ClientServer):
        raise RuntimeError("PYSPARK_PIN_THREAD is false")
    return gateway.jvm


_NOT_COMMITTED = "STATE_STORE_COMMIT_VALIDATION_FAILED"


class StateCommits:
    """Whether the partitions of a classic query with ``foreachBatch`` have committed their state.

    Spark checks that after a batch, and not a second time: this check replaces Spark's. Without it, a query ends if its
    function reads only a part of a batch. The Java objects live as long as the run: each batch makes three calls to
    Java.
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
        """Return whether each partition of a batch has committed."""
        if self._unchecked is None or not self._unchecked.get():  # it has no state
            return True
        self._unchecked.set(False)
        try:
            self._validate(self._run, batch)
        except Exception as error:
            if _NOT_COMMITTED not in str(error):
                raise  # the query is being stopped, for instance
            return False
        return True


class ProgressMark(NamedTuple):
    """Identifies a progress report: reports without input repeat the batch id of an earlier one."""

    batch: int
    timestamp: str

    @staticmethod
    def of(progress: Any) -> ProgressMark:
        """Return the mark of a report, as a dictionary of its JSON."""
        return ProgressMark(progress["batchId"], progress["timestamp"])


def new_progress(query: Any, seen: ProgressMark | None) -> list[Any]:
    """Return the progress reports of a query after ``seen``, the oldest first; None: all that Spark has.

    In a classic session only these are fetched: ``recentProgress`` would turn all hundred of them into JSON.
    """
    if hasattr(query, "_jsq"):
        recent = query._jsq.recentProgress()
        reports: list[Any] = []
        for index in range(len(recent) - 1, -1, -1):
            if seen is not None and ProgressMark(recent[index].batchId(), recent[index].timestamp()) <= seen:
                break
            # (JSON leaves out what is empty.)
            reports.append({"observedMetrics": {}, **json.loads(recent[index].json())})
        return reports[::-1]
    last = query.lastProgress
    if last is None or ProgressMark.of(last) == seen:
        return []
    return [report for report in query.recentProgress if seen is None or ProgressMark.of(report) > seen]
