from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import Row

from pillarbox import TaskReport, metrics
from pillarbox._elements.task_report import report_of_text, text_of_report
from tests.model.made import observed_as

REPORT = TaskReport(
    **{name: number for number, name in enumerate(TaskReport.__annotations__)}  # type: ignore[arg-type]
    | {"uid": "count", "counters": {"late": 3}, "gauges": {"size": 0.5}, "fallback": "no home", "program": ""}
)
TASK = text_of_report(REPORT)


def of_connect(names: list[str], values: list[Any]) -> dict[str, Any]:
    return {"values": values, "schema": {"type": "struct", "fields": [{"name": name} for name in names]}}


OBSERVED: dict[str, list[Any]] = {
    "named": [{"tasks": [TASK]}, {"tasks": [TASK, TASK]}],
    "rows": [Row(tasks=[TASK]), Row(tasks=[TASK, TASK])],
    "Spark Connect": [of_connect(["tasks"], [[TASK]]), Row(**of_connect(["tasks"], [[TASK, TASK]]))],
    "lists": [[[TASK]], [[TASK, TASK]]],
}


@pytest.mark.parametrize("kind", OBSERVED)
def test_metrics_of_all_programs_in_a_query(kind):
    first, second = OBSERVED[kind]
    others = {"pillarboxes": ["not ours"], "pillarbox level": ["not ours"], "events": Row(n=1)}
    observed = {observed_as("pillarbox"): first, observed_as("pillarbox 2", 0): second, **others}
    expected = [replace(REPORT, program=name) for name in ("pillarbox", "pillarbox 2", "pillarbox 2")]
    assert metrics({"observedMetrics": observed}) == expected
    progress = SimpleNamespace(observedMetrics=observed)
    assert metrics(progress) == expected
    assert metrics(SimpleNamespace(progress=progress)) == expected


def test_a_query_without_progress_or_programs_has_none():
    assert metrics(None) == []
    assert metrics({"observedMetrics": {}}) == []
    assert metrics({"observedMetrics": {observed_as("pillarbox"): {"tasks": []}}}) == []


def test_a_report_is_a_text_without_names():
    plain = TaskReport("a -> b", "count", 1, 3, 41, 10, 10, 500, 2, 5, 1, 0, 3, 0, {}, watermark=1_795_291_200_000)
    for report in REPORT, plain, replace(plain, gauges={"rate": 0.25}):
        assert report_of_text(text_of_report(report)) == report
    assert text_of_report(plain) == '["a -> b","count",1,3,41,10,10,500,2,5,1,0,3,0,{},null,1795291200000]'
    assert report_of_text(text_of_report(plain)[:-1] + ",7]") == replace(plain, keys=7)
    of_home = replace(plain, home_restarts=2, fallback="no process can be started")
    assert report_of_text(text_of_report(of_home)) == of_home
    assert report_of_text(text_of_report(replace(plain, home_restarts=1))).home_restarts == 1
    assert report_of_text(TASK[:-1] + ',"","of a later version"]') == REPORT
    assert 3 * len(text_of_report(plain)) < len(json.dumps(vars(plain)))


def observed(*tasks: TaskReport) -> dict[str, Any]:
    return {"observedMetrics": {observed_as("pillarbox"): {"tasks": [text_of_report(task) for task in tasks]}}}


def test_events_of_homes_are_summed_and_shown():
    plain = TaskReport("count", "count", 1, 0, 41, 10, 10, 500, 2, 5, 1, 0, 3, 0)
    quiet = metrics(observed(plain), by="operator")
    assert "restarts" not in str(quiet) and "in workers" not in str(quiet)
    tasks = [
        replace(plain, home_restarts=1, home_cold_starts=1),
        replace(plain, subtask=1, home_restarts=2, home_adoptions=1),
        replace(plain, subtask=2, fallback="no process can be started"),
        replace(plain, subtask=3, fallback="no process can be started"),
    ]
    [result] = reports = metrics(observed(*tasks), by="operator")
    assert (result.home_restarts, result.home_cold_starts, result.home_adoptions) == (3, 1, 1)
    assert result.fallbacks == {"no process can be started": 2}
    head, row = str(reports).splitlines()
    assert head.split("  ")[-1] == "in workers" and "cold starts" in head
    assert row.split()[-4:] == ["3", "1", "1", "2"]
