# SPDX-License-Identifier: Apache-2.0
"""What ``bench_join.py`` compares: the rows, what must come out, and the queries on Spark.

Rows have a side (0: left, 1: right), a key, a time (milliseconds) and an amount. A micro-batch has five minutes of
event time, and as many rows of each side; they come in order but for two seconds of disorder, in two files of each side
of which each has half of the keys. The watermark is five seconds behind, so no row is late.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.keyed_work import SUBTASKS, Ints, summary
from pillarbox import ProcessJoinFunction, StreamExecutionEnvironment, WatermarkStrategy

SPAN = 5 * 60_000
DELAY = 5_000
DISORDER = 2_000
BOUND = 5_000
EPOCH = 1_767_225_600_000
# The micro-batches at the beginning that have fewer rows.
SMALL = 2
SCHEMA = "side INT, key INT, ts LONG, amount LONG"
OUTPUT = "key INT, ts LONG, ts_right LONG, amounts LONG"

Rows = tuple[Ints, Ints, Ints]


class Batches:
    """The micro-batches, made when they are asked for, and what must come of each.

    Args:
        rows: of each side in a full micro-batch.
        small: the same of the first ones.
    """

    def __init__(self, rows: int, small: int, keys: int, directory: Path) -> None:
        self.rows = rows
        self.small = small
        self.keys = max(keys, SUBTASKS)
        self._directory = directory
        self._expected: dict[int, list[int]] = {}

    def length(self, number: int) -> int:
        """Return how many rows both sides of a micro-batch have."""
        return 2 * (self.small if number < SMALL else self.rows)

    def side(self, number: int, side: int) -> Rows:
        """Return keys, times and amounts of one side of a micro-batch."""
        rows = self.length(number) // 2
        random = np.random.default_rng([11, side, number])
        key = random.integers(0, self.keys, rows)
        amount = random.integers(1, 1_000, rows)
        ts = EPOCH + number * SPAN + np.arange(rows) * SPAN // rows - random.integers(0, DISORDER, rows)
        # Both halves end at the same time, and so have the same watermark.
        key[-SUBTASKS:] = range(SUBTASKS)
        ts[-SUBTASKS:] = EPOCH + (number + 1) * SPAN - 1
        return key, ts, amount

    def place(self, number: int, form: str) -> Path:
        """Return the directory with a micro-batch's files, which are written when they are missing.

        Args:
            form: ``parquet``, in one directory; ``csv``, in one for each side, and in it for each half, and ``whole``.
        """
        place = self._directory / form / f"{number:03}"
        if place.exists():
            return place
        for side in (0, 1):
            key, ts, amount = self.side(number, side)
            columns = {"side": np.full(len(key), side, np.int32), "key": key.astype(np.int32), "ts": ts}
            table = pa.table({**columns, "amount": amount})
            parts = {str(part): table.filter(pa.array(key % SUBTASKS == part)) for part in range(SUBTASKS)}
            for part, mine in {**parts, "whole": table}.items() if form == "csv" else parts.items():
                if form == "csv":
                    (place / str(side) / part).mkdir(parents=True)
                    target = place / str(side) / part / "rows.csv"
                    pa_csv.write_csv(mine.drop(["side"]), target, pa_csv.WriteOptions(include_header=False))
                else:
                    place.mkdir(parents=True, exist_ok=True)
                    pq.write_table(mine, place / f"{side}-{part}.parquet")
        return place

    def expected(self, number: int, kind: str) -> list[int]:
        """Return the summary of the pairs whose second row is in a micro-batch; for the limit, of its rows."""
        if kind == "limit":
            key, ts, amount = (np.concatenate(both) for both in zip(self.side(number, 0), self.side(number, 1)))
            return summary([key, ts, ts, amount])
        if number not in self._expected:
            pairs = [self._pairs(number, number)]
            if number:
                pairs += [self._pairs(number, number - 1), self._pairs(number - 1, number)]
            self._expected[number] = summary(list(np.concatenate(pairs, axis=1)))
        return self._expected[number]

    def all_of(self, number: int) -> list[int]:
        """Return the summary of the pairs of a micro-batch's rows by themselves."""
        return summary(list(self._pairs(number, number)))

    def _pairs(self, left: int, right: int) -> Any:
        """Return the pairs of the rows of two micro-batches: key, both times, and the sum of the amounts."""
        key, ts, amount = self.side(left, 0)
        keys, times, amounts = self.side(right, 1)
        origin = EPOCH - SPAN
        width = 2**42
        order = np.argsort(keys * width + times - origin)
        places = (keys * width + times - origin)[order]
        begin = np.searchsorted(places, key * width + ts - BOUND - origin)
        counts = np.searchsorted(places, key * width + ts + BOUND - origin, "right") - begin
        ours = np.repeat(np.arange(len(key)), counts)
        theirs = order[np.arange(len(ours)) + np.repeat(begin - (counts.cumsum() - counts), counts)]
        return np.stack([key[ours], ts[ours], times[theirs], amount[ours] + amounts[theirs]])


# -- pillarbox --


class Sum(ProcessJoinFunction[Any, Any, Any]):
    """Both times, and the sum of the amounts."""

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
    """A function in Python for each pair."""
    return _joined(source).process(Sum()).to_dataframe(OUTPUT)  # type: ignore[no-any-return]


def columnar_query(source: DataFrame) -> DataFrame:
    """By columns."""
    pairs = _joined(source).columns(suffixes=("", "_right")).to_dataframe()
    amounts = (F.col("amount") + F.col("amount_right")).alias("amounts")
    return pairs.select("key", "ts", "ts_right", amounts)  # type: ignore[no-any-return]


# -- Spark's own, and the limit --


def spark_query(source: DataFrame) -> DataFrame:
    """Spark's own stream-stream join, in the JVM."""
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


def one_hop_query(source: DataFrame) -> DataFrame:
    """All rows through Python once, behind a shuffle, with no work done."""
    rows = source.select("key", "ts", F.col("ts").alias("ts_right"), F.col("amount").alias("amounts"))
    return rows.repartition(SUBTASKS, "key").mapInArrow(lambda batches: batches, OUTPUT)


QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "columnar": columnar_query,
    "python": python_query,
    "spark": spark_query,
    "one-hop": one_hop_query,
}
