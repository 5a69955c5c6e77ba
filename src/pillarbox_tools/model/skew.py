"""Whether a few tasks, or a few keys, have most of the work."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import sqrt

from pillarbox._elements import TaskReport
from pillarbox._reports.operator_report import OperatorReport
from pillarbox_tools.model.snapshot import EpochRun


@dataclass(frozen=True)
class HeavyKey:
    """A key with a large share of a vertex's records.

    Attributes:
        key: the key as text, cut short.
        subtask: the subtask that has it.
        share: its estimated share of the records of the vertex, from 0 to 1.
        error: the share is known to about plus or minus this (two standard errors of the sample).
    """

    key: str
    subtask: int
    share: float
    error: float


@dataclass(frozen=True)
class Skew:
    """How evenly the tasks of a vertex are loaded in an epoch.

    Attributes:
        busiest: the subtask that was busy for longest.
        busiest_ms: how long it was busy.
        factor: that time, divided by the mean of the tasks that ran.
        tasks: how many tasks ran.
        heavy: the heaviest keys, the heaviest first.
    """

    program: str
    vertex: int
    busiest: int
    busiest_ms: int
    factor: float
    tasks: int
    heavy: list[HeavyKey] = field(default_factory=list)


# So many keys of a vertex are named, each with at least this share of its records.
_LEAST = 0.02
_NAMED = 5


def skew_of(epoch: EpochRun) -> list[Skew]:
    """Return for each vertex of an epoch whose tasks are known how evenly they are loaded."""
    groups: dict[tuple[str, int], list[TaskReport]] = defaultdict(list)
    for task in epoch.tasks:
        groups[task.program, task.number].append(task)
    return [
        _skew(each, groups[each.program, each.number]) for each in epoch.vertices if groups[each.program, each.number]
    ]


def _skew(run: OperatorReport, tasks: list[TaskReport]) -> Skew:
    """Return the skew of a vertex: the history has all of its sums, and not all of its tasks."""
    mean = run.busy_ms / run.tasks
    records = sum(task.records_in for task in tasks) if run.tasks == len(tasks) else run.records_in
    # A key has at most all records of its task.
    least = max(1, _LEAST * records)
    heavy = [each for task in tasks if task.records_in >= least for each in _heavy_keys(task, records)]
    heavy.sort(key=lambda each: -each.share)
    factor = run.busiest_ms / mean if mean else 1.0
    return Skew(run.program, run.number, run.busiest, run.busiest_ms, factor, run.tasks, heavy[:_NAMED])


def _heavy_keys(task: TaskReport, records: int) -> list[HeavyKey]:
    """Return the keys of a task with a large share of all records of its vertex."""
    if task.key_sample is None:
        return []
    size, named = task.key_sample
    weight = task.records_in / records
    found: list[HeavyKey] = []
    for key, count in named:
        share = count / size
        if share * weight >= _LEAST:
            found.append(HeavyKey(key, task.subtask, share * weight, 2 * sqrt(share * (1 - share) / size) * weight))
    return found
