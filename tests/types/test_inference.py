"""Types inferred by type checkers. `make types` checks this file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pillarbox import (
    AggregateFunction,
    AggregatingState,
    AggregatingStateDescriptor,
    AsyncDataStream,
    AsyncFunction,
    ConnectedStreams,
    CoProcessFunction,
    DataStream,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeyedStream,
    ListState,
    ListStateDescriptor,
    MapFunction,
    MapState,
    MapStateDescriptor,
    OutputTag,
    ReducingState,
    ReducingStateDescriptor,
    Row,
    RuntimeContext,
    StreamExecutionEnvironment,
    Types,
    ValueState,
    ValueStateDescriptor,
)
from pillarbox.testing import harness_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from typing_extensions import assert_type
else:

    def assert_type(value: Any, kind: Any) -> Any:
        return value


class Event:
    def __init__(self, user: str, amount: int) -> None:
        self.user = user
        self.amount = amount


class Length(MapFunction[str, int]):
    def map(self, word: str) -> int:
        return len(word)


class Total(KeyedProcessFunction[str, Event, tuple[str, int]]):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor[int]("total"))
        assert_type(self.total, ValueState[int])

    def process_element(self, event: Event, ctx: KeyedProcessFunction.Context[str]) -> Iterator[tuple[str, int]]:
        assert_type(ctx.get_current_key(), str)
        self.total.update((self.total.value() or 0) + event.amount)
        yield event.user, self.total.value() or 0


class Untyped(KeyedProcessFunction):
    def process_element(self, anything, context):
        yield anything


class Mean(AggregateFunction[float, tuple[float, int], float]):
    def create_accumulator(self) -> tuple[float, int]:
        return 0.0, 0

    def add(self, number: float, so_far: tuple[float, int]) -> tuple[float, int]:
        return so_far[0] + number, so_far[1] + 1

    def get_result(self, so_far: tuple[float, int]) -> float:
        return so_far[0] / so_far[1]


class Score(AsyncFunction[str, float]):
    async def async_invoke(self, card: str) -> list[float]:
        return [float(len(card))]


class Both(KeyedCoProcessFunction[str, Event, int, str]):
    def process_element1(self, event: Event, ctx: KeyedCoProcessFunction.Context[str]) -> Iterator[str]:
        yield event.user

    def process_element2(self, number: int, ctx: KeyedCoProcessFunction.Context[str]) -> Iterator[str]:
        yield ctx.get_current_key()

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext[str]) -> Iterator[str]:
        assert_type(ctx.get_current_key(), str)
        yield ctx.get_current_key()


class Either(CoProcessFunction[Event, int, str]):
    def process_element1(self, event: Event, ctx: CoProcessFunction.Context) -> Iterator[str]:
        yield event.user

    def process_element2(self, number: int, ctx: CoProcessFunction.Context) -> Iterator[str]:
        assert_type(ctx.timer_service().current_watermark(), int)
        yield str(number)


def test_streams_know_their_records():
    env = StreamExecutionEnvironment()
    numbers = env.from_collection([1, 2])
    assert_type(numbers, DataStream[int])
    assert_type(numbers.map(str), DataStream[str])
    assert_type(numbers.map(lambda n: n / 2), DataStream[float])
    assert_type(numbers.map(str).map(Length()), DataStream[int])
    assert_type(numbers.map(str).flat_map(str.split), DataStream[str])
    assert_type(numbers.filter(lambda n: n > 1), DataStream[int])
    assert_type(numbers.rebalance().name("numbers"), DataStream[int])
    assert_type(numbers.union(numbers.map(str)), DataStream[int | str])
    assert_type(numbers.execute_and_collect()[0], int)
    assert_type(env.from_collection([("a", 1)], Types.ROW([Types.STRING(), Types.INT()])), DataStream[Row])
    assert_type(env.from_collection([["a"]], Types.LIST(Types.STRING())), DataStream[list[str]])


def test_keyed_streams_know_their_keys():
    events = StreamExecutionEnvironment().from_collection([Event("ann", 5)])
    by_user = events.key_by(lambda event: event.user)
    assert_type(by_user, KeyedStream[str, Event])
    assert_type(events.key_by("user"), KeyedStream[Any, Event])
    assert_type(events.key_by("user", "amount"), KeyedStream[Any, Event])
    assert_type(events.key_by(lambda event: event.amount, Types.STRING()), KeyedStream[str, Event])
    assert_type(by_user.process(Total()), DataStream[tuple[str, int]])
    assert_type(by_user.process(Untyped()), DataStream[Any])
    assert_type(by_user.reduce(lambda a, b: a if a.amount > b.amount else b), DataStream[Event])
    assert_type(events.connect(events.map(lambda event: event.amount)), ConnectedStreams[Event, int])


def test_side_outputs_know_their_records():
    refund = OutputTag[int]("refund")

    def split(amount: int, ctx: Any) -> Iterator[int | tuple[OutputTag[int], int]]:
        yield amount if amount > 0 else (refund, -amount)

    payments = StreamExecutionEnvironment().from_collection([5, -7]).process(split)
    assert_type(payments.get_side_output(refund), DataStream[int])


def test_async_functions_return_their_results():
    cards = StreamExecutionEnvironment().from_collection(["ann"])

    async def score(card: str) -> float:
        return float(len(card))

    async def scores(cards: list[str]) -> list[float]:
        return [float(len(card)) for card in cards]

    assert_type(cards.map_async(score, capacity=3), DataStream[float])
    assert_type(cards.map_async(len), DataStream[int])
    assert_type(cards.map_async(scores, batch_size=10), DataStream[float])
    assert_type(AsyncDataStream.ordered_wait(cards, Score(), "1 second"), DataStream[float])


def declare(runtime_context: RuntimeContext) -> None:
    assert_type(runtime_context.get_state(ValueStateDescriptor("v", Types.LONG())), ValueState[int])
    assert_type(runtime_context.get_state(ValueStateDescriptor("v", int)), ValueState[int])
    assert_type(runtime_context.get_state(ValueStateDescriptor("v")), ValueState[Any])
    assert_type(runtime_context.get_list_state(ListStateDescriptor[str]("l")), ListState[str])
    assert_type(runtime_context.get_map_state(MapStateDescriptor[str, int]("m")), MapState[str, int])
    larger = ReducingStateDescriptor[int]("r", max)
    assert_type(runtime_context.get_reducing_state(larger), ReducingState[int])
    assert_type(
        runtime_context.get_aggregating_state(AggregatingStateDescriptor("a", Mean())), AggregatingState[float, float]
    )


def read(frame: DataFrame) -> None:
    assert_type(StreamExecutionEnvironment().from_dataframe(frame), DataStream[Row])


def test_parameters_are_forgotten_at_run_time():
    assert Length.__mro__.count(MapFunction) == 1
    assert isinstance(ValueStateDescriptor[int]("count"), ValueStateDescriptor)

    # The number of parameters is not checked.
    class Some(KeyedProcessFunction[str]):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield value

    with harness_for(Some(), key_by=lambda value: value) as harness:
        harness.push("x")
        assert harness.get_output() == ["x"]
