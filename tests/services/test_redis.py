from __future__ import annotations

import os
from typing import Any

import pytest
import redis
import redis.asyncio

import pillarbox.functions as PF
from pillarbox import Function, StreamExecutionEnvironment
from tests.services.test_http import as_stream, counters, numbers, run

pytestmark = pytest.mark.long("a Redis server, which is installed first; test_http.py has a service")
ROWS = 400


class Names(Function):
    """Reads names from Redis. Records in Redis that it was opened."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def open(self, runtime_context):
        self.client = redis.asyncio.from_url(self.url, decode_responses=True)
        await self.client.rpush("opened", os.getpid())

    async def close(self):
        await self.client.aclose()


class NameOf(Names):
    async def __call__(self, row):
        return row.id, await self.client.get(f"name:{row.id}")


class NamesOf(Names):
    async def __call__(self, rows):
        assert len(rows) <= 50
        return await self.client.mget([f"name:{row.id}" for row in rows])


@pytest.fixture
def client(redis_url):
    with redis.from_url(redis_url, decode_responses=True) as client:
        client.mset({f"name:{n}": f"number {n}" for n in range(ROWS)})
        yield client


RIGHT = [(n, f"number {n}") for n in range(ROWS)]


def test_one_client_serves_many_micro_batches(spark, redis_url, client, tmp_path):
    before = client.info("stats")["total_connections_received"]
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)
    stream = env.from_dataframe(as_stream(spark, numbers(spark, ROWS), tmp_path / "in", 8))
    names = stream.map_async(NameOf(redis_url), capacity=10, timeout="5 minutes")
    rows, query = run(names.to_dataframe("id LONG, name STRING"), tmp_path / "checkpoint")
    assert sorted(tuple(row) for row in rows) == RIGHT
    epochs = [progress for progress in query.recentProgress if progress["numInputRows"]]
    assert len(epochs) == 8
    # Once per Python worker (about two), not once for each of sixteen tasks.
    opened = client.lrange("opened", 0, -1)
    assert 1 <= len(opened) == len(set(opened)) < 16
    # In each worker, at most as many connections as requests in flight.
    assert client.info("stats")["total_connections_received"] - before <= len(opened) * 11
    count = counters(query)
    assert count["requests"] == count["completed"] == ROWS
    assert count["failed"] == count["timed_out"] == 0


def test_many_records_in_one_request(spark, redis_url, client):
    names = NamesOf(redis_url)
    batches: dict[str, Any] = {"batch_size": 50, "batch_timeout": "1 second", "timeout": None}
    results = PF.async_map(numbers(spark, ROWS), names, "name STRING", **batches)
    assert sorted((row.id, row.name) for row in results.collect()) == RIGHT
    commands = client.info("commandstats")
    assert ROWS / 50 <= commands["cmdstat_mget"]["calls"] <= ROWS / 10
    assert "cmdstat_get" not in commands
