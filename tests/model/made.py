"""Progress reports as Spark writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pillarbox._elements.task_report import TaskReport, text_of_report
from pillarbox._reports.plan import Plan, PlanEdge, PlanOperator, PlanVertex
from pillarbox_tools.model.query_model import QueryModel
from pillarbox_tools.model.snapshot import Snapshot, SnapshotRun

#: Start of the first epoch (epoch ms).
START = 1_700_000_000_000

_EMPTY = TaskReport("source", "", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, number=0, started=START, operators=[[0, 0]])
_KEYED = TaskReport(
    *("count", "count", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    watermark=0,
    keys=0,
    event_time_timers=0,
    processing_time_timers=0,
    state_bytes=0,
    number=1,
    started=START,
    operators=[[0, 0]],
)


_IDS = {"pillarbox": "000100000000", "pillarbox 2": "000200000000"}


def observed_as(program: str, level: int | None = None) -> str:
    """Return the name of a program's observed metrics. The default is its last level's."""
    return f"pillarbox_{_IDS[program]}" + ("" if level is None else f" level {level}")


def observed(metrics: Mapping[str, Any], nothing: Any) -> dict[str, Any]:
    if not any(name.startswith(observed_as("pillarbox 2")) for name in metrics):
        return dict(metrics)
    return {**metrics, **{name: nothing for program in _IDS if (name := observed_as(program)) not in metrics}}


def source(**values: Any) -> TaskReport:
    return replace(_EMPTY, **values)


def keyed(**values: Any) -> TaskReport:
    return replace(_KEYED, **values)


def progress(number: int, *reports: TaskReport, name: str = "pillarbox", **values: Any) -> dict[str, Any]:
    levels: dict[str, list[str]] = {}
    for report in reports:
        levels.setdefault(observed_as(name, None if report.level else 0), []).append(text_of_report(report))
    seconds = f"{number % 60:02d}"
    return {
        "batchId": number,
        "timestamp": f"2023-11-14T22:13:{seconds}.000Z",
        "durationMs": {"latestOffset": 5, "addBatch": 900, "walCommit": 50, "triggerExecution": 1000},
        "numInputRows": sum(report.records_in for report in reports if not report.level),
        "sources": [{"description": "rate", "numInputRows": 10, "startOffset": "1", "endOffset": {"t": {"0": 5}}}],
        "stateOperators": [{"commitTimeMs": 7}, {"commitTimeMs": 8}],
        "sink": {"numOutputRows": -1},
        "observedMetrics": observed({level: {"tasks": texts} for level, texts in levels.items()}, {"tasks": []}),
        **values,
    }


def plan() -> Plan:
    return Plan(
        [
            PlanVertex("pillarbox", 0, 0, "", 0, False, [], [PlanOperator("payments", "")]),
            PlanVertex(
                *("pillarbox", 1, 1, "process", 2, True, []),
                [PlanOperator("process: Count", "count"), PlanOperator("map", "map-3")],
            ),
        ],
        [
            PlanEdge("pillarbox", 0, 1, "", "key by column"),
            PlanEdge("pillarbox", 1, -1, "output", "rows"),
        ],
    )


def model(**values: Any) -> QueryModel:
    return query_model(
        "q", "counts", "/checkpoints/counts", plan(), SnapshotRun("r", START), **{"clock": lambda: START, **values}
    )


def query_model(id: str, name: str, checkpoint: str, plan: Plan | None, run: SnapshotRun, **values: Any) -> QueryModel:
    return QueryModel(Snapshot(id, name, checkpoint, 0, True, plan, run), **values)
