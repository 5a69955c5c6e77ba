# SPDX-License-Identifier: Apache-2.0
"""Interval join of two streams: pillarbox beside Spark's own stream-stream join and PyFlink, rows per second.

Rows of two streams with the same key, whose times are at most five seconds apart; 100,000 keys, micro-batches of
500,000 rows a side, which cover five minutes of event time, the watermark is 5 seconds behind.
All emit (key, both times, sum of both amounts), in append mode.

pillarbox has two sides, both of them or those in ``--sides``: ``columnar``, ``interval_join(...).columns()``, and
``python``, a ``ProcessJoinFunction``. The peers, all of them or those in ``--peers``:

  spark     Spark's own join with a watermark, which has no Python in it: with the fastest of its state formats and
            stores, those in ``--formats``: ``hdfs-2`` (in the JVM's memory), ``rocksdb-2``, ``rocksdb-3`` and
            ``rocksdb-4`` (with changelog checkpoints, and rows not counted); all warm up, and the last micro-batch of
            that tells
  thread    PyFlink's ``KeyedCoProcessFunction`` that keeps the rows of each side in a map state, in thread mode
  process   the same in process mode

and the limit ``one-hop``: the same rows through Python once, behind a shuffle, with no work done. PyFlink gets an
environment of its own, made when it is missing; when it cannot be had here it is left out, and the result says why.

The sides go in rounds. In each of them every side on Spark in turn has three micro-batches, and each other one a job;
the others wait, in processes of their own. What counts is a side's median over five rounds. The warm-up is two small
micro-batches and two full ones: Spark drops the rows of one at the end of the next, so its buffers are full from the
second full one on. A JVM goes on compiling for longer than that: it gets micro-batches until they have taken a minute
(the state formats of Spark's own share one). Spark ends Python workers that were idle for a minute: a side with Python
that has waited for as long gets a micro-batch more, which does not count.

- On Spark the cores are two, shuffle partitions two, output goes into the sink ``noop``. Both
  streams are halves of one source, so that a micro-batch has all of its rows. A micro-batch's throughput is the rows of
  both sides over its ``triggerExecution``.
- PyFlink takes many times as long, so its round is a job over a share of a micro-batch's rows with the same share of
  its keys, so as many rows a key. A job begins without state, and has no checkpoints; its start does not count. All
  that is to its favour. In thread mode two processes with half of the keys each run side by side, as threads would
  share Python's one lock. See ``peers/flink_jobs.py``.

Every result is checked, against pairs that numpy finds: number of rows, sum of amounts, and a checksum of all columns,
of each micro-batch or job.

In the last line ``ratio`` is rows per second of pillarbox's columnar side over those of Spark's own.

Rows have a side (0: left, 1: right), a key, a time (milliseconds) and an amount. A micro-batch has five minutes of
event time, and as many rows of each side; they come in order but for two seconds of disorder, in two files of each side
of which each has half of the keys. The watermark is five seconds behind, so no row is late.
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


# -- Spark's own --


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


# -- rows, and what must come out --


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
