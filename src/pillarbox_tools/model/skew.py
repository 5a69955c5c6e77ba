"""Detects skew: a few tasks or keys have most of the work."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt

from pillarbox._elements.task_report import TaskReport
from pillarbox._reports.operator_report import OperatorReport
from pillarbox_tools.model.snapshot import SnapshotEpoch, by_vertex, vertex_id


@dataclass(frozen=True)
class HeavyKey:
    """A key with a large share of a vertex's records.

    Attributes:
        key: the key as text, shortened.
        share: estimated share of the vertex's records, from 0 to 1.
        error: two standard errors of the sampled share.
    """

    key: str
    subtask: int
    share: float
    error: float


@dataclass(frozen=True)
class Skew:
    """The load balance of a vertex's tasks in an epoch.

    Attributes:
        factor: the busiest subtask's busy time divided by the mean of all subtasks.
    """

    program: str
    vertex: int
    busiest: int
    busiest_ms: int
    factor: float
    tasks: int
    heavy: list[HeavyKey] = field(default_factory=list)


# A key is named if it has at least this share of its vertex's records. At most `_NAMED` keys are named.
_LEAST = 0.02
_NAMED = 5


def skew_of(epoch: SnapshotEpoch) -> list[Skew]:
    groups = by_vertex(epoch.tasks)
    return [_skew(vertex, tasks) for vertex in epoch.vertices if (tasks := groups.get(vertex_id(vertex)))]


def _skew(run: OperatorReport, tasks: list[TaskReport]) -> Skew:
    mean = run.busy_ms / run.tasks
    records = sum(task.records_in for task in tasks) if run.tasks == len(tasks) else run.records_in
    least = max(1, _LEAST * records)
    heavy = [heavy_key for task in tasks if task.records_in >= least for heavy_key in _heavy_keys(task, records)]
    heavy.sort(key=lambda heavy_key: -heavy_key.share)
    factor = run.busiest_ms / mean if mean else 1.0
    return Skew(run.program, run.number, run.busiest, run.busiest_ms, factor, run.tasks, heavy[:_NAMED])


def _heavy_keys(task: TaskReport, records: int) -> list[HeavyKey]:
    if task.key_sample is None:
        return []
    size, named = task.key_sample
    weight = task.records_in / records
    keys: list[HeavyKey] = []
    for key, count in named:
        share = count / size
        if share * weight >= _LEAST:
            keys.append(HeavyKey(key, task.subtask, share * weight, 2 * sqrt(share * (1 - share) / size) * weight))
    return keys
