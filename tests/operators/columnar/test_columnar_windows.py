"""Columnar aggregates equal the general window operator's results, in any order of rows."""

from __future__ import annotations

import datetime as dt
import math
from collections import defaultdict
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import (
    AggregateFunction,
    ArrowAggregateFunction,
    CumulativeEventTimeWindows,
    EventTimeSessionWindows,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    Types,
    WatermarkStrategy,
    approx_count_distinct_,
    avg_,
    count_,
    first_,
    last_,
    max_,
    min_,
    sum_,
)
from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._operators.columnar import window_operator
from pillarbox._rows import row_class
from pillarbox._types.row_encoder import RowEncoder
from pillarbox._types.schema import resolve_schema

NAMES = ["card", "shop", "at", "x", "f", "d", "s", "b"]
TYPE = Types.ROW_NAMED(
    NAMES,
    [
        Types.STRING(),
        Types.INT(),
        Types.LONG(),
        Types.LONG(),
        Types.DOUBLE(),
        Types.BIG_DEC(),
        Types.STRING(),
        Types.BOOLEAN(),
    ],
)
ROW = row_class(tuple(NAMES))


class SumOfSquares(ArrowAggregateFunction):
    output_type = Types.LONG()

    def partial(self, groups, size, values):
        sums = np.zeros(size, np.int64)
        np.add.at(sums, groups.to_numpy(), values.fill_null(0).to_numpy() ** 2)
        return [pa.array(sums)]

    def merge(self, groups, size, sums):
        merged = np.zeros(size, np.int64)
        np.add.at(merged, groups.to_numpy(), sums.to_numpy())
        return [pa.array(merged)]

    def result(self, sums):
        return sums


AGGREGATES: dict[str, Any] = {
    "n": count_(),
    "nx": count_("x"),
    "sx": sum_("x"),
    "ax": avg_("x"),
    "lx": min_("x"),
    "gx": max_("x"),
    "sf": sum_("f"),
    "af": avg_("f"),
    "lf": min_("f"),
    "gf": max_("f"),
    "sd": sum_("d"),
    "ad": avg_("d"),
    "ld": min_("d"),
    "ls": min_("s"),
    "gs": max_("s"),
    "gb": max_("b"),
    "fs": first_("s"),
    "es": last_("s"),
    "ff": first_("f"),
    "us": approx_count_distinct_("s"),
    "uf": approx_count_distinct_("f"),
    "qx": SumOfSquares("x"),
}


def below(value: Any) -> Any:
    """Return a key that sorts values as Spark does: NaN is the greatest number."""
    return (True, 0.0) if isinstance(value, float) and math.isnan(value) else (False, value)


def plain(rows: list[Any]) -> dict[str, Any]:
    def values(name: str) -> list[Any]:
        return [row[name] for row in rows if row[name] is not None]

    def edge(name: str, time: int) -> Any:
        return min((row[name] for row in rows if row["at"] == time and row[name] is not None), key=below, default=None)

    x, f, d, s, b = map(values, "xfdsb")
    times = [row["at"] for row in rows]
    mean = None
    if d:
        mean = (sum(d) / len(d)).quantize(Decimal(1).scaleb(-22), ROUND_HALF_UP)
    return {
        "n": len(rows),
        "nx": len(x),
        "sx": sum(x) if x else None,
        "ax": sum(x) / len(x) if x else None,
        "lx": min(x, default=None),
        "gx": max(x, default=None),
        "sf": sum(f) if f else None,
        "af": sum(f) / len(f) if f else None,
        "lf": min(f, key=below, default=None),
        "gf": max(f, key=below, default=None),
        "sd": sum(d) if d else None,
        "ad": mean,
        "ld": min(d, default=None),
        "ls": min(s, default=None),
        "gs": max(s, default=None),
        "gb": max(b, default=None),
        "fs": edge("s", min(times)),
        "es": edge("s", max(times)),
        "ff": edge("f", min(times)),
        "us": len(set(s)),
        "uf": len({repr(value + 0.0) for value in f}),
        "qx": sum(value * value for value in x),
    }


class Everything(AggregateFunction):
    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        return [*accumulator, value]

    def get_result(self, accumulator):
        return accumulator

    def merge(self, accumulator, other):
        return [*accumulator, *other]


class ByHand(ProcessWindowFunction):
    def process(self, key, context, elements):
        (rows,) = elements
        yield key, context.window().start, context.window().end, plain(rows)


def same(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else f"{value + 0.0:.11e}"
    return value


def millis(time: dt.datetime) -> int:
    return round(time.timestamp() * 1000)


def read(output: list[Any]) -> dict[Any, Any]:
    collected = {}
    for row in output:
        results = {name: same(row[name]) for name in AGGREGATES}
        collected[(row.card, row.shop), millis(row.window_start), millis(row.window_end)] = results
    return collected


def read_by_hand(output: list[Any]) -> dict[Any, Any]:
    return {
        (key, start, end): {name: same(value) for name, value in results.items()} for key, start, end, results in output
    }


def run(part: list[Any], chance: Any) -> Records:
    if part and chance.random() < 0.7:
        return ArrowRecords(RowEncoder(resolve_schema(TYPE), "test").encode(part))
    return Records(part)


def both(assigner: Any, bound: int, lateness: int, parallelism: int) -> Any:
    env = StreamExecutionEnvironment().set_parallelism(parallelism)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(bound).with_timestamp_assigner("at")
    windows = env.from_collection([], TYPE).assign_timestamps_and_watermarks(strategy).key_by("card", "shop")
    columns = windows.window(assigner).allowed_lateness(lateness).aggregate(**AGGREGATES).uid("columns")
    rows = windows.window(assigner).allowed_lateness(lateness).aggregate(Everything(), ByHand()).uid("rows")
    return env.local_job(columns=columns, rows=rows)


numbers = st.integers(-1000, 1000) | st.none()
floats = st.sampled_from([0.5, -0.0, 0.0, 1.25, -3.0, math.nan, math.inf, 1024.0, None])
decimals = st.integers(-(10**9), 10**9).map(lambda number: Decimal(number).scaleb(-4)) | st.none()
texts = st.sampled_from(["", "a", "ä", "b", "bb", "\x00", "zebra", None])
rows = st.builds(
    lambda *values: ROW(values),
    st.sampled_from(["ann", "bob", None]),
    st.sampled_from([1, 2, None]),
    st.integers(-300, 900),
    numbers,
    floats,
    decimals,
    texts,
    st.booleans() | st.none(),
)
assigners = st.sampled_from(
    [
        TumblingEventTimeWindows.of(100),
        TumblingEventTimeWindows.of(70, 30),
        SlidingEventTimeWindows.of(100, 40),
        SlidingEventTimeWindows.of(300, 50, 20),
        SlidingEventTimeWindows.of(20, 50),
        CumulativeEventTimeWindows.of(200, 50, 10),
        EventTimeSessionWindows.with_gap(20),
        EventTimeSessionWindows.with_gap(60),
    ]
)


@pytest.mark.long("two operators over many windows; spark/columns/test_columnar_windows.py compares with Spark")
@given(
    assigners,
    st.lists(st.lists(st.lists(rows, max_size=25), min_size=1, max_size=3), min_size=1, max_size=5),
    st.sampled_from([0, 50, 400]),
    st.sampled_from([0, 0, 30, 150]),
    st.integers(1, 3),
    st.sampled_from([(1 << 16, 1 << 12), (20, 6), (6, 2)]),
    st.randoms(use_true_random=False),
)
def test_results_are_those_of_the_general_operator(assigner, epochs, bound, lateness, parallelism, limits, chance):
    if isinstance(assigner, EventTimeSessionWindows):
        bound = 1_200  # late records form sessions by arrival order: see below
    with pytest.MonkeyPatch.context() as patch, both(assigner, bound, lateness, parallelism) as job:
        # Maximum partial results of windows that fire together, and alone.
        patch.setattr(window_operator, "_TOGETHER", limits[0])
        patch.setattr(window_operator, "_ALONE", limits[1])
        (source,) = job.program.sources
        for number, epoch in enumerate(epochs):
            inputs = []
            for partition in epoch:
                cut = chance.randint(0, len(partition))
                inputs.append([run(partition[:cut], chance), run(partition[cut:], chance)])
            out = job.run_epoch({source: inputs}, bounded=number == len(epochs) - 1)
            assert read(out["columns"]) == read_by_hand(out["rows"])
            dropped: dict[str, int] = defaultdict(int)
            for report in job.reports:
                dropped[report.uid] += report.counters.get(f"{report.uid}.late_records_dropped", 0)
            if not isinstance(assigner, SlidingEventTimeWindows) or assigner.size >= assigner.slide:
                assert dropped["columns"] == dropped["rows"]
            if chance.random() < 0.4:
                job.reset()


class Sessions:
    """A plain model of sessions. All rows of an epoch arrive at once."""

    def __init__(self, gap: int, bound: int, lateness: int) -> None:
        self.gap, self.bound, self.lateness = gap, bound, lateness
        self.open: dict[Any, list[list[Any]]] = defaultdict(list)
        self.watermark = -(2**63)
        self.dropped = 0

    def end(self, session: list[Any]) -> int:
        latest: int = max(row["at"] for row in session)
        return latest + self.gap

    def is_over(self, session: list[Any]) -> bool:
        return self.end(session) - 1 + self.lateness <= self.watermark

    def epoch(self, came: list[Any], *, last: bool) -> list[Any]:
        fired = []
        by_key = defaultdict(list)
        for row in came:
            by_key[row["card"]].append(row)
        for key, new in by_key.items():
            merged: list[list[Any]] = []
            for part in sorted([*self.open[key], *([row] for row in new)], key=lambda part: min(r["at"] for r in part)):
                if merged and min(row["at"] for row in part) <= self.end(merged[-1]):
                    merged[-1] = [*merged[-1], *part]
                else:
                    merged.append(part)
            alive = [session for session in merged if not self.is_over(session)]
            self.dropped += sum(len(session) for session in merged if self.is_over(session))
            fresh = set(map(id, new))
            for session in alive:
                if self.end(session) - 1 <= self.watermark and any(id(row) in fresh for row in session):
                    fired.append((key, session))
            self.open[key] = alive
        former = self.watermark
        if came:
            self.watermark = max(self.watermark, max(row["at"] for row in came) - self.bound - 1)
        if last:
            self.watermark = 2**62
        for key, sessions in self.open.items():
            fired += [(key, session) for session in sessions if former < self.end(session) - 1 <= self.watermark]
            self.open[key] = [session for session in sessions if not self.is_over(session)]
        return [
            (str(key), min(row["at"] for row in session), self.end(session), len(session), plain(session)["sx"])
            for key, session in fired
        ]


@given(
    st.lists(st.lists(rows, max_size=20), min_size=1, max_size=8),
    st.sampled_from([10, 40, 100]),
    st.sampled_from([0, 60, 300]),
    st.sampled_from([0, 40, 200]),
    st.integers(1, 2),
    st.randoms(use_true_random=False),
)
def test_sessions_with_late_rows_are_those_by_hand(epochs, gap, bound, lateness, parallelism, chance):
    env = StreamExecutionEnvironment().set_parallelism(parallelism)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(bound).with_timestamp_assigner("at")
    windows = env.from_collection([], TYPE).assign_timestamps_and_watermarks(strategy).key_by("card")
    sessions = windows.window(EventTimeSessionWindows.with_gap(gap)).allowed_lateness(lateness)
    model = Sessions(gap, bound, lateness)
    dropped = 0
    with env.local_job(out=sessions.aggregate(n=count_(), sx=sum_("x")).uid("sessions")) as job:
        (source,) = job.program.sources
        for number, epoch in enumerate(epochs):
            last = number == len(epochs) - 1
            out = job.run_epoch({source: [[run(epoch, chance)]]}, bounded=last)["out"]
            results = [(str(row.card), millis(row.window_start), millis(row.window_end), row.n, row.sx) for row in out]
            assert sorted(results, key=str) == sorted(model.epoch(epoch, last=last), key=str)
            dropped += sum(report.counters.get("sessions.late_records_dropped", 0) for report in job.reports)
            assert dropped == model.dropped
            if chance.random() < 0.5:
                job.reset()
