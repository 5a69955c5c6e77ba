"""Columnar interval joins, compared with plain Python and with the row interval join."""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark.sql.types as spark
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import (
    CheckpointMismatchError,
    KeyTypeError,
    OperatorError,
    OutputTag,
    ProcessJoinFunction,
    ProgramError,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from pillarbox._datastream.connected import columnar_joins
from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._operators.columnar import sketch
from pillarbox._operators.columnar.joins import join_keys, join_operator, join_segment, join_side
from pillarbox._operators.columnar.joins.join_segment import Segment
from pillarbox._operators.columnar.joins.join_side import JoinSide
from pillarbox._rows import row_class
from pillarbox._runtime.local import LocalJob
from pillarbox._time.timestamp_assigner import MAX_WATERMARK, MIN_TIMESTAMP
from pillarbox._types.row_encoder import RowEncoder
from pillarbox._types.schema import resolve_schema
from tests.data import make_join
from tests.data.make_checkpoint import load

LATE_LEFT, LATE_RIGHT = OutputTag("late left"), OutputTag("late right")
PART = Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.STRING()])
NAMES = ["text", "whole", "real", "money", "when", "flag", "part", "at", "number"]
TYPES = [
    Types.STRING(),
    Types.INT(),
    Types.DOUBLE(),
    Types.BIG_DEC(),
    Types.SQL_TIMESTAMP(),
    Types.BOOLEAN(),
    PART,
    Types.LONG(),
    Types.LONG(),
]
TYPE = Types.ROW_NAMED(NAMES, TYPES)
ROW, PAIR = row_class(tuple(NAMES)), row_class(("a", "b"))
KEYS = [[name] for name in NAMES[:7]] + [["text", "whole"], ["part", "flag", "real"]]
PAYMENT = Types.ROW_NAMED(["card", "at", "number"], [Types.LONG(), Types.LONG(), Types.LONG()])
SMALL = row_class(("card", "at", "number"))
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.timezone.utc)

rows = st.tuples(
    st.sampled_from(["ann", "bob", "", None]),
    st.sampled_from([1, 2, -1, None]),
    st.sampled_from([0.5, 0.0, -0.0, None]),
    st.sampled_from([Decimal("1.5"), Decimal(-2), None]),
    st.sampled_from([NOON, NOON + dt.timedelta(microseconds=1), None]),
    st.booleans() | st.none(),
    st.sampled_from([PAIR((1, "x")), PAIR((1, None)), PAIR((None, None)), PAIR((2, "x")), None]),
    st.integers(0, 60),
)
EPOCHS = st.lists(st.lists(st.tuples(st.booleans(), rows, st.booleans()), max_size=12), min_size=1, max_size=6)
BEFORE, AFTER = st.integers(-12, -1), st.integers(1, 12)
# Both signs equally often: a left row may be past its last partner on arrival.
BOUNDS = st.sampled_from([(BEFORE, BEFORE), (BEFORE, st.just(0)), (BEFORE, AFTER), (st.just(0), AFTER), (AFTER, AFTER)])


def timed(env: StreamExecutionEnvironment, info: Any = TYPE) -> Any:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(5).with_timestamp_assigner("at")
    return env.from_collection([], info).assign_timestamps_and_watermarks(strategy)


def run_of(values: list[Any], *, columnar: bool) -> Records:
    return ArrowRecords(RowEncoder(resolve_schema(TYPE), "test").encode(values)) if columnar else Records(values)


def run(job: LocalJob, epoch: list[Any], *, bounded: bool = False) -> dict[str, list[Any]]:
    inputs = {}
    for source, is_left in zip(sorted(job.program.sources), (True, False)):
        parts = [run_of([row], columnar=columnar) for left, row, columnar in epoch if left is is_left]
        inputs[source] = [parts[::2], parts[1::2]]
    return job.run_epoch(inputs, bounded=bounded)


def report_of(job: LocalJob, uid: str) -> Any:
    reports = [report for report in job.reports if report.uid == uid]
    dropped = sum(report.counters[f"{uid}.late_records_dropped"] for report in reports)
    return dropped, {report.watermark for report in reports}


@contextmanager
def untouched() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columnar_joins, "_is_untouched", lambda step: True)
        yield


def pair(left: Any, right: Any, ctx: Any) -> Any:
    times = ctx.get_left_timestamp(), ctx.get_right_timestamp(), ctx.timestamp()
    return [(left, right, times, ctx.get_current_key())]


def joined(
    keys: list[str], lower: int, upper: int, exclusive: tuple[bool, bool], how: Any, parallelism: int, tags: bool
) -> LocalJob:
    env = StreamExecutionEnvironment().set_parallelism(parallelism)
    lefts, rights = timed(env).key_by(keys), timed(env).key_by(keys)
    near = lefts.interval_join(rights).between(lower, upper)
    near = near.lower_bound_exclusive() if exclusive[0] else near
    near = near.upper_bound_exclusive() if exclusive[1] else near
    if tags:
        near = near.side_output_left_late_data(LATE_LEFT).side_output_right_late_data(LATE_RIGHT)
    columns = near.columns(how, suffixes=("", "_right")).uid("columns")
    pairs = near.process(pair).uid("pairs")
    with untouched():
        by_columns = near.process(pair).uid("by_columns")
    late = {"late left": columns.get_side_output(LATE_LEFT), "late right": columns.get_side_output(LATE_RIGHT)}
    return env.local_job(columns=columns, pairs=pairs, by_columns=by_columns, **(late if tags else {}))


def has_null(row: Any, keys: list[str]) -> bool:
    return any(row[key] is None for key in keys)


@pytest.mark.parametrize("turn", ["go on", "restart"])
def test_a_left_row_that_finds_no_partner_any_more_leaves_in_its_own_epoch(turn):
    with payments(-12, -5) as job:
        push(job, [(1, 20, 0)], [(2, 20, 1)])  # watermarks of 14 on both sides
        out = push(job, [(1, 15, 2)], [])  # its last partner would be at 10, and the watermark stays
        assert [(row.number, row.number_right) for row in out] == [(2, None)]
        if turn == "restart":
            job.reset()
        out = push(job, [], [], bounded=True)
        assert [(row.number, row.number_right) for row in out] == [(0, None)]


@pytest.mark.slow("a model")
@given(
    EPOCHS,
    st.sampled_from(KEYS),
    BOUNDS.flatmap(lambda bounds: st.tuples(*bounds)).map(sorted),
    st.tuples(st.booleans(), st.booleans()),
    st.sampled_from(["inner", "left"]),
    st.integers(1, 3),
    st.booleans(),
    st.lists(st.sampled_from(["go on", "fail", "restart", "cold"]), min_size=6, max_size=6),
)
def test_the_join_is_that_of_plain_python_and_of_functions(
    epochs, keys, bounds, exclusive, how, parallelism, tags, turns
):
    lower, upper = bounds
    if upper - lower < sum(exclusive):
        exclusive = (False, False)
    first, last = lower + exclusive[0], upper - exclusive[1]
    arguments = (keys, lower, upper, exclusive, how, parallelism, tags)
    lefts: dict[int, Any] = {}
    rights: dict[int, Any] = {}
    matched: set[int] = set()
    waiting: set[int] = set()
    watermark = MIN_TIMESTAMP
    number = 0
    job = joined(*arguments)
    try:
        for index, epoch in enumerate(epochs):
            numbered: list[Any] = []
            late: dict[bool, list[int]] = {True: [], False: []}
            expected: Counter[Any] = Counter()
            for is_left, values, columnar in epoch:
                row = ROW((*values, number))
                numbered.append((is_left, row, columnar))
                if row.at < watermark:
                    late[is_left].append(number)
                elif has_null(row, keys):
                    expected[number, None] += is_left and how == "left"
                else:
                    (lefts if is_left else rights)[number] = row
                    others = rights if is_left else lefts
                    for other in others.values():
                        distance = other.at - row.at if is_left else row.at - other.at
                        if all(row[key] == other[key] for key in keys) and first <= distance <= last:
                            pair = (number, other.number) if is_left else (other.number, number)
                            expected[pair] += 1
                            matched.add(pair[0])
                    if is_left:
                        waiting.add(number)
                number += 1
            if turns[index] == "fail":
                job.reset()
            bounded = index == len(epochs) - 1
            out = run(job, numbered, bounded=bounded)
            dropped, watermarks = report_of(job, "columns")
            (watermark,) = watermarks
            over = {left for left in waiting if bounded or lefts[left].at + last < watermark}
            waiting -= over
            if how == "left":
                expected.update((left, None) for left in over - matched)
            results = [(row.number, row.number_right) for row in out["columns"]]
            assert Counter(results) == +expected
            for row in out["columns"]:
                left = lefts.get(row.number)
                assert left is None or all(row[key] == left[key] for key in keys)
                assert row.at_right == (None if row.number_right is None else rights[row.number_right].at)
            by_function = [(left.number, right.number) for left, right, *_ in out["pairs"] if not has_null(left, keys)]
            assert Counter(by_function) == Counter(pair for pair in results if pair[1] is not None)
            # With nulls as keys, too: they are equal to each other, as they are in Python.
            by_row, by_columns = (
                Counter((left.number, right.number, *more) for left, right, *more in out[name])
                for name in ("pairs", "by_columns")
            )
            assert by_row == by_columns
            assert (
                dropped
                == report_of(job, "pairs")[0]
                == report_of(job, "by_columns")[0]
                == (0 if tags else len(late[True]) + len(late[False]))
            )
            if bounded:
                reports = [report for report in job.reports if report.level == 1]
                assert [(report.keys, report.event_time_timers) for report in reports] == [(0, 0)] * parallelism * 3
            if tags:
                # The side outputs of both operators are one tag's each.
                assert {row.number for row in out["late left"]} == set(late[True])
                assert {row.number for row in out["late right"]} == set(late[False])
            if turns[index] == "restart":
                job.reset()
            elif turns[index] == "cold":
                savepoint, epoch_number = job.savepoint(), job.epoch
                job.close()
                job = _again(arguments, savepoint, epoch_number)
    finally:
        job.close()


def _again(arguments: Any, savepoint: Any, epoch: int) -> LocalJob:
    job = joined(*arguments)
    again = LocalJob(job.program, savepoint=savepoint)
    again.epoch = epoch
    job.close()
    return again


@pytest.mark.parametrize("keys", [["text"], ["text", "whole"]])
def test_keys_whose_hashes_are_the_same_are_told_apart(monkeypatch, keys):
    monkeypatch.setattr(sketch, "hashes", lambda column: np.zeros(len(column), np.uint64))
    with joined(keys, 0, 0, (False, False), "left", 1, False) as job:
        epoch = [
            (is_left, ROW((text, whole, None, None, None, None, None, 5, number)), True)
            for is_left in (True, False)
            for number, (text, whole) in enumerate([("ann", 1), ("bob", 1), ("ann", 2), ("", 2)])
        ]
        outputs = [(row.number, row.number_right) for row in run(job, epoch, bounded=True)["columns"]]
    texts = ["ann", "bob", "ann", ""]
    pairs = [(i, j) for i in range(4) for j in range(4) if texts[i] == texts[j] and (keys == ["text"] or i == j)]
    assert sorted(outputs) == pairs


@pytest.mark.parametrize("kind", [pa.int32(), pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("us", "UTC")])
def test_codes_of_one_small_column_tell_all_keys_apart(kind):
    column = pa.array([0, 1, 0], pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
    codes = join_keys.codes_of([column], exact=True)
    assert join_keys.are_exact([kind])
    assert codes[0] == codes[2] != codes[1]
    assert not join_keys.are_exact([kind, kind])


NANS = [math.nan, struct.unpack("<d", b"\1\0\0\0\0\0\xf8\xff")[0]]
REALS: dict[Any, Any] = {0: NANS[0], 1: NANS[1], 2: 0.0, 3: -0.0, 4: 1.5, 5: None}
EQUAL = {0: 1, 1: 1, 2: 3, 3: 3, 4: 4, 5: None}
IN = row_class(("real",))
REAL_KEYS: dict[str, tuple[Any, Any]] = {
    "double": (Types.DOUBLE(), lambda real: real),
    "float": (Types.FLOAT(), lambda real: real),
    "struct": (Types.ROW_NAMED(["real"], [Types.FLOAT()]), lambda real: None if real is None else IN((real,))),
}


@given(
    st.lists(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 9), st.booleans()), max_size=8)),
    st.lists(st.sampled_from(sorted(REAL_KEYS)), min_size=1, max_size=2, unique=True),
    st.sampled_from(["inner", "left"]),
    st.integers(1, 3),
)
def test_nan_is_a_key_and_there_is_one_zero(epochs, kinds, how, parallelism):
    """As in Spark's joins, NaN equals NaN, and -0.0 equals 0.0."""
    types = [Types.INT(), *(REAL_KEYS[kind][0] for kind in kinds), Types.LONG(), Types.LONG()]
    names = ["code", *kinds, "at", "number"]
    info = Types.ROW_NAMED(names, types)

    def start(keys: list[str], savepoint: Any = None) -> LocalJob:
        env = StreamExecutionEnvironment().set_parallelism(parallelism)
        left, right = timed(env, info).key_by(keys), timed(env, info).key_by(keys)
        near = left.interval_join(right).between(-2, 3).columns(how, suffixes=("", "_right"))
        return env.local_job(out=near.uid("near"), savepoint=savepoint)

    encoder, row = RowEncoder(resolve_schema(info), "test"), row_class(tuple(names))
    jobs = [start(["code"]), start(kinds)]
    number = 0
    try:
        for index, epoch in enumerate([*epochs, []]):
            sides: dict[bool, list[Records]] = {True: [], False: []}
            for is_left, real, at, columnar in epoch:
                reals = [REAL_KEYS[kind][1](REALS[real]) for kind in kinds]
                run = [row((EQUAL[real], *reals, at + index, number))]
                sides[is_left].append(ArrowRecords(encoder.encode(run)) if columnar else Records(run))
                number += 1
            expected, outputs = (
                Counter(
                    (pair.number, pair.number_right)
                    for pair in job.run_epoch(
                        {
                            source: [sides[is_left]]
                            for source, is_left in zip(sorted(job.program.sources), (True, False))
                        },
                        bounded=index == len(epochs),
                    )["out"]
                )
                for job in jobs
            )
            assert outputs == expected
            if index == 1:
                savepoint, job = jobs[1].savepoint(), jobs.pop()
                job.close()
                jobs.append(start(kinds, savepoint))
    finally:
        for job in jobs:
            job.close()


def test_nan_is_no_key_of_a_function():
    env = StreamExecutionEnvironment()
    left, right = (timed(env).key_by("real") for _ in range(2))
    near = left.interval_join(right).between(0, 0)
    columns, pairs = near.columns(suffixes=("", "_right")), near.process(pair)
    rows = [(True, ROW((None, None, math.nan, None, None, None, None, 1, 1)), True)]
    with env.local_job(columns=columns) as job:
        assert run(job, rows, bounded=True) == {"columns": []}
    for open_job in (lambda: env.local_job(pairs=pairs), lambda: env.local_job(columns=columns, pairs=pairs)):
        with open_job() as job, pytest.raises(KeyTypeError, match="NaN"):
            run(job, rows)


def test_keys_are_of_one_type_whether_or_not_a_field_may_be_null():
    part = spark.StructType([spark.StructField("a", spark.IntegerType(), False)])
    kinds = [part, spark.StructType([spark.StructField("a", spark.IntegerType())])]
    sides = [JoinSide(spark.StructType([spark.StructField("k", kind)]), ("k",), "") for kind in kinds]
    columnar_joins._check_keys(*sides)
    other = spark.StructType([spark.StructField("b", spark.IntegerType())])
    with pytest.raises(ProgramError, match=r"'k' of the left side is struct<a:int>, .* struct<b:int>: cast one"):
        columnar_joins._check_keys(sides[0], JoinSide(spark.StructType([spark.StructField("k", other)]), ("k",), ""))


# -- functions --


class Count(ProcessJoinFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, left, right, ctx):
        self.count.update((self.count.value() or 0) + 1)
        yield left.number, right.number, self.count.value()
        yield LATE_LEFT, left.number


class Fails(ProcessJoinFunction):
    def process_element(self, left, right, ctx):
        raise ValueError("no such pair")


def by_function(function: Any, savepoint: Any = None, on_error: Any = "fail") -> LocalJob:
    env = StreamExecutionEnvironment().set_parallelism(2)
    lefts, rights = timed(env, PAYMENT).key_by("card"), timed(env, PAYMENT).key_by("card")
    with untouched():
        pairs = lefts.interval_join(rights).between(0, 100).process(function, on_error=on_error).uid("near")
    outputs = {"out": pairs, "side": pairs.get_side_output(LATE_LEFT)}
    return env.local_job(savepoint=savepoint, **outputs)


def test_a_function_has_the_state_of_the_key_of_its_pairs():
    with by_function(Count()) as job:
        pairs = push(job, [(1, 5, 1), (2, 5, 2)], [(1, 6, 3), (2, 105, 4), (2, 106, 5)])
        assert sorted(pairs) == [(1, 3, 1), (2, 4, 1)]
        job.reset()
        assert push(job, [(1, 6, 6), (3, 6, 7)], [(1, 6, 8)]) in (
            [(1, 8, 2), (6, 3, 3), (6, 8, 4)],
            [(6, 3, 2), (6, 8, 3), (1, 8, 4)],
            [(6, 3, 2), (1, 8, 3), (6, 8, 4)],
        )


def test_a_function_that_fails_is_told_with_the_pair():
    with by_function(Fails()) as job, pytest.raises(OperatorError) as caught:
        push(job, [(1, 5, 1)], [(1, 6, 3)])
    message = "the record (Row(card=1, at=5, number=1), Row(card=1, at=6, number=3))"
    assert "no such pair" in str(caught.value)
    assert message in str(caught.value)
    assert "key 1" in str(caught.value)


def test_a_record_whose_pair_fails_is_a_dead_letter():
    with by_function(Fails(), on_error=LATE_LEFT) as job:
        rows = [[SMALL((1, at, number))] for at, number in ((5, 1), (6, 3))]
        runs = zip(sorted(job.program.sources), [[[Records(part)]] for part in rows])
        letters = job.run_epoch(dict(runs), bounded=True)["side"]
    (letter,) = letters
    assert letter.value.number in (1, 3)
    assert letter.error == "ValueError: no such pair"


def test_streams_that_are_no_rows_of_dataframes_are_joined_row_by_row():
    env = StreamExecutionEnvironment()
    stream = timed(env, PAYMENT)
    keyed = stream.key_by("card")
    assert columnar_joins.sides_of_rows(keyed, keyed, (None, None)) is None
    with untouched():
        assert columnar_joins.sides_of_rows(keyed, keyed, (None, None)) is not None
        for other in (stream.key_by(lambda row: row.card), stream.key_by("card", key_type=Types.LONG())):
            assert columnar_joins.sides_of_rows(keyed, other, (None, None)) is None


# -- segments --


def _segment(rows: list[Any]) -> Segment:
    batch = pa.RecordBatch.from_pydict({"number": pa.array(range(len(rows)), pa.int64())})
    codes, times = (np.array(column, np.int64) for column in zip(*rows))
    return Segment.of(batch, codes, times)


CODES = st.sampled_from([-(2**63), -5, 0, 1, 2**63 - 1])
SMALL_TIMES, ALL_TIMES = st.integers(-20, 20), st.sampled_from([-(2**60), -3, 0, 2, 3, 4, 2**60])
SIDES = st.sampled_from([SMALL_TIMES, ALL_TIMES]).flatmap(
    lambda times: st.tuples(*[st.lists(st.tuples(CODES, times), min_size=1, max_size=30)] * 2)
)


@given(SIDES, BOUNDS.flatmap(lambda bounds: st.tuples(*bounds)).map(sorted), st.integers(1, 8))
def test_pairs_of_segments(sides, bounds, piece):
    left, right = sides
    lower, upper = bounds
    first, second = _segment(left), _segment(right)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(join_segment, "_PIECE", piece)
        pieces = list(first.pairs_with(second, lower, upper))
    results: list[Any] = []
    for own, others in pieces:
        assert 0 < len(own) == len(others)
        assert len(own) <= piece or len(set(own.tolist())) == 1
        numbers = [part.columns(at)[0].to_pylist() for part, at in ((first, own), (second, others))]
        results += zip(*numbers)
    expected = [
        (i, j)
        for i, (code, time) in enumerate(left)
        for j, (same, at) in enumerate(right)
        if code == same and lower <= at - time <= upper
    ]
    assert sorted(results) == expected


@given(st.lists(st.tuples(CODES, SMALL_TIMES), min_size=1, max_size=30), st.lists(st.integers(-25, 25), max_size=6))
def test_rows_are_over_once(rows, limits):
    segment: Segment | None = _segment(rows)
    gone: list[int] = []
    for limit in sorted(limits):
        if segment is None:
            break
        positions = segment.expire(limit)
        gone += segment.columns(positions)[0].to_pylist()
        segment = segment.since(limit) if segment.is_mostly_over else segment
        assert sorted(gone) == [number for number, (_, time) in enumerate(rows) if time < limit]


# -- stored rows --


def payments(
    lower: int, upper: int, how: Any = "left", savepoint: Any = None, info: Any = PAYMENT, parallelism: int = 1
) -> LocalJob:
    env = StreamExecutionEnvironment().set_parallelism(parallelism)
    lefts, rights = timed(env, PAYMENT).key_by("card"), timed(env, info).key_by("card")
    near = lefts.interval_join(rights).between(lower, upper).columns(how, suffixes=("", "_right")).uid("near")
    return env.local_job(out=near, savepoint=savepoint)


def push(job: LocalJob, left: list[Any], right: list[Any], *, bounded: bool = False) -> list[Any]:
    sides = [[[Records([SMALL(row) for row in rows])]] if rows else [] for rows in (left, right)]
    return job.run_epoch(dict(zip(sorted(job.program.sources), sides)), bounded=bounded)["out"]


@pytest.mark.parametrize("longest", [1 << 17, 64])
def test_many_epochs_leave_few_streams_and_write_what_is_new(monkeypatch, longest):
    monkeypatch.setattr(join_side, "_LONGEST", longest)
    rng = np.random.default_rng(1)
    written, sizes, streams = [], [], []
    pairs = alone = count = 0
    with payments(-20_000, 20_000) as many:
        for epoch in range(150):
            cards = rng.integers(0, 5_000, (2, 20)).tolist()
            times = (epoch * 200 + rng.integers(0, 200, (2, 20))).tolist()
            sides = [list(zip(cards[side], times[side], range(count, count + 20))) for side in (0, 1)]
            count += 20
            if epoch % 50 == 20:
                many.reset()
            out = push(many, *sides)
            pairs += sum(row.number_right is not None for row in out)
            alone += sum(row.number_right is None for row in out)
            (report,) = [report for report in many.reports if report.uid == "near"]
            written.append(report.state_bytes_written or 0)
            sizes.append(report.state_bytes or 0)
            task = next(iter(many._tasks.values()))
            task.backend.set_current_key(0)
            streams.append(sum(namespace[0] == "left" for namespace in task.backend.get_namespaces()))
        out = push(many, [], [], bounded=True)
    alone += len(out)
    assert pairs > 50
    assert alone > 500
    # Each side has 20,000 ms, plus left rows that wait for the right: 4,000 rows of about 40 bytes.
    assert max(sizes) < 600_000
    assert max(streams) < 20 if longest > 64 else max(streams) > 20
    assert sum(written) < 150 * 20_000


def test_an_epoch_that_matches_old_rows_writes_little():
    rows = [(card, 100, card) for card in range(50_000)]
    with payments(0, 1_000_000) as job:
        push(job, rows, [])
        push(job, [], [(7, 200, 1), (40_007, 300, 2)])
        (report,) = [report for report in job.reports if report.uid == "near"]
        assert 0 < (report.state_bytes_written or 0) < 8_000
        job.reset()
        out = push(job, [], [], bounded=True)
        assert sorted(row.number for row in out) == sorted(set(range(50_000)) - {7, 40_007})


def test_rows_that_cannot_be_kept_in_one_stream_are_in_several(monkeypatch):
    monkeypatch.setattr(join_side, "_LONGEST", 8)
    monkeypatch.setattr(join_side, "BLOCK", 4)
    monkeypatch.setattr(join_segment, "BLOCK", 4)
    with payments(0, 100, parallelism=2) as job:
        push(job, [(card, 10, card) for card in range(40)], [])
        job.reset()
        assert len(push(job, [], [(card, 20, card) for card in range(0, 40, 3)])) == 14
        job.reset()
        push(job, [(card, 15, card) for card in range(100, 103)], [])
        job.reset()
        out = push(job, [], [], bounded=True)
    alone = {*range(40), *range(100, 103)} - set(range(0, 40, 3))
    assert sorted(row.number for row in out if row.number_right is None) == sorted(alone)


def test_rows_that_are_over_do_not_come_back_when_segments_become_one():
    with payments(0, 5) as job:
        results = []
        for epoch in range(12):
            at = 100 * epoch
            left = [(1, at + later, 3 * epoch + number) for number, later in enumerate((0, 5_000, 6_000))]
            results += push(job, left, [(2, at, epoch)])
            if epoch == 7:
                job.reset()
        results += push(job, [], [], bounded=True)
    assert sorted(row.number for row in results) == list(range(36))


def test_rows_of_other_columns_are_refused():
    with payments(0, 10, "inner") as first:
        push(first, [(1, 2, 3)], [(1, 5, 4)])
        savepoint = first.savepoint()
    other = Types.ROW_NAMED(["card", "at", "number"], [Types.LONG(), Types.LONG(), Types.INT()])
    with (
        payments(0, 10, "inner", savepoint, other) as second,
        pytest.raises(
            CheckpointMismatchError, match=r"card int64, at int64, number int64, but the program expects card"
        ),
    ):
        push(second, [], [], bounded=True)


def test_pairs_and_rows_without_a_partner_are_not_late_behind_the_join():
    from pillarbox import ProcessFunction

    class Stamp(ProcessFunction):
        def process_element(self, value, ctx):
            yield value.number, value.number_right, ctx.timestamp()

    env = StreamExecutionEnvironment()
    lefts, rights = timed(env, PAYMENT).key_by("card"), timed(env, PAYMENT).key_by("card")
    near = lefts.interval_join(rights).between(-5, 30).columns("left", suffixes=("", "_right"))
    with env.local_job(out=near.process(Stamp())) as job:
        assert push(job, [(1, 100, 1), (2, 100, 2)], [(1, 120, 3)]) == [(1, 3, 120)]
        assert push(job, [(3, 137, 4)], [(4, 137, 5)]) == [(2, None, 130)]
        assert push(job, [], [(3, 135, 6)], bounded=True) == [(4, 6, 137)]


def test_much_is_joined_before_the_epoch_ends(monkeypatch):
    monkeypatch.setattr(join_operator, "_ROWS", 7)
    with payments(0, 0, "inner") as job:
        rows = [(card % 3, card % 5, card) for card in range(30)]
        sides = [[[Records([SMALL(row)]) for row in rows]]] * 2
        out = job.run_epoch(dict(zip(sorted(job.program.sources), sides)), bounded=True)["out"]
    assert len(out) == 30 * 2


def test_a_golden_checkpoint_is_read():
    with make_join.job() as undisturbed:
        for number in range(make_join.EPOCHS):
            make_join.run(undisturbed, number)
        expected = make_join.run(undisturbed, make_join.EPOCHS)
    assert all(expected.values())
    with make_join.job(load(make_join.PATH)) as golden:
        assert make_join.run(golden, make_join.EPOCHS) == expected


def test_the_end_of_time_is_behind_all_rows():
    segment = _segment([(1, 2**62)])
    assert len(segment.expire(MAX_WATERMARK)) == 1
