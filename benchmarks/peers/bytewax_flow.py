# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="import-not-found, misc, untyped-decorator"
"""Bytewax's side of the windows. Runs in its own virtual environment, without pillarbox and Spark.

A dataflow over rows of a Parquet file: ``key_on``, ``fold_window`` with an ``EventClock``, and a sink that collects the
results. One process has one worker, because threads would share Python's lock. The benchmark runs two processes, each
with half of the keys, so no data is exchanged. There is no recovery store. The watermark depends only on the rows'
times (the system clock stands still), windows may be out of order, and the system's time wakes nothing up. All of this
favours Bytewax. Windows that are open at the end of the input are then closed.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import bytewax.operators as op
import pyarrow as pa
import pyarrow.parquet as pq
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.operators.windowing import EventClock, SessionWindower, SlidingWindower, TumblingWindower, fold_window
from bytewax.testing import TestingSink, run_main

BATCH = 1_000
ZERO = datetime(2026, 1, 1, tzinfo=timezone.utc)
MILLISECOND = timedelta(milliseconds=1)


class Rows(DynamicSource):
    """The rows of a file, a thousand at a time: (key, time, amount)."""

    def __init__(self, path: str) -> None:
        self.path = path

    def build(self, step_id, worker_index, worker_count):
        return Part(self.path)


class Part(StatelessSourcePartition):
    def __init__(self, path: str) -> None:
        self.batches = iter(pq.read_table(path).to_batches(BATCH))

    def next_batch(self):
        batch = next(self.batches)
        times = batch["ts"].cast(pa.timestamp("ms", "UTC")).to_pylist()
        return list(zip(map(str, batch["key"].to_pylist()), times, batch["amount"].to_pylist()))


def windower(spec: dict[str, Any]) -> Any:
    size = spec["size"] * MILLISECOND
    if spec["session"]:
        return SessionWindower(size)
    if spec["slide"]:
        return SlidingWindower(size, spec["slide"] * MILLISECOND, ZERO)
    return TumblingWindower(size, ZERO)


def fold(accumulator, row):
    return accumulator[0] + 1, accumulator[1] + row[2]


def merge(a, b):
    return a[0] + b[0], a[1] + b[1]


def fold_session(accumulator, row):
    first, n, total = accumulator
    return row[1] if first is None or row[1] < first else first, n + 1, total + row[2]


def merge_sessions(a, b):
    first = a[0] if b[0] is None else b[0] if a[0] is None else min(a[0], b[0])
    return first, a[1] + b[1], a[2] + b[2]


class Windows:
    """A side that runs a dataflow for each call."""

    def run(self, source: str, target: str, **spec: Any) -> dict[str, Any]:
        """Run a dataflow to its end. It writes its results to a file."""
        results: list[Any] = []
        clock = EventClock(
            ts_getter=lambda row: row[1],
            wait_for_system_duration=spec["delay"] * MILLISECOND,
            now_getter=lambda: ZERO,
            to_system_utc=lambda _: None,
        )
        # A session has no start time, so its accumulator stores it.
        empty, folder, merger = (
            ((None, 0, 0), fold_session, merge_sessions) if spec["session"] else ((0, 0), fold, merge)
        )
        flow = Dataflow("windows")
        rows = op.key_on("key", op.input("rows", flow, Rows(source)), lambda row: row[0])
        windows = fold_window("window", rows, clock, windower(spec), lambda: empty, folder, merger, ordered=False)
        op.output("kept", windows.down, TestingSink(results))
        begun = time.perf_counter()
        run_main(flow)
        seconds = time.perf_counter() - begun
        step = spec["slide"] or spec["size"]
        zero = int(ZERO.timestamp()) * 1000
        with Path(target).open("w") as file:
            for key, (window, values) in results:
                if spec["session"]:
                    first, n, total = values
                    start = zero + (first - ZERO) // MILLISECOND
                else:
                    n, total = values
                    start = zero + window * step
                file.write(f"{key},{start},{n},{total}\n")
        return {"seconds": seconds}
