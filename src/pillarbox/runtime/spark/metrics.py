"""The tasks' metrics as a query's progress reports them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pillarbox.elements import TaskReport
from pillarbox.runtime.spark.output import REPORT_TYPES

__all__ = ["metrics"]

_NAME = re.compile(r"pillarbox( \d+)?( level \d+)?")


def metrics(progress: Any) -> list[TaskReport]:
    """Return the metrics of all tasks of an epoch, of all programs in the query.

    A task whose output was lost with its executor runs again, and is among them twice.

    Example::

        for task in pillarbox.metrics(query.lastProgress):
            print(task.uid, task.subtask, task.records_in, task.busy_ms)

    Args:
        progress: a query's ``lastProgress``, one of its ``recentProgress``, the event of a listener's
            ``onQueryProgress``, or a dict made of its JSON.
    """
    progress = getattr(progress, "progress", progress)
    if progress is None:
        return []
    observed = progress["observedMetrics"] if isinstance(progress, Mapping) else progress.observedMetrics
    tasks: list[TaskReport] = []
    for name, values in observed.items():
        if _NAME.fullmatch(name):
            # Rows and lists (those of Spark Connect, which have no names) alike.
            found = values["tasks"] if isinstance(values, Mapping) else values[0]
            tasks += map(_task, found or ())
    return tasks


def _task(values: Any) -> TaskReport:
    named = dict(values) if isinstance(values, Mapping) else dict(zip(REPORT_TYPES, values))
    for name in ("counters", "gauges"):
        named[name] = dict(named.get(name) or {})
    # A report that another version of pillarbox wrote may have other metrics.
    known: dict[str, Any] = {name: named.get(name) for name in REPORT_TYPES}
    return TaskReport(**known)
