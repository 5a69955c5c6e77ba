from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import pillarbox
from pillarbox import Function, KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pillarbox._time import system_clock
from tests.faults.clock import SetClock, set_clock

pytestmark = pytest.mark.fault

KEYS = 20
HOUR = 3_600_000
_LONG = pytest.mark.long("the other test of such requests has this clock")
_UNIT = pytest.mark.long("runtime/programs/test_clocks.py has such clocks without Spark")


class Home:
    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.path = path
        self.clock = path / "clock"
        self.answered = path / "answered"
        self.rows: list[int] = []
        self.batches = 0
        spark.range(KEYS).coalesce(1).write.parquet(str(path / "in"))
        self.env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(4)
        self.numbers = self.env.from_dataframe(spark.readStream.schema("id LONG").parquet(str(path / "in")))

    def set_clock(self, ahead: int) -> None:
        set_clock(self.clock, 1, ahead)

    def start(self, df: DataFrame, **trigger: Any) -> Any:
        writer = df.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(self.path / "checkpoint"))
        return pillarbox.start(writer.trigger(**trigger))

    def _keep(self, batch: DataFrame, number: int) -> None:
        self.rows += [row.id for row in batch.collect()]
        self.batches += 1
        # The requests are answered when they have been carried over batches without input.
        if self.batches == 4:
            self.answered.touch()


@pytest.fixture
def home(spark: SparkSession, tmp_path: Path) -> Iterator[Home]:
    yield Home(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()


def wait_for(condition: Callable[[], bool], query: Any, what: str) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert query.isActive, query.exception()
        assert time.monotonic() < end, f"it did not come: {what}"
        time.sleep(0.05)


class Remind(KeyedProcessFunction):
    def __init__(self, clock: Path) -> None:
        self.clock = clock

    def open(self, runtime_context: RuntimeContext) -> None:
        vars(system_clock)["time"] = SetClock(str(self.clock))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 100)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield (ctx.get_current_key(),)


class Ask(Function):
    def __init__(self, clock: Path, answered: Path) -> None:
        self.clock = clock
        self.answered = answered

    def open(self, runtime_context: RuntimeContext) -> None:
        vars(system_clock)["time"] = SetClock(str(self.clock))

    async def __call__(self, row: Any) -> Any:
        while not os.path.exists(self.answered):
            await asyncio.sleep(0.01)
        return (row.id,)


def reminded(home: Home) -> DataFrame:
    return home.numbers.key_by("id").process(Remind(home.clock)).uid("remind").to_dataframe("id LONG")


def asked(home: Home) -> DataFrame:
    asking = home.numbers.key_by("id").map_async(
        Ask(home.clock, home.answered), on_barrier="carry", ordered=False, timeout=None
    )
    return asking.uid("ask").to_dataframe("id LONG")


# A timer is a matter of the worker's clock, and the driver calls by its own: one that is ahead makes it wait.
@pytest.mark.parametrize("ahead", [-HOUR, pytest.param(1500, marks=_UNIT)])
def test_timers_fire_without_further_input(home: Home, ahead: int) -> None:
    home.set_clock(ahead)
    query = home.start(reminded(home), processingTime="0 seconds")
    wait_for(lambda: len(home.rows) >= KEYS, query, "a timer of each key")
    query.stop()
    assert sorted(home.rows) == list(range(KEYS))


@pytest.mark.long("another test has such requests, and runtime/programs/test_clocks.py this")
@pytest.mark.parametrize("ahead", [-HOUR, HOUR])
def test_carried_requests_are_answered_without_further_input(home: Home, ahead: int) -> None:
    home.set_clock(ahead)
    query = home.start(asked(home), processingTime="0 seconds")
    wait_for(lambda: len(home.rows) >= KEYS, query, "all answers")
    query.stop()
    assert sorted(home.rows) == list(range(KEYS))


@pytest.mark.long("services/ and test_async.py have carried requests, the tests around it availableNow")
@pytest.mark.parametrize("ahead", [pytest.param(-HOUR, marks=_LONG), HOUR])
def test_available_now_answers_all_carried_requests(home: Home, ahead: int) -> None:
    home.set_clock(ahead)
    query = home.start(asked(home), availableNow=True)
    assert query.awaitTermination(120), "it does not end"
    assert query.exception() is None
    assert sorted(home.rows) == list(range(KEYS))


@pytest.mark.long("the first test has a clock that is behind")
def test_available_now_fires_timers_that_were_due_by_a_clock_that_is_behind(home: Home) -> None:
    home.set_clock(-HOUR)
    query = home.start(reminded(home), availableNow=True)
    assert query.awaitTermination(120), "it does not end"
    assert query.exception() is None
    assert sorted(home.rows) == list(range(KEYS))
