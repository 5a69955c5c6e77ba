"""The metrics of all tasks of an operator, added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from pillarbox._elements import TaskReport, told

# Counters of which the largest counts: the counters of different tasks are no parts of a sum.
LARGEST_COUNTERS = ("in_flight_max", "latency_p50_us", "latency_p95_us", "latency_p99_us", "rate_limited_ms")

# How fields of tasks make the fields of their operator.
_SUMS = (
    *("records_out", "bytes_out", "busy_ms", "idle_ms", "back_pressured_ms", "state_ms"),
    *("home_restarts", "home_cold_starts", "home_adoptions"),
)
_LOWEST = ("watermark", "next_wake_up", "state_format")
_LARGEST = ("rate_limited_ms", "alignment_ms", "mailbox_latency_ms")


@dataclass(frozen=True)
class OperatorReport:
    """The metrics of the tasks of a vertex that ran in an epoch, added up. Times are in milliseconds.

    Attributes:
        vertex: names of the vertex's operators.
        uid: the uid of its first operator; empty for a source.
        level: how many shuffles it is away from the sources.
        epoch: number of the epoch.
        tasks: how many of its tasks ran: without input, those that had something to do.
        records_in: records that came in. A record that was broadcast counts once, although each task got it.
        records_out: records that were sent: to each task that gets a record that is broadcast.
        bytes_out: bytes of the buffers that were sent.
        busy_ms: time in none of the next three states, of all tasks together.
        idle_ms: time without input.
        back_pressured_ms: time in which the output was not taken.
        state_ms: time for bringing the state to the store's version, and for writing it.
        busiest: the subtask with the largest ``busy_ms``, and the first of several; of a source, the partition.
        busiest_ms: its ``busy_ms``.
        counters: the operators' own counts, and those of the user's functions, by ``uid.name``; of latencies, of
            ``in_flight_max`` and of ``rate_limited_ms`` the largest.
        watermark: the lowest event time of a task, epoch milliseconds. This and what follows: None for a source.
        keys: keys with state or timers, in the tasks that ran.
        timers: timers of all keys, of both clocks.
        next_wake_up: when a task has something to do even without input (epoch milliseconds); None: never.
        unfinished: the subtasks that carry requests into the next epoch.
        state_bytes: the approximate size of the state when it is written.
        state_bytes_written: what this epoch wrote of it.
        rate_limited_ms: the longest time in which the next request of a task waited for a rate limit; None: there is no
            rate limit.
        most_back_pressured: the subtask with the largest ``back_pressured_ms``; None: no task waited for its output to
            be taken.
        most_back_pressured_ms: its ``back_pressured_ms``.
        alignment_ms: the longest time of a task from its first barrier to its last.
        mailbox_latency_ms: the longest time that a probe waited for its turn in a mailbox; also of a source. None: no
            probe has run.
        state_syncs: how many tasks got to the store's version in which way: ``"in step"``, ``"loaded"``, ...
        state_format: as in a :class:`TaskReport`. If tasks differ, it is a format that says ``"pickle: "``.
        gauges: the lowest and the highest value of each gauge of the user's functions, by ``uid.name``.
        home_restarts: homes that were started because the home before ended, hung or was lost.
        home_cold_starts: homes that had nothing of the run.
        home_adoptions: homes that a new starter took over from one that had ended.
        fallbacks: how many tasks ran in Python workers of Spark's although they should have homes, by the reason.
        program: as in a :class:`TaskReport`, and ``number``.
        began: when the first of its tasks began, and ``ended``: when the last one was done (epoch ms).
        operators: for each operator of the chain, the head first, how many records came in and went out.
        repeated: how many of its tasks Spark had to repeat.
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

    def __repr__(self) -> str:
        return told(self, {each.name: getattr(self, each.name) for each in fields(self)})


class OperatorReports(list[OperatorReport]):
    """A list of reports, which is a table when it is printed."""

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
    """Return the columns that a table has only if something has happened."""
    return {
        "restarts": [each.home_restarts for each in reports],
        "cold starts": [each.home_cold_starts for each in reports],
        "adoptions": [each.home_adoptions for each in reports],
        "in workers": [sum(each.fallbacks.values()) for each in reports],
    }


def _shown(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def by_operator(tasks: Iterable[TaskReport]) -> OperatorReports:
    """Add up the metrics of the tasks of each vertex."""
    groups: dict[tuple[str, int, int, str, str], dict[int, TaskReport]] = {}
    repeated: Counter[tuple[str, int, int, str, str]] = Counter()
    for task in tasks:
        place = task.program, task.level, task.number, task.uid, task.vertex
        # A task whose output was lost with its executor has run twice, and counts once.
        groups.setdefault(place, {})[task.subtask] = task
        repeated[place] += bool(task.attempt)
    found = sorted(groups.items(), key=lambda group: group[0][1])
    return OperatorReports(_added_up(list(group.values()), repeated[place]) for place, group in found)


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
        **{name: total(name) for name in _SUMS},
        **{name: of_all(name, min) for name in _LOWEST},
        **{name: of_all(name, max) for name in _LARGEST},
    )


def _operators(tasks: Sequence[TaskReport]) -> list[list[int]]:
    counted = [task.operators for task in tasks if task.operators]
    return [[sum(counts) for counts in zip(*each)] for each in zip(*counted)]


def _counters(tasks: Sequence[TaskReport]) -> dict[str, int]:
    found: dict[str, int] = {}
    for task in tasks:
        for name, count in task.counters.items():
            largest = name.rpartition(".")[2] in LARGEST_COUNTERS
            found[name] = max(found.get(name, 0), count) if largest else found.get(name, 0) + count
    return found


def _gauges(tasks: Sequence[TaskReport]) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for task in tasks:
        for name, value in task.gauges.items():
            lowest, highest = found.get(name, (value, value))
            found[name] = min(lowest, value), max(highest, value)
    return found
