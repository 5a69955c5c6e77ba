"""The JSON of the pages, as classes with the same fields.

Points in time are epoch milliseconds, durations milliseconds, lists newest or worst first. Model classes omit fields
with default values.

``/api/queries`` is a list of :class:`Entry`. ``/api/queries/ID`` is a :class:`View` with ``stages`` (the core's
``Stage``), ``is_bundle`` (nothing changes), and ``change`` (the newest change). ``/api/queries/ID?since=CHANGE`` has
``change`` and the fields changed since.
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
    """An entry of the list of queries.

    Attributes:
        epoch: the newest epoch; None before the first.
        rows_per_second: 0 after a while without input.
        lag: event-time lag, or None if unknown.
        failure: message of this run's last failure, or None.
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
    """The data of a query's page.

    Attributes:
        at: time of the driver's last report.
        run: its moments are the points of the time series: one per minute, fewer in a long run. Counts are sums; other
            fields are maxima, so that peaks stay visible.
        earlier: the earlier runs, each with one moment.
        keyed: uids of the keyed operators.
        strip: the newest epochs without tasks.
        shown: the epoch whose phases and longest tasks are drawn, or None.
        calls: counters of each asynchronous operator in its newest epoch, with its ``uid``.
        counters: sums of all other counters over the known epochs.
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
    """The plan of the programs, with the metrics of the shown epoch."""

    vertices: list[VertexView]
    edges: list[PlanEdge]


@dataclass(frozen=True)
class VertexView(PlanVertex):
    """A vertex of the plan.

    Attributes:
        level_share: share of the epoch in which tasks of this level ran.
        run: metrics of its tasks, or None.
    """

    level_share: float
    run: OperatorReport | None
