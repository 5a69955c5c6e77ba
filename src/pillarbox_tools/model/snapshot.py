"""What is known of a query at a moment: plain data, which is written and read as JSON.

Times are milliseconds; points in time are epoch milliseconds. None is "not known".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pillarbox._elements import TaskReport
from pillarbox._reports.failure import Failure
from pillarbox._reports.operator_report import OperatorReport
from pillarbox._reports.plan import Plan
from pillarbox._runtime.spark.running.heartbeat import Heartbeat

#: Of the JSON of a snapshot, in a bundle and in the history. Fields are only added.
FORMAT = 2


@dataclass(frozen=True)
class SourceProgress:
    """What a query read of one of Spark's sources in an epoch.

    Attributes:
        description: the source, in Spark's words.
        rows: how many rows it read.
        end: the offsets that it read up to, as JSON from Spark.
        latest: the newest offsets of the source.
        metrics: what the source says of itself, such as Kafka's ``maxOffsetsBehindLatest``.
    """

    description: str
    rows: int
    end: Any = None
    latest: Any = None
    metrics: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class EpochRun:
    """An epoch that was committed.

    Attributes:
        number: Spark's batch id.
        began: when its trigger began.
        duration: how long the trigger took.
        parts: how long Spark's parts of it took, by Spark's names (``addBatch`` has the tasks).
        rows: how many rows came in.
        sources: what was read of each source.
        vertices: each vertex that had tasks.
        tasks: each task; only the newest epochs have them.
        state_commit: how long Spark's state stores took to commit, all partitions together.
        output_rows: how many rows the sink says that it has written; None: it does not say.
    """

    number: int
    began: int
    duration: int
    parts: dict[str, int]
    rows: int
    sources: list[SourceProgress] = field(default_factory=list)
    vertices: list[OperatorReport] = field(default_factory=list)
    tasks: list[TaskReport] = field(default_factory=list)
    state_commit: int | None = None
    output_rows: int | None = None


@dataclass(frozen=True)
class Moment:
    """Epochs of a stretch of time, added up, as the history keeps them.

    Attributes:
        at: when it ended; it has the epochs that ended since the moment before.
        epochs: how many there were; ``first`` and ``last``: their numbers.
        duration: how long they took together, and ``longest``: the longest one.
        state_bytes: the size of the state of each vertex at the end, by uid, and ``keys``: its keys.
        lag: the time of the newest epoch minus the lowest watermark.
        process_bytes: the resident memory of the fullest worker process.
        home_restarts: homes that were started again.
        fallbacks: how many tasks ran in Python workers of Spark's although they should have homes.
        inputs: how many records each operator received, by uid.
        backlog: how many rows the sources had at the end; None: they do not tell.
        newest: the largest event time of a record of the sources; None: they have none.
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
class ExecutorRun:
    """The tasks of a query in one executor, as they reported last.

    Attributes:
        executor: the process of its JVM; None: it is not known.
        homes: how many processes are homes, and ``workers``: in how many Python workers of Spark's tasks ran.
        home_bytes: the memory of its homes together, without what they share, and ``worker_bytes``: of these workers.
        state_bytes: the approximate size of the state when it is written, and ``keys``: its keys.
        limit: bytes that all processes of its container may use; None: there is no limit, or it is not known.
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
class Run:
    """A run of a query, from a start to its end.

    Attributes:
        id: Spark's ``runId``.
        began: when it was started, and ``ended``: when it ended.
        status: ``running``, ``stopped``, ``failed``, or ``lost`` if its driver ended without a word.
        settings: what was set for it, with secrets masked; ``versions``: of Python, Spark and the like in the driver.
        worker_versions: of Python and packages in workers: each combination that tasks have told, up to a few.
        executors: those in which tasks of it live.
        moments: its epochs, added up by the minute.
        failures: why it ended, if it failed, and what else went wrong.
        starts: how often the query was started, this start included; ``crashes``: how many runs before failed or were
            lost.
    """

    id: str
    began: int
    ended: int | None = None
    status: str = "running"
    settings: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    worker_versions: list[dict[str, str]] = field(default_factory=list)
    executors: list[ExecutorRun] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    starts: int = 1
    crashes: int = 0

    @property
    def has_crashed(self) -> bool:
        """Whether it ended without having been asked to."""
        return self.status in ("failed", "lost")


@dataclass(frozen=True)
class Snapshot:
    """All that is known of a query.

    Attributes:
        id: Spark's id of the query, which it keeps over restarts; ``name``: the name that the user gave it.
        checkpoint: its checkpoint location; empty: it has none that lasts.
        at: when this was known.
        is_live: whether the driver of the query tells it; else it was read from the history.
        read_at: when it was read from the history; None: it was not.
        plan: of its programs; None: nobody has told.
        run: the running run, or the last one.
        earlier: the runs before it, the newest first.
        epochs: its newest epochs, the oldest first.
        missing: what is not known, as messages for people.
        heartbeat: what the driver knew last; None: the query has ended, or its driver tells nothing.
        state_sizes: about how many bytes each state takes, by uid and name; only in a bundle, for which all is read.
    """

    id: str
    name: str
    checkpoint: str
    at: int
    is_live: bool
    plan: Plan | None
    run: Run
    earlier: list[Run] = field(default_factory=list)
    epochs: list[EpochRun] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    heartbeat: Heartbeat | None = None
    read_at: int | None = None
    state_sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def newest(self) -> EpochRun | None:
        """The newest epoch; None: there is none yet."""
        return self.epochs[-1] if self.epochs else None


def rows_per_second(epochs: Sequence[EpochRun]) -> float | None:
    """Return how many rows epochs read in a second of the time from their start to their end; None: no time passed."""
    took = epochs[-1].began + epochs[-1].duration - epochs[0].began if epochs else 0
    return 1000 * sum(each.rows for each in epochs) / took if took > 0 else None
