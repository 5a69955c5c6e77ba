"""Every operator obeys the laws of operators, as programs make it; a new one has to be entered here."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from pyspark.cloudpickle import dumps

import pillarbox
from pillarbox import (
    AggregateFunction,
    AsyncDataStream,
    AsyncFunction,
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    EventTimeSessionWindows,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
    count_,
    first_,
    sum_,
)
from pillarbox._datastream.connected import columnar_joins
from pillarbox._datastream.streams.data_stream import DataStream
from pillarbox._elements import ArrowRecords, Records
from pillarbox._operators.async_io.operator import AsyncWaitOperator
from pillarbox._operators.columnar.columnar_operator import ColumnarOperator
from pillarbox._operators.columnar.joins.join_operator import BaseJoinOperator, ColumnarJoinOperator
from pillarbox._operators.columnar.joins.process_join import ColumnarProcessJoinOperator
from pillarbox._operators.columnar.pre_aggregate import PreAggregateOperator
from pillarbox._operators.columnar.session_operator import ColumnarSessionOperator
from pillarbox._operators.columnar.window_operator import ColumnarWindowOperator
from pillarbox._operators.connected.broadcast import (
    BroadcastProcessOperator,
    KeyedBroadcastProcessOperator,
    _BroadcastOperator,
)
from pillarbox._operators.connected.two_inputs import (
    CoFlatMapOperator,
    CoMapOperator,
    CoProcessOperator,
    KeyedCoProcessOperator,
)
from pillarbox._operators.dead_letters.guarded import GuardedOperator
from pillarbox._operators.dead_letters.key_guard import KeyGuardOperator
from pillarbox._operators.frame.function_operator import FunctionOperator
from pillarbox._operators.frame.inputs import TwoInputs
from pillarbox._operators.frame.keyed_operator import KeyedOperator
from pillarbox._operators.frame.operator import StreamOperator
from pillarbox._operators.joins.co_group import CoGroupWindowOperator
from pillarbox._operators.joins.interval_join import IntervalJoinOperator
from pillarbox._operators.keyed.deduplicate import DeduplicateOperator
from pillarbox._operators.keyed.process import KeyedProcessOperator
from pillarbox._operators.keyed.reduce import ReduceOperator
from pillarbox._operators.stateless.filter import FilterOperator
from pillarbox._operators.stateless.flat_map import FlatMapOperator
from pillarbox._operators.stateless.limit import LimitOperator
from pillarbox._operators.stateless.map import MapOperator
from pillarbox._operators.stateless.pass_through import PASS_THROUGH, PassThroughOperator
from pillarbox._operators.stateless.process import ProcessOperator
from pillarbox._operators.stateless.sinks import ColumnsOperator, PrintOperator
from pillarbox._operators.timestamps_and_watermarks import TimestampsAndWatermarksOperator
from pillarbox._operators.windowing.base_operator import BaseWindowOperator
from pillarbox._operators.windowing.folding_operator import FoldingWindowOperator
from pillarbox._operators.windowing.guarded_operator import GuardedWindowOperator
from pillarbox._operators.windowing.operator import WindowOperator
from pillarbox._operators.windowing.pane_operator import PaneWindowOperator
from pillarbox._operators.windowing.session_operator import SessionWindowOperator
from pillarbox._operators.windowing.shared_operator import SharedWindowOperator
from pillarbox._operators.windowing.tumbling_operator import TumblingWindowOperator
from pillarbox._task.vertex import ChainNode
from pillarbox.testing import (
    KeyedOneInputStreamOperatorTestHarness,
    OneInputStreamOperatorTestHarness,
    StreamRecord,
    Watermark,
    check_operator,
    row,
)

RULES = MapStateDescriptor("rules")
ROW = Types.ROW_NAMED(["key", "n"], [Types.STRING(), Types.LONG()])


# -- functions that use what their operators have --


class Timed(KeyedProcessFunction):
    def open(self, runtime_context):
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen"))

    def process_element(self, value, ctx):
        self.seen.add(value.n)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, list(self.seen)


class Raising(Timed):
    """Raises when it has changed state and timers, at some records and timers."""

    def process_element(self, value, ctx):
        super().process_element(value, ctx)
        yield 1 // (value.n % 3)

    def on_timer(self, timestamp, ctx):
        yield from super().on_timer(timestamp, ctx)
        self.seen.add(timestamp)
        yield 1 // (timestamp % 2)


class Either(CoProcessFunction):
    def process_element1(self, value, ctx):
        yield "one", value.n, ctx.timestamp()

    def process_element2(self, value, ctx):
        yield "two", value.n, ctx.timestamp()


class AnyOf(CoMapFunction):
    def map1(self, value):
        return value.n if value.n % 2 else None

    def map2(self, value):
        return -value.n


class Seen(CoFlatMapFunction):
    """Emits each number with those that the key has seen of the other stream."""

    def open(self, runtime_context):
        self.ones = runtime_context.get_list_state(ListStateDescriptor("ones"))
        self.twos = runtime_context.get_list_state(ListStateDescriptor("twos"))

    def flat_map1(self, value):
        self.ones.add(value.n)
        return [(value.n, list(self.twos))]

    def flat_map2(self, value):
        self.twos.add(value.n)
        return [(value.n, list(self.ones)), value.n]


class Pairs(KeyedCoProcessFunction):
    def open(self, runtime_context):
        self.left = runtime_context.get_state(ValueStateDescriptor("left"))

    def process_element1(self, value, ctx):
        self.left.update(value.n)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 5)

    def process_element2(self, value, ctx):
        yield self.left.value(), value.n

    def on_timer(self, timestamp, ctx):
        yield "over", timestamp, self.left.value()
        self.left.clear()


class Ruled(BroadcastProcessFunction):
    def process_element(self, value, ctx):
        yield value.n, ctx.get_broadcast_state(RULES).get(value.key)

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(RULES).put(value.key, value.n)
        yield "rule", len(list(ctx.get_broadcast_state(RULES)))


class KeyedRuled(KeyedBroadcastProcessFunction):
    def open(self, runtime_context):
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum"))

    def process_element(self, value, ctx):
        self.sum.update((self.sum.value() or 0) + value.n)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 5)
        yield value.key, self.sum.value(), ctx.get_broadcast_state(RULES).get(value.key)

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(RULES)[value.key] = value.n
        ctx.apply_to_keyed_state(ValueStateDescriptor("sum"), lambda key, sum: sum.update(sum.value() + 100))

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, self.sum.value(), sorted(ctx.get_broadcast_state(RULES).items())


class Asked(AsyncFunction):
    async def async_invoke(self, value):
        return [value.n, value.n * 10]


class Total(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value.n

    def get_result(self, accumulator):
        return accumulator

    def merge(self, one, other):
        return one + other


def added(one, other):
    return row(key=one.key, n=one.n + other.n)


class Numbers(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, context.window().start, sorted(value.n for value in elements)


class RaisingNumbers(Numbers):
    def process(self, key, context, elements):
        yield from super().process(key, context, elements)
        yield 1 // (len(elements) % 3)


def both(ones, twos):
    return [(sorted(one.n for one in ones), sorted(two.n for two in twos))]


def columns(stream):
    return stream.map(lambda value: value, ROW)


def joined_by_columns(a, b):
    """An interval join with a function, as it is made of streams of DataFrames."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columnar_joins, "_is_untouched", lambda step: True)
        near = columns(a).key_by("key").interval_join(columns(b).key_by("key")).between(-9, 12)
        return near.process(lambda left, right, ctx: [(left.n, right.n)])


def with_keys(stream):
    """The step before a key_by with on_error."""
    keyed = stream.key_by(lambda value: 1 // (value.n % 3), on_error=OutputTag("bad"))
    return DataStream(keyed._env, keyed._plain_step())


# -- the table --


class Obeys(NamedTuple):
    """An operator, and the program whose last step makes it.

    Attributes:
        build: from one stream of rows (key, n), or two, to the stream behind the operator.
        ordered: whether the order of its output is known.
    """

    operator: type[StreamOperator]
    build: Callable[..., Any]
    inputs: int = 1
    ordered: bool = True


def windowed(stream, assigner):
    return stream.key_by("key").window(assigner)


TUMBLING, SLIDING, SESSIONS = (
    TumblingEventTimeWindows.of(10),
    SlidingEventTimeWindows.of(20, 5),
    EventTimeSessionWindows.with_gap(6),
)
# Windows of several keys that end together fire in any order, and so do timers of one time: they have none after a
# restart.
OBEYING = [
    Obeys(MapOperator, lambda s: s.map(lambda value: value.n)),
    Obeys(FlatMapOperator, lambda s: s.flat_map(lambda value: [value.n] * (value.n % 3))),
    Obeys(FilterOperator, lambda s: s.filter(lambda value: value.n % 2 == 0)),
    Obeys(ProcessOperator, lambda s: s.process(lambda value, ctx: [(value.n, ctx.timestamp())])),
    Obeys(KeyedProcessOperator, lambda s: s.key_by("key").process(Timed()), ordered=False),
    Obeys(GuardedOperator, lambda s: s.key_by("key").process(Raising(), on_error=OutputTag("bad")), ordered=False),
    Obeys(
        GuardedWindowOperator,
        lambda s: windowed(s, SLIDING).side_output_errors(OutputTag("bad")).process(RaisingNumbers()),
        ordered=False,
    ),
    Obeys(ReduceOperator, lambda s: s.key_by("key").reduce(added)),
    Obeys(ReduceOperator, lambda s: s.key_by("key").sum("n")),
    Obeys(ReduceOperator, lambda s: s.key_by("key").min(1)),
    Obeys(ReduceOperator, lambda s: s.key_by("key").max("n")),
    Obeys(ReduceOperator, lambda s: s.key_by("key").min_by("n")),
    Obeys(ReduceOperator, lambda s: s.key_by("key").max_by(1)),
    Obeys(KeyGuardOperator, with_keys),
    Obeys(DeduplicateOperator, lambda s: s.key_by("key").deduplicate(10)),
    Obeys(AsyncWaitOperator, lambda s: AsyncDataStream.ordered_wait(s, Asked(), 1000)),
    Obeys(AsyncWaitOperator, lambda s: AsyncDataStream.unordered_wait(s, Asked(), 1000), ordered=False),
    Obeys(TumblingWindowOperator, lambda s: windowed(s, TUMBLING).aggregate(Total()), ordered=False),
    Obeys(WindowOperator, lambda s: windowed(s, SLIDING).process(Numbers()), ordered=False),
    Obeys(WindowOperator, lambda s: windowed(s, SESSIONS).allowed_lateness(9).process(Numbers()), ordered=False),
    Obeys(PaneWindowOperator, lambda s: windowed(s, SLIDING).aggregate(Total()), ordered=False),
    Obeys(SessionWindowOperator, lambda s: windowed(s, SESSIONS).aggregate(Total()), ordered=False),
    Obeys(
        ColumnarWindowOperator,
        lambda s: windowed(columns(s), SLIDING).aggregate(rows=count_(), total=sum_("n"), first=first_("n")),
        ordered=False,
    ),
    Obeys(ColumnarSessionOperator, lambda s: windowed(columns(s), SESSIONS).aggregate(total=sum_("n")), ordered=False),
    Obeys(CoMapOperator, lambda a, b: a.connect(b).map(AnyOf()), 2),
    Obeys(CoFlatMapOperator, lambda a, b: a.connect(b).key_by("key", "key").flat_map(Seen()), 2),
    Obeys(CoProcessOperator, lambda a, b: a.connect(b).process(Either()), 2),
    Obeys(KeyedCoProcessOperator, lambda a, b: a.connect(b).key_by("key", "key").process(Pairs()), 2, False),
    Obeys(BroadcastProcessOperator, lambda a, b: a.connect(b.broadcast(RULES)).process(Ruled()), 2),
    Obeys(
        KeyedBroadcastProcessOperator,
        lambda a, b: a.key_by("key").connect(b.broadcast(RULES)).process(KeyedRuled()),
        2,
        False,
    ),
    Obeys(
        IntervalJoinOperator,
        lambda a, b: (
            a.key_by("key").interval_join(b.key_by("key")).between(-9, 12).process(lambda a, b, ctx: [(a.n, b.n)])
        ),
        2,
    ),
    Obeys(
        ColumnarJoinOperator,
        lambda a, b: (
            columns(a)
            .key_by("key")
            .interval_join(columns(b).key_by("key"))
            .between(-9, 12)
            .columns("left", suffixes=("", "_right"))
        ),
        2,
        False,
    ),
    Obeys(ColumnarProcessJoinOperator, joined_by_columns, 2, False),
    Obeys(
        CoGroupWindowOperator,
        lambda a, b: a.co_group(b).where("key").equal_to("key").window(SLIDING).apply(both),
        2,
        False,
    ),
    Obeys(
        CoGroupWindowOperator,
        lambda a, b: a.join(b).where("key").equal_to("key").window(SESSIONS).apply(lambda one, two: (one.n, two.n)),
        2,
        False,
    ),
]

PARTS = (
    FunctionOperator,
    KeyedOperator,
    BaseWindowOperator,
    FoldingWindowOperator,
    SharedWindowOperator,
    ColumnarOperator,
    BaseJoinOperator,
    TwoInputs,
    _BroadcastOperator,
)
# Why an operator is in no program above.
OTHERS: dict[type[StreamOperator], str] = {
    **dict.fromkeys(PARTS, "is what others are made of"),
    PassThroughOperator: "is in test_the_operator_that_does_nothing",
    TimestampsAndWatermarksOperator: "emits watermarks behind each run, so how it is cut shows: test_laws.py",
    PreAggregateOperator: "sends a partial result more where there is a snapshot: what is made of them is above",
    ColumnsOperator: "has no state, and emits columns: tests/types",
    PrintOperator: "emits nothing",
    LimitOperator: "counts what a bounded program emits, without snapshots: tests/runtime/programs/test_results.py",
}


def all_operators() -> Iterator[type[StreamOperator]]:
    for module in pkgutil.walk_packages(pillarbox.__path__, "pillarbox."):
        importlib.import_module(module.name)
    pending = [StreamOperator]
    while pending:
        pending += (found := pending.pop()).__subclasses__()
        if found is not StreamOperator and found.__module__.startswith("pillarbox."):
            yield found


def test_every_operator_is_entered():
    entered = {entry.operator for entry in OBEYING} | OTHERS.keys()
    assert set(all_operators()) == entered


def test_what_is_entered_as_a_part_is_one():
    assert all(operator.__subclasses__() for operator in PARTS)


# -- running them --


def record(key: str, n: int, timestamp: int) -> StreamRecord:
    return StreamRecord(row(key=key, n=n), timestamp)


SCRIPT: list[tuple[int, StreamRecord] | Watermark] = [
    (0, record("a", 1, 0)),
    (0, record("b", 2, 3)),
    (1, record("a", 3, 5)),
    (1, record("a", 4, 7)),
    (1, record("b", 5, 5)),
    (0, record("a", 5, 7)),
    Watermark(6),
    (0, record("c", 6, 16)),
    (0, record("a", 7, 14)),
    (1, record("c", 8, 12)),
    (1, record("a", 9, 5)),
    Watermark(15),
    (1, record("b", 10, 30)),
    (0, record("b", 11, 24)),
    (0, record("c", 12, 30)),
    Watermark(40),
    (1, record("a", 13, 41)),
]


class OfColumns(KeyedOneInputStreamOperatorTestHarness):
    """For operators that take partial results, which are columns."""

    def _process(self, records: Records, index: int = 0) -> None:
        if not isinstance(records, ArrowRecords):
            batch = pa.RecordBatch.from_pylist([value.as_dict() for value in records.values])
            records = ArrowRecords(batch, np.array(records.timestamps))
        super()._process(records, index)


def harness_of(step: Any, operator: type[StreamOperator] = StreamOperator, **options: Any) -> Any:
    if issubclass(operator, ColumnarOperator):
        kind: type[OneInputStreamOperatorTestHarness] = OfColumns
    else:
        kind = KeyedOneInputStreamOperatorTestHarness if step.factory.keyed else OneInputStreamOperatorTestHarness
    # Each task of a program gets a copy of its functions; here two of them may be open at a time.
    return kind(ChainNode(step.name, "operator", pickle.loads(dumps(step.factory))), **options)


def input_of(entry: Obeys, step: Any) -> list[Any]:
    """Return the script as the operator gets it: behind another one where that is made together with it."""
    script: list[Any] = list(SCRIPT)
    if entry.inputs == 1:
        script = [each[1] if isinstance(each, tuple) else each for each in SCRIPT]
    if not issubclass(entry.operator, ColumnarOperator):
        return script
    before = next(each for each in ancestors(step) if each.name == "window.partials")
    with harness_of(before) as harness:
        for each in script:
            if isinstance(each, Watermark):
                harness.push_watermark(each.timestamp)
                harness.snapshot()
            else:
                harness.push(each.value, each.timestamp)
        harness.end_input()
        elements: list[Any] = harness.get_elements()
        return elements[:-1]


def ancestors(step: Any) -> Iterator[Any]:
    for each in step.inputs:
        yield each
        yield from ancestors(each)


@pytest.mark.parametrize("entry", OBEYING, ids=lambda entry: entry.operator.__name__)
def test_the_laws(entry):
    env = StreamExecutionEnvironment()
    step = entry.build(*(env.from_collection([]) for _ in range(entry.inputs)))._step
    with harness_of(step) as harness:
        assert type(harness.operator) is entry.operator

    def open_harness(**options: Any) -> Any:
        return harness_of(step, entry.operator, **options)

    check_operator(open_harness, input_of(entry, step), ordered=entry.ordered, examples=6)


def test_the_operator_that_does_nothing():
    script = [each[1] if isinstance(each, tuple) else each for each in SCRIPT]
    node = ChainNode("nothing", "nothing", PASS_THROUGH)
    check_operator(lambda **options: OneInputStreamOperatorTestHarness(node, **options), script)
