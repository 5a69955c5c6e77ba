"""Models of this process's queries, which are written to the history."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from pillarbox._errors import describe
from pillarbox._reports.plan import Plan
from pillarbox._runtime.spark.plan.registry import RegisteredProgram
from pillarbox._runtime.spark.reading.key_life import key_life, no_checkpoint
from pillarbox._runtime.spark.session.configuration import configuration_of
from pillarbox_tools.doctor.rules import FIRST_EPOCH_RULES, warn_of_findings
from pillarbox_tools.export.query_metrics import QueryMetrics
from pillarbox_tools.model.query_model import QueryModel, now_ms
from pillarbox_tools.model.snapshot import Snapshot, SnapshotRun
from pillarbox_tools.watching.history import HistoryWriter, read_history, with_earlier

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import SparkSession

    from pillarbox._graph.layout import Layout
    from pillarbox._runtime.spark.starting.started import StartedQuery
    from pillarbox._runtime.spark.tools import Progress


class WatchedQuery(QueryModel):
    """The model of a query that runs in this process, with its history and metrics."""

    def __init__(self, started: StartedQuery) -> None:
        query: Any = started.query
        self._spark: SparkSession = started.start.spark
        self._examined = False
        # The lock guards these two fields: whether earlier runs have been read (True in the constructor), and why not.
        self._has_read = True
        self._unread = ""
        self._reading = threading.Lock()
        configuration = started.configuration or configuration_of(self._spark)
        run = SnapshotRun(str(query.runId), now_ms(), settings=configuration.settings, versions=configuration.versions)
        plan, checkpoint = plan_in(started.programs, started.layouts), started.checkpoint or ""
        super().__init__(Snapshot(str(query.id), query.name or "", checkpoint, 0, True, plan, run))
        self.metrics = QueryMetrics(self)
        self._has_read = started.checkpoint is None
        self._history = None if started.checkpoint is None else HistoryWriter(self._spark, started.checkpoint, self)

    def take(self, reports: Iterable[Progress]) -> None:
        """Add progress reports, and write the history if due. Call this in the same thread as :meth:`end`."""
        self._read_earlier()
        for progress in reports:
            self.progressed(progress)
            newest = self._snapshot.newest
            if not self._examined and newest is not None and newest.tasks:
                self._examined = True
                warn_of_findings(super().snapshot(), FIRST_EPOCH_RULES)
        if self._history is not None:
            self._history.write_if_due()

    def end(self, failure: BaseException | None) -> None:
        if failure is not None:
            self.failed(str(failure))
        self.ended()
        if self._history is not None:
            self._history.write(is_end=True)

    def snapshot(self) -> Snapshot:
        self._read_earlier()
        snapshot = super().snapshot()
        return replace(snapshot, missing=[*snapshot.missing, self._unread]) if self._unread else snapshot

    def _read_earlier(self) -> None:
        """Read the earlier runs, once, because they no longer change. Thread-safe."""
        with self._reading:
            if self._has_read:
                return
            self._has_read = True
            try:
                snapshot = super().snapshot()
                self.follows(with_earlier(snapshot, read_history(self._spark, self._snapshot.checkpoint)).earlier)
            except Exception as error:
                self._unread = f"Earlier runs are unknown, because the history cannot be read: {describe(error)}."

    def key_life(self, uid: str, key: str) -> dict[str, Any]:
        if not self._snapshot.checkpoint:
            raise no_checkpoint()
        return key_life(self._spark, self._snapshot.checkpoint, uid, key)


def plan_in(programs: Sequence[RegisteredProgram], layouts: Sequence[Layout] = ()) -> Plan | None:
    plans = [plan for plan in map(_plan_with, programs, chain(layouts, repeat(None))) if plan is not None]
    if not plans:
        return None
    return Plan([vertex for plan in plans for vertex in plan.vertices], [edge for plan in plans for edge in plan.edges])


def _plan_with(program: RegisteredProgram, layout: Layout | None) -> Plan | None:
    facts = program.summary
    if facts.plan is None or layout is None:
        return facts.plan
    operators = facts.description.with_layout(layout)["operators"]
    levels = {operator["number"]: operator["parallelism"] for operator in operators}
    plan = facts.plan
    return replace(
        plan, vertices=[replace(part, parallelism=levels.get(part.number, part.parallelism)) for part in plan.vertices]
    )
