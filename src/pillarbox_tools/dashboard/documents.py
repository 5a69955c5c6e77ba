"""The JSON of the pages, as classes: an object for each, whose fields have the names of the attributes.

Points in time are epoch milliseconds, durations milliseconds.
Parts that the pages show unchanged are classes of the model.

``/api/queries`` is a list of :class:`Entry`. ``/api/queries/ID`` is a :class:`View` with three more fields: ``stages``,
the running stages (a list of the model's ``Stage``, or null if they are not known); ``is_bundle``, whether the query
was read from a bundle, so that nothing changes; and ``change``, the name of the newest change.
``/api/queries/ID?since=CHANGE`` has ``change`` and the fields that have changed since that change.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pillarbox._reports.failure import Failure
from pillarbox._reports.operator_report import OperatorReport
from pillarbox._reports.plan import PlanEdge, PlanOperator
from pillarbox_tools.doctor.facts import Finding
from pillarbox_tools.model.condition import Condition
from pillarbox_tools.model.executor_memory import ExecutorMemory
from pillarbox_tools.model.growth import Growth, Memory
from pillarbox_tools.model.held_watermarks import HeldWatermark
from pillarbox_tools.model.skew import Skew
from pillarbox_tools.model.snapshot import SourceProgress


def as_json(value: Any) -> str:
    """Return the JSON of an object of these classes, or of a list of them."""
    return json.dumps(value, separators=(",", ":"), default=vars)


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
        run: the running run or the last one, and ``earlier``: the previous runs, the newest first.
        keyed: the uids of operators that have keys.
        strip: the newest epochs, and ``shown``: the one whose parts and tasks are drawn; None: none has ended.
        calls: what each asynchronous operator did in its newest epoch, by the name of the counter, with its ``uid``.
        counters: all others, added up over the epochs that are known.
        state_sizes: only in a bundle.
        missing: what is not known, as messages for people.
    """

    at: int
    run: RunView
    earlier: list[RunLine]
    settings: dict[str, str]
    versions: dict[str, str]
    failures: list[Failure]
    plan: PlanView | None
    keyed: list[str]
    strip: list[StripBar]
    shown: EpochView | None
    watermarks: list[HeldWatermark]
    skew: list[Skew]
    calls: list[dict[str, str | int]]
    counters: dict[str, int]
    state_sizes: list[StateSize]
    growth: list[Growth]
    memory: Memory
    executors: list[ExecutorMemory]
    findings: list[Finding]
    missing: list[str]


@dataclass(frozen=True)
class RunLine:
    """A run of the query, from a start to its end, in the list of runs. Sums are over all of its epochs.

    Attributes:
        status: ``running``, ``stopped`` or ``failed``; ``lost`` if a later run has begun and the driver of this one has
            written no end.
        spark: the version of Spark, or None if it is not known; ``pillarbox``: of pillarbox.
        failure: the first line of its last failure, or None.
    """

    id: str
    began: int
    ended: int | None
    status: str
    epochs: int
    rows: int
    repeated: int
    spark: str | None
    pillarbox: str | None
    failure: str | None


@dataclass(frozen=True)
class RunView(RunLine):
    """The run that the page shows, with its lines over time."""

    home_restarts: int
    fallbacks: int
    moments: list[MomentView]


@dataclass(frozen=True)
class MomentView:
    """A stretch of time: a minute of the run, or more in a long one. ``rows`` and ``epochs`` are sums.

    The other values are the largest of its minutes, so that peaks stay visible in a long run.

    Attributes:
        at: when it ended.
        mean: the mean duration of the epochs of a minute, and ``longest``: the duration of the longest epoch.
        state: bytes of state of all operators, and ``keys``: their keys.
        memory: resident bytes of the fullest worker; None: it is not known.
    """

    at: int
    rows: int
    epochs: int
    mean: int
    longest: int
    state: int
    keys: int
    lag: int | None
    memory: int | None


@dataclass(frozen=True)
class PlanView:
    """The plan of the programs, with what happened in the epoch that is shown."""

    vertices: list[VertexView]
    edges: list[PlanEdge]


@dataclass(frozen=True)
class OperatorView(PlanOperator):
    """An operator, and how many records it took and emitted; None: its vertex had no tasks."""

    records_in: int | None = None
    records_out: int | None = None


@dataclass(frozen=True)
class Shares:
    """How the tasks of a vertex spent their time: shares, which add up to 1."""

    busy: float
    idle: float
    back_pressured: float
    state: float


@dataclass(frozen=True)
class VertexView:
    """A vertex of the plan.

    Attributes:
        level_share: the share of the epoch in which tasks of this level ran.
        run: what its tasks did, and ``shares``: with their time; None: it had none.
    """

    program: str
    number: int
    level: int
    uid: str
    kind: str
    parallelism: int
    is_keyed: bool
    operators: list[OperatorView]
    level_share: float
    run: OperatorReport | None
    shares: Shares | None


@dataclass(frozen=True)
class StripBar:
    """An epoch as a bar."""

    number: int
    duration: int
    rows: int


@dataclass(frozen=True)
class EpochView:
    """An epoch.

    Attributes:
        spark: Spark's parts of it, one after another.
        tasks_from: when its tasks could start, as milliseconds of the epoch.
        tasks: those that took longest, and ``tasks_in_all``: how many it had.
    """

    number: int
    began: int
    duration: int
    rows: int
    output_rows: int | None
    state_commit: int | None
    spark: list[PartBar]
    tasks_from: int
    tasks: list[TaskBar]
    tasks_in_all: int
    sources: list[SourceProgress]


@dataclass(frozen=True)
class PartBar:
    """A part of an epoch; its times are milliseconds of the epoch."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class TaskBar:
    """A task; ``start`` and ``end`` are milliseconds of the epoch."""

    program: str
    vertex: int
    subtask: int
    start: int
    end: int
    busy: int
    back_pressured: int
    idle: int
    state: int
    records_in: int
    attempt: int | None
    host: str | None
    home_restarts: int
    home_cold_starts: int
    home_adoptions: int
    fallback: str | None


@dataclass(frozen=True)
class StateSize:
    """About how many bytes a state takes."""

    uid: str
    name: str
    bytes: int
