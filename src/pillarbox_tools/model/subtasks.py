"""Keeps the last reports of a query's subtasks, because an epoch runs only subtasks that have work."""

from __future__ import annotations

from dataclasses import replace

from pillarbox._elements.task_report import TaskReport
from pillarbox._reports.operator_report import OperatorReport
from pillarbox_tools.model.snapshot import SnapshotEpoch, SnapshotExecutor, VertexId, by_vertex, vertex_id

# A source's subtask is dropped after this many epochs without a task, because partitions can disappear.
_SOURCE_EPOCHS = 20
_SELDOM = ("memory_limit", "private_bytes")


class Subtasks:
    """The last report of each subtask. Not thread-safe."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int, int], tuple[int, TaskReport]] = {}

    def add(self, epoch: SnapshotEpoch) -> SnapshotEpoch:
        for task in epoch.tasks:
            subtask = task.program, task.number, task.subtask
            _, before = self._last.get(subtask, (0, task))
            is_there = (before.host, before.process) == (task.host, task.process)
            # A task reports its memory limit only once, and its memory only occasionally.
            carried = {name: getattr(task, name) or getattr(before, name) for name in _SELDOM if is_there}
            self._last[subtask] = epoch.number, replace(task, **carried)
        oldest = epoch.number - _SOURCE_EPOCHS
        self._last = {
            subtask: (number, task) for subtask, (number, task) in self._last.items() if task.level or number > oldest
        }
        groups = by_vertex(task for _, task in self._last.values())
        return replace(epoch, vertices=[_completed(vertex, groups) for vertex in epoch.vertices])

    def executors(self) -> list[SnapshotExecutor]:
        hosts: dict[str, list[TaskReport]] = {}
        for _, task in sorted(self._last.values(), key=lambda pair: pair[0]):
            if task.host and task.process is not None:
                hosts.setdefault(task.host, []).append(task)
        runs: list[SnapshotExecutor] = []
        for host, tasks in sorted(hosts.items()):
            executors = sorted({task.executor for task in tasks if task.executor is not None})
            # Tasks without an executor id belong to their host's only executor, if any.
            for executor in executors or (None,):
                of_executor = [task for task in tasks if len(executors) < 2 or task.executor == executor]
                runs.append(_executor_run(host, executor, of_executor))
        return runs


def _executor_run(host: str, executor: int | None, tasks: list[TaskReport]) -> SnapshotExecutor:
    homes = {task.process for task in tasks if task.level and task.fallback is None}
    workers = {task.process for task in tasks} - homes
    sizes = {task.process: task.private_bytes for task in tasks if task.private_bytes}
    home_bytes, worker_bytes = (_sum([sizes.get(process) for process in processes]) for processes in (homes, workers))
    state_bytes, keys = (sum(getattr(task, name) or 0 for task in tasks) for name in ("state_bytes", "keys"))
    limit = next((task.memory_limit for task in reversed(tasks) if task.memory_limit), None)
    return SnapshotExecutor(
        host, executor, len(homes), len(workers), home_bytes, worker_bytes, state_bytes, keys, limit
    )


def _completed(vertex: OperatorReport, groups: dict[VertexId, list[TaskReport]]) -> OperatorReport:
    if vertex.keys is None:
        return vertex
    tasks = groups[vertex_id(vertex)]
    keys, timers, size = (sum(getattr(task, name) or 0 for task in tasks) for name in ("keys", "timers", "state_bytes"))
    return replace(vertex, keys=keys, timers=timers, state_bytes=size)


def _sum(sizes: list[int | None]) -> int | None:
    available = [size for size in sizes if size is not None]
    return sum(available) if len(available) == len(sizes) else None
