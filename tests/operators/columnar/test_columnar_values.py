from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark.sql.types as spark
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pillarbox import (
    AggregateFunction,
    EventTimeSessionWindows,
    OperatorError,
    ProgramError,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    Types,
    WatermarkStrategy,
    approx_count_distinct_,
    avg_,
    count_,
    first_,
    max_,
    min_,
    sum_,
)
from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._operators.columnar.partials import ALL, PartialColumns, Partials
from pillarbox._rows import row_class
from pillarbox._types.row_encoder import RowEncoder
from pillarbox._types.schema import resolve_schema

MINUTE = TumblingEventTimeWindows.of("1 minute")
BY_AT = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")


def stream(
    rows: list[tuple[Any, ...]], names: list[str], types: list[Any], env: StreamExecutionEnvironment | None = None
) -> Any:
    info = Types.ROW_NAMED([*names, "at"], [*types, Types.LONG()])
    return (env or StreamExecutionEnvironment()).from_collection(rows, info).assign_timestamps_and_watermarks(BY_AT)


# -- keys --


class Joined(AggregateFunction):
    def create_accumulator(self):
        return ""

    def add(self, value, accumulator):
        return accumulator + value.x

    def merge(self, accumulator, other):
        return accumulator + other

    def get_result(self, accumulator):
        return accumulator


TYPES_AND_KEYS: list[Any] = [
    ([Types.DOUBLE()], [(0.0,), (-0.0,), (1.0,)]),
    ([Types.FLOAT()], [(0.0,), (-0.0,), (1.0,)]),
    ([Types.DOUBLE(), Types.STRING()], [(0.0, "k"), (-0.0, "k"), (0.0, None)]),
    ([Types.LONG()], [(0,), (1,), (None,)]),
    ([Types.STRING()], [("",), ("k",), (None,)]),
]


@given(
    st.sampled_from(TYPES_AND_KEYS).flatmap(
        lambda kind: st.tuples(st.just(kind[0]), st.lists(st.sampled_from(kind[1]), max_size=8))
    )
)
@example(([Types.DOUBLE()], [(0.0,), (-0.0,), (0.0,)]))
def test_sessions_fold_equal_keys_in_the_order_of_their_records(types_and_keys):
    types, keys = types_and_keys
    names = [f"k{number}" for number in range(len(types))]
    info = Types.ROW_NAMED([*names, "x", "at"], [*types, Types.STRING(), Types.LONG()])
    make = row_class((*names, "x", "at"))
    rows = [make((*key, str(number), 5 + number)) for number, key in enumerate(keys)]
    results = []
    for records in (Records(rows), ArrowRecords(RowEncoder(resolve_schema(info), "t").encode(rows))):
        env = StreamExecutionEnvironment()
        keyed = env.from_collection([], info).assign_timestamps_and_watermarks(BY_AT).key_by(*names)
        out = keyed.window(EventTimeSessionWindows.with_gap(50)).aggregate(Joined())
        with env.local_job(out=out) as job:
            (source,) = job.program.sources
            results.append(sorted(job.run_epoch({source: [[records]]}, bounded=True)["out"]))
    expected: dict[Any, str] = {}
    for number, key in enumerate(keys):
        expected[key] = expected.get(key, "") + str(number)
    assert results == [sorted(expected.values())] * 2


KEYS: dict[str, tuple[Any, list[Any]]] = {
    "double": (Types.DOUBLE(), [math.nan, -math.nan, 0.0, -0.0, math.inf, None]),
    "float": (Types.FLOAT(), [math.nan, -math.nan, 1.5, None]),
    "bytes": (Types.PRIMITIVE_ARRAY(Types.BYTE()), [b"", b"\0", b"\xff", None]),
    "text": (Types.STRING(), ["", " ", "ä", "日本", "\0", None]),
    "decimal": (
        Types.BIG_DEC(),
        [Decimal(0), Decimal("99999999999999999999.5"), Decimal("-1e-18"), None],
    ),
    "date": (Types.SQL_DATE(), [dt.date.min, dt.date.max, dt.date(1969, 12, 31), None]),
    "time": (Types.SQL_TIME(), [dt.time.min, dt.time(23, 59, 59, 999_999), None]),
    "timestamp": (
        Types.INSTANT(),
        [dt.datetime(year, 12, 31, tzinfo=dt.timezone.utc) for year in (1, 1969, 9999)],
    ),
    "bool": (Types.BOOLEAN(), [True, False, None]),
    "struct": (
        Types.ROW_NAMED(["x", "in"], [Types.DOUBLE(), Types.ROW_NAMED(["y", "text"], [Types.FLOAT(), Types.STRING()])]),
        [(math.nan, (-0.0, "a")), (-math.nan, (0.0, "a")), (1.0, (math.nan, None)), (None, None), (1.0, None), None],
    ),
}


def same(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(same, value))
    return "NaN" if value != value else value


@pytest.mark.parametrize(
    "names", [*([name] for name in KEYS), list(KEYS)], ids=lambda names: names[0] if len(names) == 1 else "all"
)
@pytest.mark.parametrize("window", [MINUTE, EventTimeSessionWindows.with_gap("1 minute")], ids=["panes", "sessions"])
def test_keys_of_all_types(names, window):
    keys = [tuple(KEYS[name][1][number % len(KEYS[name][1])] for name in names) for number in range(6)]
    keys += [(None,) * len(names)]
    expected = Counter(tuple(map(same, key)) for key in keys * 3)
    for parallelism in (1, 3):
        env = StreamExecutionEnvironment().set_parallelism(parallelism)
        rows = stream([(*key, 5) for key in keys * 3], names, [KEYS[name][0] for name in names], env)
        results = rows.key_by(names).window(window).aggregate(n=count_()).execute_and_collect()
        assert Counter({tuple(map(same, row[: len(names)])): row.n for row in results}) == expected
        assert len(results) == len(expected)


class Total(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value.x

    def get_result(self, accumulator):
        return accumulator


def test_columns_whose_names_would_be_those_of_a_key():
    part = Types.ROW_NAMED(["x"], [Types.LONG()])
    rows = stream([((1,), 2, 3, 4)], ["part", "part.x", "other"], [part, Types.LONG(), Types.LONG()])
    for keys, aggregate in (("part", sum_("part.x")), (["part", "part.x"], count_())):
        with pytest.raises(ProgramError, match=r"aggregate\(\): 2 columns have the name 'part\.x': rename them"):
            rows.key_by(keys).window(MINUTE).aggregate(n=aggregate)
    (results,) = rows.key_by("part").window(MINUTE).aggregate(n=count_("part"), m=sum_("other")).execute_and_collect()
    assert (results.part, results.n, results.m) == ((1,), 1, 3)


# -- values --


def test_intervals_are_added_up_in_microseconds():
    day = spark.DayTimeIntervalType()
    key = spark.StructType().add("k", spark.LongType())
    columns = PartialColumns(key, spark.StructType().add("x", day), {"s": sum_("x"), "a": avg_("x")})
    partials = Partials(columns, "op")

    def of(*micros: int | None) -> list[Any]:
        rows = {"k": pa.array([7] * len(micros)), "x": pa.array(micros, pa.int64()).cast(pa.duration("us"))}
        batch, _ = partials.of_rows(rows, np.zeros(len(micros), np.int64), np.zeros(len(micros), np.int64))
        results = partials.results(partials.merged([batch, batch.slice(0, 0)], 0), 0, 1)
        return [results.column(name).cast(pa.int64())[0].as_py() for name in ("s", "a")]

    assert of(5, -2, None) == [3, 2]
    assert of(-5, 2) == [-3, -2]
    assert of(None) == [None, None]
    assert of(2**63 - 1, -(2**63), 2**63 - 1, 1) == [2**63 - 1, 2**61]
    assert of(-(2**63)) == [-(2**63)] * 2
    with pytest.raises(
        OperatorError, match=r"s=sum_\('x'\).* does not fit interval day to second: aggregate its seconds"
    ):
        of(2**63 - 1, 1)


def test_the_least_zero_keeps_its_sign():
    rows = stream([(-0.0, 1), (0.0, 2), (math.nan, 3)], ["x"], [Types.DOUBLE()])
    (results,) = (
        rows.window_all(MINUTE).aggregate(low=min_("x"), first=first_("x"), top=max_("x")).execute_and_collect()
    )
    assert (str(results.low), str(results.first), str(results.top)) == ("-0.0", "-0.0", "nan")
    (results,) = (
        stream([(-0.0, 1)], ["x"], [Types.FLOAT()]).window_all(MINUTE).aggregate(x=max_("x")).execute_and_collect()
    )
    assert str(results.x) == "-0.0"


@pytest.mark.parametrize("make", [min_, first_, approx_count_distinct_])
def test_texts_that_spark_compares_otherwise_are_refused(make):
    for collation in ("UTF8_LCASE", "UNICODE", "UTF8_BINARY_RTRIM"):
        with pytest.raises(ProgramError, match=f"does not support string collate {collation}: strings are compared"):
            make("x").bind([spark.StringType(collation)])
    make("x").bind([spark.StringType("UTF8_BINARY")])


# -- all rows --


def amounts(number: int, env: StreamExecutionEnvironment | None = None) -> Any:
    rows = [(index % 7 if index % 5 else None, 1_000 * index) for index in range(number)]
    return stream(rows, ["x"], [Types.LONG()], env)


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize(
    "window",
    [MINUTE, SlidingEventTimeWindows.of("1 minute", "20 seconds"), EventTimeSessionWindows.with_gap(900)],
    ids=["tumbling", "sliding", "sessions"],
)
def test_aggregates_over_all_rows(window, parallelism):
    env = StreamExecutionEnvironment().set_parallelism(parallelism)
    results = amounts(200, env).window_all(window).aggregate(n=count_(), total=sum_("x")).execute_and_collect()
    assert results[0]._fields == ("window_start", "window_end", "n", "total")
    expected: dict[Any, list[Any]] = {}
    for index in range(200):
        for bounds in window.assign_windows(None, 1_000 * index, None):
            expected.setdefault(tuple(bounds), []).append(index % 7 if index % 5 else None)
    assert {(millis(row.window_start), millis(row.window_end)): (row.n, row.total) for row in results} == {
        bounds: (len(held), sum(filter(None, held)) if any(value is not None for value in held) else None)
        for bounds, held in expected.items()
    }


def millis(at: dt.datetime) -> int:
    return (at - dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)) // dt.timedelta(milliseconds=1)


def test_aggregates_over_all_rows_of_columns_go_on_from_a_savepoint():
    def job(savepoint: Any = None) -> Any:
        env = StreamExecutionEnvironment()
        info = Types.ROW_NAMED(["x", "at"], [Types.LONG(), Types.LONG()])
        timed = env.from_collection([], info).assign_timestamps_and_watermarks(BY_AT)
        windows = timed.window_all(MINUTE).allowed_lateness("1 hour")
        out = windows.aggregate(n=count_(), total=sum_("x")).uid("totals")
        return env.local_job(out=out, savepoint=savepoint)

    def epoch(job: Any, x: list[int], at: list[int], *, bounded: bool = False) -> list[tuple[int, int]]:
        (source,) = job.program.sources
        batch = pa.record_batch({"x": x, "at": at})
        out = job.run_epoch({source: [[ArrowRecords(batch)]]}, bounded=bounded)["out"]
        return [(row.n, row.total) for row in out]

    with job() as first:
        assert epoch(first, [1, 2], [1_000, 2_000]) == []
        assert epoch(first, [3], [61_000]) == [(2, 3)]
        savepoint = first.savepoint()
    with job(savepoint) as second:
        assert epoch(second, [4], [3_000]) == [(3, 7)]
        assert epoch(second, [5], [180_000], bounded=True) == [(1, 3), (1, 5)]


def test_a_sum_over_all_rows_that_does_not_fit_names_no_key():
    rows = stream([(2**62, 61_000)] * 2, ["x"], [Types.LONG()])
    with pytest.raises(OperatorError, match=r"total=sum_\('x'\) in the window from 60000 \(epoch ms\) does not fit"):
        rows.window_all(MINUTE).aggregate(total=sum_("x")).execute_and_collect()


def test_windows_over_all_rows_refuse_wrong_uses():
    rows = amounts(1)
    for build, message in (
        (lambda: rows.window_all(MINUTE).aggregate(), "aggregate\\(\\) got None: pass an AggregateFunction"),
        (lambda: rows.window_all(MINUTE).aggregate(Total(), n=count_()), "either an AggregateFunction or"),
        (lambda: rows.window_all(MINUTE).aggregate(n=len), r"aggregate\(n=...\) takes a column aggregate"),
        (lambda: rows.window_all(MINUTE).aggregate(n=sum_("y")), "there is no column 'y'; the columns are x, at"),
        (lambda: rows.count_window_all(3).aggregate(n=count_()), "in event time, not"),
        (lambda: rows.map(len).window_all(MINUTE).aggregate(n=count_()), "need declared columns"),
    ):
        with pytest.raises(ProgramError, match=message):
            build()


def test_an_error_shows_a_key_that_python_has_no_date_for():
    """Spark's dates have a larger range than Python's."""
    day, x = spark.StructType().add("day", spark.DateType()), spark.StructType().add("x", spark.LongType())
    columns = PartialColumns(day, x, {"s": sum_("x")})
    rows = {"day": pa.array([6_600_000] * 2, pa.int32()).cast(pa.date32()), "x": pa.array([2**62] * 2)}
    with pytest.raises(OperatorError, match=r"s=sum_\('x'\) of key '20040-03-09' in the window from 7 "):
        Partials(columns, "op").of_rows(rows, np.zeros(2, np.int64), np.full(2, 7))
    assert ALL not in columns.result_type().names
