from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from pyspark.sql import SparkSession

import pillarbox
from examples.enrichment.service import running_service
from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from tests.spark.streams import Rows

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(sys.platform != "linux", reason="it kills processes of /proc"),
]
RECORDS, KEYS = 16, 8
SECONDS = 60.0


class Ask(KeyedProcessFunction[int, Any, Any]):
    def __init__(self, service: str) -> None:
        self.service = service

    async def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int))
        self.session = aiohttp.ClientSession(self.service)

    async def close(self) -> None:
        await self.session.close()

    async def process_element(self, row: Any, ctx: Any) -> Any:
        number = (self.count.value() or 0) + 1
        self.count.update(number)
        async with self.session.get(f"/square/{row.id}") as response:
            response.raise_for_status()
            square = (await response.json())["square"]
        if self.count.value() != number:
            raise AssertionError("another record has changed the state")
        yield row.key, row.id, number, square, os.getpid()


def wait_for(condition: Callable[[], object], query: Any = None) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        if query is not None and query.exception() is not None:
            raise query.exception()
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


def committed(query: Any, out: Rows) -> list[Any]:
    last = query.lastProgress
    return [] if last is None else [row for epoch in range(last["batchId"] + 1) for row in out.of(epoch)]


@pytest.mark.slow("two starts of a query, and homes that are killed")
def test_records_in_progress_outlive_their_home(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(2):
        rows = spark.range(number * RECORDS, (number + 1) * RECORDS).selectExpr("id", f"id % {KEYS} AS key")
        rows.coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
    out = Rows()
    with running_service(latency=100) as service:

        def start() -> Any:
            env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(2)
            source = spark.readStream.schema("id LONG, key LONG").option("maxFilesPerTrigger", 1)
            stream = env.from_dataframe(source.parquet(str(tmp_path / "in"))).key_by("key")
            asked = stream.process(Ask(service.url), capacity=4, timeout="1 minute", on_barrier="carry").uid("ask")
            frame = asked.to_dataframe("key LONG, id LONG, number LONG, square LONG, pid INT")
            writer = frame.writeStream.foreachBatch(out).option("checkpointLocation", str(tmp_path / "checkpoint"))
            return pillarbox.start(writer.trigger(processingTime="0 seconds"))

        query = start()
        # The stop below may interrupt an epoch, which then runs again in other homes: only committed rows remain.
        wait_for(lambda: len(committed(query, out)) >= 6, query)
        pids = {row[-1] for row in committed(query, out)}
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        try:
            wait_for(lambda: len(out) >= 10 or not query.isActive)
        finally:
            query.stop()
        query = start()
        wait_for(lambda: len(out) >= 2 * RECORDS, query)
        query.stop()
    by_key = defaultdict(list)
    for key, identity, number, square, _ in out:
        assert square == identity**2
        by_key[key].append((identity, number))
    assert sum(map(len, by_key.values())) == 2 * RECORDS
    for answers in by_key.values():
        assert [number for _, number in answers] == list(range(1, 2 * RECORDS // KEYS + 1))
        assert len({identity for identity, _ in answers}) == len(answers)
    assert {row[-1] for row in out} > pids


class Wait(KeyedProcessFunction[int, Any, Any]):
    async def process_element(self, row: Any, ctx: Any) -> Any:
        await asyncio.sleep(0.2)
        yield row.key, os.getpid()


def test_without_homes_epochs_wait_for_their_records(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(20).selectExpr("id AS key").coalesce(1).write.parquet(str(tmp_path / "in"))
    before = spark.conf.get("spark.pillarbox.homes", None)
    spark.conf.set("spark.pillarbox.homes", "off")
    out = Rows()
    try:
        env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)
        source = spark.readStream.schema("key LONG").parquet(str(tmp_path / "in"))
        waited = env.from_dataframe(source).key_by("key").process(Wait(), on_barrier="carry").uid("wait")
        writer = waited.to_dataframe("key LONG, pid INT").writeStream.foreachBatch(out)
        query = pillarbox.start(
            writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        )
        query.awaitTermination()
    finally:
        spark.conf.unset("spark.pillarbox.homes") if before is None else spark.conf.set("spark.pillarbox.homes", before)
    assert sorted(row[0] for row in out.of(0)) == list(range(20))
