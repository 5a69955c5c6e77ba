"""Each operator alone: what comes out, with which timestamp, and what its errors say."""

from __future__ import annotations

import collections
import functools
import math
import pathlib
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pillarbox
from pillarbox import (
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    KeySelector,
    ListStateDescriptor,
    MapFunction,
    OperatorError,
    OutputTag,
    ProcessFunction,
    ProgramError,
    ReduceFunction,
    Row,
    StreamExecutionEnvironment,
    TimeDomain,
    ValueStateDescriptor,
    WatermarkGenerator,
    WatermarkStrategy,
)
from pillarbox.elements import ArrowRecords, Records, Watermark, WatermarkStatus
from pillarbox.errors import KeyTypeError
from pillarbox.operators.collector import RUN_LIMIT
from pillarbox.operators.filter import FilterOperator
from pillarbox.operators.flat_map import FlatMapOperator
from pillarbox.operators.keyed_process import KeyedProcessOperator
from pillarbox.operators.keys import Keying
from pillarbox.operators.map import MapOperator
from pillarbox.operators.operator import Discard, Fanout
from pillarbox.operators.process import ProcessOperator
from pillarbox.operators.reduce import ReduceOperator
from pillarbox.operators.sinks import PrintOperator
from pillarbox.operators.timestamps_and_watermarks import TimestampsAndWatermarksOperator
from pillarbox.testing import (
    KeyedOneInputStreamOperatorTestHarness as Keyed,
)
from pillarbox.testing import (
    OneInputStreamOperatorTestHarness as Harness,
)
from pillarbox.testing import (
    StreamRecord,
    harness_for,
    row,
)
from pillarbox.time import MAX_WATERMARK, MIN_TIMESTAMP
from tests.nodes import node

SIDE = OutputTag("side")


def run(operator, values, timestamps=None):
    with Harness(operator) as harness:
        harness.push_all(values, timestamps)
        return harness.get_records()


class Runs(Discard):
    """Notes the sizes of the runs that reach it."""

    def __init__(self):
        self.sizes = []

    def process_records(self, records):
        assert records.timestamps is None or len(records.timestamps) == len(records)
        self.sizes.append(len(records))


# -- one in, one out --


def test_map_keeps_timestamps():
    assert run(node(MapOperator, "map", str), [1, 2], [5, None]) == [("1", 5), ("2", None)]
    assert run(node(MapOperator, "map", str), [1, 2]) == [("1", None), ("2", None)]


def test_filter_keeps_the_timestamps_of_what_it_keeps():
    operator = node(FilterOperator, "filter", lambda value: value % 2 == 1)
    assert run(operator, [1, 2, 3], [5, 6, 7]) == [(1, 5), (3, 7)]
    assert run(operator, [2, 4], [5, 6]) == []


def test_flat_map_gives_each_result_its_records_timestamp():
    assert run(node(FlatMapOperator, "flat_map", lambda value: ["x"] * value), [2, 0, 1], [5, 6, 7]) == [
        ("x", 5),
        ("x", 5),
        ("x", 7),
    ]
    assert run(node(FlatMapOperator, "flat_map", lambda value: None), [1]) == []
    assert run(node(FlatMapOperator, "flat_map", lambda value: iter([value])), [1]) == [(1, None)]


@pytest.mark.parametrize("stamps", [None, [7, 8, 9]])
def test_what_a_run_becomes_is_handed_on_in_parts(stamps):
    for operator in (
        node(FlatMapOperator, "flat_map", lambda value: range(RUN_LIMIT)),
        node(ProcessOperator, "process", lambda value, ctx: range(RUN_LIMIT)),
    ):
        with Harness(operator) as harness:
            harness.operator.context.output = runs = Runs()
            harness.push_all([1, 2, 3], stamps)
            assert runs.sizes == [RUN_LIMIT] * 3


def test_side_outputs_are_handed_on_in_parts_too():
    def process(value, ctx):
        ctx.output(SIDE, value)

    operator = node(ProcessOperator, "process", process)
    with Harness(operator) as harness:
        runs = Runs()
        harness.operator.context.side_outputs = {"side": runs}
        harness.push_all(range(2 * RUN_LIMIT + 5))
        assert runs.sizes == [RUN_LIMIT, RUN_LIMIT, 5]


def test_functions_as_objects_are_opened_and_closed():
    class Both(MapFunction):
        seen: list[str] = []

        def open(self, runtime_context):
            self.seen.append(f"open {runtime_context.get_index_of_this_subtask()}")
            self.seen.append(runtime_context.get_task_name_with_subtasks())

        def map(self, value):
            return value

        def close(self):
            self.seen.append("close")

    function = Both()
    with Harness(node(MapOperator, "m", function), subtask=2, parallelism=4) as harness:
        harness.push(1)
    assert function.seen == ["open 2", "m (3/4)", "close"]


# -- process, without key --


def test_process():
    class Split(ProcessFunction):
        def process_element(self, value, ctx):
            yield value, ctx.timestamp(), ctx.timer_service().current_watermark()
            yield SIDE, value
            ctx.output(SIDE, -value)

    with Harness(node(ProcessOperator, "process", Split()), processing_time=9) as harness:
        harness.push(1, 5)
        harness.push_watermark(7)
        harness.push(2)
        assert harness.get_records() == [((1, 5, MIN_TIMESTAMP), 5), ((2, None, 7), None)]
        assert harness.get_side_records(SIDE) == [(1, 5), (-1, 5), (2, None), (-2, None)]


def test_a_side_output_that_nobody_takes_is_dropped():
    with Harness(node(ProcessOperator, "process", lambda value, ctx: [(SIDE, value), value])) as harness:
        harness.operator.context.side_outputs = {}
        harness.push(1)
        assert harness.get_output() == [1]


def test_clocks_without_key():
    seen = []

    class Clocks(ProcessFunction):
        def process_element(self, value, ctx):
            seen.append(ctx.timer_service().current_processing_time())

    with Harness(node(ProcessOperator, "p", Clocks()), processing_time=42) as harness:
        harness.push(1)
    assert seen == [42]


@pytest.mark.parametrize("method", ["register_event_time", "delete_event_time", "register_processing_time"])
def test_timers_on_a_stream_without_key_are_refused(method):
    def process(value, ctx):
        getattr(ctx.timer_service(), f"{method}_timer")(5)

    with pytest.raises(ProgramError, match=r"'p' sets a timer, but its stream has no key: put key_by"):
        run(node(ProcessOperator, "p", process), [1])


def test_keyed_state_on_a_stream_without_key_is_refused():
    class Greedy(ProcessFunction):
        def open(self, runtime_context):
            runtime_context.get_state(ValueStateDescriptor("s"))

        def process_element(self, value, ctx):
            pass

    with pytest.raises(ProgramError, match=r"'p' asks for the keyed state 's', but its stream has no key"):
        run(node(ProcessOperator, "p", Greedy()), [1])


@pytest.mark.parametrize(
    "operator", [node(ReduceOperator, "r", max, Keying(str, "key_by")), node(MapOperator, "r", str, Keying(str, "by"))]
)
def test_an_operator_that_works_under_keys_needs_keyed_state(operator):
    with pytest.raises(ProgramError, match=r"operator 'r' works under keys, .* give it a keyed harness"):
        Harness(operator)


def test_state_outside_of_open_is_refused():
    class Late(KeyedProcessFunction):
        def open(self, runtime_context):
            self.context = runtime_context

        def process_element(self, value, ctx):
            self.context.get_state(ValueStateDescriptor("s"))

    with harness_for(Late(), key_by=str) as harness, pytest.raises(ProgramError, match=r"declare all states in open"):
        harness.push(1)


# -- process, with key --


class Timers(KeyedProcessFunction):
    """A record (key, e, p) sets timers; both ways of output."""

    def open(self, runtime_context):
        self.last = runtime_context.get_state(ValueStateDescriptor("last"))

    def process_element(self, value, ctx):
        key, event, processing = value
        assert ctx.get_current_key() == key
        assert self.last.value() in (None, key)
        self.last.update(key)
        if event is not None:
            ctx.timer_service().register_event_time_timer(event)
        if processing is not None:
            ctx.timer_service().register_processing_time_timer(processing)
        yield "element", key

    def on_timer(self, timestamp, ctx):
        assert self.last.value() == ctx.get_current_key()
        assert ctx.timestamp() == timestamp
        ctx.output(SIDE, timestamp)
        yield ctx.time_domain(), ctx.get_current_key(), ctx.timer_service().current_watermark()


def timers_harness():
    return Keyed(node(KeyedProcessOperator, "timers", Timers(), Keying(lambda value: value[0], "key_by")))


def test_t7_what_timers_emit():
    with timers_harness() as harness:
        harness.push_all([("a", 10, None), ("b", 10, 20), ("a", 5, 30)], [1, 2, 3])
        harness.clear_output()
        harness.push_watermark(10)
        event = TimeDomain.EVENT_TIME
        assert harness.get_records() == [((event, "a", 10), 5), ((event, "a", 10), 10), ((event, "b", 10), 10)]
        assert harness.get_side_records(SIDE) == [(5, 5), (10, 10), (10, 10)]
        assert harness.get_watermarks() == [10]
        harness.clear_output()
        harness.set_processing_time(30)
        processing = TimeDomain.PROCESSING_TIME
        assert harness.get_records() == [((processing, "b", 10), None), ((processing, "a", 10), None)]
        assert harness.get_side_records(SIDE) == [(20, None), (30, None)]


def test_t5_timers_come_before_their_watermark():
    with timers_harness() as harness:
        harness.push(("a", 10, None))
        harness.push_watermark(10)
        assert harness.get_elements() == [
            StreamRecord(("element", "a"), None),
            StreamRecord((TimeDomain.EVENT_TIME, "a", 10), 10),
            Watermark(10),
        ]


def test_a_failing_timer_is_named():
    class Broken(Timers):
        def on_timer(self, timestamp, ctx):
            raise ZeroDivisionError("x")

    for value, move in ((("k", 5, None), "push_watermark"), (("k", None, 5), "set_processing_time")):
        with harness_for(Broken(), key_by=lambda value: value[0]) as harness:
            harness.push(value)
            domain = "event" if move == "push_watermark" else "processing"
            text = rf"'Broken' failed in the {domain} time timer at 5 of key 'k': ZeroDivisionError: x"
            with pytest.raises(OperatorError, match=text) as caught:
                getattr(harness, move)(5)
            assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_keys_of_columns():
    class Keys(KeyedProcessFunction):
        def process_element(self, value, ctx):
            yield ctx.get_current_key()

    class Point:
        x, y = 1, "a"

    records = [row(x=1, y="a"), row(x=2, y="b")]
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2]), pa.array(["a", "b"])], names=["x", "y"])
    for key_by, keys in (("x", [1, 2]), (["x", "y"], [(1, "a"), (2, "b")])):
        for run_of in ([Records(records)], [Records([r.as_dict() for r in records])], [ArrowRecords(batch)]):
            with harness_for(Keys(), key_by=key_by) as harness:
                for one in run_of:
                    harness.operator.process_records(one)
                assert harness.get_output() == keys
    with harness_for(Keys(), key_by="y") as harness:
        harness.push(Point())
        assert harness.get_output() == ["a"]


def test_wrong_keys():
    for wrong in (None, 5, [], ["a", 5]):
        with pytest.raises(ProgramError, match="takes a function or column names"):
            Keying(wrong, "key_by")  # type: ignore[arg-type]


# -- reduce --


def test_reduce():
    operator = node(ReduceOperator, "sum", lambda a, b: a + b, Keying(lambda value: value % 2, "key_by"))
    with Keyed(operator) as harness:
        harness.push_all([1, 2, 3], [5, 6, 7])
        harness.push(5)
        assert harness.get_records() == [(1, 5), (2, 6), (4, 7), (9, None)]
        assert harness.state_of(1) == {"reduced": 9}


# -- errors --


class _Fails:
    def __call__(self, *values):
        if "guilty" in values[:2]:
            raise KeyError("nope")
        return [values[0]]


KINDS = ["map", "filter", "flat_map", "process", "keyed process", "reduce"]


@pytest.mark.parametrize(
    "operator",
    [
        node(MapOperator, "op", _Fails()),
        node(FilterOperator, "op", _Fails()),
        node(FlatMapOperator, "op", _Fails()),
        node(ProcessOperator, "op", _Fails()),
        node(KeyedProcessOperator, "op", _Fails(), Keying(lambda value: 0, "key_by")),
        node(ReduceOperator, "op", _Fails(), Keying(lambda value: 0, "key_by")),
    ],
    ids=KINDS,
)
def test_errors_name_operator_and_record(operator):
    with Keyed(operator) as harness, pytest.raises(OperatorError) as caught:
        harness.push_all(["innocent", "guilty", "also innocent"])
    assert str(caught.value).startswith("operator 'op' failed at the record 'guilty': KeyError: 'nope'\n")
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    "operator",
    [
        node(FlatMapOperator, "fan", lambda value: [value] * RUN_LIMIT),
        node(ProcessOperator, "fan", lambda value, ctx: [value] * RUN_LIMIT),
        node(KeyedProcessOperator, "fan", lambda value, ctx: [value] * RUN_LIMIT, Keying(lambda value: 0, "key_by")),
    ],
    ids=KINDS[2:5],
)
def test_an_error_further_down_keeps_its_name_and_cause(operator):
    with Keyed(operator) as harness:
        context = harness.operator.context
        context.output = MapOperator(replace(context, name="down", output=Discard()), _Fails())
        with pytest.raises(OperatorError, match="operator 'down' failed at the record 'guilty'") as caught:
            harness.push("guilty")
    assert isinstance(caught.value.__cause__, KeyError)


def test_errors_in_open_and_close_are_named():
    class Bad(FilterFunction):
        def __init__(self, where):
            self.where = where

        def open(self, runtime_context):
            if self.where == "open":
                raise OSError("no")

        def filter(self, value):
            return True

        def close(self):
            if self.where == "close":
                raise OSError("no")

    for where in ("open", "close"):
        with (
            pytest.raises(OperatorError, match=rf"'f' failed in {where}\(\): OSError: no"),
            Harness(node(FilterOperator, "f", Bad(where))),
        ):
            pass


def test_a_broken_repr_does_not_hide_the_error():
    class Shy:
        def __repr__(self):
            raise RuntimeError

    def fail(value):
        raise ValueError("real")

    with pytest.raises(OperatorError, match="<Shy whose repr raised RuntimeError>: ValueError: real"):
        run(node(MapOperator, "m", fail), [Shy()])


def test_results_that_are_no_iterable():
    with pytest.raises(OperatorError, match="'f' failed at the record 1: TypeError"):
        run(node(FlatMapOperator, "f", lambda value: 5), [1])


# -- timestamps and watermarks --


def stamping(strategy):
    return node(TimestampsAndWatermarksOperator, "timestamps", strategy)


BOUNDED = WatermarkStrategy.for_bounded_out_of_orderness(10)


def test_timestamps_of_functions_and_columns():
    assigner = BOUNDED.with_timestamp_assigner(lambda value: value.at)
    column = BOUNDED.with_timestamp_assigner("at")
    rows = [row(at=100, n=1), row(at=90, n=2), row(at=120, n=3)]
    batch = pa.RecordBatch.from_arrays([pa.array([100, 90, 120]), pa.array([1, 2, 3])], names=["at", "n"])
    for strategy in (assigner, column):
        for records in (Records(rows), Records([*rows], [1, 2, 3]), ArrowRecords(batch)):
            with Harness(stamping(strategy)) as harness:
                harness.operator.process_records(records)
                assert harness.get_records() == [(rows[0], 100), (rows[1], 90), (rows[2], 120)]
                assert harness.get_watermarks() == [109]
                harness.push(row(at=50, n=4))
                assert harness.get_watermarks() == [109]  # never back
                harness.push(row(at=130, n=4))
                assert harness.get_watermarks() == [109, 119]


def test_an_assigner_is_told_the_timestamp_so_far():
    strategy = BOUNDED.with_timestamp_assigner(lambda value, before: 7 if before == MIN_TIMESTAMP else before + value)
    assert run(stamping(strategy), [1, 2], [None, 40]) == [(1, 7), (2, 42)]


def test_without_assigner_the_timestamps_stay():
    with Harness(stamping(BOUNDED)) as harness:
        harness.push(1, 100)
        assert (harness.get_records(), harness.get_watermarks()) == ([(1, 100)], [89])
        with pytest.raises(ProgramError, match="records have no timestamp: give the strategy"):
            harness.push(1)


def test_watermarks_from_upstream_count_only_at_the_end():
    with Harness(stamping(BOUNDED)) as harness:
        harness.push(1, 100)
        harness.push_watermark(1000)
        harness.push_watermark(MAX_WATERMARK)
        assert harness.get_watermarks() == [89, MAX_WATERMARK]


class Punctuated(WatermarkGenerator):
    def on_event(self, event, timestamp, output):
        if event == "mark":
            output.emit_watermark(timestamp)

    def on_periodic_emit(self, output):
        pass


def test_a_generator_may_emit_between_two_records():
    with Harness(stamping(WatermarkStrategy.for_generator(Punctuated))) as harness:
        harness.push_all(["a", "mark", "b", "mark", "c"], [1, 2, 3, 1, 5])
        first, *rest = harness.get_elements()
    assert first == WatermarkStatus(False)
    assert rest == [("a", 1), ("mark", 2), Watermark(2), ("b", 3), ("mark", 1), ("c", 5)]


def test_timestamps_that_are_none_are_named():
    for strategy, text in (
        (BOUNDED.with_timestamp_assigner(lambda value: "soon"), "the timestamp assigner failed at the record 'x'"),
        (BOUNDED.with_timestamp_assigner("at"), "no timestamp in field 'at' of the record 'x'"),
    ):
        with pytest.raises(OperatorError, match=text):
            run(stamping(strategy), ["x"])
    batch = pa.RecordBatch.from_arrays([pa.array([1, None])], names=["at"])
    for column, error, text in (
        ("at", OperatorError, "timestamp column 'at': the timestamp at row 1 is null"),
        ("when", ProgramError, "no timestamp column 'when'; the columns are at"),
    ):
        with Harness(stamping(BOUNDED.with_timestamp_assigner(column))) as harness, pytest.raises(error, match=text):
            harness.operator.process_records(ArrowRecords(batch))


def test_each_epoch_of_a_source_starts_anew():
    with Harness(stamping(BOUNDED)) as harness:
        harness.push(1, 100)
        harness.operator.begin_epoch()
        harness.push(1, 50)
        assert harness.get_watermarks() == [89, 39]


# -- the rest --


def test_fanout_gives_everybody_everything():
    first, second = Runs(), Runs()
    fanout = Fanout([first, second])
    fanout.process_records(Records([1, 2]))
    fanout.process_watermark(5)
    fanout.process_status(True)
    assert first.sizes == second.sizes == [2]


def test_print(capsys):
    for subtask, parallelism, identifier in ((0, 1, ""), (0, 1, "id"), (1, 2, ""), (1, 2, "id")):
        with Harness(node(PrintOperator, "print", identifier), subtask=subtask, parallelism=parallelism) as harness:
            harness.push("x")
    assert capsys.readouterr().out == "x\nid> x\n2> x\nid:2> x\n"


def test_output_tags():
    assert OutputTag("a") == OutputTag("a") != OutputTag("b")
    assert {OutputTag("a"): 1}[OutputTag("a")] == 1
    with pytest.raises(ProgramError):
        OutputTag("")


def test_state_survives_numpy():
    class Keep(KeyedProcessFunction):
        def open(self, runtime_context):
            self.sum = runtime_context.get_state(ValueStateDescriptor("sum"))

        def process_element(self, value, ctx):
            self.sum.update(np.array([value, value]) if self.sum.value() is None else self.sum.value() + value)

    with harness_for(Keep(), key_by=lambda value: 0) as harness:
        harness.push_all([1, 2])
        snapshot = harness.snapshot()
    with harness_for(Keep(), key_by=lambda value: 0, snapshot=snapshot) as harness:
        assert harness.state_of(0)["sum"].tolist() == [3, 3]


def test_keys_are_checked():
    with harness_for(Timers(), key_by=lambda value: value) as harness, pytest.raises(KeyTypeError):
        harness.push([1])


def test_flat_map_and_reduce_functions_as_objects():
    class Twice(FlatMapFunction):
        def flat_map(self, value):
            yield value
            yield value

    class Max(ReduceFunction):
        def reduce(self, value1, value2):
            return max(value1, value2)

    assert [record.value for record in run(node(FlatMapOperator, "f", Twice()), [Row.of(a=1)])] == [(1,), (1,)]
    with harness_for(Max(), key_by=lambda value: 0) as harness:
        harness.push_all([2, 1, 3])
        assert harness.get_output() == [2, 2, 3]


def test_what_was_emitted_does_not_change_with_the_functions_own_copy():
    class Gather(KeyedProcessFunction):
        def open(self, runtime_context):
            self.all = runtime_context.get_list_state(ListStateDescriptor("all"))
            self.memo = runtime_context.get_state(ValueStateDescriptor("memo"))

        def process_element(self, value, ctx):
            memo = self.memo.value() or []
            memo.append(value)
            self.memo.update(memo)
            yield memo
            yield value, memo

    env = StreamExecutionEnvironment.get_execution_environment()
    out = env.from_collection([1, 2]).key_by(lambda value: 0).process(Gather()).execute_and_collect()
    assert out == [[1], (1, [1]), [1, 2], (2, [1, 2])]
    env = StreamExecutionEnvironment.get_execution_environment()
    lists = env.from_collection([[1], [2], [3]]).key_by(lambda value: 0)
    longer = lists.reduce(lambda a, b: a.extend(b) or a)  # type: ignore[func-returns-value]
    assert longer.execute_and_collect() == [[1], [1, 2], [1, 2, 3]]


@pytest.mark.parametrize("method", ["map", "filter", "key_by"])
def test_a_function_that_raises_stop_iteration_loses_nothing_in_silence(method):
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = getattr(env.from_collection([1, 2, 3]), method)(lambda value: next(iter([value] if value < 2 else [])))
    if method == "key_by":
        stream = stream.reduce(lambda a, b: b)
    with pytest.raises(
        OperatorError, match=r"failed at the record 2: (RuntimeError: the function raised )?StopIteration"
    ):
        stream.execute_and_collect()


def test_no_watermarks_asks_for_no_timestamps():
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([1, 2]).assign_timestamps_and_watermarks(WatermarkStrategy.no_watermarks())
    assert stream.execute_and_collect() == [1, 2]


# -- a user's watermark generator --


class Own(WatermarkGenerator):
    """Calls ``act(event, output)`` for each record, and ``periodic(output)``."""

    def __init__(self, act=lambda event, output: None, periodic=lambda output: None):
        self.act, self.periodic = act, periodic

    def on_event(self, event, timestamp, output):
        self.act(event, output)

    def on_periodic_emit(self, output):
        self.periodic(output)


def own(*args):
    strategy = WatermarkStrategy.for_generator(lambda: Own(*args)).with_timestamp_assigner(lambda value: value)
    return node(TimestampsAndWatermarksOperator, "times", strategy)


@pytest.mark.parametrize("watermark", [1.5, None, 2**70, "5", True, math.nan], ids=repr)
def test_a_watermark_that_is_none_is_named(watermark):
    with (
        Harness(own(lambda event, output: event == 2 and output.emit_watermark(watermark))) as harness,
        pytest.raises(OperatorError) as failure,
    ):
        harness.push_all([1, 2, 3])
    assert "operator 'times': the watermark generator failed at the record 2" in str(failure.value)
    assert f"{watermark!r} ({type(watermark).__name__}) is no watermark" in str(failure.value)


def test_a_watermark_may_be_numpys_int():
    with Harness(own(lambda event, output: output.emit_watermark(np.int64(event)))) as harness:
        harness.push(5)
        assert harness.get_watermarks() == [5] and type(harness.get_watermarks()[0]) is int


def test_what_a_generator_raises_is_named():
    with (
        Harness(own(lambda event, output: {}[event])) as harness,
        pytest.raises(
            OperatorError, match="operator 'times': the watermark generator failed at the record 7: KeyError: 7"
        ),
    ):
        harness.push_all([7, 8])
    with (
        Harness(own(lambda event, output: None, lambda output: 1 / 0)) as harness,
        pytest.raises(
            OperatorError,
            match=r"operator 'times' failed in its watermark generator's on_periodic_emit\(\): ZeroDivisionError",
        ),
    ):
        harness.push_all([7, 8])
    with (
        Harness(own(lambda event, output: None, lambda output: 1 / 0)) as harness,
        pytest.raises(OperatorError, match=r"on_periodic_emit\(\): ZeroDivisionError"),
    ):
        harness.snapshot()
    with pytest.raises(OperatorError, match="operator 'times' failed in making its watermark generator"):
        Harness(node(TimestampsAndWatermarksOperator, "times", WatermarkStrategy.for_generator(_Fails)))  # type: ignore[arg-type]


def test_a_status_does_not_overtake_the_records_before_it():
    def act(event, output):
        if event == 2:
            output.mark_idle()
        if event == 4:
            output.mark_active()

    idle, active = WatermarkStatus(True), WatermarkStatus(False)
    with Harness(own(act)) as harness:
        harness.push_all([1, 2, 3, 4, 5])
        assert harness.get_elements() == [active, (1, 1), (2, 2), idle, (3, 3), (4, 4), active, (5, 5)]


# -- wrong uses of state --


@pytest.mark.parametrize(
    ("method", "descriptor"),
    [
        ("get_list_state", ValueStateDescriptor("x")),
        ("get_map_state", ValueStateDescriptor("x")),
        ("get_state", ListStateDescriptor("x")),
        ("get_reducing_state", "x"),
        ("get_aggregating_state", None),
        ("get_state", "x"),
    ],
)
def test_a_descriptor_of_another_kind_is_refused(method, descriptor):
    class Asks(KeyedProcessFunction):
        def open(self, runtime_context):
            getattr(runtime_context, method)(descriptor)

        def process_element(self, value, ctx):
            return None

    with pytest.raises(ProgramError, match=rf"operator 'Asks': {method}\(\) takes a \w+StateDescriptor, not .*x|None"):
        harness_for(Asks(), key_by=lambda value: value)


def test_state_used_in_open_is_refused():
    class Early(KeyedProcessFunction):
        def open(self, runtime_context):
            runtime_context.get_state(ValueStateDescriptor("n")).update(1)

        def process_element(self, value, ctx):
            return None

    with pytest.raises(ProgramError, match="uses the value state 'n' where there is no current key"):
        harness_for(Early(), key_by=lambda value: value)


def test_a_key_function_that_gives_another_key_each_time_is_refused():
    numbers = iter(range(1000))
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(4)
    stream = env.from_collection([1] * 50).key_by(lambda value: next(numbers)).reduce(lambda a, b: a)
    with pytest.raises(OperatorError, match="the key function returned another key when the record was sent"):
        stream.execute_and_collect()


# -- what functions give --


class Reusing:
    """Gives one and the same object again and again, as Flink's object reuse would."""

    def __init__(self, wrap):
        self.memo, self.wrap = [], wrap

    def __call__(self, value):
        self.memo[:] = [2 * value]
        return self.wrap(self.memo)


@pytest.mark.parametrize(
    ("wrap", "expected"),
    [
        (lambda memo: memo, lambda n: [n]),
        (lambda memo: ("x", memo), lambda n: ("x", [n])),
        (lambda memo: Row.of(a=1, memo=memo), lambda n: (1, [n])),
        (lambda memo: (1, ("deep", memo)), lambda n: (1, ("deep", [n]))),
        (lambda memo: [memo], lambda n: [[n]]),
        (lambda memo: {"x": memo}, lambda n: {"x": [n]}),
    ],
)
def test_an_object_that_is_given_again_and_again_is_copied(wrap, expected):
    env = StreamExecutionEnvironment.get_execution_environment()
    numbers: Any = env.from_collection([1, 2, 3, 4])
    right = [expected(2 * n) for n in (1, 2, 3, 4)]
    assert numbers.map(Reusing(wrap)).map(lambda value: value).execute_and_collect() == right
    reusing = Reusing(wrap)
    assert numbers.flat_map(lambda value: [reusing(value)]).map(lambda v: v).execute_and_collect() == right
    reusing = Reusing(wrap)
    assert numbers.process(lambda value, ctx: [reusing(value)]).map(lambda v: v).execute_and_collect() == right


def test_objects_of_other_kinds_go_through_as_they_are():
    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

    things = [Unhashable(), np.array([1]), object(), (np.array([1]), 2)]
    assert all(a is b.value for a, b in zip(things, run(node(MapOperator, "map", lambda value: value), things)))


@pytest.mark.parametrize("answer", [None, 0, 1, "yes", [], object()], ids=["None", "0", "1", "text", "list", "object"])
def test_a_filter_gives_bools(answer):
    with (
        Harness(node(FilterOperator, "f", lambda value: answer if value == 2 else True)) as harness,
        pytest.raises(
            OperatorError, match=rf"operator 'f' failed at the record 2: .* \({type(answer).__name__}\), not a bool"
        ),
    ):
        harness.push_all([1, 2, 3])
    assert [r.value for r in run(node(FilterOperator, "f", lambda value: np.int64(value) > 1), [1, 2])] == [2]


@pytest.mark.filterwarnings("error")
def test_a_filter_that_gives_coroutines_is_refused():
    async def keep(value):
        return False

    with (
        Harness(node(FilterOperator, "f", keep)) as harness,
        pytest.raises(OperatorError, match="not a bool"),
    ):
        harness.push_all([1, 2, 3])


async def _coroutine(*values):
    return values


async def _async_generator(*values):
    yield values


def _generator(*values):
    yield values


class _AsyncCall:
    async def __call__(self, *values):
        return values


class _AsyncMethod(KeyedProcessFunction):
    async def process_element(self, value, ctx):  # type: ignore[override]
        return None


class _AsyncTimer(KeyedProcessFunction):
    def process_element(self, value, ctx):
        return None

    async def on_timer(self, timestamp, ctx):  # type: ignore[override]
        return None


class _AsyncSelector(KeySelector):
    async def get_key(self, value):
        return value


class _AsyncMap(MapFunction):
    async def map(self, value):
        return value


@pytest.mark.parametrize("function", [_coroutine, _async_generator, _AsyncCall(), functools.partial(_coroutine, 1)])
@pytest.mark.parametrize("method", ["map", "flat_map", "filter", "process", "key_by", "reduce", "keyed map"])
def test_an_async_def_is_refused_when_the_program_is_built(method, function):
    stream: Any = StreamExecutionEnvironment.get_execution_environment().from_collection([1])
    if method in ("reduce", "keyed map"):
        stream, method = stream.key_by(lambda value: value), method.removeprefix("keyed ")
    with pytest.raises(ProgramError, match=rf"{method}\(\) got .* is an async def: .* use map_async"):
        getattr(stream, method)(function)


@pytest.mark.parametrize("function", [_AsyncMethod(), _AsyncTimer()])
def test_async_methods_of_process_functions_are_refused(function):
    stream = StreamExecutionEnvironment.get_execution_environment().from_collection([1])
    with pytest.raises(ProgramError, match="is an async def"):
        stream.key_by(lambda value: value).process(function)
    with pytest.raises(ProgramError, match="whose get_key is an async def"):
        stream.key_by(_AsyncSelector())
    with pytest.raises(ProgramError, match="whose map is an async def"):
        stream.map(_AsyncMap())


@pytest.mark.parametrize("method", ["map", "filter", "key_by"])
def test_a_generator_is_refused_where_one_result_is_asked_for(method):
    stream: Any = StreamExecutionEnvironment.get_execution_environment().from_collection([1])
    with pytest.raises(ProgramError, match=rf"{method}\(\) got .* whose _generator yields"):
        getattr(stream, method)(_generator)
    stream.flat_map(_generator)
    stream.process(_generator)


@pytest.mark.parametrize(
    "results", ["late", b"late", bytearray(b"x"), {"a": 1}, collections.Counter("ab"), Row.of(a=1)], ids=repr
)
def test_one_value_in_the_place_of_results_is_refused(results):
    for operator in (
        node(FlatMapOperator, "op", lambda value: results),
        node(ProcessOperator, "op", lambda value, ctx: results),
        node(KeyedProcessOperator, "op", lambda value, ctx: results, Keying(lambda value: 0, "key_by")),
    ):
        with (
            Keyed(operator) as harness,
            pytest.raises(OperatorError, match=r"'op' failed at the record 1: .* which is one value, not the values"),
        ):
            harness.push(1)


def test_results_may_be_any_other_iterable():
    for results in ([1, 2], (1, 2), {1: 2}.keys(), {1}, range(2), iter([1]), np.array([1, 2]), map(str, [1])):
        assert run(node(FlatMapOperator, "op", lambda value, results=results: results), [0])


def test_a_side_output_has_a_tag():
    def process(value, ctx):
        ctx.output("late", value)

    with (
        Harness(node(ProcessOperator, "p", process)) as harness,
        pytest.raises(ProgramError, match="operator 'p': a side output is named by an OutputTag, not by 'late'"),
    ):
        harness.push(1)


@pytest.mark.parametrize("key", [math.nan, ("a", math.nan), np.float32("nan")], ids=repr)
def test_nan_is_no_key(key):
    stream = StreamExecutionEnvironment.get_execution_environment().from_collection([1])
    with pytest.raises(KeyTypeError, match=r"the record 1 has the key .* NaN equals nothing, .* give None for it"):
        stream.key_by(lambda value: key).reduce(max).execute_and_collect()


# -- keyed state in map, flat_map and filter --


class _Counting:
    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen"))

    def count(self):
        self.seen.update((self.seen.value() or 0) + 1)
        return self.seen.value()


class CountingMap(_Counting, MapFunction):
    def map(self, value):
        return value, self.count()


class CountingFlatMap(_Counting, FlatMapFunction):
    def flat_map(self, value):
        yield value, self.count()


class FirstOnly(_Counting, FilterFunction):
    def filter(self, value):
        return self.count() == 1


@pytest.mark.parametrize("parallelism", [1, 3])
def test_map_flat_map_and_filter_behind_key_by_have_keyed_state(parallelism):
    def keyed():
        env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
        return env.from_collection(["a", "b", "a", "a"]).key_by(lambda value: value)

    counted = [("a", 1), ("a", 2), ("a", 3), ("b", 1)]
    assert sorted(keyed().map(CountingMap()).execute_and_collect()) == counted
    assert sorted(keyed().flat_map(CountingFlatMap()).execute_and_collect()) == counted
    assert sorted(keyed().filter(FirstOnly()).execute_and_collect()) == ["a", "b"]


def test_their_state_is_in_the_snapshot():
    with harness_for(CountingMap(), key_by=lambda value: value) as harness:
        harness.push_all(["a", "b", "a"])
        snapshot = harness.snapshot()
    with harness_for(CountingMap(), key_by=lambda value: value, snapshot=snapshot) as harness:
        harness.push("a")
        assert harness.get_output() == [("a", 3)]


def test_state_behind_a_key_by_but_without_a_key_is_refused():
    class Asks(_Counting, ProcessFunction):
        def process_element(self, value, ctx):
            return None

    stream = StreamExecutionEnvironment.get_execution_environment().from_collection([1])
    with pytest.raises(ProgramError, match=r"asks for the keyed state 'seen'.* KeyedProcessFunction"):
        stream.key_by(lambda value: value).process(Asks()).execute_and_collect()
    with pytest.raises(ProgramError, match="asks for the keyed state 'seen'"):
        stream.map(CountingMap()).execute_and_collect()


# -- the hot path --


class Plain(KeyedProcessFunction):
    """Value state and an event timer."""

    def open(self, runtime_context):
        self.last = runtime_context.get_state(ValueStateDescriptor("last"))

    def process_element(self, value, ctx):
        self.last.value()
        self.last.update(value)
        ctx.timer_service().register_event_time_timer(ctx.timestamp())


def framework_calls(function, count):
    """Count the calls of pillarbox's own Python functions in a run of so many records of one key."""
    source = pathlib.Path(pillarbox.__file__).parent
    calls: collections.Counter[str] = collections.Counter()

    def profile(frame, event, argument):
        if event == "call" and source in pathlib.Path(frame.f_code.co_filename).parents:
            calls[frame.f_code.co_qualname if hasattr(frame.f_code, "co_qualname") else frame.f_code.co_name] += 1

    with harness_for(function, key_by=lambda value: 0) as harness:
        harness.push(0, timestamp=0)
        sys.setprofile(profile)
        try:
            harness.push_all(range(count), range(1, count + 1))
        finally:
            sys.setprofile(None)
    return calls


def test_a_record_on_the_keyed_path_costs_seven_framework_calls():
    fewer, more = framework_calls(Plain(), 100), framework_calls(Plain(), 200)
    extra = more - fewer
    # value, update, timer_service, timestamp, register, and the queue's add.
    assert sum(extra.values()) <= 7 * 100, extra
    assert sum(extra.values()) >= 5 * 100, "the count counts nothing"
