# SPDX-License-Identifier: Apache-2.0
"""Memory of Spark's Python workers: it must not grow with the rows of a micro-batch.

A keyed program gives a row for each that it gets (a key, a time and 100 characters). It works off one micro-batch of
500,000 rows, and in another Spark one of 5,000,000. Before, a small micro-batch that has all the keys makes the
workers import what they need and fill the state; what a worker takes at most later (``VmHWM``) less what it has then
(``VmRSS``) is its growth: buffers on their way in and out. These are bounded: an output queue of 4 MiB, Arrow batches
of 8 MiB. The rows themselves are hundreds of MiB.

With ``--async`` the program asks a service about each row instead, 200 at a time, which takes 2 ms: what is held is
bounded by that number, and the output by the Arrow batch that it came from.

Run it with ``python benchmarks/bench_memory.py`` (Linux: it reads /proc). The last line of the output is one JSON
object; ``ratio`` is the most that a worker grows by at 5,000,000 rows over that at 500,000 (without bounds it
would be 10).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.support import (
    Side,
    SteppedQuery,
    answer,
    descendants,
    find_pillarbox,
    finish,
    is_python_worker,
    memory_kib,
    print_table,
    questions,
    spark_version,
    step_settings,
    task_reports,
)

find_pillarbox()

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pillarbox import (
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
    local_session,
)


class Count(KeyedProcessFunction):
    """Gives each row with the number of its key's rows so far."""

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n"))

    def process_element(self, row, ctx):
        n = (self.n.value() or 0) + 1
        self.n.update(n)
        yield row.key, n, row.text


async def ask(row):
    """Return each row with its time as the answer of a service."""
    await asyncio.sleep(0.002)
    return row.key, row.ts, row.text


class Sampler(threading.Thread):
    """Watches the Python workers below this process."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peaks: dict[int, int] = {}
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.05):
            self.sample()

    def sample(self) -> None:
        for pid in descendants(os.getpid()):
            if pid in self.peaks or is_python_worker(pid):
                for peak in memory_kib(pid, "VmHWM"):
                    self.peaks[pid] = max(peak, self.peaks.get(pid, 0))

    def stop(self) -> None:
        self._done.set()
        self.join()
        self.sample()


def write(place: Path, rows: int, keys: int, width: int) -> None:
    """Write a micro-batch: two files, in small row groups, with texts that take little room in them."""
    texts = pa.array([f"{number:0{width}}" for number in range(100)])
    random = np.random.default_rng(1)
    place.mkdir(parents=True)
    for part in range(2):
        with pq.ParquetWriter(
            place / f"{part}.parquet", pa.schema([("key", pa.int32()), ("ts", pa.int64()), ("text", pa.string())])
        ) as writer:
            for start in range(0, rows // 2, 50_000):
                count = min(50_000, rows // 2 - start)
                # All the keys, also where the rows are few.
                key = (np.arange(start, start + count) * 2 + part) % keys
                text = texts.take(pa.array(random.integers(0, 100, count)))
                columns = [pa.array(key, pa.int32()), pa.array(np.arange(start, start + count)), text]
                writer.write_table(pa.Table.from_arrays(columns, schema=writer.schema))


def serve(directory: Path, memory: str, asynchronous: bool) -> None:
    spark = local_session(2, **step_settings(directory, memory))
    query = SteppedQuery(spark, directory, "key INT, ts LONG, text STRING")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("ts")
    stream = StreamExecutionEnvironment.get_execution_environment(spark).from_dataframe(query.source)
    if asynchronous:
        made = stream.map_async(ask, capacity=200)
    else:
        made = stream.assign_timestamps_and_watermarks(strategy).key_by("key").process(Count())
    query.start(made.to_dataframe("key INT, n LONG, text STRING"))
    for question in questions():
        sampler = Sampler()
        sampler.start()
        started = time.perf_counter()
        progress = query.step(question["batch"])
        seconds = time.perf_counter() - started
        sampler.stop()
        now = {pid: kib for pid in sampler.peaks for kib in memory_kib(pid, "VmRSS")}
        answer(
            rows=progress.numInputRows,
            seconds=seconds,
            given=sum(task.records_out for task in task_reports(progress, level=0 if asynchronous else 1)),
            peaks=sampler.peaks,
            now=now,
        )
    query.stop()
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--few", type=int, default=500_000, help="rows of the small micro-batch")
    parser.add_argument("--many", type=int, help="rows of the large one (default 5,000,000; 2,000,000 with --async)")
    parser.add_argument("--async", dest="asynchronous", action="store_true", help="ask a service about each row")
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--width", type=int, default=100, help="characters in a row's text")
    parser.add_argument("--memory", default="3g", help="of each Spark")
    parser.add_argument("--side", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        serve(arguments.directory, arguments.memory, arguments.asynchronous)
        return
    arguments.many = arguments.many or (2_000_000 if arguments.asynchronous else 5_000_000)
    with tempfile.TemporaryDirectory(prefix="bench-memory-") as directory:
        compare(arguments, Path(directory))


def compare(arguments: argparse.Namespace, directory: Path) -> None:
    growth: dict[int, list[float]] = {}
    peak: dict[int, float] = {}
    start: dict[int, float] = {}
    seconds: dict[int, float] = {}
    for rows in (arguments.few, arguments.many):
        place = directory / str(rows)
        place.mkdir()
        write(place / "staging" / "0", 2 * arguments.keys, arguments.keys, arguments.width)
        write(place / "staging" / "1", rows, arguments.keys, arguments.width)
        options = ["--async"] if arguments.asynchronous else []
        side = Side("--side", "--directory", str(place), "--memory", arguments.memory, *options)
        before = side.ask(batch=str(place / "staging" / "0"))
        after = side.ask(batch=str(place / "staging" / "1"))
        side.close()
        if after["rows"] != rows or after["given"] != rows:
            raise SystemExit(f"{after['rows']:,} rows came in and {after['given']:,} out, not {rows:,}")
        # A worker that came later is measured from the least that another started with.
        least = min(before["now"].values())
        growth[rows] = sorted(
            ((kib - before["now"].get(pid, least)) / 1024 for pid, kib in after["peaks"].items()), reverse=True
        )
        peak[rows] = max(after["peaks"].values()) / 1024
        start[rows] = max(before["now"].values()) / 1024
        seconds[rows] = after["seconds"]

    def raw(rows: int) -> float:
        return float(rows * (arguments.width + 24) / 2**20)

    print_table(
        ["one micro-batch", "its data MiB", "workers", "start MiB", "peak MiB", "growth MiB", "of each worker", "s"],
        [
            [
                f"{rows:,} rows",
                f"{raw(rows):,.0f}",
                len(growth[rows]),
                f"{start[rows]:.0f}",
                f"{peak[rows]:.0f}",
                f"{growth[rows][0]:.0f}",
                " ".join(f"{each:.0f}" for each in growth[rows]),
                f"{seconds[rows]:.1f}",
            ]
            for rows in growth
        ],
    )
    ratio = growth[arguments.many][0] / max(growth[arguments.few][0], 1.0)
    print(f"growth at {arguments.many:,} rows over that at {arguments.few:,}: {ratio:.2f}")
    values: dict[str, Any] = {"peak_mib": round(peak[arguments.many]), "growth_mib": round(growth[arguments.many][0])}
    finish(
        "memory_async" if arguments.asynchronous else "memory",
        ratio,
        peak_ratio=round(peak[arguments.many] / peak[arguments.few], 3),
        **values,
        rows=[arguments.few, arguments.many],
        keys=arguments.keys,
        spark=spark_version(),
    )


if __name__ == "__main__":
    main()
