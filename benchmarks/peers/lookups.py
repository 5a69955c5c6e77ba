# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="import-not-found"
"""Requests to a service, one per record, as written by hand today.

The workers of Spark and Flink import this module, so it imports neither.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import struct
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = "id LONG, score LONG"
# Arrow batches in the thread pool at once: it works on the next batch while the last requests of one are pending.
AHEAD = 2

_connections = threading.local()


def score(key: int) -> int:
    """Return the service's answer for a key."""
    return key * 7_919 % 1_009


def sums(rows: Iterable[tuple[int, int]]) -> list[int]:
    """Return the number of answers, their sum, and their sum weighted by keys."""
    count = scores = weighted = 0
    for key, answer in rows:
        count, scores, weighted = count + 1, scores + answer, weighted + key * answer
    return [count, scores, weighted]


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop, from uvloop if installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


@dataclass(frozen=True)
class Work:
    """One lookup for each record: a sleep, or a request to the service."""

    latency: float
    capacity: int
    port: int | None = None
    # The directory for the stopwatches' files.
    times: str | None = None

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Callable[[int], Awaitable[int]]]:
        """Yield a coroutine function for lookups. The HTTP client keeps ``capacity`` connections."""
        if self.port is None:
            latency = self.latency

            async def sleep(key: int) -> int:
                await asyncio.sleep(latency)
                return score(key)

            yield sleep
            return
        import aiohttp

        # Without aiohttp's own timeout, which costs a tenth; users want a timeout for the record.
        async with aiohttp.ClientSession(
            f"http://127.0.0.1:{self.port}",
            connector=aiohttp.TCPConnector(limit=self.capacity),
            timeout=aiohttp.ClientTimeout(total=None),
        ) as session:

            async def request(key: int) -> int:
                async with session.get(f"/{key}") as response:
                    answer: dict[str, int] = json.loads(await response.read())
                return answer["score"]

            yield request

    def blocking(self, key: int) -> int:
        """Look up a key in this thread. Each thread keeps a connection."""
        if self.port is None:
            time.sleep(self.latency)
            return score(key)
        cached: tuple[int, HTTPConnection] | None = getattr(_connections, "known", None)
        if cached is None or cached[0] != self.port:
            cached = _connections.known = (self.port, HTTPConnection("127.0.0.1", self.port))
        connection = cached[1]
        connection.request("GET", f"/{key}")
        answer: dict[str, int] = json.loads(connection.getresponse().read())
        return answer["score"]


class Stopwatch:
    """Measures the time from a task's first request to its last result, in the user's function.

    It writes each reading to a file in the work's directory, because a pillarbox task outlives its job.
    """

    def __init__(self, directory: str | None) -> None:
        assert directory is not None
        with open(Path(directory, f"{os.getpid()}-{id(self)}"), "w+b") as file:
            file.write(bytes(16))
            file.flush()
            self._shown = memoryview(mmap.mmap(file.fileno(), 16)).cast("d")

    def begin(self) -> None:
        """Record a request."""
        if not self._shown[0]:
            self._shown[0] = time.monotonic()

    def end(self) -> None:
        """Record a result."""
        self._shown[1] = time.monotonic()

    @staticmethod
    def reset_all(directory: str | Path) -> None:
        """Reset the stopwatches of all tasks."""
        for path in Path(directory).iterdir():
            with open(path, "r+b") as file:
                file.write(bytes(16))

    @staticmethod
    def read_all(directory: str | Path) -> float | None:
        """Return the seconds from all tasks' first request to their last result."""
        spans = [struct.unpack("dd", path.read_bytes()) for path in Path(directory).iterdir()]
        first = [first for first, _ in spans if first]
        last = [last for _, last in spans if last]
        return max(last) - min(first) if first and last else None


def _result(keys: pa.Array, scores: Sequence[int]) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.record_batch([keys, pa.array(scores, pa.int64())], names=["id", "score"])


def _with_loop(work: Work, batches: Iterator[pa.RecordBatch], look_up_all: LookUpAll) -> Iterator[pa.RecordBatch]:
    loop = new_event_loop()
    client = work.client()
    look_up = loop.run_until_complete(client.__aenter__())
    try:
        for batch in batches:
            keys = batch.column(0)
            yield _result(keys, loop.run_until_complete(look_up_all(look_up, keys.to_pylist())))
    finally:
        loop.run_until_complete(client.__aexit__(None, None, None))
        loop.close()


LookUp = Callable[[int], Awaitable[int]]
LookUpAll = Callable[[LookUp, list[int]], Awaitable[Sequence[int]]]


def gather(work: Work, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run ``asyncio.gather`` for each Arrow batch, which has at most ``capacity`` rows."""

    async def look_up_all(look_up: LookUp, keys: list[int]) -> Sequence[int]:
        return await asyncio.gather(*map(look_up, keys))

    return _with_loop(work, batches, look_up_all)


def semaphore(work: Work, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run ``asyncio.gather`` for each Arrow batch of any size, with a semaphore for ``capacity`` requests."""

    async def look_up_all(look_up: LookUp, keys: list[int]) -> Sequence[int]:
        permits = asyncio.Semaphore(work.capacity)

        async def look_up_one(key: int) -> int:
            async with permits:
                return await look_up(key)

        return await asyncio.gather(*map(look_up_one, keys))

    return _with_loop(work, batches, look_up_all)


def bare(work: Work, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run ``capacity`` coroutines that look up one key after another, the least work for an event loop."""

    async def look_up_all(look_up: LookUp, keys: list[int]) -> Sequence[int]:
        scores = [0] * len(keys)
        indices = count()

        async def worker() -> None:
            for index in indices:
                if index >= len(keys):
                    return
                scores[index] = await look_up(keys[index])

        await asyncio.gather(*(worker() for _ in range(work.capacity)))
        return scores

    return _with_loop(work, batches, look_up_all)


def threads(work: Work, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run lookups in ``capacity`` threads, which receive the next Arrow batch before they finish the previous one."""
    waiting: deque[tuple[pa.Array, list[Future[int]]]] = deque()
    with ThreadPoolExecutor(work.capacity) as pool:
        for batch in batches:
            keys = batch.column(0)
            waiting.append((keys, [pool.submit(work.blocking, key) for key in keys.to_pylist()]))
            if len(waiting) == AHEAD:
                keys, futures = waiting.popleft()
                yield _result(keys, [future.result() for future in futures])
        for keys, futures in waiting:
            yield _result(keys, [future.result() for future in futures])
