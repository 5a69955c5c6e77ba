from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cases import CASES
from benchmarks.harness import findings
from benchmarks.harness.findings import Findings, findings_in, read_findings
from tests.benchmarks.test_cases import last_line

# Benchmarks without a streaming query of pillarbox, with the reason.
WITHOUT_QUERIES = {
    "batch": "its programs read batch DataFrames",
    "async": "its programs read batch DataFrames",
    "stateless": "its programs read batch DataFrames",
    "copies": "its programs read batch DataFrames",
    "state": "its small size has no Spark",
    "key-cost": "it has no Spark",
    "mailbox": "it has no Spark",
    "timers": "it has no Spark",
    "against": "it runs the others",
}


def test_findings_of_all_sides_are_gathered(tmp_path: Path) -> None:
    file = tmp_path / "findings.jsonl"
    assert read_findings(file) == Findings(0, [])
    results = [["slow_epochs", "an epoch takes 2 s"], ["retention", "Spark keeps 2 epochs"]]
    lines = [
        {"query": "one", "epochs": 3, "wrong": []},
        {"query": "other", "epochs": 9, "wrong": results},
        {"query": "none", "epochs": 0, "wrong": []},
    ]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert read_findings(file) == Findings(2, [["other", *results[0]], ["other", *results[1]]])


def test_nobody_looks_while_a_case_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start: Any = importlib.import_module("pillarbox._runtime.spark.starting.start")
    remember = start.remember
    monkeypatch.setattr(start, "remember", remember)  # it is as before when the test ends
    findings.notice_queries()
    assert start.remember is remember
    with findings_in(tmp_path / "findings.jsonl"):
        findings.notice_queries()
        assert start.remember is not remember


@pytest.mark.long("a minute for each case")
@pytest.mark.parametrize("case", [name for name in CASES if name not in WITHOUT_QUERIES])
def test_the_doctor_finds_nothing_in_a_case(case: str) -> None:
    _, result = last_line(case, "--size", "small")
    assert result["findings"] == []
    assert result["examined"]
