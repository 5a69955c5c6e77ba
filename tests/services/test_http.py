"""Async I/O on Spark against a faulty HTTP service."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from pyspark.sql import functions as F

import pillarbox.functions as PF
from pillarbox import (
    AsyncCache,
    AsyncDataStream,
    AsyncFunction,
    AsyncRetryStrategy,
    Function,
    OutputTag,
    StreamExecutionEnvironment,
    Time,
    metrics,
)

ROWS = 200


class Square(Function):
    def __init__(self, url: str, patience: float | None = None) -> None:
        self.url = url
        self.patience = patience

    async def open(self, runtime_context):
        self.session = aiohttp.ClientSession(self.url, timeout=aiohttp.ClientTimeout(total=self.patience))

    async def close(self):
        await self.session.close()

    async def __call__(self, number):
        if number is None:
            return None
        async with self.session.get(f"/square/{number}") as response:
            response.raise_for_status()
            return (await response.json())["square"]


class SquareOfRow(Square):
    """Emits a row's partition, number, and the number's square."""

    async def __call__(self, row):
        return row.part, row.id, await super().__call__(row.id)


class SquareInFlinksWay(AsyncFunction):
    def __init__(self, url: str) -> None:
        self.square = SquareOfRow(url)

    async def open(self, runtime_context):
        await self.square.open(runtime_context)

    async def close(self):
        await self.square.close()

    async def async_invoke(self, value):
        return [await self.square(value)]


class SquareOrMinusOne(SquareInFlinksWay):
    def timeout(self, value):
        return [(value.part, value.id, -1)]


def numbers(spark, count=ROWS):
    return spark.range(0, count, numPartitions=2).select("id", F.spark_partition_id().alias("part"))


def environment(spark):
    return StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)


def counters(query) -> Counter[str]:
    total: Counter[str] = Counter()
    for progress in query.recentProgress:
        for task in metrics(progress):
            for name, value in task.counters.items():
                total[name.rpartition(".")[2]] += value
    return total


def as_stream(spark, df, folder: Path, batches: int):
    df.repartitionByRange(2 * batches, "id").write.parquet(str(folder))
    return spark.readStream.schema(df.schema).option("maxFilesPerTrigger", 2).parquet(str(folder))


def run(df, folder: Path):
    rows: list[Any] = []
    query = (
        df.writeStream.foreachBatch(lambda batch, number: rows.extend(batch.collect()))
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return rows, query


SQUARES = sorted((n, n * n) for n in range(ROWS))


def test_async_map_asks_again_after_a_500(spark, service):
    service.control(errors=0.3)
    retry = AsyncRetryStrategy.fixed_delay(20, 20, None, aiohttp.ClientResponseError)
    square = Square(service.url)
    results = PF.async_map(numbers(spark), square, "square LONG", columns=["id"], retry=retry, timeout="5 minutes")
    assert results.columns == ["id", "part", "square"]
    assert sorted((row.id, row.square) for row in results.collect()) == SQUARES
    outcomes = service.stats()["outcomes"]
    assert outcomes["200"] == ROWS
    assert outcomes["500"] > ROWS / 10


class Noted(Square):
    def __init__(self, url: str, workers: Path) -> None:
        super().__init__(url)
        self.workers = workers

    async def open(self, runtime_context):
        (self.workers / str(os.getpid())).touch()
        await super().open(runtime_context)


def test_async_map_on_a_stream_with_a_cache_and_metrics(spark, service, tmp_path):
    (tmp_path / "workers").mkdir()
    service.control(errors=0.2, latency=5)
    digits = numbers(spark).withColumn("digit", F.when(F.col("id") % 10 < 9, F.col("id") % 10))
    results = PF.async_map(
        as_stream(spark, digits, tmp_path / "in", 4),
        Noted(service.url, tmp_path / "workers"),
        "square LONG",
        columns=["digit"],
        retry=AsyncRetryStrategy.fixed_delay(20, 20),
        cache=AsyncCache(ttl="1 hour"),
        timeout="5 minutes",
    )
    rows, query = run(results, tmp_path / "checkpoint")
    right = [(n, (n % 10) ** 2 if n % 10 < 9 else None) for n in range(ROWS)]
    assert sorted((row.id, row.square) for row in rows) == right
    stats = service.stats()
    assert stats["different"] == 9
    workers = len(list((tmp_path / "workers").iterdir()))
    assert 9 <= stats["outcomes"]["200"] <= 9 * workers
    count = counters(query)
    assert count["retried"] == stats["outcomes"].get("500", 0) > 0
    assert count["completed"] == ROWS
    assert count["requests"] - count["retried"] == ROWS - count["cache_hits"] <= 10 * workers
    assert count["latency_p50_us"] > 0


@pytest.mark.parametrize("ordered", [True, False])
def test_order_within_a_partition(spark, service, ordered):
    service.control(latency=20)
    stream = environment(spark).from_dataframe(numbers(spark))
    wait = AsyncDataStream.ordered_wait if ordered else AsyncDataStream.unordered_wait
    squares = wait(stream, SquareInFlinksWay(service.url), Time.minutes(5), capacity=25)
    rows = squares.to_dataframe("part INT, id LONG, square LONG").collect()
    assert sorted((row.id, row.square) for row in rows) == SQUARES
    parts = [[row.id for row in rows if row.part == part] for part in (0, 1)]
    assert [part == sorted(part) for part in parts] == [ordered, ordered]
    assert 2 <= service.stats()["in_flight_max"] <= 50


def test_records_that_fail_go_to_a_side_output(spark, service):
    failed = OutputTag("failed")

    class SquareOfEven(SquareOfRow):
        async def __call__(self, row):
            return await super().__call__(row if row.id % 2 == 0 else row._replace(id="odd"))

    stream = environment(spark).from_dataframe(numbers(spark, 50))
    squares = stream.map_async(
        SquareOfEven(service.url), retry=AsyncRetryStrategy.fixed_delay(2, 10), on_failure=failed, timeout="5 minutes"
    )
    answered = squares.to_dataframe("part INT, id LONG, square LONG").collect()
    assert sorted(row.id for row in answered) == list(range(0, 50, 2))
    failures = squares.get_side_output(failed).map(lambda failure: (failure.value.id, failure.attempts, failure.error))
    rows = failures.to_dataframe("id LONG, attempts INT, error STRING").collect()
    assert sorted((row.id, row.attempts) for row in rows) == [(n, 3) for n in range(1, 50, 2)]
    assert all("ClientResponseError" in row.error and "500" in row.error for row in rows)


def test_a_service_that_never_answers_is_not_waited_for(spark, service):
    service.control(hangs=0.2)
    stream = environment(spark).from_dataframe(numbers(spark, 60))
    squares = AsyncDataStream.ordered_wait(stream, SquareOrMinusOne(service.url), "3 seconds", capacity=60)
    rows = squares.to_dataframe("part INT, id LONG, square LONG").collect()
    assert sorted(row.id for row in rows) == list(range(60))
    given_up = [row.id for row in rows if row.square == -1]
    assert all(row.square == row.id**2 for row in rows if row.id not in given_up)
    # Only the seed determines the unanswered requests; a slow answer counts as unanswered.
    assert 0 < service.stats()["outcomes"]["hung"] <= len(given_up) < 60


def test_a_hanging_request_is_made_again(spark, service):
    service.control(hangs=0.1)
    square = Square(service.url, patience=1)
    results = PF.async_map(numbers(spark), square, "square LONG", columns=["id"], retry=8, timeout="1 minute")
    assert sorted((row.id, row.square) for row in results.collect()) == SQUARES
    assert service.stats()["outcomes"]["hung"] > 0


def test_the_rate_of_a_job_is_limited(spark, service):
    class Timed(SquareOfRow):
        """Returns the time of its request."""

        async def __call__(self, row):
            asked = time.monotonic_ns()
            await super().__call__(row)
            return row.part, asked

    stream = environment(spark).from_dataframe(numbers(spark, 240))
    squares = stream.map_async(Timed(service.url), job_rate_limit=80, timeout="5 minutes")
    asked = squares.to_dataframe("part INT, at LONG").collect()
    # 240 requests of two processes take three seconds. In any second, at most 1.04 times the limit begins.
    times = sorted(row.at for row in asked)
    assert len(times) == 240 and times[-1] - times[0] > 2.8e9
    assert max(sum(at <= other < at + 1e9 for other in times) for at in times) <= 84
