# mypy: ignore-errors
from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

import pytest

from pillarbox import (
    AsyncDataStream,
    AsyncFunction,
    AsyncRetryPredicate,
    AsyncRetryStrategy,
    CoMapFunction,
    CountSlidingWindowAssigner,
    CountTrigger,
    CountTumblingWindowAssigner,
    DataStreamSink,
    DynamicEventTimeSessionWindows,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindow,
    GlobalWindows,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    MergingWindowAssigner,
    OutputTag,
    PillarboxError,
    ProcessFunction,
    ProcessWindowFunction,
    ProgramError,
    PurgingTrigger,
    Row,
    RuntimeContext,
    SessionWindowTimeGapExtractor,
    StreamExecutionEnvironment,
    Time,
    TimestampAssigner,
    TimeWindow,
    Trigger,
    TriggerResult,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
    WindowAssigner,
    WindowFunction,
    async_retry_predicates,
)

PAYMENT = Types.ROW_NAMED(["card", "amount"], [Types.STRING(), Types.INT()])
PAIR = Types.TUPLE([Types.STRING(), Types.INT()])


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment()


class SecondColumn(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1])


class ByCard(KeySelector):
    def get_key(self, value: Any) -> str:
        return str(value[0])


# -- results have the declared type --


def test_results_of_a_row_type_have_its_names(env):
    rows = env.from_collection([("ann", 5)]).map(lambda pair: Row(pair[0], pair[1]), output_type=PAYMENT)
    assert rows.key_by(lambda row: row.card).map(lambda row: (row.amount, row)).execute_and_collect() == [
        (5, Row(card="ann", amount=5))
    ]
    assert repr(rows.execute_and_collect()) == "[Row(card='ann', amount=5)]"


def test_tuples_get_the_names_of_declared_columns(env):
    late = OutputTag("late", "card STRING, n LONG")

    def pairs(number, ctx):
        yield late, (f"late {number}", number)
        yield f"c{number % 2}", number

    mapped = env.from_collection([1, 2, 3]).process(pairs, "card STRING, n LONG")
    assert mapped.key_by("card").sum("n").execute_and_collect() == [("c1", 1), ("c0", 2), ("c1", 4)]
    assert mapped.map(lambda pair: pair.n + pair[1]).execute_and_collect() == [2, 4, 6]
    late_ones = mapped.get_side_output(late).map(lambda pair: pair.card).execute_and_collect()
    assert late_ones == ["late 1", "late 2", "late 3"]
    # A value that is not a tuple of that length is unchanged.
    others = env.from_collection([(1, 2, 3), [1, 2], {"a": 1}, (4, 5)]).map(lambda value: value, "a INT, b INT")
    assert [type(result).__name__ for result in others.execute_and_collect()] == ["tuple", "list", "dict", "Row"]


def test_named_rows_are_taken_by_name(env):
    swapped = env.from_collection([5]).map(lambda amount: Row(amount=amount, card="ann"), output_type=PAYMENT)
    assert repr(swapped.execute_and_collect()) == "[Row(card='ann', amount=5)]"


def test_results_of_a_tuple_type_are_tuples_and_floats_have_32_bits(env):
    rows = env.from_collection([("ann", 0.1)], Types.ROW([Types.STRING(), Types.FLOAT()]))
    as_tuples = rows.map(lambda row: row, output_type=Types.TUPLE([Types.STRING(), Types.FLOAT()]))
    (result,) = as_tuples.execute_and_collect()
    assert type(result) is tuple
    assert result == ("ann", 0.10000000149011612)


def test_a_result_that_does_not_fit_is_named_with_its_operator_and_field(env):
    wrong = env.from_collection([1, 2]).map(lambda n: Row("ann", n if n == 1 else "two"), PAYMENT).name("payments")
    with pytest.raises(PillarboxError, match="operator 'payments': a result: the field 'amount' is") as caught:
        wrong.execute_and_collect()
    assert "record Row(f0='ann', f1='two')" in str(caught.value)


def test_reduce_keeps_the_type_of_its_records(env):
    payments = env.from_collection([("ann", 5), ("ann", 7), ("ann", 9)], PAYMENT).key_by(ByCard())
    total = payments.reduce(lambda a, b: Row(a[0], a[1] + b[1]))
    assert total.map(lambda row: row.amount).execute_and_collect() == [5, 12, 21]


def test_reduce_emits_records_of_the_declared_type(env):
    def add(a: Row, b: Row) -> Row:
        return Row(a.card, a.amount + b.amount)

    class Amount(ProcessWindowFunction):
        def process(self, key: str, content: Any, elements: Iterable[Row]) -> Iterable[int]:
            yield from (row.amount for row in elements)

    amounts = (5, 7, 9)
    payments = env.from_collection([("ann", amount) for amount in amounts], PAYMENT)
    keyed = payments.key_by(ByCard())
    assert keyed.reduce(add).map(lambda row: row.amount).execute_and_collect() == [5, 12, 21]
    assert keyed.count_window(3).reduce(add).map(lambda row: row.amount).execute_and_collect() == [21]
    assert keyed.count_window(3).reduce(add, Amount()).execute_and_collect() == [21]
    assert payments.count_window_all(3).reduce(add).map(lambda row: row.amount).execute_and_collect() == [21]
    for wrong in (keyed.reduce(lambda a, b: (1, 2)), keyed.count_window(2).reduce(lambda a, b: (1, 2))):
        with pytest.raises(
            PillarboxError,
            match=r"reduce'?: a result: the field 'card' .* value 1 does not",
        ):
            wrong.execute_and_collect()


def test_side_outputs_have_the_type_of_their_tag(env):
    side = OutputTag("side", PAYMENT)

    class Split(ProcessFunction):
        def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any]:
            yield value
            yield side, Row("ann", value)

    split = env.from_collection([5]).process(Split(), output_type=Types.INT())
    rows = split.get_side_output(output_tag=side)
    assert rows.map(lambda row: row.amount).execute_and_collect() == [5]
    twice = rows.union(rows).key_by(ByCard()).reduce(lambda a, b: (a[0], a[1] + b[1]))
    assert twice.map(lambda row: row.amount).execute_and_collect() == [5, 10]


def test_windows_and_co_functions_have_the_declared_type(env):
    class Sum(WindowFunction[tuple, Row, str, Any]):
        def apply(self, key: str, window: Any, inputs: Iterable[Any]) -> list[Row]:
            return [Row(key, sum(input_[1] for input_ in inputs))]

    class Same(CoMapFunction):
        def map1(self, value: Any) -> Row:
            return Row(value[0], value[1])

        def map2(self, value: Any) -> Row:
            return Row(value[0], -value[1])

    pairs = env.from_collection([("ann", 5), ("ann", 7)], PAIR)
    summed = pairs.key_by(ByCard(), key_type=Types.STRING()).count_window(2).apply(Sum(), PAYMENT)
    assert summed.map(lambda row: row.amount).execute_and_collect() == [12]
    connected = pairs.connect(pairs).map(Same(), output_type=PAYMENT)
    assert sorted(connected.map(lambda row: row.amount).execute_and_collect()) == [-7, -5, 5, 7]


# -- parameters and names --


def test_connected_streams_take_a_key_type(env):
    class Which(CoMapFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            self.seen = runtime_context.get_state(state_descriptor=ValueStateDescriptor("seen", Types.INT()))

        def map1(self, value: Any) -> int:
            self.seen.update((self.seen.value() or 0) + 1)
            return self.seen.value() or 0

        map2 = map1

    left, right = env.from_collection([1, 2]), env.from_collection([1])
    keyed = left.connect(ds=right).key_by(lambda n: n, lambda n: n, key_type=Types.INT())
    assert sorted(keyed.map(Which(), Types.INT()).execute_and_collect()) == [1, 1, 2]
    with pytest.raises(PillarboxError, match="a key: 1 does not fit string"):
        left.connect(right).key_by(lambda n: n, lambda n: n, Types.STRING()).map(Which()).execute_and_collect()


class Tumbling(WindowAssigner[tuple, TimeWindow]):
    """A custom assigner from PyFlink's documentation."""

    def __init__(self, size: int, trigger_size: int | None = None) -> None:
        self._size = size
        self._trigger_size = trigger_size

    def assign_windows(
        self, element: tuple[Any, ...], timestamp: int | None, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        assert timestamp is not None
        start = TimeWindow.get_window_start_with_offset(timestamp, 0, self._size)
        return [TimeWindow(start, start + self._size)]

    def get_default_trigger(self, env: StreamExecutionEnvironment) -> Trigger[tuple, TimeWindow]:
        assert isinstance(env, StreamExecutionEnvironment)
        return EventTimeTrigger()

    def get_window_serializer(self) -> Any:
        raise AssertionError("there is no need for one")

    def is_event_time(self) -> bool:
        return True


class CountElements(ProcessWindowFunction[tuple, tuple, str, TimeWindow]):
    def process(
        self, key: str, content: ProcessWindowFunction.Context[TimeWindow], elements: Iterable[tuple[Any, ...]]
    ) -> Iterable[tuple[Any, ...]]:
        return [(key, content.window().start, len(list(elements)))]

    def clear(self, context: ProcessWindowFunction.Context[TimeWindow]) -> None:
        pass


def timed(env: StreamExecutionEnvironment, times: Iterable[int]) -> Any:
    at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(timestamp_assigner=SecondColumn())
    pairs = env.from_collection([("hi", time) for time in times], type_info=PAIR)
    return pairs.assign_timestamps_and_watermarks(watermark_strategy=at).key_by(lambda x: x[0], key_type=Types.STRING())


def test_a_window_assigner_of_ones_own_runs(env):
    counted = timed(env, [1, 2, 8]).window(window_assigner=Tumbling(5)).process(CountElements(), output_type=None)
    assert counted.execute_and_collect() == [("hi", 0, 2), ("hi", 5, 1)]


class EverySecond(Trigger[tuple, GlobalWindow]):
    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        counter = ctx.get_metric_group().counter("elements")
        counter.inc()
        return TriggerResult.FIRE_AND_PURGE if counter.get_count() % 2 == 0 else TriggerResult.CONTINUE

    def clear(self, window: Any, ctx: Trigger.TriggerContext) -> None:
        pass


def test_a_trigger_of_ones_own_has_metrics(env):
    windows = timed(env, [1, 2, 3, 4]).window(GlobalWindows.create()).trigger(EverySecond())
    assert windows.reduce(lambda a, b: (a[0], a[1] + b[1])).execute_and_collect() == [("hi", 3), ("hi", 7)]


def test_windows_are_made_by_their_constructors_and_keywords(env):
    class Gap(SessionWindowTimeGapExtractor):
        def extract(self, element: Any) -> int:
            return int(element[1])

    class Sum(WindowFunction[tuple, tuple, str, Any]):
        def apply(self, key: str, window: Any, inputs: Iterable[Any]) -> list[int]:
            return [sum(input_[1] for input_ in inputs)]

    def sums(assigner: Any, times: Iterable[int] = (1, 2, 3, 4), trigger: Any = None) -> list[int]:
        windows = timed(env, times).window(assigner)
        return list(
            (windows if trigger is None else windows.trigger(trigger)).apply(Sum(), Types.INT()).execute_and_collect()
        )

    assert sums(CountTumblingWindowAssigner(2)) == [3, 7]
    assert sums(CountSlidingWindowAssigner(2, 1)) == [3, 5, 7]
    assert sums(CountTumblingWindowAssigner.of(window_size=2)) == [3, 7]
    assert sums(CountSlidingWindowAssigner.of(window_size=2, window_slide=1)) == [3, 5, 7]
    assert sums(EventTimeSessionWindows.with_gap(size=Time.milliseconds(3)), (1, 2, 9)) == [3, 9]
    assert sums(DynamicEventTimeSessionWindows.with_dynamic_gap(Gap()), (1, 2, 9)) == [3, 9]
    trigger = PurgingTrigger.of(nested_trigger=CountTrigger.of(window_size=3))
    assert sums(GlobalWindows.create(), trigger=trigger) == [6]
    assert list(timed(env, [1, 2, 3, 4]).count_window(2, 0).apply(Sum()).execute_and_collect()) == [3, 7]
    assert GlobalWindow.get() == GlobalWindow()
    assert TimeWindow.get_window_start_with_offset(-1, 0, 5) == -5
    with pytest.raises(ProgramError, match="the slide must be an element count of at least 1, not -1"):
        timed(env, [1]).count_window(2, -1)


def test_generic_classes_take_their_parameters():
    assert issubclass(MergingWindowAssigner[tuple, TimeWindow].__origin__, WindowAssigner)
    assert MergingWindowAssigner.MergeCallback[TimeWindow].__origin__ is MergingWindowAssigner.MergeCallback

    class Never(AsyncRetryStrategy[int]):
        def can_retry(self, current_attempts: int) -> bool:
            return False

        def get_backoff_time_millis(self, current_attempts: int) -> int:
            return 1

        def get_retry_predicate(self) -> AsyncRetryPredicate[int]:
            raise AssertionError

    assert not Never().can_retry(1)


def test_retry_predicates(env):
    class Flaky(AsyncFunction[Row, int]):
        def __init__(self) -> None:
            self.asked: list[int] = []

        async def async_invoke(self, value: Row) -> list[int]:
            self.asked.append(value.amount)
            if value.amount not in self.asked[:-1]:
                raise TimeoutError
            return [value.amount]

        def timeout(self, value: Row) -> list[int]:
            return [-1]

    strategy = AsyncRetryStrategy.fixed_delay(
        max_attempts=3,
        backoff_time_millis=1,
        result_predicate=async_retry_predicates.empty_result_predicate,
        exception_predicate=partial(async_retry_predicates.exception_type_predicate, expected_error_type=TimeoutError),
    )
    results = AsyncDataStream.unordered_wait_with_retry(
        data_stream=env.from_collection([("ann", 5), ("bob", 7)], PAYMENT),
        async_function=Flaky(),
        timeout=Time.seconds(60),
        async_retry_strategy=strategy,
        capacity=10,
        output_type=Types.INT(),
    )
    assert sorted(results.execute_and_collect()) == [5, 7]
    assert async_retry_predicates.has_exception_predicate(ValueError())
    assert not async_retry_predicates.exception_type_predicate(ValueError(), OSError)


def test_descriptions_of_functions_and_streams(env):
    class Max(MapFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            self.most = runtime_context.get_max_number_of_parallel_subtasks()

        def map(self, value: Any) -> int:
            return self.most

    stream = env.set_max_parallelism(16).from_collection([1]).key_by(lambda n: n).map(Max()).name("most")
    assert stream.get_name() == "most"
    assert stream.get_execution_environment() is env
    assert stream.execute_and_collect() == [16]
    assert isinstance(stream.print("x"), DataStreamSink)
    assert env.is_chaining_enabled()
    assert not env.disable_operator_chaining().is_chaining_enabled()


class Counted(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.INT()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(timestamp=ctx.timestamp() + 10)
        return []

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield Row(ctx.get_current_key(), self.count.value(), timestamp)


def test_rows_without_names_from_timers(env):
    out = Types.ROW([Types.STRING(), Types.INT(), Types.LONG()])
    result = timed(env, [1, 2]).process(Counted(), output_type=out).map(lambda row: (row.f0, row.f1, row.f2))
    assert result.execute_and_collect() == [("hi", 2, 11), ("hi", 2, 12)]


# -- Flink's own --


def test_methods_of_flink_alone_say_what_to_do_instead(env):
    sink = env.from_collection([1]).print()
    for thing, name, says in (
        (env, "enable_checkpointing", "each micro-batch is an exactly-once checkpoint"),
        (env, "from_source", "from_dataframe"),
        (env, "add_python_file", "addArtifact"),
        (env, "get_config", "set_parallelism"),
        (env, "execute_async", r"pillarbox\.start"),
        (env.from_collection([1]), "sink_to", "to_dataframe"),
        (sink, "set_description", "name"),
        (sink, "slot_sharing_group", "drop the call"),
    ):
        assert not hasattr(thing, name)
        with pytest.raises(ProgramError, match=rf"{name}\(\): .*{says}"):
            getattr(thing, name)
    for thing in (env, sink):
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = thing.nothing
    with pytest.raises(ProgramError, match="takes a SparkSession or no argument, not"):
        StreamExecutionEnvironment.get_execution_environment({"python.execution-mode": "thread"})
