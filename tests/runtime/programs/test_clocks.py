from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment
from pillarbox._runtime.spark.tasks import residency
from pillarbox._runtime.spark.tasks.residency import Residency
from pillarbox._time import system_clock
from tests.runtime.spark_of_dicts import Query

NOON = 1_800_000_000_000
MINUTE = 60_000
ANSWER = threading.Event()


class Clock:
    now = NOON

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def time_ns(self) -> int:
        return self.now * 1_000_000


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    residents = Residency(stay=True)
    monkeypatch.setattr(residency, "here", residents)
    wall = Clock()
    monkeypatch.setattr(system_clock, "time", wall)
    ANSWER.clear()
    yield wall
    ANSWER.set()
    residents.close_all()


class Remind(KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_processing_time_timer(value)

    def on_timer(self, timestamp, ctx):
        yield timestamp


async def ask(value):
    await asyncio.get_running_loop().run_in_executor(None, ANSWER.wait)
    return value


def reminding() -> Query:
    env = StreamExecutionEnvironment().set_parallelism(1)
    return Query(env, env.from_collection([]).map(lambda row: row.value).key_by(lambda value: 0).process(Remind()))


def asking() -> Query:
    env = StreamExecutionEnvironment().set_parallelism(1)
    numbers = env.from_collection([]).map(lambda row: row.value).rebalance()
    return Query(env, numbers.map_async(ask, on_barrier="carry", timeout=None))


def timers(query: Query) -> list[int]:
    return sorted(at for handle in query.handles for present in handle.timers.values() for at in present)


def test_a_worker_whose_clock_is_behind_fires_a_timer_without_input(clock):
    query = reminding()
    clock.now = NOON - 2000
    assert query.run_batch([NOON - 1000], now=NOON) == []
    for passed in range(100, 1000, 300):
        clock.now = NOON - 2000 + passed
        assert query.run_batch(now=NOON + passed) == []
    clock.now = NOON - 999
    assert query.run_batch(now=NOON + 1001) == [NOON - 1000]
    assert timers(query) == []


def test_a_timer_that_is_set_for_the_batch_s_own_time_or_before_fires_at_its_end(clock):
    for early in (0, 1, 500):
        query = reminding()
        assert query.run_batch([NOON - early], now=NOON) == [NOON - early]
        assert timers(query) == []
    query = reminding()
    assert query.run_batch([NOON + 1], now=NOON) == []
    assert timers(query) == [NOON + 1]
    clock.now = NOON + 2
    assert query.run_batch(now=NOON + 2) == [NOON + 1]
    assert timers(query) == []


def test_a_timer_for_which_spark_calls_is_deleted_once(clock):
    """Spark itself deletes the timer after the call. A second deletion would make Spark log a warning."""
    query = reminding()
    query.run_batch([NOON + 10 * MINUTE, NOON + 20 * MINUTE, NOON + 30 * MINUTE], now=NOON)
    clock.now = NOON + 15 * MINUTE
    assert query.run_batch(now=NOON + 15 * MINUTE) == [NOON + 10 * MINUTE]
    assert timers(query) == [NOON + 20 * MINUTE]
    # With input: Spark has not called for the timer yet.
    clock.now = NOON + 25 * MINUTE
    assert query.run_batch([NOON + 40 * MINUTE], now=NOON + 25 * MINUTE) == [NOON + 20 * MINUTE]
    assert timers(query) == [NOON + 30 * MINUTE]


def test_a_driver_whose_clock_is_set_back_finds_the_timer_again(clock):
    query = reminding()
    query.run_batch([NOON + 10], now=NOON)
    assert query.run_batch(now=NOON - 5000) == []
    assert timers(query) == [NOON + 10]
    clock.now = NOON + 11
    assert query.run_batch(now=NOON + 11) == [NOON + 10]


@pytest.mark.parametrize("ahead", [-3_600_000, -1500, 0, 1500, 3_600_000])
def test_carried_requests_are_looked_after_in_each_batch(clock, ahead):
    query = asking()
    now = NOON
    clock.now = now + ahead
    assert query.run_batch([1, 2, 3], now=now) == []
    answers: list[int] = []
    for _ in range(3):
        now += 100
        clock.now = now + ahead
        answers += query.run_batch(now=now)
        assert [report.unfinished for report in query.reports if report.level == 1] == [True]
    ANSWER.set()
    while len(answers) < 3:
        now += 100
        clock.now = now + ahead
        answers += query.run_batch(now=now)
        assert [report.level for report in query.reports if report.level == 1] == [1]
    assert answers == [1, 2, 3]
    assert timers(query) == []
