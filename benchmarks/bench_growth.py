# SPDX-License-Identifier: Apache-2.0
"""What a row costs as rows and keys grow, with one subtask and with two, on Spark.

A count per key with an event-time timer: each row changes its key's count and moves its key's timer half an hour ahead,
so every row costs the same work whatever the number of keys; when a timer fires, the count is emitted.

  rows   250,000, 1,000,000 and 4,000,000 rows in one micro-batch, of 10,000 keys
  keys   1,000, 10,000 and 100,000 keys, with 1,000,000 rows a micro-batch

Micro-batches of the three sizes take turns in one query. Queries with more keys come one after the other, and once
more in the opposite order. A query first gets a row of each key, and a micro-batch to warm up; before all that, there
is one query to warm up Java. What counts is the median.

A micro-batch also costs what it costs without rows, which would make few rows look dear and so growth look good: the
median of micro-batches with 100 rows is taken off.

The results are checked: rows in, and the number of keys in state.

Run it with ``make bench-growth`` or ``python benchmarks/bench_growth.py``. The last line of the output is one JSON
object; ``ratio`` is the cost of a row at 16 times the rows over that at once the rows, ``keys_ratio`` at 100 times
the keys over that at once the keys, each the larger of one and two subtasks.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.support import (
    SteppedQuery,
    find_pillarbox,
    finish,
    print_table,
    spark_version,
    spread,
    step_settings,
    task_reports,
)

find_pillarbox()

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from pillarbox import (
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
    local_session,
)

HALF_AN_HOUR = 30 * 60_000
SUBTASKS = (1, 2)
TINY = 100
# Microseconds a row, by (subtasks, rows, keys).
Costs = dict[tuple[int, int, int], list[float]]


class Count(KeyedProcessFunction):
    """A count, and a timer that each row moves ahead; the count is emitted when it fires."""

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n"))
        self.due = ctx.get_state(ValueStateDescriptor("due"))

    def process_element(self, row, ctx):
        self.n.update((self.n.value() or 0) + 1)
        timers = ctx.timer_service()
        due = self.due.value()
        if due is not None:
            timers.delete_event_time_timer(due)
        due = row.ts + HALF_AN_HOUR
        timers.register_event_time_timer(due)
        self.due.update(due)

    def on_timer(self, timestamp, ctx):
        self.due.clear()
        yield ctx.get_current_key(), timestamp, self.n.value()


class Query:
    """The program in a query of its own."""

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
        counts = stream.key_by("key").process(Count()).uid("count")
        self._stepped.start(counts.to_dataframe("key INT, at LONG, n LONG"))

    def run(self, rows: int) -> float:
        """Run a micro-batch whose rows are a millisecond apart; give its milliseconds."""
        key = self._random.integers(0, self._keys, rows) if self._number else np.arange(self._keys)
        rows = len(key)
        place = self._directory / "staging" / f"{self._number:03}"
        place.mkdir(parents=True)
        ts = np.arange(self._now, self._now + rows)
        for part in range(2):
            table = pa.table({"key": key[part::2].astype(np.int32), "ts": ts[part::2]})
            pq.write_table(table, place / f"{part}.parquet")
        self._now += rows
        self._number += 1
        progress = self._stepped.step(place)
        reports = task_reports(progress)
        seen = sum(task.records_in for task in reports), sum(task.keys or 0 for task in reports)
        if seen != (rows, self._keys) or progress.numInputRows != rows:
            raise SystemExit(f"WRONG RESULTS: {seen} rows and keys, not {rows, self._keys}")
        return float(progress.durationMs["triggerExecution"])

    def stop(self) -> None:
        self._stepped.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=250_000, help="once the rows")
    parser.add_argument("--keys", type=int, default=1_000, help="once the keys")
    parser.add_argument("--rounds", type=int, default=3, help="micro-batches of each size that count")
    parser.add_argument("--memory", default="3g", help="of Spark")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-growth-") as directory:
        spark = local_session(2, **step_settings(Path(directory), arguments.memory))
        measure(arguments, spark, Path(directory))
        spark.stop()


def measure(arguments: argparse.Namespace, spark: SparkSession, directory: Path) -> None:
    sizes = [arguments.rows * factor for factor in (1, 4, 16)]
    keys = [arguments.keys * factor for factor in (1, 10, 100)]
    batches: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    tiny: dict[int, list[float]] = defaultdict(list)
    number = 0

    def query(subtasks: int, of: int) -> Query:
        nonlocal number
        number += 1
        made = Query(spark, directory / str(number), subtasks, of)
        made.run(of)
        made.run(sizes[1])
        return made

    for subtasks in SUBTASKS:
        query(subtasks, keys[1]).stop()
        for of in [*keys, *reversed(keys)]:
            running = query(subtasks, of)
            for index in range(arguments.rounds if of == keys[1] else -(-arguments.rounds // 2)):
                # The three sizes only with the keys in the middle, and backwards every other round.
                several = of == keys[1] and index < -(-arguments.rounds // 2)
                for size in sizes[:: -1 if index % 2 else 1] if several else sizes[1:2]:
                    batches[subtasks, size, of].append(running.run(size))
                tiny[subtasks] += [running.run(TINY) for _ in range(3)]
            running.stop()
    fixed = {subtasks: statistics.median(values) for subtasks, values in tiny.items()}
    costs: Costs = {
        (subtasks, size, of): [1000 * (ms - fixed[subtasks]) / size for ms in values]
        for (subtasks, size, of), values in sorted(batches.items())
    }
    report(arguments, costs, fixed, sizes, keys)


def report(
    arguments: argparse.Namespace,
    costs: Costs,
    fixed: dict[int, float],
    sizes: list[int],
    keys: list[int],
) -> None:
    print_table(
        ["us a row", "median", "lowest", "highest", "without rows, ms", "micro-batches"],
        [
            [
                f"{subtasks} subtask{'s' * (subtasks > 1)}, {size:,} rows, {of:,} keys",
                *spread(values, 2),
                f"{fixed[subtasks]:,.0f}",
                len(values),
            ]
            for (subtasks, size, of), values in costs.items()
        ],
    )
    medians = {place: statistics.median(values) for place, values in costs.items()}
    if min(medians.values()) <= 0:
        raise SystemExit("a micro-batch took no longer than one without rows: the machine is too busy to measure on")
    by_rows = {n: medians[n, sizes[2], keys[1]] / medians[n, sizes[0], keys[1]] for n in SUBTASKS}
    by_keys = {n: medians[n, sizes[1], keys[2]] / medians[n, sizes[1], keys[0]] for n in SUBTASKS}
    two = medians[1, sizes[2], keys[1]] / medians[2, sizes[2], keys[1]]
    for n in SUBTASKS:
        print(
            f"{n} subtask{'s' * (n > 1)}: a row at 16 times the rows costs {by_rows[n]:.2f} times as much, at 100 times"
            f" the keys {by_keys[n]:.2f} times"
        )
    print(f"two subtasks are {two:.2f} times as fast as one at {sizes[2]:,} rows")
    finish(
        "growth",
        max(by_rows.values()),
        keys_ratio=round(max(by_keys.values()), 3),
        rows_ratios={n: round(value, 3) for n, value in by_rows.items()},
        keys_ratios={n: round(value, 3) for n, value in by_keys.items()},
        two_subtasks_over_one=round(two, 3),
        us_per_row={f"{n}/{size}/{of}": round(value, 3) for (n, size, of), value in medians.items()},
        spark=spark_version(),
    )


if __name__ == "__main__":
    main()
