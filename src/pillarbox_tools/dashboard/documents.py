"""The JSON of the pages, as classes: an object for each, whose fields have the names of the attributes.

Points in time are epoch milliseconds, durations milliseconds. Most parts are classes of the model; of these, fields
that have their default are left out.

``/api/queries`` is a list of :class:`Entry`. ``/api/queries/ID`` is a :class:`View` with three more fields: ``stages``,
the running stages (a list of the core's ``Stage``); ``is_bundle``, whether the query
was read from a bundle, so that nothing changes; and ``change``, the name of the newest change.
``/api/queries/ID?since=CHANGE`` has ``change`` and the fields that have changed since that change.
"""

from __future__ import annotations

from dataclasses import dataclass

from pillarbox._reports.failure import Failure
from pillarbox._reports.operator_report import OperatorReport
from pillarbox._reports.plan import PlanEdge, PlanVertex
from pillarbox_tools.doctor.facts import Finding
from pillarbox_tools.model.condition import Condition
from pillarbox_tools.model.executor_memory import ExecutorMemory
from pillarbox_tools.model.growth import Growth, Memory
from pillarbox_tools.model.held_watermarks import HeldWatermark
from pillarbox_tools.model.skew import Skew
from pillarbox_tools.model.snapshot import EpochRun, Run


@dataclass(frozen=True)
class Entry:
    """A query as the list of queries shows it.

    Attributes:
        epoch: the newest one, and ``duration`` and ``rows``: of it; None: none has ended.
        rows_per_second: of the last epochs together; 0 if none has come lately.
        lag: how far event time is behind now; None: it is not known.
        conditions: what is wrong with the query as a whole, the worst first.
        failure: what the last failure of this run said; None: there was none.
    """

    id: str
    name: str
    checkpoint: str
    status: str
    is_live: bool
    began: int
    epoch: int | None
    duration: int | None
    rows: int | None
    rows_per_second: float | None
    lag: int | None
    conditions: list[Condition]
    failure: str | None


@dataclass(frozen=True)
class View(Entry):
    """All that the page of a query draws.

    Attributes:
        at: when the driver was last heard of.
        run: the running run or the last one; its moments are the points of lines over time: a minute each, or more in a
            long run. Rows and the like are sums. Other values are the largest of the point's minutes, so that peaks
            stay visible.
        earlier: the previous runs, the newest first, each with one moment for all of its epochs.
        keyed: the uids of operators that have keys.
        strip: the newest epochs, without tasks, and ``shown``: the one whose parts and tasks are drawn; None: none has
            ended. Of its tasks, it has those that took longest.
        calls: what each asynchronous operator did in its newest epoch, by the name of the counter, with its ``uid``.
        counters: all others, added up over the epochs that are known.
        state_sizes: as in a :class:`Snapshot`.
        missing: what is not known, as messages for people.
    """

    at: int
    run: Run
    earlier: list[Run]
    settings: dict[str, str]
    versions: dict[str, str]
    failures: list[Failure]
    plan: PlanView | None
    keyed: list[str]
    strip: list[EpochRun]
    shown: EpochRun | None
    watermarks: list[HeldWatermark]
    skew: list[Skew]
    calls: list[dict[str, str | int]]
    counters: dict[str, int]
    state_sizes: dict[str, dict[str, int]]
    growth: list[Growth]
    memory: Memory
    executors: list[ExecutorMemory]
    findings: list[Finding]
    missing: list[str]


@dataclass(frozen=True)
class PlanView:
    """The plan of the programs, with what happened in the epoch that is shown."""

    vertices: list[VertexView]
    edges: list[PlanEdge]


@dataclass(frozen=True)
class VertexView(PlanVertex):
    """A vertex of the plan.

    Attributes:
        level_share: the share of the epoch in which tasks of this level ran.
        run: the metrics of its tasks, or None if none ran.
    """

    level_share: float
    run: OperatorReport | None
