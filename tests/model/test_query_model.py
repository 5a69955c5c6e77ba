from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pillarbox._reports.operator_report import OperatorReport
from pillarbox_tools.model.moments import Moments
from pillarbox_tools.model.query_model import EPOCHS
from pillarbox_tools.model.snapshot import SnapshotEpoch
from tests.model.made import START, keyed, model, plan, progress


def test_it_keeps_the_newest_epochs_and_the_tasks_of_the_last_ones() -> None:
    query = model()
    for number in range(EPOCHS + 10):
        query.progressed(progress(number, keyed(records_in=1)))
    result = query.snapshot()
    assert [epoch.number for epoch in result.epochs] == list(range(10, EPOCHS + 10))
    assert [bool(epoch.tasks) for epoch in result.epochs] == [False] * (EPOCHS - 5) + [True] * 5
    assert sum(moment.epochs for moment in result.run.moments) == EPOCHS + 10


def test_a_report_that_comes_again_is_left_out() -> None:
    query = model()
    query.progressed(progress(4, keyed(records_in=1)))
    query.progressed(progress(4))
    query.progressed(progress(3))
    assert [(epoch.number, len(epoch.tasks)) for epoch in query.snapshot().epochs] == [(4, 1)]


def test_that_there_was_nothing_to_do_is_no_epoch() -> None:
    """Spark's report of an idle trigger has the number of the next epoch."""
    query = model()
    idle = {"latestOffset": 23, "triggerExecution": 37}
    query.progressed(progress(0, durationMs=idle))
    query.progressed(progress(0, keyed(records_in=1)))
    query.progressed(progress(1, durationMs=idle))
    query.progressed(progress(1, keyed(records_in=2)))
    assert [(epoch.number, epoch.vertices[0].records_in) for epoch in query.snapshot().epochs] == [(0, 1), (1, 2)]


def test_a_query_ends_or_fails_once() -> None:
    query = model()
    assert query.snapshot().run.status == "running"
    query.failed('x pillarbox.OperatorError: bad\nfailure: {"error": "OperatorError", "uid": "count", "number": 7}')
    query.ended()
    run = query.snapshot().run
    assert (run.status, run.ended, query.has_ended) == ("failed", START, True)
    assert [(failure.uid, failure.number, failure.message) for failure in run.failures] == [("count", 7, "bad")]


def test_an_error_without_data_is_a_failure_too() -> None:
    query = model()
    query.failed("Job aborted")
    assert [failure.message for failure in query.snapshot().run.failures] == ["Job aborted"]


def test_the_version_grows_with_each_change() -> None:
    query = model()
    seen = [query.refresh()]
    for change in (
        lambda: query.progressed(progress(1)),
        lambda: query.failed("x"),
        query.ended,
        lambda: query.progressed(progress(1)),
    ):
        change()
        seen.append(query.refresh())
    first, second, failed, ended, again = seen
    assert first < second < failed
    # A query ends once, and an epoch is counted once.
    assert failed == ended == again


def _epoch(number: int, rows: int, at: int) -> SnapshotEpoch:
    vertex = OperatorReport(
        *("count", "count", 1, number, 1, rows, rows, 0, 3, 0, 1, 0, 0, 3),
        program="pillarbox",
        number=1,
        began=at,
        ended=at,
        home_restarts=2,
        fallbacks={"no home": 1, "no process": 2},
        counters={"count.late_records_dropped": 1, "ask.latency_p99_us": number},
        watermark=at - 500,
        keys=number,
        timers=2,
        state_bytes=10 * number,
    )
    return SnapshotEpoch(number, at - 100, 100, {}, rows, [], [vertex])


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(100, 200_000)), min_size=1, max_size=1500))
def test_moments_add_up_to_the_epochs_and_are_bounded(given_epochs: list[tuple[int, int]]) -> None:
    moments, at = Moments(), START
    for number, (rows, step) in enumerate(given_epochs):
        at += step
        moments.add(_epoch(number, rows, at), plan())
    result = moments.all()
    assert len(result) <= 480
    assert sum(moment.epochs for moment in result) == len(given_epochs)
    assert sum(moment.rows for moment in result) == sum(rows for rows, _ in given_epochs)
    assert sum(moment.counters["count.late_records_dropped"] for moment in result) == len(given_epochs)
    assert [moment.at for moment in result] == sorted(moment.at for moment in result)
    last, count = result[-1], len(given_epochs) - 1
    assert (last.last, last.keys, last.state_bytes) == (count, {"count": count}, {"count": 10 * count})
    assert last.counters["ask.latency_p99_us"] == count
    assert last.lag == 500
    assert result[0].first == 0
    assert sum(moment.home_restarts for moment in result) == 2 * len(given_epochs)
    assert sum(moment.fallbacks for moment in result) == 3 * len(given_epochs)
    # They follow each other without a gap.
    assert all(other.first == moment.last + 1 for moment, other in pairwise(result))
