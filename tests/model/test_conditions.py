"""Days of a query on a manual clock: 20 healthy hours, 2 hours with a fault, 2 healthy hours.

Doctor, page and alert metric must agree each minute, and notice the fault's beginning and end within five minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from pillarbox._reports.failure import Failure
from pillarbox._runtime.spark.running.heartbeat import Heartbeat
from pillarbox._time.timestamp_assigner import MAX_WATERMARK
from pillarbox_tools.doctor.rules import wrong
from pillarbox_tools.export import metric as m
from pillarbox_tools.export.query_metrics import QueryMetrics
from pillarbox_tools.model.condition import CONDITIONS, conditions_of, input_at, lag_now
from pillarbox_tools.model.snapshot import Snapshot, SnapshotRun
from tests.model.made import START, keyed, plan, progress, query_model, source

MINUTE, HOUR = 60_000, 3_600_000
BEGINS, ENDS, DAY = 20 * 60, 22 * 60, 24 * 60
SETTINGS = {"cores": "8", "parallelism": "2", "trigger": "ProcessingTimeTrigger(60000)"}
_SLACK = 5


class Day:
    """A query with an epoch each minute, with a thousand rows of that minute's event time."""

    def __init__(self, **settings: str) -> None:
        self.now = START
        run = SnapshotRun("r", START, settings={**SETTINGS, **settings})
        self.model = query_model("q", "counts", "/c", plan(), run, clock=lambda: self.now)
        self.ledger = QueryMetrics(self.model)
        self.number = 0
        self.tells_backlog = True

    def epoch(self, *, took: int = 1000, rows: int = 1000, backlog: int = 0, **keyed_values: Any) -> None:
        offsets = {"t": {"0": self.number}}
        sources = [
            {
                "description": "KafkaV2[Subscribe[t]]",
                "numInputRows": rows,
                "startOffset": offsets,
                "endOffset": offsets,
                **({"latestOffset": {"t": {"0": self.number + backlog}}} if self.tells_backlog else {}),
            }
        ]
        values = {"records_in": rows, "busy_ms": 100, "keys": 50, "state_bytes": 9, "watermark": self.now - 5000}
        tasks = keyed_values.pop("tasks", None) or [keyed(**{**values, **keyed_values})]
        times = [self.now - 60_000, self.now - 1000, {}]
        begun = datetime.fromtimestamp((self.now - took) / 1000, timezone.utc).isoformat().replace("+00:00", "Z")
        report = progress(self.number, source(records_in=rows, event_times=times), *tasks, sources=sources)
        report |= {"timestamp": begun, "durationMs": {"addBatch": took - 100, "triggerExecution": took}}
        self.model.progressed(report)
        self.number += 1

    def beat(self, since: int | None = None) -> None:
        epoch = None if since is None else self.number
        self.model.beat(Heartbeat(self.now, "r", "one", 9, 0, epoch, since, self.now))

    def found(self) -> set[str]:
        snapshot = self.model.snapshot()
        result = rules_of(snapshot)
        gauges = self.ledger.values()
        of_alerts = {name.replace(" ", "_") for name in CONDITIONS if gauges[m.CONDITION, (name,)]}
        of_page = {condition.name.replace(" ", "_") for condition in conditions_of(snapshot)}
        assert of_page == of_alerts == result & {name.replace(" ", "_") for name in CONDITIONS}
        return result


def rules_of(snapshot: Snapshot) -> set[str]:
    return {finding.rule for finding in wrong(snapshot)}


Minute = Callable[[Day, int], None]


def hangs(day: Day, minute: int) -> None:
    day.beat(START + BEGINS * MINUTE)


def silent(day: Day, minute: int) -> None:
    day.beat()


def falls_behind(day: Day, minute: int) -> None:
    day.epoch(backlog=10_000 * (minute - BEGINS + 1))
    day.beat()


def slow(day: Day, minute: int) -> None:
    if minute % 2:
        day.epoch(took=119_000)
    day.beat()


def calls_fail(day: Day, minute: int) -> None:
    day.epoch(counters={"count.completed": 700, "count.failed": 200, "count.timed_out": 100})
    day.beat()


def comes_late(day: Day, minute: int) -> None:
    day.epoch(counters={"count.late_records_dropped": 30})
    day.beat()


def fails(day: Day, minute: int) -> None:
    day.epoch(counters={"count.dead_letters": 30})
    day.beat()


def repeats(day: Day, minute: int) -> None:
    day.epoch(attempt=1)
    day.beat()


def is_skewed(day: Day, minute: int) -> None:
    small = keyed(subtask=1, records_in=1, busy_ms=1, watermark=day.now - 5000, keys=1, state_bytes=9)
    large = keyed(records_in=999, busy_ms=50_000, watermark=day.now - 5000, keys=50, state_bytes=9)
    day.epoch(took=51_000, tasks=[small, large])
    day.beat()


FAULTS: dict[str, Minute] = {
    "hung_epoch": hangs,
    "silent_source": silent,
    "falling_behind": falls_behind,
    "failing_calls": calls_fail,
    "lost_records": comes_late,
    "dead_letters": fails,
    "repeated_tasks": repeats,
    "skewed_tasks": is_skewed,
}


def healthy(day: Day, minute: int) -> None:
    day.epoch(counters={"count.completed": 1000, "count.failed": 0, "count.timed_out": 0})
    day.beat()


def looked_at() -> Iterator[int]:
    yield from range(3)
    yield from range(60, DAY, 60)
    for change in (BEGINS, ENDS):
        yield from range(change - 3, change + 20)


def told_by(fault: Minute, day: Day) -> dict[int, set[str]]:
    minutes, results = set(looked_at()), {}
    for minute in range(DAY):
        day.now = START + minute * MINUTE
        (fault if BEGINS <= minute < ENDS else healthy)(day, minute)
        if minute in minutes:
            results[minute] = day.found()
    return results


@pytest.mark.slow("a day of 1,440 epochs, and some fifty looks at it")
@pytest.mark.parametrize("rule", FAULTS)
def test_a_fault_is_reported_while_it_lasts(rule: str) -> None:
    for minute, rules in told_by(FAULTS[rule], Day()).items():
        if BEGINS + _SLACK <= minute < ENDS:
            assert rules == {rule}, f"minute {minute - BEGINS} of the fault"
        elif minute < BEGINS or minute >= ENDS + _SLACK:
            assert rules == set(), f"minute {minute}, healthy"
        else:
            assert rules <= {rule}


@pytest.mark.slow("a day of 1,440 epochs, and some fifty looks at it")
def test_epochs_that_take_too_long_are_said_while_they_do() -> None:
    day = Day()
    day.tells_backlog = False
    for minute, rules in told_by(slow, day).items():
        if BEGINS + 2 * _SLACK <= minute < ENDS:  # an epoch takes two minutes, and three have to
            assert rules == {"falling_behind"}, minute
        elif minute < BEGINS or minute >= ENDS + _SLACK:
            assert rules == set(), minute


def test_a_watermark_in_the_future_stays() -> None:
    day = Day()
    for minute in range(30):
        day.now = START + minute * MINUTE
        day.epoch(**({"watermark": 4_102_444_800_000} if minute >= 10 else {}))
        day.beat()
        assert day.found() == ({"watermark_in_the_future"} if minute >= 10 else set()), minute


def test_a_burst_of_input_that_is_read_is_not_falling_behind() -> None:
    day = Day()
    for minute in range(60):
        day.now = START + minute * MINUTE
        day.epoch(backlog=max(0, 200_000 - 30_000 * (minute % 10)))
        assert day.found() == set(), minute


@pytest.mark.slow("four hours of epochs")
def test_a_longer_epoch_each_hour_does_not_hang() -> None:
    day = Day(trigger="ProcessingTimeTrigger(10000)")
    for minute in range(4 * 60):
        day.now = START + minute * MINUTE
        if minute % 60 in (31, 32):  # the epoch that begins at minute 30
            day.beat(day.now - (minute % 60 - 30) * MINUTE)
            assert minute < 60 or day.found() == set(), minute
            continue
        if minute % 60 == 33:
            day.epoch(took=150_000)
        else:
            for _ in range(6):
                day.epoch(took=500)
                day.now += 10_000
        day.beat()
    day.now += 8 * MINUTE
    day.beat(day.now - 8 * MINUTE)
    assert day.found() == {"hung_epoch"}


FAULTS_OF_A_VERTEX: dict[str, dict[str, Any]] = {
    "watermark_in_the_future": {"watermark": 4_102_444_800_000},
    "back_pressure": {"took": 40_000, "back_pressured_ms": 30_000},
    "slow_copies": {"took": 40_000, "busy_ms": 30_000, "counters": {"count.copy_ms_Cart": 20_000}},
}


@pytest.mark.parametrize("rule", FAULTS_OF_A_VERTEX)
def test_a_fault_of_an_operator_remains_in_epochs_without_its_rows(rule: str) -> None:
    day = Day()
    for minute in range(60):
        day.now = START + minute * MINUTE
        if minute % 2:
            day.epoch(tasks=[keyed(number=2, records_in=1000, watermark=day.now)])
        else:
            day.epoch(**FAULTS_OF_A_VERTEX[rule])
        if minute > 10:
            assert day.found() == {rule}, minute


def test_event_time_that_has_ended_has_no_lag() -> None:
    day = Day()
    day.epoch()
    day.now += MINUTE
    assert lag_now(day.model.snapshot()) == 5000 + MINUTE
    day.epoch(watermark=MAX_WATERMARK)
    day.now += HOUR
    assert lag_now(day.model.snapshot()) is None


def test_epochs_without_rows_in_the_same_minute_are_no_input() -> None:
    day = Day()
    day.epoch(rows=9)
    came = day.now
    for _ in range(9):
        day.now += 1000
        day.epoch(rows=0)
    assert input_at(day.model.snapshot()) == came
    assert day.ledger.values()[m.INPUT_AGE, ()] == 9000


def test_a_source_that_is_rare_is_not_silent() -> None:
    day = Day()
    rules = []
    for minute in range(6 * 60):
        day.now = START + minute * MINUTE
        if minute % 60 == 0:
            day.epoch()
        day.beat()
        if minute > 125:
            rules.append(day.found())
    assert set().union(*rules) == set()
    day.now += 4 * HOUR
    day.beat()
    assert day.found() == {"silent_source"}


@pytest.mark.parametrize("trigger", ["AvailableNowTrigger", "OneTimeTrigger"])
def test_a_query_that_ends_with_its_input_is_neither_behind_nor_silent(trigger: str) -> None:
    day = Day(trigger=trigger)
    for minute in range(60):
        day.now = START + minute * MINUTE
        if minute < 30:
            day.epoch(backlog=1_000_000 * minute)
        day.beat()
        assert day.found() == set()


def test_a_query_that_has_just_started_is_well() -> None:
    day = Day()
    assert day.found() == set()
    day.beat(START)
    day.now += MINUTE
    assert day.found() == set(), "its first epoch runs"


def test_a_query_with_a_trigger_of_an_hour_is_well() -> None:
    day = Day(trigger="ProcessingTimeTrigger(3600000)")
    for minute in range(0, 12 * 60, 5):
        day.now = START + minute * MINUTE
        if minute % 60 == 0:
            day.epoch(took=20_000)
        day.beat()
        assert day.found() == set(), minute


def test_a_driver_that_is_gone_is_said_of_what_it_has_written() -> None:
    day = Day()
    for minute in range(60):
        day.now = START + minute * MINUTE
        healthy(day, minute)
    written = replace(day.model.snapshot(), is_live=False)
    for minutes in range(10):
        read = replace(written, read_at=day.now + minutes * MINUTE)
        assert rules_of(read) == ({"driver_gone"} if minutes > 3 else set()), minutes
    day.model.ended()
    assert rules_of(replace(day.model.snapshot(), is_live=False, read_at=day.now + HOUR)) == set(), "it has ended"


def test_a_query_that_starts_again_and_again_is_in_a_loop() -> None:
    day = Day()
    day.now = START + 30 * MINUTE
    earlier: list[SnapshotRun] = []
    for crash in range(1, 5):
        began = day.now - (crash + 1) * MINUTE
        failure = Failure("OperatorError", message="no such table\n(more)")
        earlier.append(SnapshotRun(f"r{crash}", began, began + 50_000, "failed", failures=[failure]))
    day.model._change(replace(day.model._snapshot.run, began=day.now - 10_000))
    day.model.follows(earlier)
    assert day.found() == {"crash_loop"}
    [condition] = conditions_of(day.model.snapshot())
    assert condition.line == "Started 5 times in 30 min, and failed 4; last error: no such table"
    assert day.ledger.values()[m.FAILURES, ()] == 1
    day.now += 6 * MINUTE
    day.epoch()
    assert day.found() == set(), "it has run for a while"
    new_day = Day()
    new_day.model.follows(earlier[:1])
    assert new_day.found() == set(), "one failure is no loop"


@pytest.mark.slow("two days of epochs")
def test_state_that_only_grows_is_said_after_an_hour_and_state_that_comes_and_goes_is_not() -> None:
    def keys_of(grows: bool, minute: int) -> int:
        return 200_000 + 500 * minute if grows else 400_000 + 100_000 * (minute % 240 - 120) // 120

    for grows in (True, False):
        day = Day()
        for minute in range(26 * 60):
            day.now = START + minute * MINUTE
            day.epoch(keys=keys_of(grows, minute))
            day.beat()
            if minute % 97 == 0 and minute > 240:
                assert day.found() == ({"endless_state"} if grows else set()), (grows, minute)
        # It stops to grow.
        for _ in range(20):
            day.now += MINUTE
            day.epoch(keys=keys_of(grows, 26 * 60))
            day.beat()
        assert day.found() == set()
