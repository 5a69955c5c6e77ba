"""A query at one point in time, as plain data that JSON can store.

Durations are in ms, points in time are Unix times in ms. None means unknown. Lists of runs begin with the newest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pillarbox._elements.task_report import TaskReport
from pillarbox._reports.failure import Failure
from pillarbox._reports.operator_report import OperatorReport
from pillarbox._reports.plan import Plan, PlanVertex
from pillarbox._runtime.spark.running.heartbeat import Heartbeat

#: Version of a snapshot's JSON in bundles and in the history. Within a version, changes only add fields.
FORMAT = 2

# A vertex in its query: the program's name and the vertex's number.
VertexId = tuple[str, int]
Part = TypeVar("Part", PlanVertex, OperatorReport, TaskReport)


@dataclass(frozen=True)
class SnapshotSource:
    """One Spark source in one epoch.

    Attributes:
        end: the offsets at the end of the epoch, as in Spark's JSON.
        metrics: the source's own metrics, such as Kafka's ``maxOffsetsBehindLatest``.
    """

    description: str
    rows: int
    end: Any = None
    latest: Any = None
    metrics: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SnapshotEpoch:
    """A committed epoch.

    Attributes:
        began: when the trigger began.
        parts: durations of the trigger's phases, by Spark's names. ``addBatch`` includes the tasks' work.
        tasks: the task reports, which only the newest epochs have.
        state_commit: time that Spark's state stores took to commit, summed over all partitions.
    """

    number: int
    began: int
    duration: int
    parts: dict[str, int]
    rows: int
    sources: list[SnapshotSource] = field(default_factory=list)
    vertices: list[OperatorReport] = field(default_factory=list)
    tasks: list[TaskReport] = field(default_factory=list)
    state_commit: int | None = None
    output_rows: int | None = None

    @property
    def end(self) -> int:
        return self.began + self.duration

    @property
    def process_bytes(self) -> int | None:
        return max((task.process_bytes for task in self.tasks if task.process_bytes), default=None)


@dataclass(frozen=True)
class SnapshotMoment:
    """Consecutive epochs in about a minute, aggregated for the history.

    Attributes:
        at: when the moment ended. It covers the epochs that ended after the previous moment.
        state_bytes: state size at the end, by vertex uid.
        keys: number of keys at the end, by vertex uid.
        lag: end of the newest epoch minus the lowest watermark.
        process_bytes: resident memory of the largest worker process.
        fallbacks: number of tasks that ran in a Spark worker because no home process was available.
        inputs: number of input records, by operator uid.
        backlog: the sources' backlog (rows) at the end.
        newest: largest event time of a source record.
    """

    at: int
    epochs: int
    first: int
    last: int
    rows: int
    duration: int
    longest: int
    busy_ms: int = 0
    back_pressured_ms: int = 0
    state_bytes: dict[str, int] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    timers: int = 0
    lag: int | None = None
    counters: dict[str, int] = field(default_factory=dict)
    repeated: int = 0
    process_bytes: int | None = None
    home_restarts: int = 0
    fallbacks: int = 0
    inputs: dict[str, int] = field(default_factory=dict)
    backlog: int | None = None
    newest: int | None = None


@dataclass(frozen=True)
class SnapshotExecutor:
    """An executor, according to the last reports of its tasks.

    Attributes:
        workers: number of Spark's Python workers that ran tasks.
        home_bytes: private memory of all home processes.
        worker_bytes: private memory of these workers.
        state_bytes: approximate pickled size of the state.
        limit: the container's memory limit in bytes, or None if unlimited.
    """

    host: str
    executor: int | None
    homes: int
    workers: int
    home_bytes: int | None
    worker_bytes: int | None
    state_bytes: int
    keys: int
    limit: int | None = None


@dataclass(frozen=True)
class SnapshotRun:
    """A run of a query, from a start to its end.

    Attributes:
        id: Spark's ``runId``.
        status: ``running``, ``stopped``, ``failed``, or ``lost`` if its driver disappeared.
        settings: the settings, with secrets masked.
        versions: the driver's versions of Python, Spark and packages.
        worker_versions: some combinations of Python and package versions in workers.
        starts: number of the query's starts, including this run's.
        crashes: number of earlier runs that failed or were lost.
    """

    id: str
    began: int
    ended: int | None = None
    status: str = "running"
    settings: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    worker_versions: list[dict[str, str]] = field(default_factory=list)
    executors: list[SnapshotExecutor] = field(default_factory=list)
    moments: list[SnapshotMoment] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    starts: int = 1
    crashes: int = 0

    @property
    def has_crashed(self) -> bool:
        return self.status in ("failed", "lost")


@dataclass(frozen=True)
class Snapshot:
    """All data about a query.

    Attributes:
        id: Spark's query id, which restarts do not change.
        checkpoint: the checkpoint's location, or empty if it is temporary.
        is_live: whether the driver supplied the snapshot. If False, the snapshot was read from the history at
            ``read_at``.
        epochs: the newest epochs, oldest first.
        heartbeat: the driver's heartbeat, or None after the query's end.
        state_sizes: approximate bytes of each state, by uid and name, in a bundle.
    """

    id: str
    name: str
    checkpoint: str
    at: int
    is_live: bool
    plan: Plan | None
    run: SnapshotRun
    earlier: list[SnapshotRun] = field(default_factory=list)
    epochs: list[SnapshotEpoch] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    heartbeat: Heartbeat | None = None
    read_at: int | None = None
    state_sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def vertices(self) -> list[PlanVertex]:
        return [] if self.plan is None else self.plan.vertices

    @property
    def newest(self) -> SnapshotEpoch | None:
        return self.epochs[-1] if self.epochs else None


def vertex_id(part: PlanVertex | OperatorReport | TaskReport) -> VertexId:
    return part.program, part.number


def inputs_of(vertex: OperatorReport) -> list[int]:
    """Return the number of input records of each operator in the chain. A broadcast record counts once."""
    return [vertex.records_in, *(records for records, _ in vertex.operators[1:])]


def by_vertex(parts: Iterable[Part]) -> dict[VertexId, list[Part]]:
    groups: dict[VertexId, list[Part]] = {}
    for part in parts:
        groups.setdefault(vertex_id(part), []).append(part)
    return groups


def last_reports(epochs: Iterable[SnapshotEpoch]) -> dict[VertexId, OperatorReport]:
    """Return each vertex's last report. An epoch without work for a vertex has no report of it."""
    return {vertex_id(vertex): vertex for epoch in epochs for vertex in epoch.vertices}


def rows_per_second(epochs: Sequence[SnapshotEpoch]) -> float | None:
    took = epochs[-1].end - epochs[0].began if epochs else 0
    return 1000 * sum(epoch.rows for epoch in epochs) / took if took > 0 else None
