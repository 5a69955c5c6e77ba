"""The last reports of a query's subtasks. An epoch runs only the subtasks that have work."""

from __future__ import annotations

from dataclasses import replace

from pillarbox._elements import TaskReport
from pillarbox._reports.operator_report import OperatorReport
from pillarbox_tools.model.snapshot import EpochRun, ExecutorRun, VertexId, by_vertex, vertex_id

# Source partitions can disappear: a subtask without a task in this many epochs is dropped.
_SOURCE_EPOCHS = 20
_SELDOM = ("memory_limit", "private_bytes")


class Subtasks:
    """The last report of each subtask. One thread at a time may call its methods."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int, int], tuple[int, TaskReport]] = {}

    def add(self, epoch: EpochRun) -> EpochRun:
        for task in epoch.tasks:
            subtask = task.program, task.number, task.subtask
            _, before = self._last.get(subtask, (0, task))
            is_there = (before.host, before.process) == (task.host, task.process)
            # A task reports its memory limit once, and its memory occasionally.
            carried = {name: getattr(task, name) or getattr(before, name) for name in _SELDOM if is_there}
            self._last[subtask] = epoch.number, replace(task, **carried)
        oldest = epoch.number - _SOURCE_EPOCHS
        self._last = {
            subtask: (number, task) for subtask, (number, task) in self._last.items() if task.level or number > oldest
        }
        groups = by_vertex(task for _, task in self._last.values())
        return replace(epoch, vertices=[_completed(vertex, groups) for vertex in epoch.vertices])

    def executors(self) -> list[ExecutorRun]:
        last = [task for _, task in sorted(self._last.values(), key=lambda pair: pair[0])]
        living = [(task.host, task.executor, task) for task in last if task.host and task.process is not None]
        sizes = {(host, task.process): task.private_bytes for host, _, task in living if task.private_bytes}
        limits = {(host, executor): task.memory_limit for host, executor, task in living if task.memory_limit}
        on_host: dict[str, set[int | None]] = {}
        for host, executor, _ in living:
            on_host.setdefault(host, set()).add(executor)
        groups: dict[tuple[str, int | None], list[TaskReport]] = {}
        for host, executor, task in living:
            # Tasks without an executor id belong to their host's only executor, if any.
            executors = on_host[host] - {None} or {None}
            if executor is not None or len(executors) == 1:
                groups.setdefault((host, next(iter(executors)) if executor is None else executor), []).append(task)
        runs: list[ExecutorRun] = []
        for (host, executor), tasks in sorted(groups.items(), key=lambda group: (group[0][0], group[0][1] or 0)):
            homes = {task.process for task in tasks if task.level and task.fallback is None}
            workers = {task.process for task in tasks} - homes
            home_bytes, worker_bytes = (
                _sum([sizes.get((host, process)) for process in processes]) for processes in (homes, workers)
            )
            state_bytes, keys = (sum(getattr(task, name) or 0 for task in tasks) for name in ("state_bytes", "keys"))
            limit = limits.get((host, executor), limits.get((host, None)))
            counts = len(homes), len(workers), home_bytes, worker_bytes
            runs.append(ExecutorRun(host, executor, *counts, state_bytes, keys, limit))
        return runs


def _completed(vertex: OperatorReport, groups: dict[VertexId, list[TaskReport]]) -> OperatorReport:
    if vertex.keys is None:
        return vertex
    tasks = groups[vertex_id(vertex)]
    keys, timers, size = (sum(getattr(task, name) or 0 for task in tasks) for name in ("keys", "timers", "state_bytes"))
    return replace(vertex, keys=keys, timers=timers, state_bytes=size)


def _sum(sizes: list[int | None]) -> int | None:
    available = [size for size in sizes if size is not None]
    return sum(available) if len(available) == len(sizes) else None
