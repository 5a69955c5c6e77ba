"""Keys, timers and bytes of state: of each subtask as it reported last, as not every subtask runs in each epoch."""

from __future__ import annotations

from dataclasses import replace

from pillarbox._elements import TaskReport
from pillarbox._reports.operator_report import OperatorReport
from pillarbox_tools.model.snapshot import EpochRun


class Sizes:
    """Completes epochs. One thread at a time may call its method."""

    def __init__(self) -> None:
        self._subtasks: dict[tuple[str, int], dict[int, TaskReport]] = {}

    def complete(self, epoch: EpochRun) -> EpochRun:
        """Return an epoch whose vertices have the sizes of all their subtasks, also of those that did not run."""
        for task in epoch.tasks:
            if task.keys is not None or task.timers is not None or task.state_bytes is not None:
                self._subtasks.setdefault((task.program, task.number), {})[task.subtask] = task
        return replace(epoch, vertices=[self._complete(each) for each in epoch.vertices])

    def _complete(self, vertex: OperatorReport) -> OperatorReport:
        if vertex.keys is None:
            return vertex
        tasks = self._subtasks.get((vertex.program, vertex.number), {}).values()
        return replace(
            vertex,
            keys=sum(each.keys or 0 for each in tasks),
            timers=sum(each.timers or 0 for each in tasks),
            state_bytes=sum(each.state_bytes or 0 for each in tasks),
        )
