"""An emitted value never changes, even if functions change values that they received or emitted.

The results must equal the results of a run with one record per epoch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from pillarbox import (
    AggregateFunction,
    AggregatingStateDescriptor,
    AsyncCache,
    AsyncDataStream,
    AsyncFunction,
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    CountTrigger,
    EventTimeSessionWindows,
    FilterFunction,
    FlatMapFunction,
    GlobalWindows,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    ProcessWindowFunction,
    ReduceFunction,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    WindowFunction,
)
from pillarbox.testing import ProgramTestHarness
from tests.operators_table.table import OPERATORS


@dataclasses.dataclass
class Cart:
    key: str
    n: int
    at: int
    log: list[int] = dataclasses.field(default_factory=list)


class Careless:
    """Emits one object for all records, and changes earlier calls' records."""

    def __init__(self) -> None:
        self.box = Cart("", 0, 0)
        self.received: list[Cart] = []

    def result(self, *values: Cart) -> Cart:
        for element in self.received:
            element.n = -1
            element.log.append(-1)
        self.received = list(values)
        self.box.key = values[0].key
        self.box.n = sum(value.n for value in values)
        self.box.log[:] = [value.n for value in values]
        return self.box


def seen(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(map(seen, value))
    return (value.key, value.n, tuple(value.log)) if isinstance(value, Cart) else value


LETTERS = OutputTag("letters")
SIDE = OutputTag("side")
RULES = MapStateDescriptor("rules")


class Maps(Careless, MapFunction):
    def map(self, value):
        return self.result(value)


class Filters(Careless, FilterFunction):
    def filter(self, value):
        self.result(value)
        return value.n % 3 > 0


class FlatMaps(Careless, FlatMapFunction):
    def flat_map(self, value):
        yield self.result(value)
        yield 1, (self.result(value, value),)


class Processes(Careless, ProcessFunction):
    def process_element(self, value, ctx):
        ctx.output(SIDE, self.result(value))
        yield self.result(value, value)
        yield SIDE, self.result(value, value, value)


class KeyedProcesses(KeyedProcessFunction):
    """Emits its state, which contains a record, and changes it later."""

    def open(self, runtime_context):
        self.cart = runtime_context.get_state(ValueStateDescriptor("cart"))
        self.sum = runtime_context.get_aggregating_state(AggregatingStateDescriptor("sum", Sums()))

    def process_element(self, value, ctx):
        cart = self.cart.value() or value
        cart.n += value.n
        cart.log.append(value.n)
        self.cart.update(cart)
        self.sum.add(value)
        ctx.timer_service().register_event_time_timer(value.at + 5)
        yield cart
        yield self.sum.get()

    def on_timer(self, timestamp, ctx):
        cart = self.cart.value()
        cart.n += 1000
        yield cart


class Raises(KeyedProcesses):
    def process_element(self, value, ctx):
        yield from super().process_element(value, ctx)
        if value.n % 3 == 0:
            value.n = -7
            raise ValueError("no")


class Reduces(ReduceFunction):
    def reduce(self, value, other):
        value.n += other.n
        value.log.append(other.n)
        return value


class Sums(AggregateFunction):
    """Returns its accumulator, and changes it in place."""

    def create_accumulator(self):
        return Cart("", 0, 0)

    def add(self, value, accumulator):
        accumulator.key = value.key
        accumulator.n += value.n
        accumulator.log.append(value.n)
        return accumulator

    def get_result(self, accumulator):
        return accumulator

    def merge(self, accumulator, other):
        accumulator.n += other.n
        accumulator.log += other.log
        return accumulator


class Windows(Careless, ProcessWindowFunction):
    def process(self, key, context, elements):
        yield self.result(*elements)


class Applies(Careless, WindowFunction):
    def apply(self, key, window, inputs):
        yield self.result(*inputs)


class Asks(Careless, AsyncFunction):
    async def async_invoke(self, value):
        return [self.result(value)]


async def shared(value, box=Cart("", 0, 0)):  # noqa: B008
    box.key, box.n = value.key, value.n
    return box


def plain(value, box=Cart("", 0, 0)):  # noqa: B008
    box.key, box.n = value.key, value.n
    return 1, box


class CoMaps(Careless, CoMapFunction):
    def map1(self, value):
        return self.result(value)

    def map2(self, value):
        return self.result(value, value)


class CoFlatMaps(Careless, CoFlatMapFunction):
    def flat_map1(self, value):
        return [self.result(value)]

    def flat_map2(self, value):
        yield self.result(value, value)


class CoProcesses(Careless, CoProcessFunction):
    def process_element1(self, value, ctx):
        yield self.result(value)

    def process_element2(self, value, ctx):
        yield self.result(value, value)


class KeyedCoProcesses(Careless, KeyedCoProcessFunction):
    def process_element1(self, value, ctx):
        ctx.timer_service().register_event_time_timer(value.at + 5)
        yield self.result(value)

    def process_element2(self, value, ctx):
        yield self.result(value, value)

    def on_timer(self, timestamp, ctx):
        self.box.n += 1
        yield self.box


class Broadcasts(Careless, BroadcastProcessFunction):
    """Emits an entry of the broadcast state, and changes it later."""

    def process_element(self, value, ctx):
        yield self.result(value)
        yield ctx.get_broadcast_state(RULES).get("rule")

    def process_broadcast_element(self, value, ctx):
        rule = ctx.get_broadcast_state(RULES).get("rule") or value
        rule.n += 1
        ctx.get_broadcast_state(RULES).put("rule", rule)
        yield rule


class KeyedBroadcasts(Careless, KeyedBroadcastProcessFunction):
    process_element = Broadcasts.process_element
    process_broadcast_element = Broadcasts.process_broadcast_element


def pairs(left, right, ctx, function=Careless()):  # noqa: B008
    left.n += 1
    yield left, right, function.result(left, right)


def grouped(firsts, seconds, function=Careless()):  # noqa: B008
    return [function.result(*firsts, *seconds)] if firsts or seconds else []


def joined(left, right, function=Careless()):  # noqa: B008
    return left, function.result(left, right)


def by_key(stream: Any) -> Any:
    return stream.key_by(lambda value: value.key)


def near(a: Any, b: Any) -> Any:
    return by_key(a).interval_join(by_key(b)).between(-9, 12)


TUMBLING, SLIDING = TumblingEventTimeWindows.of(10), SlidingEventTimeWindows.of(20, 5)
SESSIONS = EventTimeSessionWindows.with_gap(6)
EACH = CountTrigger.of(1)

#: Programs by the method that makes their operator. A dict is of several outputs.
PROGRAMS: dict[str, list[Callable[..., Any]]] = {
    "DataStream.map": [lambda s: s.map(Maps()), lambda s: s.map(Maps(), on_error=LETTERS)],
    "DataStream.flat_map": [lambda s: s.flat_map(FlatMaps())],
    "DataStream.filter": [lambda s: s.filter(Filters())],
    "DataStream.process": [
        lambda s: s.process(Processes()),
        lambda s: s.process(Processes()).get_side_output(SIDE),
    ],
    "DataStream.map_async": [
        lambda s: s.map_async(shared, ordered=True, timeout=None),
        lambda s: s.map_async(plain, ordered=True, timeout=None, capacity=1),
        lambda s: s.map_async(shared, ordered=True, timeout=None, cache=AsyncCache(key=lambda v: v.key)).map(spoil),
    ],
    "AsyncDataStream.ordered_wait": [lambda s: AsyncDataStream.ordered_wait(s, Asks(), 1000)],
    "AsyncDataStream.unordered_wait": [lambda s: AsyncDataStream.unordered_wait(s, Asks(), 1000)],
    "KeyedStream.process": [
        lambda s: by_key(s).process(KeyedProcesses()),
        lambda s: by_key(s).process(Raises(), on_error=LETTERS),
        lambda s: (
            by_key(s).process(Raises(), on_error=LETTERS).get_side_output(LETTERS).map(lambda letter: letter.value)
        ),
    ],
    "KeyedStream.reduce": [lambda s: by_key(s).reduce(Reduces())],
    "WindowedStream.process": [lambda s: by_key(s).window(TUMBLING).process(Windows())],
    "WindowedStream.apply": [lambda s: by_key(s).window(SESSIONS).apply(Applies())],
    "WindowedStream.reduce": [
        *(lambda s, of=of: by_key(s).window(of).reduce(Reduces()) for of in (TUMBLING, SLIDING, SESSIONS)),
        lambda s: by_key(s).window(SLIDING).trigger(EACH).reduce(Reduces()),
        lambda s: by_key(s).window(GlobalWindows.create()).trigger(EACH).reduce(Reduces()),
    ],
    "WindowedStream.aggregate": [
        *(lambda s, of=of: by_key(s).window(of).aggregate(Sums()) for of in (TUMBLING, SLIDING, SESSIONS)),
        lambda s: by_key(s).window(SLIDING).trigger(EACH).aggregate(Sums()),
        lambda s: by_key(s).window(GlobalWindows.create()).trigger(EACH).aggregate(Sums(), Windows()),
    ],
    "ConnectedStreams.map": [lambda a, b: a.connect(b).map(CoMaps())],
    "ConnectedStreams.flat_map": [lambda a, b: a.connect(b).flat_map(CoFlatMaps())],
    "ConnectedStreams.process": [
        lambda a, b: a.connect(b).process(CoProcesses()),
        lambda a, b: by_key(a).connect(by_key(b)).process(KeyedCoProcesses()),
    ],
    "BroadcastConnectedStream.process": [
        lambda a, b: a.connect(b.broadcast(RULES)).process(Broadcasts()),
        lambda a, b: by_key(a).connect(b.broadcast(RULES)).process(KeyedBroadcasts()),
    ],
    "IntervalJoin.process": [lambda a, b: near(a, b).process(pairs)],
    "CoGroupedWindows.apply": [
        lambda a, b: a.co_group(b).where(key).equal_to(key).window(TUMBLING).apply(grouped),
    ],
    "JoinedWindows.apply": [lambda a, b: a.join(b).where(key).equal_to(key).window(TUMBLING).apply(joined)],
}
NO_FUNCTION = {
    *("DataStream.key_by", "KeyedStream.deduplicate", "KeyedStream.in_event_time_order", "IntervalJoin.columns"),
    *(f"KeyedStream.{fold}" for fold in ("sum", "min", "max", "min_by", "max_by")),
    *(f"WindowedStream.{fold}" for fold in ("sum", "min", "max", "min_by", "max_by")),
}


def key(value: Cart) -> str:
    return value.key


def spoil(value: Cart) -> Cart:
    value.n += 1
    return value


def test_every_operator_with_a_function_has_a_program():
    assert {entry.method for entry in OPERATORS} - NO_FUNCTION == set(PROGRAMS)


def carts(*, later: int = 0) -> list[Cart]:
    return [Cart("ab"[number % 2], number, later + number, [number]) for number in range(1, 9)]


def results(build: Callable[..., Any], *, together: bool) -> list[Any]:
    inputs = build.__code__.co_argcount - len(build.__defaults__ or ())

    def program(env: Any, first: Any, second: Any) -> Any:
        times = WatermarkStrategy.for_bounded_out_of_orderness(1000).with_timestamp_assigner(lambda value: value.at)
        sources = [stream.assign_timestamps_and_watermarks(times) for stream in (first, second)]
        stream = build(*sources[:inputs])
        outputs = {"seen": stream.map(seen), "branch": stream.map(seen)}
        return {**outputs, "unused": second.map(seen)}

    with ProgramTestHarness(program) as harness:
        for name, values in (("first", carts()), ("second", carts(later=3))):
            if together:
                harness.push_all(name, values)
                harness.run_epoch()
            else:
                for value in values:
                    harness.push(name, value)
                    harness.run_epoch()
        harness.end_input()
        assert harness.get_output("seen") == harness.get_output("branch")
        return sorted(harness.get_output("seen"), key=repr)


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(program_, id=f"{method}-{number}")
        for method, of in PROGRAMS.items()
        for number, program_ in enumerate(of)
    ],
)
def test_an_emitted_value_never_changes(build):
    expected = results(build, together=False)
    assert expected
    assert results(build, together=True) == expected


def emptied(cart):
    cart.log.clear()
    return True


def test_consumers_of_a_stream_have_records_of_their_own():
    env = StreamExecutionEnvironment()
    source = env.from_collection(carts()).map(lambda cart: cart)
    spoilt = source.map(spoil).map(lambda cart: ("spoilt", cart.n))
    more = source.filter(emptied).map(lambda cart: ("more", len(cart.log)))
    cart_sizes = source.map(lambda cart: ("kept", cart.n, len(cart.log)))
    results = spoilt.union(more, cart_sizes).execute_and_collect()
    assert sorted(results) == sorted(
        output for n in range(1, 9) for output in (("spoilt", n + 1), ("more", 0), ("kept", n, 1))
    )


def test_object_reuse_copies_nothing():
    env = StreamExecutionEnvironment().enable_object_reuse()
    results = env.from_collection(carts()).map(Maps()).map(lambda cart: cart.n).execute_and_collect()
    assert results == [8] * 8


def test_an_uncopyable_value_is_refused_with_operator_type_and_remedy():
    import threading

    env = StreamExecutionEnvironment()
    numbers = env.from_collection([1])
    locks = numbers.map(lambda n: (n, threading.Lock())).name("locks")
    with pytest.raises(Exception, match=r"operator 'locks' emitted .*cannot be copied.*immutable\(lock\)"):
        locks.map(lambda pair: pair[0]).execute_and_collect()
    asked = numbers.map_async(lambda n: threading.Lock(), timeout=None, on_failure="drop").name("ask")
    with pytest.raises(Exception, match=r"operator 'ask' emitted .*cannot be copied"):
        asked.map(lambda lock: 1).execute_and_collect()
    reuse = StreamExecutionEnvironment().enable_object_reuse().from_collection([1])
    assert reuse.map(lambda n: (n, threading.Lock())).map(lambda pair: pair[0]).execute_and_collect() == [1]
