"""The whole year, every way: streaming, batch and local, at every parallelism and batch size, against the oracle.

python examples/flights/equality.py [--parallelisms 1 2 4] [--batches 1 7 365]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from data import flights
from job import Event
from oracle import expected
from run import run_batch, run_local, run_streaming

from pillarbox import local_session


def main() -> int:
    parser = argparse.ArgumentParser(description="compare every way to run the flights program with the oracle")
    parser.add_argument("--parallelisms", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 7, 365])
    arguments = parser.parse_args()
    rows = flights()
    oracle = expected(rows)
    print(f"{len(rows):,} flights, {len(oracle):,} events expected")
    print(" runtime     parallelism   micro-batches   equal   seconds", flush=True)
    wrong = 0

    def check(runtime: str, parallelism: int, batches: int, run: Callable[[], list[Event]]) -> None:
        nonlocal wrong
        started = time.monotonic()
        equal = run() == oracle
        wrong += not equal
        seconds = time.monotonic() - started
        print(
            f" {runtime:10}  {parallelism:11}   {batches:13}   {'yes' if equal else 'NO':5}   {seconds:7.1f}",
            flush=True,
        )

    for parallelism in arguments.parallelisms:
        for batches in arguments.batches:
            check("local", parallelism, batches, lambda p=parallelism, b=batches: run_local(rows, b, p))  # type: ignore[misc]
    spark = local_session(2)
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        for parallelism in arguments.parallelisms:
            check("batch", parallelism, 1, lambda p=parallelism: run_batch(spark, rows, folder, p))  # type: ignore[misc]
            for batches in arguments.batches:
                check(
                    "streaming",
                    parallelism,
                    batches,
                    lambda p=parallelism, b=batches: run_streaming(spark, rows, folder, b, p),  # type: ignore[misc]
                )
    spark.stop()
    print("all equal" if not wrong else f"{wrong} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
