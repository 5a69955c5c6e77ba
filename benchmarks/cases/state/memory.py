# SPDX-License-Identifier: Apache-2.0
"""The memory of Spark's Python workers, which must not grow with the rows of a micro-batch.

A keyed program emits a row for each input row (a key, a time and 100 characters). It processes one micro-batch of
2,000,000 rows and, in another Spark, one of 10,000,000 rows. A small micro-batch with all keys first makes the workers
import modules and fill the state. A worker's growth is its later maximum (``VmHWM``) minus its memory after this
micro-batch (``VmRSS``): buffers of input and output. These are bounded: an output queue of 4 MiB, and Arrow batches of
40 MiB, which PySpark holds as Arrow, as objects and as pandas. The rows themselves take hundreds of MiB to a task.

With ``--async``, the program instead sends a request for each row, 200 at a time, to a service that takes 2 ms. The
number of requests bounds the rows in memory, and the input's Arrow batch bounds the output. Its micro-batches have
500,000 and 2,000,000 rows.

Requires Linux, because it reads /proc. In the last line, ``ratio`` is the largest growth of a worker in the large
micro-batch divided by its growth in the small one (without bounds, it would be 5, with ``--async`` 4).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness.case import Block, Outcome, Result, Results
from benchmarks.harness.machine import descendants, is_python_worker, memory_kib
from benchmarks.harness.process import Side
from benchmarks.harness.stepped import SparkSide, SteppedQuery, step_settings, task_reports
from benchmarks.harness.turns import table
from benchmarks.peers.counts import Count
from benchmarks.report.words import page
from pillarbox import StreamExecutionEnvironment, WatermarkStrategy

SMALL = {"few": 20_000, "many": 100_000, "keys": 2_000, "memory": "1g"}


async def ask(row):
    """Return a row with its time as a service's answer."""
    await asyncio.sleep(0.002)
    return row.key, row.text, row.ts


def write(path: Path, rows: int, keys: int, width: int) -> None:
    """Write a micro-batch: two files, in small row groups, with texts that compress well."""
    texts = pa.array([f"{number:0{width}}" for number in range(100)])
    random = np.random.default_rng(1)
    path.mkdir(parents=True)
    for part in range(2):
        with pq.ParquetWriter(
            path / f"{part}.parquet", pa.schema([("key", pa.int32()), ("ts", pa.int64()), ("text", pa.string())])
        ) as writer:
            for start in range(0, rows // 2, 50_000):
                count = min(50_000, rows // 2 - start)
                # All keys, even with few rows.
                key = (np.arange(start, start + count) * 2 + part) % keys
                text = texts.take(pa.array(random.integers(0, 100, count)))
                columns = [pa.array(key, pa.int32()), pa.array(np.arange(start, start + count)), text]
                writer.write_table(pa.Table.from_arrays(columns, schema=writer.schema))


class Memory(SparkSide):
    """A side that measures its workers' memory during a micro-batch."""

    def __init__(self, directory: str, memory: str, *, asynchronous: bool) -> None:
        super().__init__(directory, step_settings(memory))
        self._query = SteppedQuery(self.spark, self.directory, "key INT, ts LONG, text STRING")
        self._level = 0 if asynchronous else 1
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("ts")
        stream = StreamExecutionEnvironment.get_execution_environment(self.spark).from_dataframe(self._query.source)
        if asynchronous:
            results = stream.map_async(ask, capacity=200)
        else:
            results = stream.assign_timestamps_and_watermarks(strategy).key_by("key").process(Count("text"))
        self._query.start(results.to_dataframe("key INT, text STRING, n LONG"))

    def step(self, batch: str) -> dict[str, Any]:
        """Run a micro-batch."""
        started = time.perf_counter()
        progress = self._query.step(batch)
        seconds = time.perf_counter() - started
        pythons = [pid for pid in descendants(os.getpid()) if is_python_worker(pid)]
        return {
            "rows": progress.numInputRows,
            "seconds": seconds,
            "given": sum(task.records_out for task in task_reports(progress, level=self._level)),
            "peaks": {pid: kib for pid in pythons for kib in memory_kib(pid, "VmHWM")},
            "now": {pid: kib for pid in pythons for kib in memory_kib(pid, "VmRSS")},
        }

    def close(self) -> None:
        """Stop the query and Spark."""
        self._query.stop()
        super().close()


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--few", type=int, help="rows of the small micro-batch (2,000,000; 500,000 with --async)")
    parser.add_argument("--many", type=int, help="rows of the large one (10,000,000; 2,000,000 with --async)")
    parser.add_argument("--async", dest="asynchronous", action="store_true", help="ask a service about each row")
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--width", type=int, default=100, help="characters in a row's text")
    parser.add_argument("--memory", default="3g", help="of each Spark")


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    few, many = (500_000, 2_000_000) if arguments.asynchronous else (2_000_000, 10_000_000)
    few, many = arguments.few or few, arguments.many or many
    workers: dict[str, dict[str, Any]] = {}
    for rows in (few, many):
        path = directory / str(rows)
        write(path / "staging" / "0", 2 * arguments.keys, arguments.keys, arguments.width)
        write(path / "staging" / "1", rows, arguments.keys, arguments.width)
        side = Side(Memory, directory=path, memory=arguments.memory, asynchronous=arguments.asynchronous)
        before = side.ask("step", batch=path / "staging" / "0")
        after = side.ask("step", batch=path / "staging" / "1")
        side.close()
        if after["rows"] != rows or after["given"] != rows:
            raise SystemExit(f"{after['rows']:,} rows came in and {after['given']:,} out, not {rows:,}")
        # A later worker's growth is measured from the smallest initial memory of the others.
        least = min(before["now"].values())
        growth = [(kib - before["now"].get(pid, least)) / 1024 for pid, kib in after["peaks"].items()]
        workers[str(rows)] = {
            "data_mib": round(rows * (arguments.width + 24) / 2**20),
            "start_mib": round(max(before["now"].values()) / 1024),
            "peak_mib": round(max(after["peaks"].values()) / 1024),
            "growth_mib": sorted((round(mib, 1) for mib in growth), reverse=True),
            "seconds": round(after["seconds"], 1),
        }
    small, large = workers[str(few)], workers[str(many)]
    figures = {
        "peak_ratio": round(large["peak_mib"] / small["peak_mib"], 3),
        "peak_mib": large["peak_mib"],
        "growth_mib": round(large["growth_mib"][0]),
        "workers": workers,
        "rows": [few, many],
        "keys": arguments.keys,
    }
    name = "memory_async" if arguments.asynchronous else "memory"
    return Outcome(name, large["growth_mib"][0] / max(small["growth_mib"][0], 1.0), figures)


# -- pages --


def present(result: Result, charts: Path | None) -> str:
    names = list(next(iter(result["workers"].values())))
    rows = [[f"{int(rows):,} rows", *figures.values()] for rows, figures in result["workers"].items()]
    what = "async requests" if result["name"] == "memory_async" else "keyed count"
    return page(table(["one micro-batch", *names], rows), _table([(result, what)]))


def _table(runs: list[tuple[Result, str]]) -> str:
    rows = []
    for result, what in runs:
        few, many = result["rows"]
        rows.append([f"{what}: {many:,} rows in a micro-batch compared with {few:,}", f"{result['ratio']:.2f}"])
    return table(["growth of a Python worker's memory", "ratio"], rows)


def both(results: Results) -> str:
    return _table([(results["memory"], "keyed count"), (results["memory-async"], "async requests")])


BLOCKS = {"memory": Block(both, ("memory", "memory-async"), commands=True)}
