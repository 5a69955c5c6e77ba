"""Rate limits: how many requests begin, whatever workers, epochs and subtasks they are in."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from bisect import bisect_left
from typing import Any

import pytest

from pillarbox._operators.async_io.loop.turns import Turns
from pillarbox._operators.frame import rates
from pillarbox._operators.frame.rates import CATCH_UP, RateScope, RatesInFiles, RatesInMemory
from pillarbox.testing import ProgramTestHarness


class Clock:
    """A monotonic clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(rates, "monotonic", found)
    return found


@pytest.fixture(params=["in memory", "in files"])
def buckets(request, tmp_path, clock):
    return RatesInMemory() if request.param == "in memory" else RatesInFiles(str(tmp_path), "job")


def taken(bucket: Any, clock: Clock, until: float) -> list[float]:
    """Take requests as they come until a time; return when they began."""
    times = []
    while clock.now < until:
        wait = bucket.take()
        if not wait:
            times.append(clock.now)
        clock.now += min(wait, until - clock.now)
    return times


def most(times: list[float], seconds: float) -> int:
    return max(bisect_left(times, start + seconds) - place for place, start in enumerate(times))


def test_a_bucket_gives_its_rate(buckets, clock):
    times = taken(buckets.bucket("ask", 50), clock, 1060)
    assert 0.97 * 50 * 60 <= len(times) <= 50 * 60
    assert most(times, 1) <= 50


def test_a_pause_is_made_up_for_but_not_more_than_half_a_second(buckets, clock):
    """As between epochs: what could have begun meanwhile begins at once."""
    bucket = buckets.bucket("ask", 50)
    times: list[float] = []
    for _ in range(100):
        times += taken(bucket, clock, clock.now + 2.0)
        clock.now += 0.4
    assert most(times, 30) <= 50 * 30
    assert len(times) >= 0.97 * 50 * 240
    assert most(times, 1) <= 50 * (1 + CATCH_UP)
    clock.now += 3600
    assert len(taken(bucket, clock, clock.now + 1e-6)) <= 50 * CATCH_UP


def test_workers_that_take_turns_share_a_bucket(tmp_path, clock):
    """Each has an object of its own, as in a process of its own."""
    workers = [RatesInFiles(str(tmp_path), "job").bucket("ask", 50) for _ in range(3)]
    times: list[float] = []
    choice = random.Random(1)
    for _ in range(200):
        times += taken(choice.choice(workers), clock, clock.now + choice.uniform(0.01, 0.6))
        clock.now += choice.choice([0, 0.2])
    assert most(times, 30) <= 50 * 30
    assert most(times, 1) <= 50 * (1 + CATCH_UP)
    assert RatesInFiles(str(tmp_path), "other job").bucket("ask", 50).take() == 0


def test_a_bucket_that_was_kept_for_another_rate_or_by_another_clock_holds_nobody_up(tmp_path, clock):
    slow = RatesInFiles(str(tmp_path), "job").bucket("ask", 0.001)
    assert slow.take() == 0 and slow.take() > 900
    assert RatesInFiles(str(tmp_path), "job").bucket("ask", 10).take() == 0
    clock.now = 3.0  # the machine was started anew
    assert RatesInFiles(str(tmp_path), "job").bucket("ask", 10).take() == 0


def test_processes_share_a_bucket(tmp_path):
    program = (
        "import sys, time\n"
        "from pillarbox._operators.frame.rates import RatesInFiles\n"
        "bucket = RatesInFiles(sys.argv[1], 'job').bucket('ask', 100)\n"
        "begun = 0\n"
        "while begun < 40:\n"
        "    wait = bucket.take()\n"
        "    if wait: time.sleep(wait)\n"
        "    else: begun += 1; print(time.monotonic())\n"
    )
    workers = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    times = sorted(float(line) for worker in workers for line in worker.communicate()[0].splitlines())
    assert len(times) == 120
    # Only what must not be is asserted: more than the rate.
    assert times[-1] - times[0] >= (120 - 1) / 100 - CATCH_UP


def test_places_before_a_shuffle_are_those_of_tasks_that_run_at_the_same_time(tmp_path):
    places = [RatesInFiles(str(tmp_path), "job").take_place("ask", 2) for _ in range(2)]
    assert sorted(place.number for place in places) == [0, 1]
    # More tasks than were expected share what there is.
    assert RatesInFiles(str(tmp_path), "job").take_place("ask", 2).number == os.getpid() % 2
    places[0].release()
    assert RatesInFiles(str(tmp_path), "job").take_place("ask", 2).number == 0


def turns(scope: RateScope, parallelism: int, tasks: int = 1, **limits: float) -> Turns:
    return Turns(scope, "ask", 0, parallelism, tasks, **{"rate": None, "job_rate": None, **limits})


def rate_of(bucket: Any, clock: Clock) -> float:
    return len(taken(bucket, clock, clock.now + 60)) / 60


@pytest.mark.parametrize(
    ("parallelism", "partitions", "tasks", "rate"), [(16, 2, 1, 50), (1, 2, 1, 100), (16, 1, 1, 100), (0, 1, 4, 25)]
)
def test_the_rate_of_a_job_is_shared_by_the_tasks_that_run_at_the_same_time(
    clock, parallelism, partitions, tasks, rate
):
    found = turns(RateScope(RatesInMemory(), partitions, 0), parallelism, tasks, job_rate=100.0)
    found.begin_epoch()
    (bucket,) = found._buckets
    assert rate_of(bucket, clock) == pytest.approx(rate, rel=0.03)


def test_subtasks_of_one_partition_share_its_bucket(tmp_path, clock):
    def of(partition: int) -> Turns:
        return turns(RateScope(RatesInFiles(str(tmp_path), "job"), 2, partition), 16, job_rate=1.0)

    assert of(0)._buckets[0].take() == 0
    assert of(0)._buckets[0].take() > 0
    assert of(1)._buckets[0].take() == 0


def test_a_place_is_released_between_epochs(tmp_path):
    rates_ = [RateScope(RatesInFiles(str(tmp_path), "job")) for _ in range(2)]
    first, second = (turns(scope, 0, 2, job_rate=1.0) for scope in rates_)
    first.begin_epoch()
    first.begin_epoch()
    first.end_epoch()
    second.begin_epoch()
    assert second._buckets[0].take() == 0
    first.begin_epoch()
    # The other place is as new, and has a bucket of its own.
    assert first._buckets[0].take() == 0
    first.close()
    second.close()


def test_subtasks_that_run_one_after_another_have_the_whole_rate():
    """A program of sixteen subtasks in one process: what one has used up, the next one waits for."""

    async def ask(value):
        return value, time.monotonic()

    def build(env, numbers):
        return numbers.key_by(lambda value: value).map_async(ask, job_rate_limit=200)

    with ProgramTestHarness(build, parallelism=16) as harness:
        harness.push("numbers", *range(100))
        answers = harness.run_epoch()["output"]
        reports = harness._job.reports
    times = sorted(at for _, at in answers)
    assert len(times) == 100
    assert times[-1] - times[0] >= 99 / 200 - CATCH_UP
    limited = [report.rate_limited_ms for report in reports if report.level]
    assert any(limited)
    assert all(report.rate_limited_ms is None for report in reports if not report.level)
