# SPDX-License-Identifier: Apache-2.0
"""Keyed state and timers on Spark: pillarbox against Spark's own ``transformWithState``, rows per second.

The work: for each row add 1 to its key's count and set an event-time timer at the end of the row's minute; when the
timer fires emit (key, minute, count), and keep the count. 100,000 keys, micro-batches of 1,000,000 rows that cover
five minutes each, a watermark 5 seconds behind.

Both sides read the same Parquet files, one micro-batch at a time and in turn, each in a Spark of its own: same cores,
two shuffle partitions, RocksDB with changelog checkpoints, output into ``foreachBatch`` with Spark's ``noop`` sink.
Throughput is a micro-batch's ``numInputRows`` over its ``triggerExecution``; what counts is the median of the
micro-batches after the warm-up: a small one, and the first full one (which has only the small one's timers to fire on
Spark's side).

Spark's side is written as sparingly as its API allows: the count is read and written once per key and micro-batch,
a timer is set once per key, minute and micro-batch, and a timer whose key had rows in the same micro-batch finds its
count in memory. ``transformWithState`` in its row flavour is the yardstick; the pandas flavour is there to know.

The results are checked: every micro-batch must fire exactly the timers, with exactly the counts, that its semantics
ask for. These differ in one thing: pillarbox fires in the micro-batch that brings the watermark, Spark in the one
after it. So Spark's counts hold one micro-batch more, and its last timers are not fired.

Run it with ``python benchmarks/bench_keyed.py``. The last line of the output is one JSON object; ``ratio`` is rows
per second of pillarbox over rows per second of ``transformWithState`` (the bar is 10).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.support import (
    Side,
    SteppedQuery,
    answer,
    cpu_seconds,
    find_pillarbox,
    finish,
    print_table,
    questions,
    spark_version,
    spread,
    step_settings,
    task_reports,
)

find_pillarbox()

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor, WatermarkStrategy
from pillarbox.runtime.spark.session import local_session

MINUTE = 60_000
BATCH_SPAN = 5 * MINUTE
DELAY = 5_000
OUTPUT = "key INT, minute LONG, n LONG"
CHECKSUM = (1_000_003, 7_919, 31, 2_147_483_647)
TASK_METRICS = ("busy_ms", "state_ms", "back_pressured_ms", "idle_ms", "state_sync")
# Of pillarbox, batches in a row, of which the first does not count: Spark ends Python workers that had nothing to do
# for a minute, so that after its turn of waiting for the other side pillarbox starts cold.
IN_A_ROW = 3
# The pandas flavour takes minutes for each, and is only there to know.
WARM_UPS = {"pillarbox": 2, "spark": 2, "pandas": 1}
SIDES = {"pillarbox": "pillarbox", "spark": "transformWithState", "pandas": "transformWithStateInPandas"}


# -- pillarbox --


class Count(KeyedProcessFunction):
    """Counts the rows of a key; emits the count at the end of each minute that had one."""

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n"))

    def process_element(self, row, ctx):
        self.n.update((self.n.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(row.ts // MINUTE * MINUTE + MINUTE)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, self.n.value()


def pillarbox_query(source: DataFrame) -> DataFrame:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_timestamp_assigner("ts")
    env = StreamExecutionEnvironment.get_execution_environment(source.sparkSession)
    stream = env.from_dataframe(source).assign_timestamps_and_watermarks(strategy)
    return stream.key_by("key").process(Count()).to_dataframe(OUTPUT)


# -- Spark --


class RowCount(StatefulProcessor):
    """The same in Spark's row flavour."""

    def init(self, handle):
        self.handle = handle
        self.n = handle.getValueState("n", "n LONG")
        self.known: dict[int, int] = {}

    def handleInputRows(self, key, rows, timerValues):
        state = self.n.get()
        n = 0 if state is None else state[0]
        minutes = set()
        for row in rows:
            n += 1
            minutes.add(row[1] // MINUTE)
        self.n.update((n,))
        self.known[key[0]] = n
        for minute in minutes:
            self.handle.registerTimer(minute * MINUTE + MINUTE)
        return iter(())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        n = self.known.get(key[0])
        if n is None:
            n = self.n.get()[0]
        yield Row(key=key[0], minute=expiredTimerInfo.getExpiryTimeInMs(), n=n)

    def close(self):
        pass


class PandasCount(RowCount):
    """The same in Spark's pandas flavour."""

    def handleInputRows(self, key, rows, timerValues):
        state = self.n.get()
        n = 0 if state is None else state[0]
        minutes = set()
        for frame in rows:
            n += len(frame)
            minutes.update((frame["ts"].to_numpy() // MINUTE).tolist())
        self.n.update((n,))
        self.known[key[0]] = n
        for minute in minutes:
            self.handle.registerTimer(minute * MINUTE + MINUTE)
        return iter(())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        n = self.known.get(key[0])
        if n is None:
            n = self.n.get()[0]
        yield pd.DataFrame({"key": [key[0]], "minute": [expiredTimerInfo.getExpiryTimeInMs()], "n": [n]})


def spark_query(source: DataFrame, *, in_pandas: bool = False) -> DataFrame:
    timed = source.withColumn("time", F.timestamp_millis("ts")).withWatermark("time", "5 seconds")
    grouped = timed.select("key", "ts").groupBy("key")
    if in_pandas:
        return grouped.transformWithStateInPandas(PandasCount(), OUTPUT, "append", "EventTime")
    return grouped.transformWithState(RowCount(), OUTPUT, "append", "EventTime")


# -- one side, in its own process --


def session(side: str, directory: Path, memory: str) -> SparkSession:
    settings = step_settings(directory, memory)
    if side != "pillarbox":
        # As Spark comes: these two are set for pillarbox's buffers.
        settings["spark__sql__execution__arrow__maxBytesPerBatch"] = "67108864"
        settings["spark__sql__adaptive__coalescePartitions__enabled"] = "true"
    return local_session(2, **settings)


def serve(side: str, directory: Path, memory: str) -> None:
    """Run a query over micro-batches that come when they are asked for."""
    spark = session(side, directory, memory)
    query = SteppedQuery(spark, directory, "key INT, ts LONG")
    source = query.source
    result = pillarbox_query(source) if side == "pillarbox" else spark_query(source, in_pandas=side == "pandas")
    a, b, c, modulus = CHECKSUM
    weight = (F.col("key").cast("long") * a + (F.col("minute") / MINUTE).cast("long") * b + F.col("n") * c) % modulus
    result = result.observe(
        "results", F.count(F.lit(1)).alias("fired"), F.sum("n").alias("counts"), F.sum(weight).alias("checksum")
    )
    query.start(result)
    if side != "pillarbox":
        query.keep_workers()
    for question in questions():
        before = cpu_seconds(os.getpid())
        progress = query.step(question["batch"])
        answer(
            rows=progress.numInputRows,
            ms=progress.durationMs["triggerExecution"],
            cpu=cpu_seconds(os.getpid()) - before,
            results=[value or 0 for value in progress.observedMetrics["results"]],
            tasks=[{name: task[name] for name in TASK_METRICS} for task in task_reports(progress)],
        )
    query.stop()
    spark.stop()


# -- both sides --


@dataclass
class Data:
    """The micro-batches: files, and what each side has to make of them."""

    directory: Path
    sizes: list[int]
    keys: int
    batches: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def write(self) -> None:
        random = np.random.default_rng(1)
        for number, rows in enumerate(self.sizes):
            place = self.directory / f"{number:03}"
            place.mkdir(parents=True)
            key = random.integers(0, self.keys, rows, dtype=np.int32)
            ts = number * BATCH_SPAN + np.arange(rows) * BATCH_SPAN // rows
            for part in range(2):
                table = pa.table({"key": key[part::2], "ts": ts[part::2]})
                pq.write_table(table, place / f"{part}.parquet")
            self.batches.append(np.stack([key.astype(np.int64), ts]))

    def hand_out(self, number: int, side: Path) -> Path:
        """Give a side its own copy of a micro-batch."""
        return Path(
            shutil.copytree(self.directory / f"{number:03}", side / "staging" / f"{number:03}", copy_function=os.link)
        )

    def expected(self, side: str) -> Iterator[list[int]]:
        """For each micro-batch: timers fired, sum of the counts emitted, checksum."""
        a, b, c, modulus = CHECKSUM
        counts = np.zeros(self.keys, np.int64)
        timers = np.empty(0, np.int64)
        watermark = -1
        for key, ts in self.batches:
            counts += np.bincount(key, minlength=self.keys)
            timers = np.unique(np.concatenate([timers, (ts // MINUTE + 1) * self.keys + key]))
            after = int(ts.max()) - DELAY - 1
            due = timers // self.keys * MINUTE <= (after if side == "pillarbox" else watermark)
            watermark = after
            fired, timers = timers[due], timers[~due]
            n = counts[fired % self.keys]
            checksum = (fired % self.keys * a + fired // self.keys * b + n * c) % modulus
            yield [int(due.sum()), int(n.sum()), int(checksum.sum())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of a micro-batch")
    parser.add_argument("--warm-up-rows", type=int, default=100_000, help="rows of the very first one")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=4, help="micro-batches of pillarbox that count")
    parser.add_argument("--spark-batches", type=int, default=2, help="of transformWithState")
    parser.add_argument("--pandas-batches", type=int, default=1, help="of transformWithStateInPandas; 0: leave it out")
    parser.add_argument("--memory", default="3g", help="of each Spark")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        serve(arguments.side, arguments.directory, arguments.memory)
        return
    with tempfile.TemporaryDirectory(prefix="bench-keyed-") as directory:
        compare(arguments, Path(directory))


def compare(arguments: argparse.Namespace, directory: Path) -> None:
    batches = {
        "pillarbox": arguments.batches,
        "spark": arguments.spark_batches,
        "pandas": arguments.pandas_batches,
    }
    batches = {side: count for side, count in batches.items() if count}
    turns = {"pillarbox": -(-arguments.batches // (IN_A_ROW - 1)), "spark": arguments.spark_batches}
    turns["pandas"] = arguments.pandas_batches
    totals = {side: WARM_UPS[side] + turns[side] * (IN_A_ROW if side == "pillarbox" else 1) for side in batches}
    sizes = [arguments.warm_up_rows] + [arguments.rows] * (max(totals.values()) - 1)
    data = Data(directory / "data", sizes, arguments.keys)
    data.write()
    sides: dict[str, Side] = {}
    for side in batches:
        (directory / side).mkdir()
        sides[side] = Side("--side", side, "--directory", str(directory / side), "--memory", arguments.memory)
    answers: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    wrong: list[str] = []
    expected = {side: list(data.expected(side)) for side in sides}

    def run(side: str, counts: bool = False) -> None:
        number = len(answers[side])
        said = sides[side].ask(batch=str(data.hand_out(number, directory / side)), number=number)
        answers[side].append({**said, "counts": counts})
        fits = said["results"] == expected[side][number] and said["rows"] == data.sizes[number]
        if not fits:
            wrong.append(f"{SIDES[side]}, micro-batch {number}: {said['results']}, not {expected[side][number]}")
        print(
            f"  {SIDES[side]:28}{number if counts else 'warm-up':>8}{said['rows']:12,} rows"
            f"{said['ms'] / 1000:8.1f} s{said['results'][0]:10,} timers {'as expected' if fits else 'WRONG'}"
            f"  {', '.join(sorted({task['state_sync'] for task in said['tasks']}))}",
            flush=True,
        )

    for side in sides:
        for _ in range(WARM_UPS[side]):
            run(side)
    for turn in range(max(turns.values())):
        for side in sides:
            if turn < turns[side]:
                for index in range(IN_A_ROW if side == "pillarbox" else 1):
                    run(side, counts=index > 0 or side != "pillarbox")
    for process in sides.values():
        process.close()

    counted = {side: [each for each in said if each["counts"]] for side, said in answers.items()}
    rates = {side: [1000 * each["rows"] / each["ms"] for each in said] for side, said in counted.items()}
    cpu = {side: statistics.median(each["cpu"] / each["rows"] * 1e6 for each in said) for side, said in counted.items()}
    medians = {side: statistics.median(values) for side, values in rates.items()}
    print()
    print_table(
        ["rows per second", "median", "lowest", "highest", "CPU s per 1M rows", "micro-batches"],
        [[SIDES[side], *spread(rates[side]), f"{cpu[side]:.1f}", len(rates[side])] for side in sides],
    )
    tasks = [task for said in counted["pillarbox"] for task in said["tasks"]]
    per_task = (
        {name: statistics.median(task[name] for task in tasks) for name in TASK_METRICS if name != "state_sync"}
        if tasks
        else {}
    )
    print("pillarbox, a subtask's median:", ", ".join(f"{name} {value:,.0f}" for name, value in per_task.items()))
    ratio = medians["pillarbox"] / medians["spark"]
    print(
        f"pillarbox over {SIDES['spark']}: {ratio:.1f} in rows per second,"
        f" {cpu['spark'] / cpu['pillarbox']:.1f} in rows per CPU second"
    )
    for line in wrong:
        print(f"WRONG RESULTS: {line}")
    finish(
        "keyed",
        ratio,
        bar=10,
        results_agree=not wrong,
        **{f"{side}_rows_per_s": round(value) for side, value in medians.items()},
        **{f"{side}_cpu_s_per_1m_rows": round(value, 2) for side, value in cpu.items()},
        rounds={side: [round(value) for value in values] for side, values in rates.items()},
        rows=arguments.rows,
        keys=arguments.keys,
        spark=spark_version(),
    )
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
