"""A pytest plugin that compares each test's time with its budget and its recorded time.

Without fixtures, a unit test may take 0.25 s of processor time, and a test on Spark 10 s of wall-clock time. A slower
test needs a reason, as in ``@pytest.mark.slow("a schedule for each seed")``. All marked unit tests together may take a
minute. An unmarked unit test whose time in ``tests/budgets.json`` exceeds its budget runs only in ``make test-all``,
like tests marked ``@pytest.mark.long("...")``.

A recorded test may take twice its recorded time. The end of a run lists slower tests. ``PILLARBOX_BUDGETS=enforce``
makes them fail the run. ``--record-budgets`` writes a new ``tests/budgets.json``, which keeps the times of skipped
tests. ``--fast`` runs only unit tests that are not marked as slow, and whose recorded time does not exceed ``FAST``.
Times are scaled by this machine's speed, relative to the machine that recorded the table.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pytest

TABLE = Path(__file__).parents[1] / "budgets.json"
LONG = "PILLARBOX_LONG" in os.environ
UNIT, SPARK = 0.25, 10.0
FAST = 0.1
SLOW_UNIT_TESTS = 60.0
# Tests that take less than this share of their budget are not recorded: they are noise.
_RECORDED_FROM = 0.4
_SLOWER = 2.0
_SHOWN = 20


class TimedTest(NamedTuple):
    """A test's duration and budget, in seconds."""

    test: str
    seconds: float
    budget: float
    slow: bool


class Budgets:
    def __init__(self, table: Path = TABLE, *, scale: float | None = None) -> None:
        self.times: list[TimedTest] = []
        self.skipped: set[str] = set()
        self._path = table
        self._table = read_table(table)
        self._given_scale = scale

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self.skipped.add(report.nodeid)
        measured: Any = dict(report.user_properties).get("taken")
        if report.when == "call" and report.passed and measured is not None:
            seconds, spark, slow = measured
            self.times.append(TimedTest(report.nodeid, seconds, SPARK if spark else UNIT, slow))

    @cached_property
    def _scale(self) -> float:
        if self._given_scale is not None or not self._table:
            return self._given_scale or 1.0
        return float(self._table["fixed_work"]) / fixed_work()

    def complaints(self) -> list[str]:
        """Return a message for each test that exceeds its budget, or is much slower than its recorded time."""
        results = []
        recorded = self._table.get("tests", {})
        times = [test_time._replace(seconds=test_time.seconds * self._scale) for test_time in self.times]
        for test_time in sorted(times, key=lambda test_time: test_time.seconds / test_time.budget, reverse=True):
            before = recorded.get(test_time.test)
            if before is not None and test_time.seconds > _SLOWER * max(before, test_time.budget):
                results.append(f"{test_time.test} took {test_time.seconds:.2f} s, and {before:.2f} when recorded")
            elif before is None and test_time.seconds > test_time.budget and not test_time.slow:
                results.append(
                    f"{test_time.test} took {test_time.seconds:.2f} s of {test_time.budget:g}: make it faster,"
                    " or mark it as slow with the reason"
                )
        together = sum(test_time.seconds for test_time in times if test_time.slow and test_time.budget == UNIT)
        if together > SLOW_UNIT_TESTS and not LONG:  # the minute is for tests in make test
            results.append(f"unit tests that are marked as slow took {together:.0f} s of {SLOW_UNIT_TESTS:g} together")
        return results

    def record(self) -> None:
        tests = {
            test_time.test: test_time.seconds
            for test_time in self.times
            if test_time.seconds > _RECORDED_FROM * test_time.budget
        }
        before = self._table.get("tests", {})
        tests |= {test: before[test] / self._scale for test in self.skipped & before.keys()}
        table = {
            "fixed_work": round(fixed_work(), 4),
            "tests": {test: round(seconds, 2) for test, seconds in sorted(tests.items())},
        }
        self._path.write_text(json.dumps(table, indent=1) + "\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        complaints = self.complaints()
        if complaints:
            terminalreporter.section("budgets")
            for line in complaints[:_SHOWN]:
                terminalreporter.line(line)
            if len(complaints) > _SHOWN:
                terminalreporter.line(f"and {len(complaints) - _SHOWN} more")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.config.getoption("record_budgets"):
            self.record()
        elif os.environ.get("PILLARBOX_BUDGETS") == "enforce" and self.complaints() and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def read_table(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


@cache
def recorded_seconds() -> dict[str, float]:
    recorded: dict[str, float] = read_table(TABLE).get("tests", {})
    return recorded


def is_marked(item: pytest.Item, *names: str) -> bool:
    return any(item.get_closest_marker(name) is not None for name in names)


def fixed_work() -> float:
    def once() -> float:
        began = time.process_time()
        numbers: dict[int, int] = {}
        for number in range(200_000):
            numbers[number % 1000] = numbers.get(number % 1000, 0) + number
        return time.process_time() - began

    return min(once() for _ in range(3))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-budgets", action="store_true", help="write a new tests/budgets.json from this run")
    parser.addoption("--fast", action="store_true", help="only unit tests that keep to their budget")


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Budgets(), "pillarbox-budgets")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("fast"):
        return
    recorded = recorded_seconds()
    selected: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        is_slow = is_marked(item, "spark", "fault", "slow", "long") or recorded.get(item.nodeid, 0.0) > FAST
        (left_out if is_slow else selected).append(item)
    items[:] = selected
    config.hook.pytest_deselected(items=left_out)


def pytest_runtest_setup(item: pytest.Item) -> None:
    mark = item.get_closest_marker("long")
    if LONG:
        return
    if mark is not None:
        pytest.skip(f"make test-all runs it: {mark.args[0]}")
    if not is_marked(item, "spark", "fault", "slow") and recorded_seconds().get(item.nodeid, 0.0) > UNIT:
        pytest.skip(f"make test-all runs it: it needs more than {UNIT} s, and no mark says why make test should")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    spark = is_marked(item, "spark", "fault")
    clock = time.monotonic if spark else time.process_time
    began = clock()
    try:
        return (yield)
    finally:
        item.user_properties.append(("taken", (clock() - began, spark, is_marked(item, "slow", "long"))))
