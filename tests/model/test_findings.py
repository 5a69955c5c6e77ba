"""Conclusions from a snapshot: held watermarks, skew, and growth."""

from __future__ import annotations

from typing import Any

import pytest

from pillarbox._errors import OperatorError
from pillarbox._reports.failure import FailedAttempt, Failure, without_line
from pillarbox._time.timestamp_assigner import MAX_WATERMARK, MIN_TIMESTAMP
from pillarbox_tools.model.growth import growth_of, memory_of, slope
from pillarbox_tools.model.held_watermarks import held_watermarks
from pillarbox_tools.model.settings import bytes_in
from pillarbox_tools.model.skew import skew_of
from tests.model.made import START, keyed, model, progress, source

_DAY = 86_400_000


def _held(*reports: Any) -> Any:
    query = model()
    query.progressed(progress(1, *reports))
    [result] = held_watermarks(query.snapshot())
    return result


def test_the_partition_that_holds_event_time_is_named_with_its_record() -> None:
    position = {"topic": "payments", "partition": 1, "offset": 17}
    held = _held(
        source(subtask=0, event_times=[START, START + 9, {}]),
        source(subtask=1, event_times=[START - 9, START - 5, position]),
        keyed(subtask=0, watermark=START - 6, held_by=[0, 1]),
        keyed(subtask=1, watermark=START, held_by=[0, 0]),
    )
    assert (held.vertex, held.subtask, held.watermark, held.way) == (1, 0, START - 6, [[0, 1]])
    assert (held.source, held.partition, held.latest, held.place) == (0, 1, START - 5, position)
    assert held.message == (
        "partition 1 of the source of 'payments' holds it back: its newest record is topic payments, partition 1,"
        " offset 17"
    )


def test_records_that_do_not_say_where_they_are() -> None:
    held = _held(source(event_times=[START, START, {}]), keyed(watermark=START, held_by=[0, 0]))
    assert "keep its position in the DataFrame: Kafka's columns topic, partition and offset" in held.message


def test_a_source_without_records_holds_event_time() -> None:
    held = _held(keyed(watermark=START, held_by=[0, -1]))
    assert (held.source, held.partition, held.latest) == (0, None, None)
    assert held.message.startswith("the source of 'payments' had no records, so its watermark stays")
    assert _held(keyed(watermark=MIN_TIMESTAMP, held_by=[0, -1])).watermark is None


def test_empty_and_ended_findings() -> None:
    assert _held(keyed(watermark=START)).message == "no input holds it back: all are idle or have ended"
    query = model()
    query.progressed(progress(1, keyed(watermark=MAX_WATERMARK)))
    assert held_watermarks(query.snapshot()) == []


def test_the_way_leads_over_levels_and_over_tasks_of_earlier_epochs() -> None:
    second = {"number": 2, "level": 2, "uid": "again", "vertex": "again"}
    query = model()
    query.progressed(
        progress(1, source(subtask=3, event_times=[1, 2, {}]), keyed(subtask=1, watermark=5, held_by=[0, 3]))
    )
    query.progressed(progress(2, keyed(**second, watermark=5, held_by=[1, 1])))
    results = {watermark.vertex: watermark for watermark in held_watermarks(query.snapshot())}[2]
    assert (results.way, results.source, results.partition) == ([[1, 1], [0, 3]], 0, 3)


def test_a_heavy_key_is_named_with_the_error_of_its_share() -> None:
    query = model()
    tasks = [
        keyed(subtask=0, busy_ms=90, records_in=900, key_sample=[400, [["'ann'", 200]]]),
        keyed(subtask=1, busy_ms=10, records_in=100, key_sample=[100, []]),
    ]
    query.progressed(progress(1, *tasks))
    [result] = skew_of(query.snapshot().epochs[-1])
    assert (result.busiest, round(result.factor, 2), result.tasks) == (0, 1.8, 2)
    [heavy] = result.heavy
    assert (heavy.key, heavy.subtask) == ("'ann'", 0)
    assert heavy.share == pytest.approx(0.45)
    assert heavy.error == pytest.approx(2 * (0.25 / 400) ** 0.5 * 0.9)


def test_growth_is_a_line_through_the_moments() -> None:
    assert slope([(0, 1)] * 9) is None
    points = [(minute * 60_000, 100 + 7 * minute) for minute in range(30)]
    assert slope(points) == pytest.approx(7 * 1440)


def _grown(limit: str | None, step: int) -> Any:
    times = iter(range(START, START + 10 * _DAY, 60_000))
    query = model(clock=lambda: START)
    for number in range(30):
        at = next(times)
        task = keyed(state_bytes=1000 + 10 * number, keys=number, process_bytes=(1 << 20) + step * number)
        report = progress(number, task)
        # A quarter of an hour lies between two epochs.
        hour, minute = divmod(15 * number, 60)
        report["timestamp"] = f"2023-11-14T{hour:02d}:{minute:02d}:00.000Z"
        assert at
        query.progressed(report)
    if limit is not None:
        query._snapshot.run.settings["spark.executor.pyspark.memory"] = limit
    return query.snapshot()


def test_the_day_on_which_memory_runs_out() -> None:
    snapshot = _grown("2m", 1024)
    [state] = growth_of(snapshot)
    assert (state.uid, state.bytes, state.keys) == ("count", 1290, 29)
    assert state.per_day == pytest.approx(960)
    memory = memory_of(snapshot)
    assert memory.limit == 2 << 20
    minutes = ((2 << 20) - (1 << 20) - 29 * 1024) / 1024
    last = snapshot.run.moments[-1].at
    assert memory.full_at == pytest.approx(last + 15 * minutes * 60_000, abs=15_000)


def test_an_unset_limit_is_not_guessed() -> None:
    assert memory_of(_grown(None, 1024)).message == "no limit: spark.executor.pyspark.memory is not set"
    assert memory_of(_grown("2m", 0)).message == "not growing"
    assert memory_of(model().snapshot()).full_at is None


@pytest.mark.parametrize(
    ("setting", "size"),
    [("2g", 2 << 30), ("512", 512 << 20), ("64MiB", 64 << 20), ("1kb", 1024), ("48B", 48), ("", None), ("x", None)],
)
def test_sizes_of_spark(setting: str, size: int | None) -> None:
    assert bytes_in({"size": setting}, "size") == size


def test_a_failure_goes_as_a_line_and_comes_back() -> None:
    error = OperatorError("operator 'count' failed at the record Row(n=1): ValueError: no\nand more")
    error.__cause__ = ValueError("no")
    error.at(operator="count", key="ann", record=(1,), position=4, uid="count", number=7)
    failure = Failure.of(error, 3, FailedAttempt(2, 12, 1))
    assert (failure.error, failure.cause, failure.operator, failure.uid) == (
        "OperatorError",
        "ValueError",
        "count",
        "count",
    )
    assert (failure.key, failure.record, failure.number) == ("'ann'", "(1,)", 7)
    assert (failure.subtask, failure.epoch, failure.attempt) == (3, 12, 1)
    text = (
        f"Job aborted: pillarbox._errors.OperatorError: {error}\n{failure.to_line()} SQLSTATE: 39000\n\tat org.apache"
    )
    back = Failure.of_text(text)
    assert back is not None
    assert back.message.startswith("operator 'count' failed at the record Row(n=1): ValueError: no\nand more")
    assert {**vars(back), "message": ""} == vars(failure)
    assert without_line(f"{error}\n{failure.to_line()}") == str(error)


@pytest.mark.parametrize("text", ["nothing", "failure: {", "a failure: {}", "failure: []"])
def test_other_lines_are_not_read_as_failures(text: str) -> None:
    assert Failure.of_text(text) is None
