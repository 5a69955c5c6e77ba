"""Reads the tasks' metrics from a query's progress."""

from __future__ import annotations

from typing import Any, Literal, overload

from pillarbox._elements.task_report import TaskReport
from pillarbox._errors import ProgramError, shorten
from pillarbox._reports.operator_report import OperatorReports, by_operator
from pillarbox._reports.progress import tasks_of


@overload
def metrics(progress: Any) -> list[TaskReport]: ...
@overload
def metrics(progress: Any, by: Literal["task"]) -> list[TaskReport]: ...
@overload
def metrics(progress: Any, by: Literal["operator"]) -> OperatorReports: ...


def metrics(progress: Any, by: Literal["task", "operator"] = "task") -> list[TaskReport] | OperatorReports:
    """Return the metrics of an epoch, by task or by operator, for all programs in the query.

    A task that ran twice because its output was lost with its executor is listed twice by task, but counted once by
    operator.

    Example::

        print(pillarbox.metrics(query.lastProgress, by="operator"))
        for task in pillarbox.metrics(query.lastProgress):
            print(task.uid, task.subtask, task.records_in, task.busy_ms)

    Args:
        by: ``"task"`` returns a :class:`TaskReport` per task. ``"operator"`` returns an :class:`OperatorReport` per
            vertex (operator chain), in a list that prints as a table.
        progress: a query's ``lastProgress``, an element of its ``recentProgress``, or an ``onQueryProgress`` event, as
            an object or as parsed JSON.

    Raises:
        ProgramError: `progress` has another type.
    """
    if by not in ("task", "operator"):
        raise ProgramError(f'metrics(): by= must be "task" or "operator", not {shorten(by)}')
    tasks = tasks_of(progress)
    return by_operator(tasks) if by == "operator" else tasks
