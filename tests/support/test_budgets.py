from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import budgets as plugin
from tests.support.budgets import FAST, SPARK, UNIT, Budgets


def budgets(tmp_path: Any, recorded: dict[str, float], *times: tuple[str, float, bool, bool]) -> Budgets:
    table = tmp_path / "budgets.json"
    table.write_text(json.dumps({"fixed_work": 1.0, "tests": recorded}))
    result = Budgets(table, scale=1.0)
    for test, seconds, spark, slow in times:
        properties = [("taken", (seconds, spark, slow))]
        report: Any = SimpleNamespace(nodeid=test, when="call", passed=True, skipped=False, user_properties=properties)
        result.pytest_runtest_logreport(report)
    return result


def test_tests_within_the_budget_are_not_mentioned(tmp_path):
    assert budgets(tmp_path, {}, ("a", UNIT, False, False), ("b", SPARK, True, False)).complaints() == []


def test_tests_over_the_budget_are_named_without_a_mark_or_record(tmp_path):
    times = ("new", 1.0, False, False), ("marked", 1.0, False, True), ("known", 1.0, False, False)
    (complaint,) = budgets(tmp_path, {"known": 0.6}, *times).complaints()
    assert complaint.startswith("new took 1.00 s of 0.25")


def test_tests_that_become_twice_as_slow_are_named_despite_a_mark(tmp_path):
    (complaint,) = budgets(tmp_path, {"known": 0.4}, ("known", 1.0, False, True)).complaints()
    assert complaint == "known took 1.00 s, and 0.40 when recorded"


def test_tests_that_are_marked_have_a_minute_together(tmp_path):
    times = [(str(number), 9.0, False, True) for number in range(7)]
    (complaint,) = budgets(tmp_path, {}, *times).complaints()
    assert complaint == "unit tests that are marked as slow took 63 s of 60 together"


def test_the_table_has_what_takes_a_good_part_of_its_budget(tmp_path):
    result = budgets(tmp_path, {}, ("a", 1.0, False, True), ("b", 0.01, False, False))
    result.record()
    assert json.loads((tmp_path / "budgets.json").read_text())["tests"] == {"a": 1.0}
    assert result.complaints() == []


def test_the_table_keeps_what_it_had_of_tests_that_are_skipped(tmp_path):
    result = budgets(tmp_path, {"skipped": 3.0, "gone": 3.0, "faster": 3.0}, ("faster", 1.0, False, False))
    result.pytest_runtest_logreport(
        SimpleNamespace(nodeid="skipped", when="setup", passed=False, skipped=True, user_properties=[])  # type: ignore[arg-type]
    )
    result.record()
    assert json.loads((tmp_path / "budgets.json").read_text())["tests"] == {"faster": 1.0, "skipped": 3.0}


class Item:
    def __init__(self, nodeid: str, mark: str | None = None) -> None:
        self.nodeid, self.mark = nodeid, mark

    def get_closest_marker(self, name: str) -> Any:
        return SimpleNamespace(args=["a reason"]) if self.mark == name else None


def test_long_tests_and_slow_tests_without_a_mark_run_in_test_all(monkeypatch):
    monkeypatch.setattr(plugin, "recorded_seconds", lambda: {"within": UNIT, "over": UNIT + 0.01})

    def is_skipped(*item: str) -> bool:
        try:
            plugin.pytest_runtest_setup(Item(*item))  # type: ignore[arg-type]
        except pytest.skip.Exception:
            return True
        return False

    for long in (False, True):
        monkeypatch.setattr(plugin, "LONG", long)
        results = [is_skipped(*item) for item in (("new",), ("within",), ("over",), ("new", "long"))]
        assert results == [False, False, not long, not long]
        assert not any(is_skipped("over", mark) for mark in ("spark", "fault", "slow"))


def test_fast_tests_are_unmarked_and_within_their_budget(monkeypatch):
    monkeypatch.setattr(plugin, "recorded_seconds", lambda: {"within": FAST, "over": FAST + 0.01})
    left_out: list[Any] = []
    hooks = SimpleNamespace(pytest_deselected=lambda *, items: left_out.extend(items))
    items: list[Any] = [
        Item("new"),
        Item("within"),
        Item("over"),
        *map(Item, "abcd", ("spark", "fault", "slow", "long")),
    ]
    for fast, count in ((False, 7), (True, 2)):
        config: Any = SimpleNamespace(getoption=lambda name, fast=fast: fast, hook=hooks)
        plugin.pytest_collection_modifyitems(config, items)
        assert len(items) == count
    assert [item.nodeid for item in items] == ["new", "within"]
    assert [item.nodeid for item in left_out] == ["over", "a", "b", "c", "d"]
