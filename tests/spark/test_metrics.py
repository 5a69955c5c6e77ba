"""Task metrics from whatever a progress report comes as."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import Row

from pillarbox import TaskReport, metrics
from pillarbox._runtime.spark.output import REPORT_TYPES

TASK: dict[str, Any] = {name: number for number, name in enumerate(REPORT_TYPES)} | {
    "uid": "count",
    "counters": {"late": 3},
    "gauges": {"size": 0.5},
}


def of_connect(names: list[str], values: list[Any]) -> dict[str, Any]:
    """Return a row as the JSON of a progress has it under Spark Connect."""
    return {"values": values, "schema": {"type": "struct", "fields": [{"name": name} for name in names]}}


CONNECT = of_connect(list(TASK), list(TASK.values()))
OBSERVED: dict[str, list[Any]] = {
    "named": [{"tasks": [TASK]}, {"tasks": [TASK, TASK]}],
    "rows": [Row(tasks=[Row(**TASK)]), Row(tasks=[Row(**TASK), Row(**TASK)])],
    "Spark Connect": [of_connect(["tasks"], [[CONNECT]]), Row(**of_connect(["tasks"], [[CONNECT, CONNECT]]))],
    "lists": [[[list(TASK.values())]], [[list(TASK.values()), list(TASK.values())]]],
}


@pytest.mark.parametrize("kind", OBSERVED)
def test_metrics_of_all_programs_in_a_query(kind):
    one, two = OBSERVED[kind]
    others = {"pillarboxes": ["not ours"], "pillarbox level": ["not ours"], "events": Row(n=1)}
    observed = {"pillarbox": one, "pillarbox 12 level 0": two, **others}
    expected = [TaskReport(**TASK)] * 3
    assert metrics({"observedMetrics": observed}) == expected
    progress = SimpleNamespace(observedMetrics=observed)
    assert metrics(progress) == expected
    assert metrics(SimpleNamespace(progress=progress)) == expected


def test_a_query_without_progress_or_programs_has_none():
    assert metrics(None) == []
    assert metrics({"observedMetrics": {}}) == []
    assert metrics({"observedMetrics": {"pillarbox": {"tasks": []}}}) == []


def test_each_metric_has_a_spark_type():
    kinds = {"vertex": "STRING", "busy_ms": "LONG", "unfinished": "BOOLEAN", "counters": "MAP<STRING, LONG>"}
    kinds["gauges"] = "MAP<STRING, DOUBLE>"
    assert {name: REPORT_TYPES[name] for name in kinds} == kinds
    assert REPORT_TYPES["state_sync"] == "STRING" and REPORT_TYPES["watermark"] == "LONG"
