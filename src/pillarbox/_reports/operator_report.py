"""Aggregates the metrics of a vertex (operator chain) over its tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from pillarbox._elements.task_report import TaskReport, metrics_repr

# Aggregated by maximum, not by sum.
LARGEST_COUNTERS = (
    "in_flight_max",
    "longest_key",
    "latency_p50_us",
    "latency_p95_us",
    "latency_p99_us",
    "rate_limited_ms",
    "blocked_ms",
)

_SUMS = (
    *("records_out", "bytes_out", "busy_ms", "idle_ms", "back_pressured_ms", "state_ms"),
    *("home_restarts", "home_cold_starts", "home_adoptions"),
)
_LOWEST = ("watermark", "next_wake_up", "state_format")
_LARGEST = ("rate_limited_ms", "alignment_ms", "mailbox_latency_ms")


@dataclass(frozen=True)
class OperatorReport:
    """The metrics of an epoch, aggregated over a vertex's tasks. Durations are in ms, and are sums unless noted.

    Fields that are not described here are as in :class:`TaskReport`. For a source, ``watermark``, ``keys``, ``timers``,
    ``next_wake_up`` and the state's sizes and format are None.

    Attributes:
        tasks: number of tasks that ran. Tasks without work do not run.
        records_in: a broadcast record counts once.
        records_out: a broadcast record counts once per receiving task.
        bytes_out: size of the buffers sent.
        busiest: the first subtask (for a source, the first partition) with the largest ``busy_ms``.
        counters: sums, except that latencies, ``in_flight_max``, ``longest_key``, ``rate_limited_ms`` and
            ``blocked_ms`` are maxima.
        watermark: the lowest watermark of any task (Unix time in ms).
        keys: number of keys with state or timers, in the tasks that ran.
        next_wake_up: when a task next has work even without input (Unix time in ms), or None if never.
        unfinished: the subtasks whose requests are carried into the next epoch.
        rate_limited_ms: the maximum of all tasks.
        most_back_pressured: the subtask with the largest ``back_pressured_ms``, or None.
        alignment_ms: the maximum of all tasks.
        mailbox_latency_ms: the maximum of all tasks.
        state_syncs: number of tasks by :attr:`TaskReport.state_sync`.
        state_format: as in :class:`TaskReport`. If tasks differ, the format of a task that pickles.
        gauges: maps ``uid.name`` to a gauge's lowest and highest value.
        fallbacks: maps reasons to the numbers of tasks that ran in a Spark Python worker rather than in a home process.
        began: when the first task began (Unix time in ms).
        ended: when the last task ended.
        operators: ``[records in, records out]`` of each operator, in chain order.
        repeated: number of tasks that Spark ran more than once.
        hot_keys: maps an async keyed function's uid to the key (as text) with the longest queue of waiting records.
    """

    vertex: str
    uid: str
    level: int
    epoch: int
    tasks: int
    records_in: int
    records_out: int
    bytes_out: int
    busy_ms: int
    idle_ms: int
    back_pressured_ms: int
    state_ms: int
    busiest: int
    busiest_ms: int
    counters: dict[str, int] = field(default_factory=dict)
    watermark: int | None = None
    keys: int | None = None
    timers: int | None = None
    next_wake_up: int | None = None
    unfinished: list[int] = field(default_factory=list)
    state_bytes: int | None = None
    state_bytes_written: int | None = None
    rate_limited_ms: int | None = None
    most_back_pressured: int | None = None
    most_back_pressured_ms: int = 0
    alignment_ms: int = 0
    mailbox_latency_ms: int | None = None
    state_syncs: dict[str, int] = field(default_factory=dict)
    state_format: str | None = None
    gauges: dict[str, tuple[float, float]] = field(default_factory=dict)
    home_restarts: int = 0
    home_cold_starts: int = 0
    home_adoptions: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)
    program: str = ""
    number: int = -1
    began: int = 0
    ended: int = 0
    operators: list[list[int]] = field(default_factory=list)
    repeated: int = 0
    hot_keys: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return metrics_repr(self, {field.name: getattr(self, field.name) for field in fields(self)})


class OperatorReports(list[OperatorReport]):
    """A list of reports that prints as a table."""

    def __str__(self) -> str:
        head: tuple[str, ...] = (
            "operator",
            "tasks",
            "in",
            "out",
            "busy ms",
            "busiest",
            "state ms",
            "keys",
            "state",
            "limited ms",
        )
        rows = [head, *map(_row, self)]
        for name, counts in _of_homes(self).items():
            if any(counts):
                rows = [(*row, cell) for row, cell in zip(rows, (name, *map(_shown, counts)))]
        head = rows[0]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        lines = (
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))] for row in rows
        )
        return "\n".join("  ".join(line).rstrip() for line in lines)


def _row(report: OperatorReport) -> tuple[str, ...]:
    busiest = f"{report.busiest_ms:,} ({report.busiest})"
    numbers = (report.tasks, report.records_in, report.records_out, report.busy_ms)
    rest = (report.state_ms, report.keys, report.state_bytes, report.rate_limited_ms)
    return (report.uid or report.vertex, *map(_shown, numbers), busiest, *map(_shown, rest))


def _of_homes(reports: Sequence[OperatorReport]) -> dict[str, list[int]]:
    return {
        "restarts": [report.home_restarts for report in reports],
        "cold starts": [report.home_cold_starts for report in reports],
        "adoptions": [report.home_adoptions for report in reports],
        "in workers": [sum(report.fallbacks.values()) for report in reports],
    }


def _shown(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def by_operator(tasks: Iterable[TaskReport]) -> OperatorReports:
    groups: dict[tuple[str, int, int, str, str], dict[int, TaskReport]] = {}
    repeated: Counter[tuple[str, int, int, str, str]] = Counter()
    for task in tasks:
        group_key = task.program, task.level, task.number, task.uid, task.vertex
        groups.setdefault(group_key, {})[task.subtask] = task
        repeated[group_key] += bool(task.attempt)
    ordered = sorted(groups.items(), key=lambda group: group[0][1])
    return OperatorReports(_added_up(list(group.values()), repeated[group_key]) for group_key, group in ordered)


def _added_up(tasks: Sequence[TaskReport], repeated: int) -> OperatorReport:
    first = tasks[0]

    def total(name: str) -> Any:
        return sum(getattr(task, name) or 0 for task in tasks)

    def of_all(name: str, choose: Any) -> Any:
        return choose((value for task in tasks if (value := getattr(task, name)) is not None), default=None)

    behind_shuffle = first.level > 0
    busiest = max(tasks, key=lambda task: (task.busy_ms, -task.subtask))
    slowed = max(tasks, key=lambda task: (task.back_pressured_ms, -task.subtask))
    copies = [task.broadcast_in or 0 for task in tasks]
    return OperatorReport(
        vertex=first.vertex,
        uid=first.uid,
        level=first.level,
        epoch=max(task.epoch for task in tasks),
        tasks=len(tasks),
        records_in=total("records_in") - sum(copies) + max(copies),
        busiest=busiest.subtask,
        busiest_ms=busiest.busy_ms,
        counters=_counters(tasks),
        keys=total("keys") if behind_shuffle else None,
        timers=total("event_time_timers") + total("processing_time_timers") if behind_shuffle else None,
        unfinished=sorted(task.subtask for task in tasks if task.unfinished),
        state_bytes=total("state_bytes") if behind_shuffle else None,
        state_bytes_written=total("state_bytes_written") if behind_shuffle else None,
        most_back_pressured=slowed.subtask if slowed.back_pressured_ms else None,
        most_back_pressured_ms=slowed.back_pressured_ms,
        state_syncs=dict(Counter(task.state_sync for task in tasks if task.state_sync is not None)),
        gauges=_gauges(tasks),
        fallbacks=dict(Counter(task.fallback for task in tasks if task.fallback is not None)),
        program=first.program,
        number=first.number,
        began=min(task.started for task in tasks),
        ended=max(task.started + task.total_ms for task in tasks),
        operators=_operators(tasks),
        repeated=repeated,
        hot_keys=_hot_keys(tasks),
        **{name: total(name) for name in _SUMS},
        **{name: of_all(name, min) for name in _LOWEST},
        **{name: of_all(name, max) for name in _LARGEST},
    )


def _operators(tasks: Sequence[TaskReport]) -> list[list[int]]:
    counted = [task.operators for task in tasks if task.operators]
    return [[sum(counts) for counts in zip(*operator)] for operator in zip(*counted)]


def _counters(tasks: Sequence[TaskReport]) -> dict[str, int]:
    counters: dict[str, int] = {}
    for task in tasks:
        for name, count in task.counters.items():
            largest = name.rpartition(".")[2] in LARGEST_COUNTERS
            counters[name] = max(counters.get(name, 0), count) if largest else counters.get(name, 0) + count
    return counters


def _hot_keys(tasks: Sequence[TaskReport]) -> dict[str, str]:
    ordered = sorted(
        (task.counters.get(f"{uid}.longest_key", 0), uid, key)
        for task in tasks
        for uid, key in (task.hot_keys or {}).items()
    )
    return {uid: key for _, uid, key in ordered}


def _gauges(tasks: Sequence[TaskReport]) -> dict[str, tuple[float, float]]:
    gauges: dict[str, tuple[float, float]] = {}
    for task in tasks:
        for name, value in task.gauges.items():
            lowest, highest = gauges.get(name, (value, value))
            gauges[name] = min(lowest, value), max(highest, value)
    return gauges
