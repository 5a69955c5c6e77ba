# mypy: ignore-errors
"""Programs from Flink's documentation with service calls, partitioning, and batch execution."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from typing import Any

import pytest

from pillarbox import (
    AsyncDataStream,
    AsyncFunction,
    AsyncRetryStrategy,
    CheckpointedFunction,
    CoFlatMapFunction,
    CoMapFunction,
    Evictor,
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    NeverTrigger,
    OperatorError,
    Partitioner,
    ProcessWindowFunction,
    ProgramError,
    RuntimeContext,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    Time,
    TriggerResult,
    Types,
    WatermarkStrategy,
    async_retry_predicates,
)
from pillarbox.testing import ProgramTestHarness


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment()


# -- asynchronous requests --


class DatabaseRequest(AsyncFunction):
    def __init__(self, requests: int) -> None:
        self.requests = requests

    def open(self, runtime_context: RuntimeContext) -> None:
        self.answered = 0
        self.others = asyncio.Event()

    async def async_invoke(self, value: int) -> list[tuple[int, str]]:
        if value == 0:
            await self.others.wait()
        self.answered += 1
        if self.answered == self.requests - 1:
            self.others.set()
        return [(value, f"row {value}")]


ROW = Types.TUPLE([Types.INT(), Types.STRING()])


def test_ordered_and_unordered_requests(env):
    numbers = env.from_collection(range(5))
    rows = [(n, f"row {n}") for n in range(5)]
    ordered = AsyncDataStream.ordered_wait(numbers, DatabaseRequest(5), Time.seconds(60), 100, ROW)
    assert ordered.execute_and_collect() == rows
    unordered = AsyncDataStream.unordered_wait(numbers, DatabaseRequest(5), Time.seconds(60), 100, ROW)
    results = list(unordered.execute_and_collect())
    assert sorted(results) == rows
    assert results[-1] == rows[0]


class Unanswered(AsyncFunction):
    async def async_invoke(self, value: int) -> list[str]:
        if value == 1:
            await asyncio.Event().wait()
        return [f"row {value}"]


class WithDefault(Unanswered):
    def timeout(self, value: int) -> list[str]:
        return [f"none for {value}"]


def asked(function: AsyncFunction):
    def build(env, numbers):
        return AsyncDataStream.ordered_wait(numbers, function, timeout=Time.seconds(1), output_type=Types.STRING())

    return ProgramTestHarness(build)


def test_a_request_without_answer_has_the_result_of_timeout():
    with asked(WithDefault()) as harness:
        harness.push("numbers", 0, 1, 2)
        assert harness.run_epoch(time_passes="1 second")["output"] == ["row 0", "none for 1", "row 2"]


def test_a_request_without_answer_fails_the_job():
    with asked(Unanswered()) as harness:
        harness.push("numbers", 0, 1, 2)
        with pytest.raises(OperatorError, match="no result within the timeout for 1"):
            harness.run_epoch(time_passes="1 second")


class Flaky(AsyncFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.attempts: Counter[int] = Counter()

    async def async_invoke(self, value: int) -> list[str]:
        self.attempts[value] += 1
        if self.attempts[value] == 1:
            return []
        if self.attempts[value] == 2:
            raise ConnectionError("not yet")
        return [f"{value}, attempt {self.attempts[value]}"]


@pytest.mark.parametrize(
    "strategy",
    [
        AsyncRetryStrategy.fixed_delay(
            3, 1, async_retry_predicates.empty_result_predicate, async_retry_predicates.has_exception_predicate
        ),
        AsyncRetryStrategy.exponential_backoff(
            max_attempts=3,
            initial_delay=1,
            max_retry_delay=4,
            multiplier=2,
            result_predicate=async_retry_predicates.empty_result_predicate,
            exception_predicate=async_retry_predicates.has_exception_predicate,
        ),
    ],
)
@pytest.mark.parametrize("wait", ["ordered_wait_with_retry", "unordered_wait_with_retry"])
def test_requests_are_made_again(env, strategy, wait):
    ask = getattr(AsyncDataStream, wait)
    result = ask(env.from_collection([1, 2]), Flaky(), Time.seconds(60), strategy, 100, Types.STRING())
    assert sorted(result.execute_and_collect()) == ["1, attempt 3", "2, attempt 3"]


def test_without_another_attempt_there_is_no_result(env):
    once = AsyncRetryStrategy.no_restart()
    result = AsyncDataStream.ordered_wait_with_retry(env.from_collection([1]), Flaky(), Time.seconds(60), once)
    assert result.execute_and_collect() == []


# -- partitioning --


class Subtask(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.place = runtime_context.get_index_of_this_subtask()

    def map(self, value: Any) -> Any:
        return self.place, value


class Modulo(Partitioner):
    def partition(self, key: int, num_partitions: int) -> int:
        return key % num_partitions


def test_partitioning(env):
    pairs = [(n, "ab"[n % 2]) for n in range(12)]
    stream = env.set_parallelism(3).from_collection(pairs)

    def spread(partitioned) -> list[Any]:
        return sorted(partitioned.map(Subtask()).execute_and_collect())

    by_rest = sorted((n % 3, (n, letter)) for n, letter in pairs)
    assert spread(stream.partition_custom(lambda key, num_partition: key % num_partition, lambda x: x[0])) == by_rest
    assert spread(stream.partition_custom(Modulo(), lambda x: x[0])) == by_rest
    assert spread(stream.broadcast()) == sorted((index, pair) for index in range(3) for pair in pairs)
    assert spread(stream.global_()) == [(0, pair) for pair in pairs]
    assert Counter(subtask for subtask, _ in spread(stream.rebalance())) == {0: 4, 1: 4, 2: 4}
    assert sorted(pair for _, pair in spread(stream.shuffle())) == pairs
    assert sorted(pair for _, pair in spread(stream.rescale())) == pairs
    assert sorted(pair for _, pair in spread(stream.forward())) == pairs
    assert sorted(stream.union(stream).execute_and_collect()) == sorted(2 * pairs)


class PlusOneOrText(CoMapFunction):
    def map1(self, value: tuple[int, str]) -> Any:
        return value[0] + 1, value[1]

    def map2(self, value: tuple[int, str]) -> Any:
        return value[0], value[1] + " flink"


def test_chains_do_not_change_results(env):
    pairs, others = env.from_collection([(1, "a")]), env.from_collection([(7, "b")])
    mapped = (
        pairs.connect(others).map(PlusOneOrText(), ROW).start_new_chain().filter(lambda pair: True).disable_chaining()
    )
    assert sorted(mapped.execute_and_collect()) == [(2, "a"), (7, "b flink")]


# -- execution modes --


class Words(FlatMapFunction):
    def flat_map(self, value: str) -> Any:
        for word in value.split():
            yield word, 1


@pytest.mark.parametrize(
    ("mode", "rolling"),
    [
        (RuntimeExecutionMode.STREAMING, True),
        (RuntimeExecutionMode.BATCH, False),
        (RuntimeExecutionMode.AUTOMATIC, False),
    ],
)
def test_word_count_by_mode(env, mode, rolling):
    env.set_runtime_mode(mode)
    words = env.set_parallelism(2).from_collection(["to be or not", "to be"]).flat_map(Words(), COUNT)
    counted = list(words.key_by(lambda pair: pair[0]).sum(1).execute_and_collect())
    final = {"to": 2, "be": 2, "or": 1, "not": 1}
    assert len(counted) == (6 if rolling else 4)
    assert dict(counted) == final


COUNT = Types.TUPLE([Types.STRING(), Types.INT()])


# -- methods of Flink's Java API --


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("from_elements", "from_collection"),
        ("from_data", "from_collection"),
        ("from_sequence", "range"),
        ("read_text_file", "from_dataframe"),
        ("socket_text_stream", "from_dataframe"),
    ],
)
def test_sources_of_java_say_what_to_do_instead(env, name, instead):
    assert not hasattr(env, name)
    with pytest.raises(ProgramError, match=rf"{name}\(\): .*{instead}"):
        getattr(env, name)


@pytest.mark.parametrize(
    ("name", "instead"), [("iterate", "another source"), ("full_window_partition", "GlobalWindows")]
)
def test_methods_of_javas_streams_say_what_to_do_instead(env, name, instead):
    stream = env.from_collection([1])
    assert not hasattr(stream, name)
    with pytest.raises(ProgramError, match=rf"{name}\(\): .*{instead}") as caught:
        getattr(stream.key_by(lambda n: n), name)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # as received from a worker


# -- parameters in Java: a collector, a context, a size --


class ProcessWithCollector(KeyedProcessFunction):
    def process_element(self, value, ctx, out):
        out.collect(value)


class TimerWithCollector(KeyedProcessFunction):
    def process_element(self, value, ctx):
        return []

    def on_timer(self, timestamp, ctx, out):
        out.collect(timestamp)


class FlatMapWithCollector(FlatMapFunction):
    def flat_map(self, value, out):
        out.collect(value)


class OpenWithoutContext(MapFunction):
    def open(self):
        pass

    def map(self, value):
        return value


class RequestWithFuture(AsyncFunction):
    async def async_invoke(self, value, result_future):
        result_future.complete([value])


class WindowWithCollector(ProcessWindowFunction):
    def process(self, key, context, elements, out):
        out.collect(key)


class EvictorWithSize(Evictor):
    def evict_before(self, elements, size, window, ctx):
        pass

    def evict_after(self, elements, window, ctx):
        pass


class TriggerWithoutTime(NeverTrigger):
    def on_event_time(self, window, ctx):
        return TriggerResult.FIRE


class SnapshotWithoutContext(MapFunction, CheckpointedFunction):
    def initialize_state(self, context):
        pass

    def snapshot_state(self):
        pass

    def map(self, value):
        return value


class CoWithCollector(CoFlatMapFunction):
    def flat_map1(self, value):
        return [value]

    def flat_map2(self, value, out):
        out.collect(value)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda s: s.key_by(str).process(ProcessWithCollector()), r"process_element\(\) takes \(value, ctx, out\)"),
        (lambda s: s.key_by(str).process(TimerWithCollector()), r"on_timer\(\) takes \(timestamp, ctx, out\)"),
        (lambda s: s.flat_map(FlatMapWithCollector()), r"flat_map\(\) takes \(value, out\)"),
        (lambda s: s.flat_map(lambda value, out: out.collect(value)), r"<lambda>.* takes \(value, out\).*\(value\)"),
        (lambda s: s.process(lambda value: [value]), r"takes \(value\): .*called with \(value, ctx\)"),
        (lambda s: s.key_by(str).reduce(lambda a: a), r"takes \(a\): .*called with \(value1, value2\)"),
        (lambda s: s.map(OpenWithoutContext()), r"open\(\) takes \(\): .*called with \(runtime_context\)"),
        (lambda s: AsyncDataStream.ordered_wait(s, RequestWithFuture(), 1), r"async_invoke\(\) takes"),
        (lambda s: s.key_by(str).count_window(2).process(WindowWithCollector()), r"process\(\) takes"),
        (lambda s: s.count_window_all(2).evictor(EvictorWithSize()), r"evict_before\(\) takes"),
        (lambda s: s.count_window_all(2).trigger(TriggerWithoutTime()), r"on_event_time\(\) takes"),
        (lambda s: s.rebalance().map(SnapshotWithoutContext()), r"snapshot_state\(\) takes \(\)"),
        (lambda s: s.connect(s).flat_map(CoWithCollector()), r"flat_map2\(\) takes"),
        (lambda s: s.partition_custom(lambda key: 0, lambda x: x), r"called with \(key, num_partitions\)"),
        (lambda s: WatermarkStrategy.for_generator(lambda context: None), r"without arguments: .*'context'"),
    ],
)
def test_functions_with_other_parameters_are_refused(env, build, says):
    with pytest.raises(ProgramError, match=says):
        build(env.from_collection([1]))


def test_functions_may_take_more_with_defaults(env):
    assert env.from_collection([2]).map(lambda value, factor=3: value * factor).execute_and_collect() == [6]
    assert env.from_collection([2]).map(lambda *values: values).execute_and_collect() == [(2,)]
    assert env.from_collection([2, 3]).key_by(lambda n: 0).reduce(max).execute_and_collect() == [2, 3]
    assert env.from_collection(["2"]).map(int).execute_and_collect() == [2]
