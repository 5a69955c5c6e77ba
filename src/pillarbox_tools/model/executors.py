"""The executors of a query: the processes in which its tasks live, added up from the reports of tasks."""

from __future__ import annotations

from dataclasses import dataclass

from pillarbox._elements import TaskReport
from pillarbox_tools.model.snapshot import EpochRun, ExecutorRun

# The partitions of a source may become fewer: one without a task in so many epochs is gone.
_SOURCE_EPOCHS = 20


@dataclass(frozen=True)
class _Living:
    """Where a subtask lives, as of its last report, and what it has there."""

    host: str
    executor: int | None
    process: int
    epoch: int
    has_home: bool
    is_source: bool
    state_bytes: int
    keys: int


class Executors:
    """Adds up epochs. In an epoch only tasks with work report, so the last report of each subtask counts.

    One thread at a time may call its methods.
    """

    def __init__(self) -> None:
        self._subtasks: dict[tuple[str, int, int], _Living] = {}
        self._private_bytes: dict[tuple[str, int], int] = {}
        self._limits: dict[tuple[str, int | None], int] = {}

    def add(self, epoch: EpochRun) -> None:
        """Add an epoch, which has its tasks."""
        for task in epoch.tasks:
            if task.host is None or task.process is None:
                continue
            self._subtasks[task.program, task.number, task.subtask] = _living(task, epoch.number)
            if task.private_bytes is not None:
                self._private_bytes[task.host, task.process] = task.private_bytes
            if task.memory_limit is not None:
                self._limits[task.host, task.executor] = task.memory_limit
        oldest = epoch.number - _SOURCE_EPOCHS
        self._subtasks = {
            place: each for place, each in self._subtasks.items() if not each.is_source or each.epoch > oldest
        }
        processes = {(each.host, each.process) for each in self._subtasks.values()}
        self._private_bytes = {place: size for place, size in self._private_bytes.items() if place in processes}
        executors = {(each.host, each.executor) for each in self._subtasks.values()}
        self._limits = {place: limit for place, limit in self._limits.items() if place in executors}

    def all(self) -> list[ExecutorRun]:
        """Return the executors, by host and process."""
        on_host: dict[str, set[int]] = {}
        for each in self._subtasks.values():
            if each.executor is not None:
                on_host.setdefault(each.host, set()).add(each.executor)
        groups: dict[tuple[str, int | None], list[_Living]] = {}
        for each in self._subtasks.values():
            executor = each.executor
            if executor is None and each.host in on_host:
                # It is in the only executor of its host; among several it is left out.
                executor, *others = on_host[each.host]
                if others:
                    continue
            groups.setdefault((each.host, executor), []).append(each)
        places = sorted(groups, key=lambda place: (place[0], place[1] or 0))
        return [self._executor(*place, groups[place]) for place in places]

    def _executor(self, host: str, executor: int | None, living: list[_Living]) -> ExecutorRun:
        homes = {each.process for each in living if each.has_home}
        workers = {each.process for each in living} - homes
        return ExecutorRun(
            host=host,
            executor=executor,
            homes=len(homes),
            workers=len(workers),
            home_bytes=self._bytes(host, homes),
            worker_bytes=self._bytes(host, workers),
            state_bytes=sum(each.state_bytes for each in living),
            keys=sum(each.keys for each in living),
            limit=self._limits.get((host, executor), self._limits.get((host, None))),
        )

    def _bytes(self, host: str, processes: set[int]) -> int | None:
        """Return the bytes of processes together; None: some of them do not tell."""
        sizes = [self._private_bytes.get((host, each)) for each in processes]
        known = [each for each in sizes if each is not None]
        return sum(known) if len(known) == len(sizes) else None


def _living(task: TaskReport, epoch: int) -> _Living:
    assert task.host is not None and task.process is not None
    return _Living(
        host=task.host,
        executor=task.executor,
        process=task.process,
        epoch=epoch,
        has_home=not task.is_source and task.fallback is None,
        is_source=task.is_source,
        state_bytes=task.state_bytes or 0,
        keys=task.keys or 0,
    )
