from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark.sql.types as spark
import pytest

from pillarbox import (
    AggregateFunction,
    ArrowAggregateFunction,
    CheckpointMismatchError,
    CountEvictor,
    CountTrigger,
    CumulativeEventTimeWindows,
    EventTimeSessionWindows,
    GlobalWindows,
    OperatorError,
    OutputTag,
    ProgramError,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
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
from pillarbox._elements import records as elements_records
from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._operators.columnar.accumulators import AverageAccumulator
from pillarbox._operators.columnar.partials import PartialColumns, Partials
from pillarbox._operators.columnar.program import columns_of_run
from pillarbox._rows import row_class
from pillarbox._runtime.local import LocalJob
from pillarbox._types.row_encoder import RowEncoder
from tests.data import make_columns
from tests.data.make_checkpoint import load

PAYMENT = Types.ROW_NAMED(
    ["card", "at", "amount", "price", "note"],
    [Types.STRING(), Types.LONG(), Types.LONG(), Types.BIG_DEC(), Types.STRING()],
)
ROW = row_class(("card", "at", "amount", "price", "note"))
MINUTE = TumblingEventTimeWindows.of("1 minute")
BY_AT = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")


def payments(*rows: tuple[Any, ...], env: StreamExecutionEnvironment | None = None, info: Any = PAYMENT) -> Any:
    stream = (env or StreamExecutionEnvironment()).from_collection([ROW(row) for row in rows], info)
    return stream.assign_timestamps_and_watermarks(BY_AT)


def keyed(*rows: tuple[Any, ...]) -> Any:
    return payments(*rows).key_by("card")


class Mean(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator

    def get_result(self, accumulator):
        return accumulator


class Broken(ArrowAggregateFunction):
    output_type = Types.LONG()

    def partial(self, groups, size, values):
        if size:
            raise KeyError("no")
        return [pa.array([], pa.int64())]

    def merge(self, groups, size, partials):
        return [partials]

    def result(self, partials):
        return partials


class Untyped(Broken):
    output_type = None  # type: ignore[assignment]


class OfOtherTypes(Broken):
    def merge(self, groups, size, partials):
        return [partials.cast(pa.float64())]


REFUSED = {
    "no aggregate": (lambda: keyed().window(MINUTE).aggregate(), "pass an AggregateFunction|an AggregateFunction"),
    "something else": (lambda: keyed().window(MINUTE).aggregate(n=len), r"aggregate\(n=...\) takes a column aggregate"),
    "both": (lambda: keyed().window(MINUTE).aggregate(Mean(), n=count_()), "either an AggregateFunction or"),
    "no column": (
        lambda: keyed().window(MINUTE).aggregate(n=sum_("amonut")),
        r"n=sum_\('amonut'\)\): there is no column 'amonut'; the columns are card, at, amount, price, note",
    ),
    "sum of text": (
        lambda: keyed().window(MINUTE).aggregate(n=sum_("note")),
        r"aggregate\(n=sum_\('note'\)\): sum_\(\) takes a column of numbers or intervals, but this column is string: ",
    ),
    "name of a key": (lambda: keyed().window(MINUTE).aggregate(card=count_()), "2 columns have the name 'card'"),
    "name of a bound": (lambda: keyed().window(MINUTE).aggregate(window_end=count_()), "the name 'window_end'"),
    "key function": (
        lambda: payments().key_by(lambda row: row.card).window(MINUTE).aggregate(n=count_()),
        "need one or several columns as key",
    ),
    "key type": (
        lambda: payments().key_by("card", key_type=Types.LONG()).window(MINUTE).aggregate(n=count_()),
        r"key_type=LONG is not the type of the key's columns \('card' STRING\): drop",
    ),
    "key types": (
        lambda: (
            payments()
            .key_by(["card", "at"], key_type=Types.TUPLE([Types.STRING(), Types.INT()]))
            .window(MINUTE)
            .aggregate(n=count_())
        ),
        r"is not the type of the key's columns \('card' STRING, 'at' BIGINT\)",
    ),
    "unknown columns": (
        lambda: payments().map(lambda row: row).key_by("card").window(MINUTE).aggregate(n=count_()),
        "need declared columns, but 'map' declares none: put the window after from_dataframe",
    ),
    "trigger": (
        lambda: keyed().window(MINUTE).trigger(CountTrigger.of(3)).aggregate(n=count_()),
        r"fire at the end of a window, not by CountTrigger.of\(3\): use an AggregateFunction instead",
    ),
    "evictor": (
        lambda: keyed().window(MINUTE).evictor(CountEvictor.of(3)).aggregate(n=count_()),
        r"keep no elements for evictor\(.*\) to remove: use an AggregateFunction instead",
    ),
    "late side output": (
        lambda: keyed().window(MINUTE).side_output_late_data(OutputTag("late")).aggregate(n=count_()),
        r"count late rows .* cannot send them to a side output: use an AggregateFunction instead",
    ),
    "processing time": (
        lambda: keyed().window(TumblingProcessingTimeWindows.of(5)).aggregate(n=count_()),
        r"in event time, not TumblingProcessingTimeWindows\(5 ms\): use",
    ),
    "global windows": (lambda: keyed().window(GlobalWindows.create()).aggregate(n=count_()), "in event time, not"),
    "count windows": (lambda: keyed().count_window(3).aggregate(n=count_()), "in event time, not"),
    "dynamic gaps": (
        lambda: keyed().window(EventTimeSessionWindows.with_dynamic_gap(lambda row: 5)).aggregate(n=count_()),
        "in event time, not",
    ),
    "own without type": (lambda: keyed().window(MINUTE).aggregate(n=Untyped("at")), "Untyped has no output_type"),
    "own of other types": (
        lambda: keyed().window(MINUTE).aggregate(n=OfOtherTypes("at")),
        r"merge\(\) of OfOtherTypes\('at'\) must return arrays of 0 values of the types int64, but returned 0 of",
    ),
    "no name": (lambda: sum_(5), r"sum_\(\) takes a column name, not 5"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", REFUSED)
def test_programs_that_cannot_work_are_refused(what):
    build, message = REFUSED[what]
    with pytest.raises(ProgramError, match=message):
        build()


def test_keys_that_cannot_be_grouped_are_refused():
    info = Types.ROW_NAMED(["card", "at"], [Types.LIST(Types.LONG()), Types.LONG()])
    stream = StreamExecutionEnvironment().from_collection([], info).assign_timestamps_and_watermarks(BY_AT)
    with pytest.raises(ProgramError, match="cannot group by 'card', which is array<bigint>"):
        stream.key_by("card").window(MINUTE).aggregate(n=count_())


@pytest.mark.parametrize(
    ("rows", "aggregate", "message"),
    [
        ([("ann", 61_000, 2**62, None, ""), ("ann", 61_000, 2**62, None, "")], sum_("amount"), "bigint"),
        ([("ann", 61_000, -(2**63), None, ""), ("ann", 61_000, -1, None, "")], sum_("amount"), "bigint"),
        ([("ann", 61_000, 0, Decimal(10**19), "")] * 11, sum_("price"), r"decimal\(38,18\)"),
        ([("ann", 61_000, 0, Decimal(9 * 10**18), "")], avg_("price"), r"decimal\(38,22\)"),
    ],
)
def test_results_that_do_not_fit_are_errors(rows, aggregate, message):
    result = r"operator 'window.*': total=.*\('\w+'\) of key 'ann' in the window from 60000 \(epoch ms\) does not fit "
    with pytest.raises(OperatorError, match=result + message):
        keyed(*rows).window(MINUTE).aggregate(total=aggregate).execute_and_collect()


def test_the_mean_of_the_least_decimal_of_64_bits():
    values = [Decimal(-(2**63)), Decimal(5)]
    mean = AverageAccumulator(spark.DecimalType(19, 0))
    parts = mean.elements(pa.array(values, pa.decimal128(19, 0)))
    assert mean.result(pa.array([1, 1]), *parts).to_pylist() == values


def test_the_mean_of_large_integers_is_that_of_doubles():
    numbers = [2**53 + 1, -(2**62) - 1, 2**63 - 1]
    windows = keyed(*(("ann", 1, number, None, "") for number in numbers)).window(MINUTE)
    ((mean, total),) = [
        (row.mean, row.total)
        for row in windows.aggregate(mean=avg_("amount"), total=sum_("amount")).execute_and_collect()
    ]
    assert total == sum(numbers)
    assert mean == pytest.approx(sum(map(float, numbers)) / 3, rel=1e-12)


ALL_WINDOWS = [
    TumblingEventTimeWindows.of(10),
    SlidingEventTimeWindows.of(20, 10),
    CumulativeEventTimeWindows.of(20, 10),
    EventTimeSessionWindows.with_gap(10),
]


@pytest.mark.parametrize("window", ALL_WINDOWS)
def test_a_lateness_without_end_keeps_windows_for_good(window):
    env = StreamExecutionEnvironment()
    stream = payments(env=env).key_by("card").window(window).allowed_lateness(2**63 - 1).aggregate(n=count_())
    with env.local_job(out=stream.uid("windows")) as endless:
        run(endless, ("ann", 5, 1, None, ""))
        assert {row.n for row in run(endless, ("bob", 10**9, 1, None, ""))} == {1}
        endless.reset()
        assert {row.n for row in run(endless, ("ann", 6, 1, None, ""))} == {2}


@pytest.mark.parametrize("window", [*ALL_WINDOWS, TumblingEventTimeWindows.of("1 day", time_zone="Europe/Berlin")])
@pytest.mark.parametrize("time", [1_700_000_000_000_000_000, -(2**63) + 1])
def test_times_that_no_timestamp_can_be_are_refused(window, time):
    with pytest.raises(OperatorError, match=rf"a row has the time {time} \(epoch ms\), so the bounds of its windows"):
        keyed(("ann", 5, 1, None, ""), ("ann", time, 1, None, "")).window(window).aggregate(
            n=count_()
        ).execute_and_collect()


@pytest.mark.parametrize("kind", [TumblingEventTimeWindows.of, EventTimeSessionWindows.with_gap])
def test_windows_that_no_timestamp_can_bound_are_refused(kind):
    with pytest.raises(OperatorError, match="are no valid TIMESTAMPs"):
        keyed(("ann", 5, 1, None, "")).window(kind(2**62)).aggregate(n=count_()).execute_and_collect()


def test_sums_that_fit_are_exact_however_large_their_parts():
    rows: list[tuple[Any, ...]] = [("ann", 1, 2**62, Decimal("99999999999999999999.5"), "")]
    rows += [("ann", 2, -(2**62), Decimal("-1.25"), "")]
    rows += [("ann", 3, 2**62, None, ""), ("bob", 3, 7, None, "")]
    windows = keyed(*rows).window(MINUTE).aggregate(total=sum_("amount"), price=sum_("price"))
    results = {row.card: (row.total, row.price) for row in windows.execute_and_collect()}
    assert results == {"ann": (2**62, Decimal("99999999999999999998.25")), "bob": (7, None)}


def test_errors_of_a_users_own_aggregate_name_it():
    with pytest.raises(OperatorError, match=r"partial\(\) of Broken\('at'\) failed: KeyError.*\n.*operator 'window.pa"):
        keyed(("ann", 1, 2, None, "")).window(MINUTE).aggregate(n=Broken("at")).execute_and_collect()


def test_rows_without_timestamp_are_refused():
    stream = StreamExecutionEnvironment().from_collection([ROW(("ann", 1, 2, None, ""))], PAYMENT)
    with pytest.raises(ProgramError, match=r"'window.aggregate: n' uses event time, but .* have no timestamps"):
        stream.key_by("card").window(MINUTE).aggregate(n=count_()).execute_and_collect()
    # Results of timers have timestamps.
    untimed = stream.key_by("card").process(lambda row, ctx: [row], PAYMENT)
    with pytest.raises(ProgramError, match="without a timestamp: put assign_timestamps_and_watermarks"):
        untimed.key_by("card").window(MINUTE).aggregate(n=count_()).execute_and_collect()


# -- stored state --


def job(window: Any, savepoint: Any = None, **aggregates: Any) -> LocalJob:
    env = StreamExecutionEnvironment()
    stream = payments(env=env).key_by("card").window(window).aggregate(**aggregates).uid("windows")
    return env.local_job(out=stream, savepoint=savepoint)


def run(job: LocalJob, *rows: tuple[Any, ...], bounded: bool = False) -> list[Any]:
    (source,) = job.program.sources
    return job.run_epoch({source: [[Records([ROW(row) for row in rows])]]}, bounded=bounded)["out"]


@pytest.mark.parametrize("window", [MINUTE, EventTimeSessionWindows.with_gap("1 minute")], ids=["panes", "sessions"])
def test_windows_of_other_aggregates_are_refused(window):
    with job(window, n=count_()) as first:
        run(first, ("ann", 1, 5, None, ""))
        savepoint = first.savepoint()
    with (
        job(window, savepoint, n=sum_("amount")) as second,
        pytest.raises(CheckpointMismatchError, match=r"it has card, but the program has card, n: sum_\('amount'\)"),
    ):
        run(second, bounded=True)
    with job(window, savepoint, m=count_()) as third:
        assert [(row.card, row.m) for row in run(third, bounded=True)] == [("ann", 1)]


@pytest.mark.parametrize("window", [MINUTE, EventTimeSessionWindows.with_gap("1 minute")], ids=["panes", "sessions"])
def test_many_epochs_leave_few_and_short_streams(window):
    rng = np.random.default_rng(1)
    keys = [f"card {number}" for number in range(200)]
    written = []
    with job(window, n=count_(), total=sum_("amount")) as many:
        for _ in range(100):
            run(many, *((keys[key], 1, 1, None, "") for key in rng.integers(0, 200, 20)))
            (report,) = [report for report in many.reports if report.uid == "windows"]
            written.append(report.state_bytes_written or 0)
        assert (report.state_bytes or 0) < 400_000
        assert sum(written) < 100 * 40_000
        result = run(many, bounded=True)
    assert sum(row.n for row in result) == 100 * 20
    assert len(result) == 200


@pytest.mark.parametrize("window", [TumblingEventTimeWindows.of(10), SlidingEventTimeWindows.of(60, 10)])
def test_thousands_of_small_windows_take_a_few_passes(window, monkeypatch):
    passes = 0
    group = Partials._group

    def counted(*args):
        nonlocal passes
        passes += 1
        return group(*args)

    monkeypatch.setattr(Partials, "_group", counted)
    with job(window, n=count_()) as many:
        result = run(many, *((f"card {key}", 10 * number, 1, None, "") for number in range(1000) for key in range(3)))
        assert run(many) == []
        before = passes
        result += run(many, *(("ann", 10 * number, 1, None, "") for number in range(1000, 2000)))
        result += run(many, bounded=True)
    # One before the shuffle, one or two for firing, and one for state.
    assert before <= 4 and passes <= 9
    ends = [row.window_end for row in result]
    assert len(result) >= 4000 and ends == sorted(ends)
    assert sum(row.n for row in result) == 4000 * (6 if isinstance(window, SlidingEventTimeWindows) else 1)


def test_a_sum_that_does_not_fit_names_its_window_among_many():
    rows = [("ann", 1_000 * number, 2**62 if number == 40 else 1, None, "") for number in range(60)] * 2
    windows = keyed(*rows).window(TumblingEventTimeWindows.of("1 second"))
    with pytest.raises(OperatorError, match=r"of key 'ann' in the window from 40000 \(epoch ms\) does not fit bigint"):
        windows.aggregate(total=sum_("amount")).execute_and_collect()
    mean = ("bob", 1, 0, Decimal(9 * 10**18), "")
    windows = keyed(mean, *rows).window(TumblingEventTimeWindows.of("1 second"))
    with pytest.raises(OperatorError, match=r"of key 'bob' in the window from 0 \(epoch ms\) does not fit decimal"):
        windows.aggregate(mean=avg_("price")).execute_and_collect()


def test_state_goes_with_its_windows():
    for window in (MINUTE, SlidingEventTimeWindows.of(300, 100), EventTimeSessionWindows.with_gap(50)):
        with job(window, n=count_()) as gone:
            run(gone, ("ann", 1, 1, None, ""), ("bob", 2, 1, None, ""))
            run(gone, ("ann", 100_000_000, 1, None, ""))
            run(gone, ("ann", 200_000_000, 1, None, ""))
            task = next(iter(gone._tasks.values()))
            task.backend.set_current_key(0)
            contents = [task.backend.namespaces.contents_of(row) for row in task.backend.namespaces.rows_of(0)]
            streams = [stream for content in contents for states in content.values() for stream in states.values()]
            rows = sum(pa.ipc.open_stream(stream).read_next_batch().num_rows for stream in streams)
            assert rows <= 4, (window, contents)  # of sessions, a few that are over may stay for a while


def test_state_is_one_key_of_each_subtask():
    for parallelism in (1, 3):
        env = StreamExecutionEnvironment().set_parallelism(parallelism)
        stream = payments(env=env).key_by("card").window(MINUTE).aggregate(n=count_()).uid("windows")
        with env.local_job(out=stream) as spread:
            run(spread, *((f"card {number}", 1, 1, None, "") for number in range(50)))
            reports = [report for report in spread.reports if report.uid == "windows"]
            assert [report.keys for report in reports] == [1] * parallelism
            assert [report.event_time_timers for report in reports] == [1] * parallelism
            spread.reset()
            assert sum(row.n for row in run(spread, bounded=True)) == 50


# -- about how many different values --


@pytest.mark.parametrize("kind", ["int", "text", "float", "decimal"])
def test_the_number_of_different_values_is_about_right(kind):
    numbers = np.arange(40_000)
    values = {
        "int": pa.array(numbers * 1_000_003),
        "text": pa.array([f"shop {number}" for number in numbers.tolist()]),
        "float": pa.array(numbers / 8),
        "decimal": pa.array([Decimal(number).scaleb(-2) for number in numbers.tolist()], pa.decimal128(12, 2)),
    }[kind]
    types = {"int": spark.LongType(), "text": spark.StringType(), "float": spark.DoubleType()}
    field = spark.StructField("x", types.get(kind, spark.DecimalType(12, 2)))
    key = spark.StructField("key", spark.LongType())
    columns = PartialColumns(spark.StructType([key]), spark.StructType([field]), {"u": approx_count_distinct_("x")})
    partials = Partials(columns, "test")
    sizes = {0: 3, 1: 1023, 2: 12_000, 3: 20_000}
    edges = [0, *np.cumsum(list(sizes.values())).tolist()]
    keys = np.repeat(list(sizes), list(sizes.values()))
    rng = np.random.default_rng(5)
    parts = []
    for _ in range(3):  # with each value several times, in several parts
        order = rng.permutation(edges[-1])
        rows = {"key": pa.array(keys[order]), "x": values.slice(0, edges[-1]).take(pa.array(order))}
        parts.append(partials.of_rows(rows, order, np.zeros(len(order), np.int64))[0])
    merged = partials.merged(parts, 0)
    collected = dict(zip(*(partials.results(merged, 0, 1).column(index).to_pylist() for index in (0, 3))))
    assert collected[0] == 3 and collected[1] == 1023
    assert abs(collected[2] / sizes[2] - 1) < 0.13 and abs(collected[3] / sizes[3] - 1) < 0.13  # four standard errors


def test_hashes_of_texts_do_not_depend_on_their_neighbours():
    from pillarbox._operators.columnar import sketch

    texts = ["", "a", "b", "ab", "ba", "x" * 300_000, "\x00", "\x00\x00", "a" * 1000, *map(str, range(40_000))]
    together = sketch.hashes(pa.array(texts))
    assert len(set(together.tolist())) == len(texts)
    for index in (0, 1, 5, 6, 8, 30_000):
        assert sketch.hashes(pa.array(["other", texts[index]]))[1] == together[index]
    assert sketch.hashes(pa.array(["ab"]))[0] == 5424007190230049033


@pytest.mark.parametrize(
    ("columns", "key_type"),
    [("card", Types.STRING()), (["card", "at"], Types.TUPLE([Types.STRING(), Types.LONG()]))],
)
def test_the_type_of_a_key_may_be_declared_where_it_is_that_of_the_columns(columns, key_type):
    rows = [("a", 1, 5, None, None), ("b", 2, 6, None, None), ("a", 1, 7, None, None)]

    def totals(**declared):
        windows = payments(*rows).key_by(columns, **declared).window(MINUTE)
        return windows.aggregate(total=sum_("amount"), n=count_()).execute_and_collect()

    assert totals(key_type=key_type) == totals()
    assert [(row.card, row.total, row.n) for row in totals()] == [("a", 12, 2), ("b", 6, 1)]


def test_columnar_runs_need_no_python_objects(monkeypatch):
    env = StreamExecutionEnvironment()
    stream = payments(env=env).key_by("card").window(MINUTE).aggregate(n=count_(), top=max_("amount"), low=min_("at"))
    batch = pa.record_batch(
        {"card": ["a", "b", "a"], "at": [1, 2, 3], "amount": [5, 6, 7], "price": pa.nulls(3), "note": pa.nulls(3)}
    )
    with env.local_job(out=stream) as columnar:
        (source,) = columnar.program.sources
        sizes: list[int] = []
        rows_from_arrow = elements_records.rows_from_arrow  # type: ignore[attr-defined]

        def counted(batch: pa.RecordBatch) -> list[Any]:
            sizes.append(batch.num_rows)
            return rows_from_arrow(batch)

        monkeypatch.setattr(elements_records, "rows_from_arrow", counted)
        out = columnar.run_epoch({source: [[ArrowRecords(batch)]]}, bounded=True)["out"]
    assert [(row.card, row.n, row.top, row.low) for row in out] == [("a", 2, 7, 1), ("b", 1, 6, 2)]
    assert sizes == [2]  # where the results were read, and nowhere before


def test_first_of_a_type_without_order_is_refused():
    info = Types.ROW_NAMED(["card", "at", "tags"], [Types.STRING(), Types.LONG(), Types.LIST(Types.STRING())])
    stream = StreamExecutionEnvironment().from_collection([], info).assign_timestamps_and_watermarks(BY_AT)
    with pytest.raises(ProgramError, match=r"first_\(\) does not support array<string>: it has no order"):
        stream.key_by("card").window(MINUTE).aggregate(tags=first_("tags"))


def test_a_golden_checkpoint_is_read():
    with make_columns.job() as undisturbed:
        for number in range(make_columns.EPOCHS):
            make_columns.run(undisturbed, number)
        expected = make_columns.run(undisturbed, make_columns.EPOCHS)
    assert all(expected.values())
    with make_columns.job(load(make_columns.PATH)) as golden:
        assert make_columns.run(golden, make_columns.EPOCHS) == expected


def test_the_error_for_a_column_without_a_python_type_names_the_column():
    rows = spark.StructType().add("card", "string").add("term", spark.CalendarIntervalType())
    with pytest.raises(ProgramError, match="column term is declared interval") as reason:
        RowEncoder(rows, "map")
    with pytest.raises(ProgramError, match=r"operator 'window': an earlier .* but the column term .* drop the column"):
        columns_of_run(Records([("c1", None)]), rows, str(reason.value), "window")
