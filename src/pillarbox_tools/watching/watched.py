"""A query that is watched: its progress goes into its model, and the model into the history of the checkpoint."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from pillarbox._errors import describe
from pillarbox._reports.plan import Plan
from pillarbox._runtime.spark.plan.registry import PlannedProgram
from pillarbox._runtime.spark.reading.key_life import key_life, no_checkpoint
from pillarbox._runtime.spark.session.configuration import configuration_of
from pillarbox_tools.doctor.facts import Facts
from pillarbox_tools.doctor.rules import FIRST_EPOCH_RULES
from pillarbox_tools.doctor.warnings import warn_of_findings
from pillarbox_tools.export.ledger import Ledger
from pillarbox_tools.model.query_model import QueryModel, now_ms
from pillarbox_tools.model.snapshot import Run, Snapshot
from pillarbox_tools.watching.history import HistoryWriter, read_history, with_earlier

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import SparkSession

    from pillarbox._graph.layout import Layout
    from pillarbox._runtime.spark.starting.started import StartedQuery
    from pillarbox._runtime.spark.tools import Progress

_log = logging.getLogger("pillarbox")


class WatchedQuery(QueryModel):
    """The model of a query that this process runs, with its history.

    Attributes:
        ledger: what exporters tell of it.
    """

    def __init__(self, started: StartedQuery) -> None:
        query: Any = started.query
        self._spark: SparkSession = started.start.spark
        self._warned = False
        self._examined = False
        # Whether the runs before are known, and why not.
        self._has_read = True  # until all is in place
        self._unread = ""
        self._reading = threading.Lock()  # guards both
        configuration = started.configuration or configuration_of(self._spark)
        run = Run(
            id=str(query.runId),
            began=now_ms(),
            settings=configuration.settings,
            versions=configuration.versions,
        )
        plan = plan_in(started.programs, started.layouts)
        super().__init__(str(query.id), query.name or "", started.checkpoint or "", plan, run)
        self.ledger = Ledger(self)
        self._has_read = started.checkpoint is None
        self._history = None if started.checkpoint is None else HistoryWriter(self._spark, started.checkpoint, self)

    def take(self, reports: Iterable[Progress]) -> None:
        """Take new progress reports, and write the history if that is due. One thread calls it, and :meth:`end`."""
        self._read_earlier()
        for progress in reports:
            self._take(progress)
        if self._history is not None:
            self._history.write_if_due()

    def _take(self, progress: Progress) -> None:
        try:
            self.progressed(progress)
            if not self._examined:
                self._examine()
        except Exception as error:  # the query can do without, and whoever waits for its end must not fail
            self.tell_unknown(describe(error))

    def _examine(self) -> None:
        """Log what the doctor finds in the first epoch with tasks: Spark also reports that there was nothing to do."""
        known = super().snapshot()
        if known.newest is not None and known.newest.tasks:
            self._examined = True
            warn_of_findings(Facts.of(known), FIRST_EPOCH_RULES)

    def tell_unknown(self, why: str) -> None:
        """Log that something of the query is not known; the first time as a warning."""
        (_log.debug if self._warned else _log.warning)("query %s: its progress is not known: %s", self.id, why)
        self._warned = True

    def end(self, failure: BaseException | None) -> None:
        """Note that the query has ended; with an error, if it has failed."""
        if failure is not None:
            self.failed(str(failure))
        self.ended()
        if self._history is not None:
            self._history.write(is_end=True)

    def snapshot(self) -> Snapshot:
        """Return what is known of the query now, and the runs before this one. Any thread."""
        self._read_earlier()
        found = super().snapshot()
        return replace(found, missing=[*found.missing, self._unread]) if self._unread else found

    def _read_earlier(self) -> None:
        """Read the runs before this one, once: nobody adds to them while it lasts. Any thread."""
        with self._reading:
            if self._has_read:
                return
            self._has_read = True
            try:
                known = super().snapshot()
                self.follows(with_earlier(known, read_history(self._spark, self._checkpoint)).earlier)
            except Exception as error:  # its Spark is gone
                self._unread = (
                    f"The runs before this one are not known, as the history cannot be read: {describe(error)}."
                )

    def key_life(self, uid: str, key: str) -> dict[str, Any]:
        """Return what the checkpoint has of a key. Any thread."""
        if not self._checkpoint:
            raise no_checkpoint()
        return key_life(self._spark, self._checkpoint, uid, key)


def plan_in(programs: Sequence[PlannedProgram], layouts: Sequence[Layout] = ()) -> Plan | None:
    """Return the plan of the programs of a query; None: it is not known.

    Args:
        layouts: those that the programs run with, where these are not the ones that they were compiled with.
    """
    plans = [plan for one, layout in zip_longest(programs, layouts) if (plan := _plan_with(one, layout)) is not None]
    if not plans:
        return None
    return Plan([each for plan in plans for each in plan.vertices], [each for plan in plans for each in plan.edges])


def _plan_with(program: PlannedProgram, layout: Layout | None) -> Plan | None:
    facts = program.facts
    if facts.plan is None or layout is None:
        return facts.plan
    subtasks = {each["number"]: each["parallelism"] for each in facts.description.with_layout(layout)["operators"]}
    vertices = [replace(each, parallelism=subtasks.get(each.number, each.parallelism)) for each in facts.plan.vertices]
    return replace(facts.plan, vertices=vertices)
