# SPDX-License-Identifier: Apache-2.0
"""Limits that nothing can beat: rows without any work, and a function in a bare Python loop."""

from __future__ import annotations

import heapq
import importlib
import os
import time
from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from benchmarks.harness.machine import cpu_seconds
from benchmarks.harness.rows import SUBTASKS, summary


def one_hop(source: DataFrame) -> DataFrame:
    """Pass all rows through Python once, after a shuffle, without any work."""
    return source.repartition(SUBTASKS, "key").mapInArrow(lambda batches: batches, source.schema)


def two_hops(source: DataFrame) -> DataFrame:
    """Pass all rows through Python twice, with a shuffle in between, without any work."""
    return one_hop(source.mapInArrow(lambda batches: batches, source.schema))


# -- the bare loop --

BareRow = namedtuple("BareRow", "key ts")


class BareState:
    """A value or a list for each key."""

    def __init__(self, loop: Bare) -> None:
        self._loop = loop
        self._values: dict[int, Any] = {}

    def value(self) -> Any:
        return self._values.get(self._loop.key)

    def update(self, value: Any) -> None:
        self._values[self._loop.key] = value

    def add(self, value: Any) -> None:
        values = self._values.get(self._loop.key)
        if values is None:
            self._values[self._loop.key] = [value]
        else:
            values.append(value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values.get(self._loop.key, ()))

    def clear(self) -> None:
        self._values.pop(self._loop.key, None)


class Bare:
    """A minimal runner of a keyed function, which is also the function's context and timer service."""

    def __init__(self, function: Any) -> None:
        self.key = -1
        self._function = function
        self._timers: dict[int, set[int]] = {}
        self._times: list[int] = []
        function.open(self)

    def get_state(self, _: Any) -> BareState:
        return BareState(self)

    get_list_state = get_state

    def get_current_key(self) -> int:
        return self.key

    def timer_service(self) -> Bare:
        return self

    def register_event_time_timer(self, timestamp: int) -> None:
        keys = self._timers.get(timestamp)
        if keys is None:
            keys = self._timers[timestamp] = set()
            heapq.heappush(self._times, timestamp)
        keys.add(self.key)

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._timers[timestamp].discard(self.key)

    def run(self, rows: Sequence[Any], watermark: int) -> list[Any]:
        """Process a micro-batch."""
        emitted: list[Any] = []
        process, on_timer = self._function.process_element, self._function.on_timer
        for row in rows:
            self.key = row.key
            results = process(row, self)
            if results is not None:
                emitted.extend(results)
        while self._times and self._times[0] <= watermark:
            timestamp = heapq.heappop(self._times)
            for key in self._timers.pop(timestamp):
                self.key = key
                emitted.extend(on_timer(timestamp, self))
        return emitted


_bare: Bare | None = None


def _run_bare(module: str, batch: str, part: int) -> tuple[float, list[int]]:
    global _bare  # noqa: PLW0603
    case = importlib.import_module(module)
    _bare = _bare or Bare(case.FUNCTIONS.function())
    watermark = int(max(pq.read_table(path)["ts"][-1].as_py() for path in Path(batch).iterdir())) - case.DELAY - 1
    start = time.perf_counter()
    table = pq.read_table(Path(batch) / f"{part}.parquet")
    rows = list(map(BareRow, table["key"].to_numpy().tolist(), table["ts"].to_numpy().tolist()))
    emitted = _bare.run(rows, watermark)
    seconds = time.perf_counter() - start
    return seconds, summary(list(np.array(emitted, np.int64).T))


class BareLoop:
    """A side like ``Stepped``, with the bare loop in two processes. Each has half of the keys.

    Args:
        module: the case's module, with ``FUNCTIONS`` and the watermark's ``DELAY``.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._pools = [ProcessPoolExecutor(1) for _ in range(SUBTASKS)]

    def begin(self, name: str, directory: str, settings: Mapping[str, str], question: Mapping[str, Any]) -> None:
        """Do nothing, because a process has only one work."""

    def step(self, name: str, batch: str) -> dict[str, Any]:
        """Run a micro-batch."""
        before = cpu_seconds(os.getpid())
        parts = [pool.submit(_run_bare, self._module, batch, part) for part, pool in enumerate(self._pools)]
        answers = [part.result() for part in parts]
        return {
            "ms": 1000 * max(seconds for seconds, _ in answers),
            "cpu": cpu_seconds(os.getpid()) - before,
            "results": [sum(values) for values in zip(*(results for _, results in answers))],
            "tasks": [],
        }

    def end(self, name: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """End the processes."""
        for pool in self._pools:
            pool.shutdown()
