"""The fault tests' program with requests in flight.

An HTTP service returns each record's square. It is called before all shuffles, where an epoch waits for all answers
(``drain``), or after ``key_by``, where requests in flight at the barrier are stored with the state (``carry``).
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import aiohttp
from pyspark.sql import DataFrame

from pillarbox import Function, RuntimeContext, StreamExecutionEnvironment
from tests.faults.programs.job import HEARTBEAT, NO_FAULTS, Epoch, Event, Faults, FileSink

Mode = Literal["drain", "carry"]
MODES: tuple[Mode, ...] = ("drain", "carry")


class Squared(NamedTuple):
    id: int
    key: int
    square: int
    pid: int


class Ask(Function):
    """Requests the square of a record's id from a service. Repeats a request that has no answer after half a second."""

    def __init__(self, service: str, faults: Faults) -> None:
        self.service = service
        self.faults = faults

    async def open(self, runtime_context: RuntimeContext) -> None:
        self.session = aiohttp.ClientSession(self.service, timeout=aiohttp.ClientTimeout(total=0.5))

    async def close(self) -> None:
        await self.session.close()

    async def __call__(self, event: Any) -> Squared:
        square = await square_of(event.id, self.session, self.faults)
        return Squared(event.id, event.key, square, os.getpid())


async def square_of(number: int, session: aiohttp.ClientSession, faults: Faults) -> int:
    async with session.get(f"/square/{number}") as response:
        faults.pass_by("answered", number)
        response.raise_for_status()
        answer = await response.json()
        if answer["number"] != number:
            response.close()
            raise ValueError(f"asked for {number}, and the answer is one to {answer['number']}")
        square: int = answer["square"]
        return square


def build(events: DataFrame, service: str, mode: Mode, faults: Faults = NO_FAULTS) -> DataFrame:
    env = (
        StreamExecutionEnvironment.get_execution_environment(events.sparkSession)
        .set_parallelism(2)
        .set_max_parallelism(2)
    )
    stream = env.from_dataframe(events).filter(lambda event: event.key != HEARTBEAT)
    if mode == "carry":
        stream = stream.key_by("key")
    squares = stream.map_async(Ask(service, faults), capacity=10, timeout="2 minutes", retry=20, on_barrier=mode)
    return squares.uid("squares").to_dataframe(Squared)


def batches_of(sink: FileSink) -> dict[int, list[Squared]]:
    paths = sorted(sink.directory.glob("[0-9]*.json"))
    return {int(path.stem): [Squared(*row) for row in json.loads(path.read_text())] for path in paths}


def count_of(epochs: Sequence[Epoch]) -> int:
    return sum(event.key != HEARTBEAT for parts in epochs for part in parts for event in part)


def check(batches: dict[int, list[Squared]], epochs: Sequence[Epoch], mode: str) -> None:
    right = [[event for part in parts for event in part if event.key != HEARTBEAT] for parts in epochs]
    rows = [row for batch in sorted(batches) for row in batches[batch]]
    every = [event for events in right for event in events]
    _same(rows, every, "all batches")
    if mode == "drain":
        for batch, events in enumerate(right):
            _same(batches.get(batch, []), events, f"batch {batch}")
    else:
        # A key has one subtask, and its records of an epoch are in one partition.
        by_key: dict[int, list[int]] = defaultdict(list)
        for row in rows:
            by_key[row.key].append(row.id)
        for key, ids in by_key.items():
            assert ids == sorted(ids), f"key {key} is out of order: {ids}"


def _same(rows: Sequence[Squared], events: Sequence[Event], what: str) -> None:
    results = sorted((row.id, row.key, row.square) for row in rows)
    right = sorted((event.id, event.key, event.id**2) for event in events)
    extra, missing = [row for row in results if row not in right], [row for row in right if row not in results]
    assert not extra and not missing, f"{what}: too much {extra[:5]}, missing {missing[:5]}"
    assert results == right, (
        f"{what}: records came more than once: {[row for row in right if results.count(row) > 1][:5]}"
    )
