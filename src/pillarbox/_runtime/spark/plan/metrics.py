"""The tasks' metrics as a query's progress reports them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, overload

from pillarbox._elements import TaskReport, report_of_text
from pillarbox._errors import ProgramError, shorten
from pillarbox._runtime.operator_report import OperatorReports, by_operator

_NAME = re.compile(r"pillarbox( \d+)?( level \d+)?")


@overload
def metrics(progress: Any) -> list[TaskReport]: ...
@overload
def metrics(progress: Any, by: Literal["task"]) -> list[TaskReport]: ...
@overload
def metrics(progress: Any, by: Literal["operator"]) -> OperatorReports: ...


def metrics(progress: Any, by: Literal["task", "operator"] = "task") -> list[TaskReport] | OperatorReports:
    """Return the metrics of an epoch, of all programs in the query: of each task, or added up by operator.

    A task whose output was lost with its executor runs again: it is among the tasks twice, and counts once in the
    sums.

    Example::

        print(pillarbox.metrics(query.lastProgress, by="operator"))
        for task in pillarbox.metrics(query.lastProgress):
            print(task.uid, task.subtask, task.records_in, task.busy_ms)

    Args:
        by: ``"task"``: a :class:`TaskReport` for each task. ``"operator"``: an :class:`OperatorReport` for each vertex,
            which is an operator with those that are chained to it; when the list is printed, it is a table.
        progress: a query's ``lastProgress``, one of its ``recentProgress``, the event of a listener's
            ``onQueryProgress``, or a dict made of its JSON.

    Raises:
        ProgramError: it is something else.
    """
    if by not in ("task", "operator"):
        raise ProgramError(f'metrics(): by is "task" or "operator", not {shorten(by)}')
    tasks = tasks_of(progress)
    return by_operator(tasks) if by == "operator" else [task for _, task in tasks]


def tasks_of(progress: Any) -> list[tuple[str, TaskReport]]:
    """Return the metrics of all tasks of an epoch, each with the name of its program's and level's metrics."""
    progress = getattr(progress, "progress", progress)
    if progress is None:
        return []
    is_dict = isinstance(progress, Mapping)
    observed = progress.get("observedMetrics") if is_dict else getattr(progress, "observedMetrics", None)
    if observed is None:
        raise ProgramError(f"metrics() takes the progress of a query, such as lastProgress, not {shorten(progress)}")
    tasks: list[tuple[str, TaskReport]] = []
    for name, values in observed.items():
        if _NAME.fullmatch(name):
            tasks += [(name, report_of_text(text)) for text in _only(values) or ()]
    return tasks


def _only(row: Any) -> Any:
    """Return the only value of a row.

    Args:
        row: a row of Spark's, a list, or a dict; in a progress under Spark Connect it has ``values`` and a ``schema``.
    """
    if isinstance(row, list):
        return row[0]
    named = row if isinstance(row, Mapping) else row.asDict()
    return named["values"][0] if "values" in named else named["tasks"]
