# SPDX-License-Identifier: Apache-2.0
"""The cost of a row as rows and keys grow, with one subtask and with two, on Spark.

The program counts keys, with an event-time timer. Each row changes its key's count and moves its key's timer half an
hour ahead, so every row costs the same work for any number of keys. When a timer fires, the count is emitted.

  rows   250,000, 1,000,000 and 4,000,000 rows in one micro-batch, of 10,000 keys
  keys   1,000, 10,000 and 100,000 keys, with 1,000,000 rows per micro-batch

Micro-batches of the three sizes take turns in one query. Queries with more keys run one after another, and then again
in reverse order. A query first receives a row of each key, and a warm-up micro-batch; the first query of all warms up
Java. The results are medians.

A micro-batch also has a cost without rows, which would make few rows look expensive, and growth therefore look good. So
the median of micro-batches with 100 rows is subtracted.

The number of input rows and the number of keys in state are checked.

In the last line, ``ratio`` is the cost of a row at the most rows divided by its cost at the fewest (a sixteenth), and
``keys_ratio`` its cost at the most keys divided by its cost at the fewest (a hundredth). Each is the larger of the
ratios with one and two subtasks.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

from benchmarks.harness.case import Outcome, Result, shown
from benchmarks.harness.findings import examine_queries, notice_queries
from benchmarks.harness.rows import HOUR, write_halves
from benchmarks.harness.stepped import SteppedQuery, step_settings, task_reports
from benchmarks.harness.turns import in_turn, medians, rounded, table
from benchmarks.peers.counts import CountWithTimer
from benchmarks.report.charts import draw_lines
from benchmarks.report.words import page
from pillarbox import StreamExecutionEnvironment, WatermarkStrategy, local_session

SUBTASKS = (1, 2)
TINY = 100
SMALL = {"rows": 20_000, "keys": 100, "rounds": 1, "memory": "1g"}


class Query:
    """A query with the program."""

    def __init__(self, spark: SparkSession, directory: Path, subtasks: int, keys: int) -> None:
        self._directory = directory
        self._keys = keys
        self._random = np.random.default_rng(1)
        self._number = 0
        self._now = 0
        self._stepped = SteppedQuery(spark, directory, "key INT, ts LONG")
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_timestamp_assigner("ts")
        env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(subtasks)
        stream = env.from_dataframe(self._stepped.source).assign_timestamps_and_watermarks(strategy)
        counts = stream.key_by("key").process(CountWithTimer(HOUR // 2)).uid("count")
        self._stepped.start(counts.to_dataframe("key INT, n LONG"))

    def run(self, rows: int) -> float:
        """Run a micro-batch whose rows are a millisecond apart. Returns its duration (ms)."""
        key = self._random.integers(0, self._keys, rows) if self._number else np.arange(self._keys)
        rows = len(key)
        path = self._directory / "staging" / f"{self._number:03}"
        ts = np.arange(self._now, self._now + rows)
        self._now += rows
        self._number += 1
        progress = self._stepped.step(write_halves(path, key=key.astype(np.int32), ts=ts))
        reports = task_reports(progress)
        seen = sum(task.records_in for task in reports), sum(task.keys or 0 for task in reports)
        if seen != (rows, self._keys) or progress.numInputRows != rows:
            raise SystemExit(f"WRONG RESULTS: {seen} rows and keys, not {rows, self._keys}")
        return float(progress.durationMs["triggerExecution"])

    def stop(self) -> None:
        """End the query."""
        self._stepped.stop()


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=250_000, help="once the rows")
    parser.add_argument("--keys", type=int, default=1_000, help="once the keys")
    parser.add_argument("--rounds", type=int, default=3, help="micro-batches of each size that count")
    parser.add_argument("--memory", default="3g", help="of Spark")


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    sizes = [arguments.rows * factor for factor in (1, 4, 16)]
    keys = [arguments.keys * factor for factor in (1, 10, 100)]
    batches: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    tiny: dict[int, list[float]] = defaultdict(list)
    number = 0
    spark = local_session(2, spark__local__dir=str(directory / "local"), **step_settings(arguments.memory))
    notice_queries()

    def query(subtasks: int, of: int) -> Query:
        nonlocal number
        number += 1
        running = Query(spark, directory / str(number), subtasks, of)
        running.run(of)
        running.run(sizes[1])
        return running

    for subtasks in SUBTASKS:
        query(subtasks, keys[1]).stop()
        for of in [*keys, *reversed(keys)]:
            running = query(subtasks, of)
            for index in range(arguments.rounds if of == keys[1] else -(-arguments.rounds // 2)):
                # Only the middle number of keys runs with all three sizes.
                several = of == keys[1] and index < -(-arguments.rounds // 2)
                for size in in_turn(sizes, index + 1) if several else sizes[1:2]:
                    batches[subtasks, size, of].append(running.run(size))
                tiny[subtasks] += [running.run(TINY) for _ in range(3)]
            running.stop()
    examine_queries()
    spark.stop()
    fixed = medians(tiny)
    costs = {
        (subtasks, size, of): 1000 * (ms - fixed[subtasks]) / size
        for (subtasks, size, of), ms in medians(dict(sorted(batches.items()))).items()
    }
    if min(costs.values()) <= 0:
        raise SystemExit("a micro-batch took no longer than one without rows: the machine is too busy to measure on")
    by_rows = {n: costs[n, sizes[2], keys[1]] / costs[n, sizes[0], keys[1]] for n in SUBTASKS}
    by_keys = {n: costs[n, sizes[1], keys[2]] / costs[n, sizes[1], keys[0]] for n in SUBTASKS}
    figures = {
        "keys_ratio": round(max(by_keys.values()), 3),
        "rows_ratios": rounded(by_rows, 3),
        "keys_ratios": rounded(by_keys, 3),
        "two_subtasks_over_one": round(costs[1, sizes[2], keys[1]] / costs[2, sizes[2], keys[1]], 3),
        "us_per_row": {"/".join(map(str, size)): round(cost, 3) for size, cost in costs.items()},
        "without_rows_ms": rounded(fixed),
    }
    return Outcome("growth", max(by_rows.values()), figures)


def present(result: Result, charts: Path | None) -> str:
    costs = {tuple(map(int, key.split("/"))): value for key, value in result["us_per_row"].items()}
    subtasks = sorted({n for n, _, _ in costs})
    sizes, keys = sorted({size for _, size, _ in costs}), sorted({of for _, _, of in costs})
    lines = {
        f"{n} subtask{'s' * (n > 1)}": {size: costs[n, size, keys[1]] for size in sizes if (n, size, keys[1]) in costs}
        for n in subtasks
    }
    by_keys = {
        f"{n} subtask{'s' * (n > 1)}": {of: costs[n, sizes[1], of] for of in keys if (n, sizes[1], of) in costs}
        for n in subtasks
    }
    unit = "microseconds a row"
    across = "rows in a micro-batch"
    shapes = [
        draw_lines(charts, "growth-rows", f"cost of a row by {across}", lines, unit, across),
        draw_lines(charts, "growth-keys", "cost of a row by keys", by_keys, unit, "keys in state"),
    ]
    rows = [
        [
            f"{n} subtask{'s' * (n > 1)}",
            f"{result['rows_ratios'][str(n)]:.2f}",
            f"{result['keys_ratios'][str(n)]:.2f}",
        ]
        for n in subtasks
    ]
    return page(*shapes, table(["cost of a row", "at 16 times the rows", "at 100 times the keys"], rows))


BLOCKS = {"growth": shown(present, "growth")}
