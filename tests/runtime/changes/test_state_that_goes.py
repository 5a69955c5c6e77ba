"""Once event time has passed their rows, joins keep neither rows nor timers, and only a short state log."""

from __future__ import annotations

import random

import pytest

from pillarbox import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    WatermarkStrategy,
)
from pillarbox._state.log import limits
from pillarbox.testing import ProgramTestHarness, row

EPOCHS, RECORDS, PAYLOAD = 24, 60, 400
AT = WatermarkStrategy.for_bounded_out_of_orderness(20).with_timestamp_assigner("at")


def timed(*streams):
    return [stream.assign_timestamps_and_watermarks(AT) for stream in streams]


def near(env, lefts, rights):
    a, b = timed(lefts, rights)
    pairs = a.key_by("key").interval_join(b.key_by("key")).between(-100, 60)
    return pairs.process(lambda left, right, ctx: [(left.number, right.number)])


def joined(env, lefts, rights):
    a, b = timed(lefts, rights)
    windows = a.join(b).where("key").equal_to("key").window(SlidingEventTimeWindows.of(100, 50))
    return windows.apply(lambda left, right: (left.number, right.number))


def grouped(env, lefts, rights):
    left, right = timed(lefts, rights)
    windows = left.co_group(right).where("key").equal_to("key").window(EventTimeSessionWindows.with_gap(8))
    return windows.apply(lambda lefts, rights: [(len(lefts), len(rights))])


@pytest.mark.parametrize("build", [near, joined, grouped])
def test_joins_leave_nothing_behind(build, monkeypatch):
    monkeypatch.setattr(limits, "SLACK_BYTES", 30_000)
    monkeypatch.setattr(limits, "CHUNK_BYTES", 20_000)
    rng = random.Random(1)
    live, longest, pushed, pairs = [], 0, 0, 0
    with ProgramTestHarness(build, parallelism=2) as harness:
        for epoch in range(EPOCHS):
            for name in ("lefts", "rights"):
                for number in range(RECORDS):
                    record = row(
                        key=rng.randrange(200),
                        at=epoch * 100 + rng.randrange(110),
                        number=number,
                        payload=rng.randbytes(PAYLOAD),
                    )
                    harness.push(name, record)
                    pushed += PAYLOAD
            pairs += len(harness.run_epoch()["output"])
            live.append(state_bytes(harness))
            longest = max(longest, log_bytes(harness))
        pairs += len(harness.end_input()["output"])
        reports = [report for report in harness._job.reports if report.level == 1]
        assert [(report.keys, report.event_time_timers) for report in reports] == [(0, 0)] * 2
        assert state_bytes(harness) < 1_000
        # Each of the two subtasks has its slack, and remainders of chunks under cleaning.
        assert log_bytes(harness) < 4 * 30_000
    assert pairs > 100
    assert longest < 2 * max(live) + 4 * 30_000 < pushed / 2


def state_bytes(harness):
    return sum(report.state_bytes or 0 for report in harness._job.reports if report.level == 1)


def log_bytes(harness):
    return sum(len(chunk) for store in harness.snapshot().stores.values() for chunk in store.chunks.values())
