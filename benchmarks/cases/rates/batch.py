# SPDX-License-Identifier: Apache-2.0
"""A keyed count over history: a batch DataFrame in both of pillarbox's modes, and in Spark's own Python functions.

500,000 rows in two files. For each row, a Python function emits its key and the number of the key's rows so far. With
1,000 keys and with 100,000 keys:

  pillarbox BATCH       ``KeyedProcessFunction`` with a value state; records arrive key by key
  pillarbox STREAMING   the same program; records arrive as they are read, and the state of all keys is in memory
  applyInPandas         a function that receives all rows of a key at once, without state; the rows must fit into memory
  transformWithState    ``transformWithStateInPandas`` with a value state

To show the time of Spark and Arrow alone, the rows also pass through the same two hops of PySpark without any work.
``harness/jobs.py`` runs the jobs, in one Spark with two cores, in turn, with every other round in reverse order. The
number and checksums of each job's results are compared with numpy's.

In the last line, ``ratio`` is the rate of BATCH divided by the rate of the faster of Spark's two, with the most keys.
``over_streaming`` is BATCH divided by STREAMING, by number of keys.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import Column, DataFrame

from benchmarks.harness.case import Outcome, Result, shown
from benchmarks.harness.jobs import Jobs
from benchmarks.harness.process import carry_whole
from benchmarks.harness.rows import SUBTASKS, Columns, checksums, summary, write_halves
from benchmarks.harness.turns import table
from benchmarks.peers.counts import Count, PandasCount, count
from benchmarks.peers.limits import two_hops
from benchmarks.peers.spark import STORES
from pillarbox import RuntimeExecutionMode, local_session

SCHEMA = "key LONG, n LONG"
SMALL = {"rows": 20_000, "keys": [20, 200], "rounds": 1, "memory": "1g"}
BATCH, STREAMING, IDENTITY = "pillarbox BATCH", "pillarbox STREAMING", "(identity)"
PEERS = ("applyInPandas", "transformWithState")


def numbered(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"key": rows["key"], "n": range(1, len(rows) + 1)})


def sides(source: DataFrame) -> Mapping[str, Callable[[], DataFrame]]:
    keyed = source.groupBy("key")
    return {
        BATCH: lambda: count(source, SCHEMA, Count(), mode=RuntimeExecutionMode.BATCH),
        STREAMING: lambda: count(source, SCHEMA, Count()),
        "applyInPandas": lambda: keyed.applyInPandas(numbered, SCHEMA),
        "transformWithState": lambda: keyed.transformWithStateInPandas(PandasCount(), SCHEMA, "append", "none"),
        IDENTITY: lambda: two_hops(source),
    }


def counted(key: np.ndarray[Any, np.dtype[np.int64]]) -> Columns:
    """Return the expected output: each key with the numbers from 1 to its number of rows."""
    counts = np.bincount(key)
    ends = counts.cumsum()
    return [np.repeat(np.arange(len(counts)), counts), np.arange(len(key)) - np.repeat(ends - counts, counts) + 1]


def sums(side: str) -> list[Column]:
    return checksums(["key", "amount" if side == IDENTITY else "n"])


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count")
    parser.add_argument("--memory", default="4g", help="of Spark")


def works(arguments: argparse.Namespace, directory: Path) -> Iterator[tuple[int, Jobs]]:
    """Run the jobs for each number of keys."""
    settings = {name.replace(".", "__"): value for name, value in STORES["rocksdb"].items()}
    settings |= {"spark__driver__memory": arguments.memory, "spark__sql__shuffle__partitions": str(SUBTASKS)}
    spark = local_session(SUBTASKS, spark__local__dir=str(directory / "local"), **settings)
    for keys in arguments.keys:
        key = np.random.default_rng(keys).integers(0, keys, arguments.rows)
        amount = np.arange(arguments.rows)
        source = spark.read.parquet(str(write_halves(directory / str(keys), key=key, amount=amount)))
        results = summary(counted(key))
        expected = dict.fromkeys((BATCH, STREAMING, *PEERS), results) | {IDENTITY: summary([key, amount])}
        jobs = Jobs(sides(source), sums, expected, arguments.rows)
        jobs.run(arguments.rounds)
        yield keys, jobs
    spark.stop()


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    carry_whole(sys.modules[__name__])
    done = dict(works(arguments, directory))
    by_keys = {str(keys): jobs.figures() for keys, jobs in done.items()}
    rates = {keys: figures["rows_per_s"] for keys, figures in by_keys.items()}
    most = rates[str(max(arguments.keys))]
    summary = {
        "over_streaming": {keys: round(rate[BATCH] / rate[STREAMING], 3) for keys, rate in rates.items()},
        "by_keys": by_keys,
        "rows": arguments.rows,
    }
    wrong = [f"{keys} keys: {line}" for keys, jobs in done.items() for line in jobs.wrong]
    return Outcome("batch", most[BATCH] / max(most[peer] for peer in PEERS), summary, wrong)


def present(result: Result, charts: Path | None) -> str:
    groups = {
        f"{int(keys):,} keys": {side.strip("()"): rate for side, rate in figures["rows_per_s"].items()}
        for keys, figures in result["by_keys"].items()
    }
    names = list(next(iter(groups.values())))
    rows = [
        [
            name,
            *(cell for rates in groups.values() for cell in (f"{rates[name]:,}", f"{rates[BATCH] / rates[name]:.2f}")),
        ]
        for name in names
    ]
    head = ["", *(words for group in groups for words in (f"rows per second, {group}", "BATCH over it"))]
    return table(head, rows)


BLOCKS = {"batch": shown(present, "batch")}
