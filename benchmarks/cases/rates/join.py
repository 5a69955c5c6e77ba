# SPDX-License-Identifier: Apache-2.0
"""Interval join of two streams: pillarbox compared with Spark's stream-stream join and PyFlink, in rows per second.

The join matches rows of two streams with the same key whose times are at most five seconds apart. There are 100,000
keys, and micro-batches of 500,000 rows per side, which cover five minutes of event time. The watermark is 5 seconds
behind. All emit (key, both times, sum of both amounts), in append mode.

pillarbox has two sides (``--sides`` selects some): ``columnar``, ``interval_join(...).columns()``, and ``python``, a
``ProcessJoinFunction``. The peers (``--peers`` selects some):

  spark     Spark's join with a watermark, without any Python, with the fastest of its state formats and stores
            (``--formats`` selects some): ``hdfs-2`` (in the JVM's memory), ``rocksdb-2``, ``rocksdb-3`` and
            ``rocksdb-4`` (with changelog checkpoints, and without counting rows); all of them warm up, and their last
            warm-up micro-batch decides
  thread    PyFlink's ``KeyedCoProcessFunction`` that stores the rows of each side in a map state, in thread mode
  process   the same in process mode

There is one limit, ``one-hop``: the same rows through Python once, after a shuffle, without any work. PyFlink has its
own environment, which is created if missing. If that fails, PyFlink is left out, and the result contains the reason.

In each round, every side on Spark in turn runs three micro-batches, and every other side one job, while the others
wait, in separate processes. The results are a side's medians over five rounds. The warm-up is two small micro-batches
and two full ones: Spark drops the rows of a micro-batch at the end of the next, so its buffers are full from the second
full micro-batch on. A JVM continues to compile for longer, so it runs micro-batches until they have taken a minute
(Spark's state formats share one JVM). Spark ends Python workers that have been idle for a minute. A side with Python
that has waited for so long runs an additional micro-batch, which does not count.

- On Spark, there are two cores and two shuffle partitions, and the sink is ``noop``. Both streams are halves of one
  source, so that a micro-batch has all of its rows. A micro-batch's throughput is the rows of both sides divided by its
  ``triggerExecution``.
- PyFlink takes many times as long, so its round is a job over a share of a micro-batch's rows with the same share of
  its keys, and therefore as many rows per key. A job begins without state and has no checkpoints, and its start does
  not count. All of this favours PyFlink. In thread mode, two concurrent processes have half of the keys each, because
  threads would share Python's lock. See ``peers/flink_jobs.py``.

Every result is compared with the pairs that numpy finds: the number of rows, the sum of amounts, and a checksum of all
columns, of each micro-batch or job.

In the last line, ``ratio`` is the rows per second of pillarbox's columnar side divided by Spark's.

Rows have a side (0: left, 1: right), a key, a time (milliseconds) and an amount. Each side has the same number of rows
in a micro-batch's five minutes. They are in order except for two seconds of disorder, in two files per side, each with
half of the keys. The watermark is five seconds behind, so no row is late.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.harness.case import Outcome, Result, shown
from benchmarks.harness.contest import WARM_UP_SECONDS, Contest, add_names, add_options, contest_page, left_out
from benchmarks.harness.rows import EPOCH, MINUTE, Columns, Ints, MicroBatches, draw, summary
from benchmarks.harness.runners import Contender
from benchmarks.peers.limits import one_hop
from benchmarks.peers.spark import STORES
from benchmarks.report.words import page
from pillarbox import ProcessJoinFunction, StreamExecutionEnvironment, WatermarkStrategy

SPAN = 5 * MINUTE
DELAY = 5_000
DISORDER = 2_000
BOUND = 5_000
SCHEMA = "side INT, key INT, ts LONG, amount LONG"
OUTPUT = "key INT, ts LONG, ts_right LONG, amounts LONG"
SMALL = {
    "rows": 10_000,
    "keys": 1_000,
    "rounds": 1,
    "batches": 1,
    "warm_up_seconds": 0,
    "memory": "1g",
    "stores": ["rocksdb-2"],
    "peers": ["spark", "one-hop"],
}
WORK = "join"
OURS = {
    "columnar": Contender("pillarbox, columnar", "ours"),
    "python": Contender("pillarbox, Python", "ours"),
}
PEERS = {
    "spark": Contender("Spark's own", "spark"),
    "thread": Contender("PyFlink, thread mode", "flink", {WORK: 5}),
    "process": Contender("PyFlink, process mode", "flink", {WORK: 50}),
    "one-hop": Contender("(identity, one hop)", "limit"),
}
CONTENDERS = {**OURS, **PEERS}
_VERSION = "spark.sql.streaming.join.stateFormatVersion"
FORMATS: Mapping[str, Mapping[str, str]] = {
    "hdfs-2": {**STORES["hdfs"], _VERSION: "2"},
    "rocksdb-2": {**STORES["rocksdb"], _VERSION: "2"},
    "rocksdb-3": {**STORES["rocksdb"], _VERSION: "3"},
    "rocksdb-4": {**STORES["rocksdb"], _VERSION: "4"},
}


# -- pillarbox --


class Sum(ProcessJoinFunction[Any, Any, Any]):
    """Emits both times and the sum of the amounts."""

    def process_element(self, left, right, ctx):
        return [(left.key, left.ts, right.ts, left.amount + right.amount)]


def _joined(source: DataFrame) -> Any:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(DELAY).with_timestamp_assigner("ts")
    env = StreamExecutionEnvironment.get_execution_environment(source.sparkSession)
    left, right = (
        env.from_dataframe(source.where(F.col("side") == side).drop("side"), name)
        .assign_timestamps_and_watermarks(strategy)
        .key_by("key")
        for side, name in enumerate(("left", "right"))
    )
    return left.interval_join(right).between(-BOUND, BOUND)


def python_query(source: DataFrame) -> DataFrame:
    """Return the join with a Python function that is called for each pair."""
    return _joined(source).process(Sum()).to_dataframe(OUTPUT)  # type: ignore[no-any-return]


def columnar_query(source: DataFrame) -> DataFrame:
    """Return the columnar join."""
    pairs = _joined(source).columns(suffixes=("", "_right")).to_dataframe()
    amounts = (F.col("amount") + F.col("amount_right")).alias("amounts")
    return pairs.select("key", "ts", "ts_right", amounts)  # type: ignore[no-any-return]


# -- Spark --


def spark_query(source: DataFrame) -> DataFrame:
    """Return Spark's stream-stream join, which runs in the JVM."""
    timed = source.withColumn("time", F.timestamp_millis("ts")).withWatermark("time", f"{DELAY} milliseconds")
    left = timed.where("side = 0").select("key", "ts", "amount", "time")
    right = timed.where("side = 1").select(
        F.col("key").alias("key_right"),
        F.col("ts").alias("ts_right"),
        F.col("amount").alias("amount_right"),
        F.col("time").alias("time_right"),
    )
    bound = F.expr(f"INTERVAL {BOUND // 1000} SECONDS")
    near = F.col("time_right").between(F.col("time") - bound, F.col("time") + bound)
    pairs = left.join(right, (F.col("key") == F.col("key_right")) & near)
    return pairs.select("key", "ts", "ts_right", (F.col("amount") + F.col("amount_right")).alias("amounts"))


QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "columnar": columnar_query,
    "python": python_query,
    "spark": spark_query,
    "one-hop": lambda source: one_hop(
        source.select("key", "ts", F.col("ts").alias("ts_right"), F.col("amount").alias("amounts"))
    ),
}


def query(source: DataFrame, question: Mapping[str, Any]) -> DataFrame:
    return QUERIES[question["query"]](source)


# -- rows and expected results --


class JoinBatches(MicroBatches):
    """Micro-batches with the rows of both sides, and their pairs."""

    streams = 2

    def columns(self, number: int, stream: int = 0) -> dict[str, Ints]:
        rows = self.rows_of(number)
        key, ts, random = draw([11, stream, number], rows, self.keys, EPOCH + number * SPAN, SPAN, disorder=DISORDER)
        return {"side": np.full(rows, stream), "key": key, "ts": ts, "amount": random.integers(1, 1_000, rows)}

    def expected(self, number: int, kind: str) -> list[int]:
        if kind != "limit":
            return super().expected(number, "ours")
        _, key, ts, amount = (
            np.concatenate(both) for both in zip(*(self.columns(number, side).values() for side in (0, 1)))
        )
        return summary([key, ts, ts, amount])

    def results(self, *, late: bool) -> Iterator[Columns]:
        yield self._pairs(0, 0)
        number = 1
        while True:
            pairs = [self._pairs(number, number), self._pairs(number, number - 1), self._pairs(number - 1, number)]
            yield list(np.concatenate(pairs, axis=1))
            number += 1

    def of_job(self, number: int) -> Columns:
        return list(self._pairs(number, number))

    def _pairs(self, left: int, right: int) -> Any:
        """Return the pairs of two micro-batches' rows: key, both times, and the sum of the amounts."""
        _, key, ts, amount = self.columns(left, 0).values()
        _, keys, times, amounts = self.columns(right, 1).values()
        origin = EPOCH - SPAN
        width = 2**42
        order = np.argsort(keys * width + times - origin)
        places = (keys * width + times - origin)[order]
        begin = np.searchsorted(places, key * width + ts - BOUND - origin)
        counts = np.searchsorted(places, key * width + ts + BOUND - origin, "right") - begin
        ours = np.repeat(np.arange(len(key)), counts)
        theirs = order[np.arange(len(ours)) + np.repeat(begin - (counts.cumsum() - counts), counts)]
        return np.stack([key[ours], ts[ours], times[theirs], amount[ours] + amounts[theirs]])


class JoinContest(Contest):
    """The contest of joins."""

    module = __name__
    contenders = CONTENDERS
    stores = FORMATS
    flink = "benchmarks.peers.flink_jobs:Join"
    title = f"rows at most {BOUND // 1000} seconds apart"

    def new_batches(self, share: int, path: Path) -> JoinBatches:
        return JoinBatches(self.arguments.rows // share, self.arguments.warm_up_rows // share, self.keys // share, path)

    def spec(self) -> dict[str, Any]:
        return {"bound": BOUND}


def options(parser: argparse.ArgumentParser) -> None:
    add_options(parser, rows=500_000, keys=100_000, rounds=5, warm_up_seconds=WARM_UP_SECONDS)
    for option, names in {"--sides": OURS, "--peers": PEERS}.items():
        add_names(parser, option, names)
    add_names(parser, "--formats", FORMATS, dest="stores")


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    contest = JoinContest(arguments, directory)
    contest.run([WORK], arguments.sides, arguments.peers)
    figures = contest.figures(WORK, arguments.sides)
    ratio = figures["over"].get("columnar", {}).get("spark", 0)
    return Outcome("join", ratio, {**figures, "left_out": contest.left_out, "rows": arguments.rows}, contest.wrong)


def present(result: Result, charts: Path | None) -> str:
    return page(
        contest_page(charts, "join", f"rows at most 5 seconds apart, {result['keys']:,} keys", CONTENDERS, result),
        f"Spark's state format and store: {result['store']}." if result["store"] else "",
        *left_out(CONTENDERS, result),
    )


BLOCKS = {"join": shown(present, "join")}
