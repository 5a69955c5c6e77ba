# SPDX-License-Identifier: Apache-2.0
"""What ``bench_windows.py`` compares: the windows, the rows, what must come out, and the queries on Spark.

Rows have a key, a time (milliseconds) and an amount. A micro-batch has five minutes of event time; its rows come in
order but for two seconds of disorder, in two files of which each has half of the keys. Times are multiples of 7 ms, so
no two rows are exactly a session's gap apart, which engines take differently. A micro-batch ends six seconds after a
full minute: with a watermark five seconds behind, all of its minutes have ended, and none more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.keyed_work import FOR_EVER, SUBTASKS, Ints, summary
from pillarbox import (
    AggregateFunction,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    WindowFunction,
    count_,
    sum_,
)

MINUTE = 60_000
SPAN = 5 * MINUTE
DELAY = 5_000
DISORDER = 2_000
GRID = 7
# A full hour. Not near 0, before which the windows that slide would begin.
EPOCH = 1_767_225_600_000
# The micro-batches at the beginning that have fewer rows.
SMALL = 2
SCHEMA = "key INT, ts LONG, amount LONG"
OUTPUT = "key INT, start LONG, n LONG, total LONG"

Columns = list[Ints]


@dataclass(frozen=True)
class Work:
    """Windows of a keyed stream, and how many keys it has.

    Attributes:
        size: milliseconds; of sessions, the gap.
        slide: milliseconds; 0 for windows that do not slide.
        full_warm_up: whether a full micro-batch is needed to be warm. Where the small ones take a minute it is not.
    """

    title: str
    keys: int
    size: int
    slide: int = 0
    session: bool = False
    full_warm_up: bool = True

    def spec(self) -> dict[str, Any]:
        """Return the windows as the peers' scripts get them."""
        return {name: value for name, value in asdict(self).items() if name in ("size", "slide", "session")}

    def windows(self, keys: int) -> Windows:
        """Return what tells which windows come out."""
        return Sessions(self.size) if self.session else Panes(self.size, self.slide or self.size, keys)

    def assigner(self) -> Any:
        """Return pillarbox's assigner."""
        if self.session:
            return EventTimeSessionWindows.with_gap(self.size)
        if self.slide:
            return SlidingEventTimeWindows.of(self.size, self.slide)
        return TumblingEventTimeWindows.of(self.size)

    def spark_window(self) -> Any:
        """Return Spark's window of the column ``time``."""
        if self.session:
            return F.session_window("time", f"{self.size} milliseconds")
        slide = f"{self.slide} milliseconds" if self.slide else None
        return F.window("time", f"{self.size} milliseconds", slide)


WORKS = {
    "tumbling": Work("a minute", 100_000, MINUTE),
    "tumbling-10k": Work("a minute", 10_000, MINUTE),
    "sliding": Work("an hour that slides by a minute", 10_000, 60 * MINUTE, MINUTE, full_warm_up=False),
    "sessions": Work("sessions with a gap of 30 seconds", 100_000, 30_000, session=True),
}


# -- what must come out --


class Windows(ABC):
    """The windows of all rows so far."""

    @abstractmethod
    def add(self, key: Ints, ts: Ints, amount: Ints) -> None:
        """Take the rows of a micro-batch."""

    @abstractmethod
    def due(self, time: int) -> Columns:
        """Remove the windows that end at ``time`` or before it; return their keys, starts, counts and sums."""


class Panes(Windows):
    """Windows of a size, each made of panes as long as the slide."""

    def __init__(self, size: int, slide: int, keys: int) -> None:
        self._slide = slide
        self._panes_of_one = size // slide
        self._keys = keys
        self._panes: dict[int, tuple[Ints, Ints]] = {}
        self._next: int | None = None

    def add(self, key: Ints, ts: Ints, amount: Ints) -> None:
        pane = ts // self._slide
        for number in np.unique(pane).tolist():
            mine = pane == number
            n = np.bincount(key[mine], minlength=self._keys)
            total = np.bincount(key[mine], amount[mine], self._keys).astype(np.int64)
            if number in self._panes:
                n, total = n + self._panes[number][0], total + self._panes[number][1]
            self._panes[number] = n, total
        if self._next is None:
            self._next = min(self._panes) - self._panes_of_one + 1

    def due(self, time: int) -> Columns:
        emitted = [np.empty((4, 0), np.int64)]
        while self._next is not None and self._panes and self._next <= max(self._panes):
            if (self._next + self._panes_of_one) * self._slide > time:
                break
            inside = [self._panes[i] for i in range(self._next, self._next + self._panes_of_one) if i in self._panes]
            if inside:
                n, total = (np.sum(numbers, axis=0) for numbers in zip(*inside))
                key = np.flatnonzero(n)
                emitted.append(np.stack([key, np.full(len(key), self._next * self._slide), n[key], total[key]]))
            self._panes.pop(self._next, None)
            self._next += 1
        return list(np.concatenate(emitted, axis=1))


class Sessions(Windows):
    """Sessions of each key, which end a gap after their last row."""

    def __init__(self, gap: int) -> None:
        self._gap = gap
        self._rows = np.empty((3, 0), np.int64)

    def add(self, key: Ints, ts: Ints, amount: Ints) -> None:
        self._rows = np.concatenate([self._rows, np.stack([key, ts, amount])], axis=1)

    def due(self, time: int) -> Columns:
        rows = self._rows[:, np.lexsort((self._rows[1], self._rows[0]))]
        key, ts, amount = rows
        first = np.append(True, (key[1:] != key[:-1]) | (ts[1:] - ts[:-1] >= self._gap))[: len(key)]
        starts = np.flatnonzero(first)
        ends = np.append(starts[1:], len(key))
        over = ts[ends - 1] + self._gap <= time
        self._rows = rows[:, ~np.repeat(over, ends - starts)]
        sums = np.append(0, amount.cumsum())
        return [each[over] for each in (key[starts], ts[starts], ends - starts, sums[ends] - sums[starts])]


# -- rows --


class Batches:
    """The micro-batches of a work, made once, and what must come of each.

    Args:
        rows: of a full micro-batch.
        small: of the first ones.
    """

    def __init__(self, work: Work, rows: int, small: int, keys: int, directory: Path) -> None:
        self.work = work
        self.rows = rows
        self.small = small
        self.keys = max(keys, SUBTASKS)
        self._directory = directory
        self._expected: dict[bool, list[list[int]]] = {False: [], True: []}
        self._running = {late: self._summaries(late=late) for late in (False, True)}

    def batch(self, number: int) -> tuple[Ints, Ints, Ints]:
        """Return keys, times and amounts."""
        rows = self.small if number < SMALL else self.rows
        random = np.random.default_rng([7, number])
        key = random.integers(0, self.keys, rows)
        amount = random.integers(1, 1_000, rows)
        begin = EPOCH + number * SPAN + DELAY + 1_000
        ts = begin + np.arange(rows) * SPAN // rows - random.integers(0, DISORDER, rows)
        # Both halves end at the same time, and so have the same watermark.
        key[-SUBTASKS:] = range(SUBTASKS)
        ts[-SUBTASKS:] = begin + SPAN - 1
        return key, ts // GRID * GRID, amount

    def place(self, number: int, form: str) -> Path:
        """Return the directory with a micro-batch's files, which are written when they are missing.

        Args:
            form: ``parquet``; ``csv``: a directory for each half, and ``whole``; ``csv-whole``: one file, with names.
        """
        place = self._directory / form / f"{number:03}"
        if place.exists():
            return place
        key, ts, amount = self.batch(number)
        table = pa.table({"key": key.astype(np.int32), "ts": ts, "amount": amount})
        if form == "csv-whole":
            place.mkdir(parents=True)
            pa_csv.write_csv(table, place / "rows.csv", pa_csv.WriteOptions(quoting_style="none"))
            return place
        parts = {str(part): table.filter(pa.array(key % SUBTASKS == part)) for part in range(SUBTASKS)}
        for part, mine in {**parts, "whole": table}.items() if form == "csv" else parts.items():
            if form == "csv":
                (place / part).mkdir(parents=True)
                pa_csv.write_csv(mine, place / part / "rows.csv", pa_csv.WriteOptions(include_header=False))
            else:
                place.mkdir(parents=True, exist_ok=True)
                pq.write_table(mine, place / f"{part}.parquet")
        return place

    def length(self, number: int) -> int:
        """Return a micro-batch's number of rows."""
        return self.small if number < SMALL else self.rows

    def expected(self, number: int, kind: str) -> list[int]:
        """Return the summary of what a contender of a kind must emit in a micro-batch."""
        if kind == "limit":
            return summary(self.batch(number))
        late = kind == "spark"  # there windows are over one micro-batch after the watermark
        known = self._expected[late]
        while len(known) <= number:
            known.append(next(self._running[late]))
        return known[number]

    def _summaries(self, *, late: bool) -> Iterator[list[int]]:
        windows = self.work.windows(self.keys)
        number = before = 0
        while True:
            rows = self.batch(number)
            windows.add(*rows)
            after = int(rows[1].max()) - DELAY
            yield summary(windows.due(before if late else after))
            number, before = number + 1, after

    def all_of(self, number: int) -> list[int]:
        """Return the summary of all windows of a micro-batch's rows by themselves."""
        windows = self.work.windows(self.keys)
        windows.add(*self.batch(number))
        return summary(windows.due(FOR_EVER))

    def emitted_until(self, number: int) -> list[int]:
        """Return how many windows have come out after a micro-batch, and the sum of their totals.

        Sessions of Pathway's have no end: they are there from their first row on.
        """
        if self.work.session:
            windows = self.work.windows(self.keys)
            for each in range(number + 1):
                windows.add(*self.batch(each))
            return summary(windows.due(FOR_EVER))[:2]
        until = [self.expected(i, "ours")[:2] for i in range(number + 1)]
        return [sum(values) for values in zip(*until)]


# -- pillarbox --


class Totals(AggregateFunction[Any, Any, Any]):
    """Count and sum."""

    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + 1, accumulator[1] + value.amount

    def get_result(self, accumulator):
        return accumulator

    def merge(self, a, b):
        return a[0] + b[0], a[1] + b[1]


class WithWindow(WindowFunction[Any, Any, Any, Any]):
    """Puts key and window to the one result of ``Totals``."""

    def apply(self, key, window, inputs):
        n, total = inputs[0]
        yield key, window.start, n, total


def _windowed(source: DataFrame, work: Work) -> Any:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(DELAY).with_timestamp_assigner("ts")
    env = StreamExecutionEnvironment.get_execution_environment(source.sparkSession)
    stream = env.from_dataframe(source).assign_timestamps_and_watermarks(strategy)
    return stream.key_by("key").window(work.assigner())


def python_query(source: DataFrame, work: Work) -> DataFrame:
    """An aggregate function in Python."""
    result = _windowed(source, work).aggregate(Totals(), WithWindow())
    return result.to_dataframe(OUTPUT)  # type: ignore[no-any-return]


def columnar_query(source: DataFrame, work: Work) -> DataFrame:
    """Aggregates of columns, computed by Arrow."""
    result = _windowed(source, work).aggregate(n=count_(), total=sum_("amount")).to_dataframe()
    return result.select("key", F.unix_millis("window_start").alias("start"), "n", "total")  # type: ignore[no-any-return]


# -- Spark's own, and the limits --


def spark_query(source: DataFrame, work: Work) -> DataFrame:
    """Spark's own windows, in the JVM."""
    timed = source.withColumn("time", F.timestamp_millis("ts")).withWatermark("time", f"{DELAY} milliseconds")
    grouped = timed.groupBy(work.spark_window().alias("window"), "key")
    result = grouped.agg(F.count(F.lit(1)).alias("n"), F.sum("amount").alias("total"))
    return result.select("key", F.unix_millis("window.start").alias("start"), "n", "total")


def one_hop_query(source: DataFrame, _: Work) -> DataFrame:
    """All rows through Python once, behind a shuffle, with no work done."""
    return source.repartition(SUBTASKS, "key").mapInArrow(lambda batches: batches, SCHEMA)


def two_hops_query(source: DataFrame, work: Work) -> DataFrame:
    """All rows through Python twice, with a shuffle between, and no work done."""
    return one_hop_query(source.mapInArrow(lambda batches: batches, SCHEMA), work)


QUERIES: dict[str, Callable[[DataFrame, Work], DataFrame]] = {
    "columnar": columnar_query,
    "python": python_query,
    "spark": spark_query,
    "two-hops": two_hops_query,
    "one-hop": one_hop_query,
}
