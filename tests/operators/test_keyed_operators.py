from __future__ import annotations

import collections
import dataclasses
import math
import pathlib
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pillarbox
from pillarbox import (
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    OperatorError,
    OutputTag,
    ProcessFunction,
    ProcessWindowFunction,
    ProgramError,
    StreamExecutionEnvironment,
    TimeDomain,
    TumblingProcessingTimeWindows,
    ValueStateDescriptor,
)
from pillarbox._elements.elements import Watermark
from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._errors import KeyTypeError
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorDiscard
from pillarbox._operators.keyed.process import KeyedProcessOperator
from pillarbox._operators.keyed.reduce import ReduceOperator
from pillarbox._operators.stateless.map import MapOperator
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
from tests.operators.windowing.windows import open_windows
from tests.support.nodes import node

SIDE = OutputTag("side")


@pytest.mark.parametrize(
    "operator", [node(ReduceOperator, "r", max, Keying(str, "key_by")), node(MapOperator, "r", str, Keying(str, "by"))]
)
def test_an_operator_that_works_under_keys_needs_keyed_state(operator):
    with pytest.raises(ProgramError, match=r"operator 'r' needs keyed state, .* use a keyed harness"):
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
                for run in run_of:
                    harness.operator.process_records(run)
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


@pytest.mark.parametrize("key", [math.nan, ("a", math.nan), np.float32("nan")], ids=repr)
def test_nan_is_no_key(key):
    stream = StreamExecutionEnvironment.get_execution_environment().from_collection([1])
    with pytest.raises(KeyTypeError, match=r"the record 1 has the key .* NaN equals nothing, .* return None for it"):
        stream.key_by(lambda value: key).reduce(max).execute_and_collect()


class Rings(KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_processing_time_timer(100)

    def on_timer(self, timestamp, ctx):
        if ctx.get_current_key() == 7:
            raise ValueError("seven")
        yield ctx.get_current_key()


class Windows(ProcessWindowFunction):
    def process(self, key, context, elements):
        if key == 7:
            raise ValueError("seven")
        yield key


class Noting(OperatorDiscard):
    def __init__(self):
        self.runs: list[list[Any]] = []

    def process_records(self, records):
        self.runs.append(records.values)


def ringing(on_error):
    options = {"on_error": on_error, "processing_time": 1}
    yield harness_for(Rings(), key_by=lambda value: value, **options)

    def windows(stream):
        windowed = stream.window(TumblingProcessingTimeWindows.of(100))
        return (windowed if on_error == "fail" else windowed.side_output_errors(on_error)).process(Windows())

    yield open_windows(windows, processing_time=1)


@pytest.mark.parametrize("on_error", ["fail", SIDE])
def test_processing_time_timers_that_are_due_together_emit_one_run(on_error):
    for harness in ringing(on_error):
        output = Noting()
        with harness:
            context = harness.operator.context
            if on_error == "fail":
                context.output = output
            else:
                context.output._output = output
            keys = [*range(10, 510)] if on_error == "fail" else [7, *range(10, 510)]
            harness.push_all([(key, key) for key in keys] if harness.operator.name != "Rings" else keys)
            harness.set_processing_time(101)
            assert len(output.runs) == 1 and sorted(output.runs[0]) == [*range(10, 510)]
            if on_error != "fail":
                assert len(harness.get_side_output(SIDE)) == 1


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
    with pytest.raises(ProgramError, match=r"uses the keyed state 'seen'.* KeyedProcessFunction"):
        stream.key_by(lambda value: value).process(Asks()).execute_and_collect()
    with pytest.raises(ProgramError, match="uses the keyed state 'seen'"):
        stream.map(CountingMap()).execute_and_collect()


# -- the hot path --


class Plain(KeyedProcessFunction):
    def __init__(self, emit):
        self.emit = emit

    def open(self, runtime_context):
        self.last = runtime_context.get_state(ValueStateDescriptor("last"))

    def process_element(self, value, ctx):
        self.last.value()
        self.last.update(value)
        ctx.timer_service().register_event_time_timer(ctx.timestamp())
        yield self.emit(value)


def framework_calls(function, count):
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


@dataclasses.dataclass
class Score:
    key: int
    value: float


@pytest.mark.parametrize(
    "emit, calls",
    [
        (lambda value: value, 7),
        (lambda value: (value, "text", 1.5, None), 7),
        # The copier, and the copy function of the class.
        (lambda value: Score(value, 1.5), 9),
    ],
    ids=["number", "tuple", "dataclass"],
)
def test_a_record_on_the_keyed_path_costs_seven_framework_calls(emit, calls):
    fewer, more = framework_calls(Plain(emit), 100), framework_calls(Plain(emit), 200)
    extra = more - fewer
    # collect, value, update, timer_service, timestamp, register, and the queue's add.
    # (One copy in 61 is timed, which takes another call.)
    assert calls - 0.5 < sum(extra.values()) / 100 < calls + 0.05, extra
