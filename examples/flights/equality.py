"""Runs the flight programs in every runtime (streaming, batch, local), each at several parallelisms.

Events are compared with the oracle, and windows with Spark's own windows.

python -m examples.flights.equality [--parallelism 1 2 4] [--batches 1 7 365] [--months 12]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from examples.flights.data import flights
from examples.flights.oracle import expected
from examples.flights.run import EVENTS, Job, collected, run_batch, run_local, run_streaming
from examples.flights.windows import Departures, build, by_spark
from pillarbox import local_session


def main() -> int:
    """Print a table of all runs. The exit code is 0 if all results were right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--parallelism", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 7, 365])
    parser.add_argument("--months", type=int, default=12)
    arguments = parser.parse_args()
    table = flights(arguments.months)
    oracles = {"events": expected(table.to_pylist()), "windows": windows_by_spark(table)}
    rows = " and ".join(f"{len(rows):,} {program}" for program, rows in oracles.items())
    print(f"{table.num_rows:,} flights, {rows} expected\n")
    print("program   runtime     parallelism   micro-batches   equal   seconds", flush=True)
    different = 0
    with tempfile.TemporaryDirectory() as folder:
        for program, name, parallelism, batches, run in runs(
            table, Path(folder), arguments.parallelism, arguments.batches
        ):
            started = time.monotonic()
            equal = run() == oracles[program]
            different += not equal
            seconds = time.monotonic() - started
            print(
                f"{program:8}  {name:10}  {parallelism:11}   {batches:>13}   {'yes' if equal else 'NO':>5}"
                f"   {seconds:7.1f}",
                flush=True,
            )
    print("\nall equal, row for row" if not different else f"\n{different} runs differ")
    return 1 if different else 0


def windows_by_spark(table: pa.Table) -> list[Any]:
    """Return the windows as Spark computes them."""
    spark = local_session(2, app_name="flights by Spark", spark__log__level="ERROR")
    try:
        return collected(by_spark(spark.createDataFrame(table)), JOBS["windows"])
    finally:
        spark.stop()


JOBS = {"events": EVENTS, "windows": Job(build, Departures)}


def runs(
    table: pa.Table, folder: Path, parallelisms: list[int], batches: list[int]
) -> Iterator[tuple[str, str, int, int | str, Any]]:
    """Yield the runs. Streaming runs distribute the rows of each slice over its files in random order."""
    cases = [(program, job, parallelism) for program, job in JOBS.items() for parallelism in parallelisms]
    for program, job, parallelism in cases:
        for count in batches:
            yield program, "local", parallelism, count, partial(run_local, table, count, parallelism, job=job)
    spark = local_session(2, app_name="flights", spark__log__level="ERROR")
    try:
        for program, job, parallelism in cases:
            yield program, "batch", parallelism, "", partial(run_batch, spark, table, folder, parallelism, job)
            for count in batches:
                shuffle = 1000 * parallelism + count
                run = partial(run_streaming, spark, table, folder, count, parallelism, shuffle, job)
                yield program, "streaming", parallelism, count, run
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
