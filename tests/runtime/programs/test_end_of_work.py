"""Detection of the last micro-batch with work in an ``availableNow`` query."""

from __future__ import annotations

from typing import Any

import pytest

from pillarbox import TaskReport
from pillarbox._elements.task_report import text_of_report
from pillarbox._runtime.spark.running.progress_reader import ProgressReader
from pillarbox._runtime.spark.running.query import QueryEndOfWork
from tests.model.made import observed, observed_as

# 2026-11-21T20:00:00.000Z, and a second later.
TEN = 1795291200000
ELEVEN = TEN + 1000


def task(next_wake_up: int | None = None, unfinished: bool = False, subtask: int = 0) -> str:
    values: dict[str, Any] = {"next_wake_up": next_wake_up, "unfinished": unfinished, "level": 1, "subtask": subtask}
    required = dict.fromkeys(list(TaskReport.__annotations__)[:15], 0)
    return text_of_report(TaskReport(**{**required, "counters": {}, **values}))


def batch(*tasks: str, read: bool = False, second: int = 0, name: str = "pillarbox") -> dict[str, Any]:
    return {
        "timestamp": f"2026-11-21T20:00:0{second}.000Z",
        "sources": [{"startOffset": "1", "endOffset": "1"}, {"startOffset": "1", "endOffset": "2" if read else "1"}],
        "observedMetrics": observed({observed_as(name): [list(tasks)], "the user's": [3]}, [[]]),
    }


@pytest.mark.parametrize(
    ("batches", "reached"),
    [
        # Input, whatever the tasks report.
        ([batch(task(), read=True)], False),
        # No input, and no task had to run.
        ([batch()], True),
        ([batch(task(), task())], True),
        # A timer that is due, one that is later.
        ([batch(task(TEN))], False),
        ([batch(task(TEN + 1))], True),
        ([batch(task(ELEVEN), task(TEN - 5))], False),
        # The time of the first batch without input counts: a timer that is set repeatedly does not delay the end.
        ([batch(task(TEN)), batch(task(ELEVEN), second=2)], True),
        ([batch(task(TEN)), batch(task(TEN), second=2)], False),
        # It counts anew after input.
        ([batch(task(TEN)), batch(read=True, second=1), batch(task(ELEVEN), second=2)], False),
        # Carried requests, also in the second program of the query.
        ([batch(task(unfinished=True))], False),
        ([batch(task(unfinished=True), name="pillarbox 2")], False),
        ([batch(task(unfinished=True)), batch(task(ELEVEN), second=3)], True),
        # A task that has something to do, but was not called: it will be.
        ([batch(task(unfinished=True), read=True), batch(second=1)], False),
        ([batch(task(unfinished=True, subtask=1)), batch(task(ELEVEN), second=1)], False),
        ([batch(task(unfinished=True), name="pillarbox 2"), batch(task(), second=1)], False),
        ([batch(task(TEN), read=True), batch(), batch(second=1)], False),
        ([batch(task(TEN), read=True), batch(), batch(task(), second=1)], True),
    ],
)
def test_the_end(batches: list[dict[str, Any]], reached: bool) -> None:
    end = QueryEndOfWork()
    # The first batch may be left from the run before.
    assert not end.is_reached(batch())
    assert [end.is_reached(progress) for progress in batches][-1] is reached


def test_requests_of_the_first_batch_count() -> None:
    end = QueryEndOfWork()
    assert not end.is_reached(batch(task(unfinished=True)))
    assert not end.is_reached(batch())
    assert end.is_reached(batch(task()))


class Query:
    """A fake query. Like Spark, it keeps only its last progress reports."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        return self.batches[-1] if self.batches else None

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        return self.batches[-2:]


def report(number: int, *, idle: bool = False, second: int | None = None) -> dict[str, Any]:
    seconds = 2 * number if second is None else second
    parts = {"latestOffset": 3} if idle else {"latestOffset": 3, "addBatch": 50}
    return {"batchId": number, "timestamp": f"2026-11-21T20:00:{seconds:02d}.000Z", "durationMs": parts}


def test_all_batches_are_looked_at_in_their_order() -> None:
    query = Query()
    reports = ProgressReader(query)
    assert reports.epochs_in(reports.new()) == []
    query.batches += [report(4)]
    assert reports.epochs_in(reports.new()) == [report(4)]
    assert reports.epochs_in(reports.new()) == []
    query.batches += [report(5), report(6)]
    assert reports.epochs_in(reports.new()) == [report(5), report(6)]
    # Spark no longer has the report of batch 7, so unfinished work of its tasks is unknown.
    query.batches += [report(number) for number in (7, 8, 9)]
    assert reports.epochs_in(reports.new()) == [None, report(8), report(9)]


def test_a_report_that_there_was_nothing_to_do_is_of_no_batch() -> None:
    """An idle report has the number of the next batch, which later gets its own report."""
    query = Query()
    reports = ProgressReader(query)
    query.batches += [report(0, idle=True, second=0)]
    assert reports.epochs_in(reports.new()) == []
    query.batches += [report(0, second=3)]
    assert reports.epochs_in(reports.new()) == [report(0, second=3)]
    query.batches += [report(1, idle=True, second=5), report(1, idle=True, second=15)]
    assert reports.epochs_in(reports.new()) == []
    query.batches += [report(1, idle=True, second=25), report(1, second=26)]
    assert reports.epochs_in(reports.new()) == [report(1, second=26)]
    query.batches += [report(2, idle=True, second=30), report(2, second=31)]
    assert reports.epochs_in(reports.new()) == [report(2, second=31)]


def test_a_report_that_is_missing_may_have_been_of_tasks_that_ended_their_work() -> None:
    end = QueryEndOfWork()
    assert not end.is_reached(batch(task(unfinished=True)))
    assert not end.is_reached(None)
    assert end.is_reached(batch(second=1))
