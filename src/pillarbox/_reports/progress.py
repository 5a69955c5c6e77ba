"""Reads task reports from a query's progress."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from pillarbox._elements.task_report import TaskReport, report_of_text
from pillarbox._errors import ProgramError, shorten

# Earlier versions did not write an id.
_NAME = re.compile(r"pillarbox(?:_([0-9a-f]{12}))?(?: level \d+)?")


def program_names(ids: Iterable[str]) -> dict[str, str]:
    return {
        program: "pillarbox" if number == 1 else f"pillarbox {number}"
        for number, program in enumerate(sorted(set(ids)), 1)
    }


def tasks_of(progress: Any) -> list[TaskReport]:
    progress = getattr(progress, "progress", progress)
    if progress is None:
        return []
    is_dict = isinstance(progress, Mapping)
    observed = progress.get("observedMetrics") if is_dict else getattr(progress, "observedMetrics", None)
    if observed is None:
        raise ProgramError(f"metrics() takes the progress of a query, such as lastProgress, not {shorten(progress)}")
    tasks: list[TaskReport] = []
    ours = [(match[1] or "", values) for name, values in observed.items() if (match := _NAME.fullmatch(name))]
    names = program_names(program for program, _ in ours)
    for program, values in ours:
        tasks += [replace(report_of_text(text), program=names[program]) for text in _only(values) or ()]
    return tasks


def _only(row: Any) -> Any:
    if isinstance(row, list):
        return row[0]
    named = row if isinstance(row, Mapping) else row.asDict()
    return named["values"][0] if "values" in named else named["tasks"]


def millis(timestamp: str) -> int:
    return int(datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp() * 1000)


def is_idle(progress: Mapping[str, Any]) -> bool:
    return "addBatch" not in (progress["durationMs"] or ())
