"""Progress of a batch, of a stream that is behind, and of a stream that keeps up."""

from __future__ import annotations

from typing import Any

import pytest

from pillarbox._runtime.spark.running.heartbeat import Heartbeat
from pillarbox._runtime.spark.running.stages import Stage
from pillarbox._time.timestamp_assigner import MIN_TIMESTAMP
from pillarbox_tools.model.catching_up import catching_up, line_of
from pillarbox_tools.model.epochs import epoch_of, rows_left
from pillarbox_tools.model.query_model import QueryModel
from tests.model.made import START, keyed, model, progress, source


def kafka(end: Any, latest: Any) -> dict[str, Any]:
    return {"description": "KafkaV2", "numInputRows": 10, "endOffset": end, "latestOffset": latest}


def epochs(*numbers_of_rows: int, sources: list[dict[str, Any]] | None = None, **values: Any) -> QueryModel:
    query = model()
    for number, rows in enumerate(numbers_of_rows):
        more: dict[str, Any] = {} if sources is None else {"sources": sources}
        query.progressed(progress(number, source(records_in=rows), keyed(watermark=MIN_TIMESTAMP), **more, **values))
    return query


def beat(*stages: Stage) -> Heartbeat:
    return Heartbeat(START, "r", "one", 9, 0, 2, START, stages=list(stages))


@pytest.mark.parametrize(
    ("end", "latest", "left"),
    [
        (5, 9, 4),
        ('{"t": {"0": 5, "1": 1}}', '{"t": {"0": 9, "1": 1}}', 4),
        ({"t": {"0": 5}}, {"t": {"0": 9, "1": 2}, "u": {"0": 3}}, 9),
        ({"t": {"0": 9}}, {"t": {"0": 5}}, 0),
        ({"t": {"0": 5}}, None, None),
        ({"logOffset": 3}, {"logOffset": 9}, None),
        ({"t": {"offset": 3}}, {"t": {"offset": 9}}, None),
        ("start", "end", None),
    ],
)
def test_rows_that_are_left(end: Any, latest: Any, left: int | None) -> None:
    assert rows_left(epoch_of(progress(1, sources=[kafka(end, latest)]))) == left
    assert rows_left(epoch_of(progress(1, sources=[kafka(end, latest), kafka(1, None)]))) is None
    assert rows_left(epoch_of(progress(1, sources=[]))) is None


def test_a_batch_tells_how_much_is_done() -> None:
    query = epochs(300, 100, sources=[kafka({"t": {"0": 400}}, {"t": {"0": 1000}})])
    assert line_of(query.snapshot(), is_batch=True) == ("2 epochs · 400 rows · 200 rows/s · 40% done · about 3 s left")
    # The backlog exceeds the next epoch's rows, so a stream has the same line.
    assert line_of(query.snapshot(), is_batch=False) is not None


def test_a_batch_of_files_does_not_know_its_end() -> None:
    query = epochs(300)
    assert line_of(query.snapshot(), is_batch=True) == "1 epoch · 300 rows · 300 rows/s"
    query.beat(beat(Stage(1, 8, 2, 3, 0), Stage(2, 4, 0, 0, 0)))
    assert line_of(query.snapshot(), is_batch=True) == (
        "1 epoch · 300 rows · 300 rows/s · 3 of 12 tasks of the next epoch"
    )


def test_before_the_first_epoch_there_are_only_tasks() -> None:
    query = model()
    query.beat(beat(Stage(1, 8, 2, 3, 0)))
    assert line_of(query.snapshot(), is_batch=True) == "3 of 8 tasks of the next epoch"
    assert line_of(model().snapshot(), is_batch=True) is None
    assert line_of(query.snapshot(), is_batch=False) is None


def test_a_stream_that_keeps_up_says_nothing() -> None:
    query = epochs(300, sources=[kafka({"t": {"0": 300}}, {"t": {"0": 310}})])
    assert line_of(query.snapshot(), is_batch=False) is None
    assert line_of(epochs(300).snapshot(), is_batch=False) is None


def lagging(*lags: int) -> QueryModel:
    query = model()
    for number, lag in enumerate(lags):
        report = progress(number, source(records_in=60), keyed(watermark=START + 60_000 * number - lag))
        query.progressed({**report, "timestamp": f"2023-11-14T22:{13 + number:02d}:19.000Z"})
    return query


def test_event_time_that_catches_up_tells_the_share() -> None:
    query = lagging(36_000_000, 27_000_000)
    result = catching_up(query.snapshot(), is_batch=False)
    assert result is not None
    assert result.is_behind
    assert result.share == pytest.approx(0.25, abs=0.001)
    # A quarter in a minute: the rest takes three.
    assert result.left_ms == pytest.approx(180_000, rel=0.01)
    assert line_of(query.snapshot(), is_batch=False) == ("2 epochs · 120 rows · 2 rows/s · 25% done · about 3 min left")


def test_a_batch_is_not_done_when_event_time_is_now() -> None:
    result = catching_up(lagging(36_000_000, 27_000_000).snapshot(), is_batch=True)
    assert result is not None
    assert (result.share, result.left_ms, result.is_behind) == (None, None, True)


@pytest.mark.parametrize("lags", [(36_000_000, 36_000_000), (900_000, 40_000), (50_000, 40_000)])
def test_event_time_that_stands_still_or_has_caught_up_says_nothing(lags: tuple[int, int]) -> None:
    assert line_of(lagging(*lags).snapshot(), is_batch=False) is None


def test_epochs_that_take_longer_than_the_trigger_are_behind() -> None:
    query = epochs(300, 300, 300)
    query._snapshot.run.settings["trigger"] = "ProcessingTimeTrigger(900)"
    assert line_of(query.snapshot(), is_batch=False) == "3 epochs · 900 rows · 300 rows/s"
    query._snapshot.run.settings["trigger"] = "ProcessingTimeTrigger(1000)"
    assert line_of(query.snapshot(), is_batch=False) is None
