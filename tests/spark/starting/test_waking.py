"""Timers and requests that become due while a query is stopped are processed after its start, even without input."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import pillarbox
from pillarbox import DataStream, KeyedProcessFunction, StreamExecutionEnvironment
from pillarbox.testing import ProgramTestHarness, row


class Remind(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        ctx.timer_service().register_processing_time_timer(value.at)
        yield value.k, 0

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp


def reminders(rows: DataStream[Any]) -> DataStream[Any]:
    return rows.key_by("k").process(Remind()).uid("remind")


class Query:
    def __init__(self, spark: SparkSession, home: Path) -> None:
        self.spark = spark
        self.home = home
        self.rows: dict[int, list[tuple[str, int]]] = {}
        (home / "in").mkdir()

    def put(self, **reminders: int) -> None:
        number = len(list((self.home / "in").iterdir()))
        file = self.home / f"{number}.json"
        file.write_text("".join(json.dumps({"k": key, "at": at}) + "\n" for key, at in reminders.items()))
        file.rename(self.home / "in" / file.name)

    def writer(self, *, savepoint: Path | None = None) -> Any:
        def keep(batch: DataFrame, number: int) -> None:
            self.rows[number] = [tuple(row) for row in batch.collect()]

        rows = self.spark.readStream.schema("k STRING, at LONG").json(str(self.home / "in"))
        env = StreamExecutionEnvironment.get_execution_environment(self.spark).set_parallelism(2).set_max_parallelism(2)
        if savepoint is not None:
            env.from_savepoint(str(savepoint))
        writer = reminders(env.from_dataframe(rows)).to_dataframe("k STRING, at LONG").writeStream.foreachBatch(keep)
        return writer.option("checkpointLocation", str(self.home / "checkpoint"))

    def numbers(self, log: str) -> list[int]:
        return sorted(int(path.name) for path in (self.home / "checkpoint" / log).iterdir() if path.name.isdigit())

    @property
    def found(self) -> list[tuple[str, int]]:
        return sorted(row for rows in self.rows.values() for row in rows)


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Query:
    return Query(spark, tmp_path)


@pytest.mark.slow("the start from a savepoint and the query have five micro-batches")
def test_a_timer_of_a_savepoint_fires_without_input(query: Query) -> None:
    with ProgramTestHarness(lambda env, rows: reminders(rows)) as harness:
        harness.push("rows", row(k="a", at=5000))
        harness.run_epoch()
        harness.write_savepoint(query.home / "savepoint")
    writer = query.writer(savepoint=query.home / "savepoint")
    pillarbox.start(writer.trigger(availableNow=True)).awaitTermination()
    assert query.found == [("a", 5000)]
    assert query.numbers("offsets") == query.numbers("commits")


@pytest.mark.long("it waits for half a minute, and tests/faults/test_clocks.py has timers without input")
def test_a_timer_fires_in_a_run_without_input(query: Query) -> None:
    at = int(1000 * time.time()) + 25_000
    query.put(a=at - 3_600_000, b=at)  # one is due at once, the other later
    pillarbox.start(query.writer().trigger(availableNow=True)).awaitTermination()
    assert query.found == [("a", 0), ("a", at - 3_600_000), ("b", 0)]
    assert query.numbers("offsets") == query.numbers("commits")
    while 1000 * time.time() <= at:
        time.sleep(0.1)
    pillarbox.start(query.writer().trigger(availableNow=True)).awaitTermination()
    assert query.found == [("a", 0), ("a", at - 3_600_000), ("b", 0), ("b", at)]
    assert query.numbers("offsets") == query.numbers("commits")
    offsets = query.home / "checkpoint" / "offsets"
    times = [
        json.loads((offsets / str(n)).read_text().splitlines()[1])["batchTimestampMs"] for n in query.numbers("offsets")
    ]
    assert times == sorted(set(times))


@pytest.mark.long("two queries, to show that trigger(once=True) gets no batch for timers")
def test_one_micro_batch_is_for_its_input(query: Query) -> None:
    past = int(1000 * time.time()) - 3_600_000
    query.put(a=past)
    pillarbox.start(query.writer().trigger(availableNow=True)).awaitTermination()
    query.put(b=past)
    pillarbox.start(query.writer().trigger(once=True)).awaitTermination()
    assert ("b", 0) in query.found
