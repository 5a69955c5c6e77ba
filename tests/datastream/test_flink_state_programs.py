# mypy: ignore-errors
"""Programs from Flink's documentation with state and timers, such as the walkthrough's fraud detection."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from pillarbox import (
    AggregateFunction,
    AggregatingStateDescriptor,
    BroadcastProcessFunction,
    CheckpointedFunction,
    Duration,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    ReduceFunction,
    ReducingStateDescriptor,
    Row,
    RuntimeContext,
    RuntimeExecutionMode,
    StateTtlConfig,
    StreamExecutionEnvironment,
    TimestampAssigner,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from pillarbox.testing import ProgramTestHarness, harness_for

MINUTE = 60_000


@pytest.fixture(params=[RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH], ids=lambda mode: mode.name)
def env(request: pytest.FixtureRequest) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    return env.set_runtime_mode(request.param)


def first(value: Any) -> Any:
    return value[0]


# -- the process function: a count with a timeout --


@dataclass
class CountWithTimestamp:
    key: str
    count: int = 0
    last_modified: int = 0


class CountWithTimeout(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.state = runtime_context.get_state(ValueStateDescriptor("my state", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value: tuple[str, int], ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        current = self.state.value() or CountWithTimestamp(value[0])
        current.count += 1
        current.last_modified = ctx.timestamp()
        self.state.update(current)
        ctx.timer_service().register_event_time_timer(current.last_modified + MINUTE)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        current = self.state.value()
        if timestamp == current.last_modified + MINUTE:
            yield current.key, current.count


class SecondField(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return value[1]


BY_SECOND_FIELD = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SecondField())
COUNT = Types.TUPLE([Types.STRING(), Types.LONG()])


def counts_with_timeout(env, events):
    return events.assign_timestamps_and_watermarks(BY_SECOND_FIELD).key_by(first).process(CountWithTimeout(), COUNT)


def test_count_with_timeout():
    with ProgramTestHarness(counts_with_timeout, parallelism=2) as harness:
        harness.push("events", ("a", 0), ("b", 10_000), ("a", 50_000), ("c", 70_000))
        assert harness.run_epoch()["output"] == []  # the first timer of "a" is not its last one
        harness.push("events", ("c", 71_000))
        assert harness.run_epoch()["output"] == [("b", 1)]
        harness.push("events", ("b", 120_000))
        assert harness.run_epoch()["output"] == [("a", 2)]
        assert sorted(harness.end_input()["output"]) == [("b", 2), ("c", 2)]


def test_timers_are_coalesced_by_rounding_and_deduplicated():
    class EverySecond(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
            ctx.timer_service().register_event_time_timer((ctx.timestamp() + MINUTE) // 1_000 * 1_000)

        def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[int]:
            yield timestamp

    with harness_for(EverySecond(), key_by=first) as harness:
        for at in (0, 1, 999, 1_000, 1_999):
            harness.push(("a", at), timestamp=at)
        assert harness.num_event_time_timers() == 2
        harness.push_watermark(2 * MINUTE)
        assert harness.get_output() == [MINUTE, MINUTE + 1_000]


def test_a_timer_at_the_next_watermark_fires_once_for_each():
    class AtNextWatermark(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
            ctx.timer_service().register_event_time_timer(ctx.timer_service().current_watermark() + 1)

        def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[int]:
            yield ctx.timer_service().current_watermark()

    with harness_for(AtNextWatermark(), key_by=first) as harness:
        for at in (0, 5, 9):
            harness.push(("a", at), timestamp=at)
        harness.push_watermark(10)
        harness.push(("a", 12), timestamp=12)
        harness.push_watermark(20)
        assert harness.get_output() == [10, 20]


# -- keyed state --


class CountWindowAverage(FlatMapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.sum = runtime_context.get_state(ValueStateDescriptor("average", Types.PICKLED_BYTE_ARRAY()))

    def flat_map(self, value: tuple[int, int]) -> Iterable[tuple[int, int]]:
        count, total = self.sum.value() or (0, 0)
        count, total = count + 1, total + value[1]
        self.sum.update((count, total))
        if count >= 2:
            self.sum.clear()
            yield value[0], total // count


def test_the_average_of_two(env, capsys):
    numbers = env.set_parallelism(1).from_collection([(1, 3), (1, 5), (1, 7), (1, 4), (1, 2)])
    numbers.key_by(lambda row: row[0]).flat_map(CountWindowAverage()).print()
    env.execute()
    assert capsys.readouterr().out.splitlines() == ["(1, 4)", "(1, 5)"]


class Average(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return a[0] + b[0], a[1] + b[1]


class Add(ReduceFunction):
    def reduce(self, value1: int, value2: int) -> int:
        return value1 + value2


class AllStates(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.INT()))
        self.all = runtime_context.get_list_state(ListStateDescriptor("all", Types.INT()))
        self.times = runtime_context.get_map_state(MapStateDescriptor("times", Types.INT(), Types.INT()))
        self.total = runtime_context.get_reducing_state(ReducingStateDescriptor("total", Add(), Types.INT()))
        self.mean = runtime_context.get_aggregating_state(
            AggregatingStateDescriptor("mean", Average(), Types.TUPLE([Types.INT(), Types.INT()]))
        )

    def map(self, value: tuple[str, int]) -> Any:
        key, number = value
        last = self.last.value()
        self.last.update(number)
        self.all.add(number)
        self.times.put(number, (self.times.get(number) or 0) + 1)
        self.total.add(number)
        self.mean.add(number)
        if number == 0:
            for state in (self.last, self.all, self.times, self.total, self.mean):
                state.clear()
            assert self.times.is_empty()
        elif number == 9:
            self.all.update([9])
            self.all.add_all([1, 1])
            self.times.put_all({1: 2})
            self.times.remove(3)
        times = sorted(self.times.items())
        assert times == sorted(zip(self.times.keys(), self.times.values()))
        assert all(self.times.contains(time) for time, _ in times)
        return key, last, list(self.all.get() or []), times, self.total.get(), self.mean.get()


def test_states_of_all_kinds():
    with harness_for(AllStates(), key_by=first) as harness:
        for number in (3, 5, 3, 9, 0, 7):
            harness.push(("a", number))
        harness.push(("b", 1))
        assert harness.get_output() == [
            ("a", None, [3], [(3, 1)], 3, 3.0),
            ("a", 3, [3, 5], [(3, 1), (5, 1)], 8, 4.0),
            ("a", 5, [3, 5, 3], [(3, 2), (5, 1)], 11, 11 / 3),
            ("a", 3, [9, 1, 1], [(1, 2), (5, 1), (9, 1)], 20, 5.0),
            ("a", 9, [], [], None, None),
            ("a", None, [7], [(7, 1)], 7, 7.0),
            ("b", None, [1], [(1, 1)], 1, 1.0),
        ]


class TextOfASecond(MapFunction):
    def __init__(self, config: StateTtlConfig) -> None:
        self.config = config

    def open(self, runtime_context: RuntimeContext) -> None:
        descriptor = ValueStateDescriptor("text state", Types.STRING())
        descriptor.enable_time_to_live(self.config)
        self.text = runtime_context.get_state(descriptor)

    def map(self, value: tuple[str, str]) -> str | None:
        before = self.text.value()
        if value[1] != "read":
            self.text.update(value[1])
        return before


Ttl = StateTtlConfig


@pytest.mark.parametrize(
    ("config", "seen"),
    [
        (
            Ttl.new_builder(Duration.of_seconds(1))
            .set_update_type(Ttl.UpdateType.OnCreateAndWrite)
            .set_state_visibility(Ttl.StateVisibility.NeverReturnExpired),
            [None, "x", None, None],
        ),
        (Ttl.new_builder(Duration.of_seconds(1)).update_ttl_on_read_and_write(), [None, "x", "x", None]),
        (Ttl.new_builder(Duration.of_seconds(1)).disable_cleanup_in_background(), [None, "x", None, None]),
        (Ttl.new_builder(Duration.of_seconds(1)).cleanup_full_snapshot(), [None, "x", None, None]),
        (Ttl.new_builder(Duration.of_seconds(1)).cleanup_incrementally(10, True), [None, "x", None, None]),
        (
            Ttl.new_builder(Duration.of_seconds(1)).cleanup_in_rocksdb_compact_filter(1000, Duration.of_hours(1)),
            [None, "x", None, None],
        ),
        (
            Ttl.new_builder(Duration.of_seconds(1))
            .set_state_visibility(Ttl.StateVisibility.ReturnExpiredIfNotCleanedUp)
            .disable_cleanup_in_background(),
            [None, "x", "x", None],
        ),
    ],
)
def test_time_to_live(config, seen):
    with harness_for(TextOfASecond(config.build()), key_by=first) as harness:
        for at, text in ((0, "x"), (900, "read"), (1_500, "read"), (2_500, "read")):
            harness.set_processing_time(at)
            harness.push(("a", text))
        assert harness.get_output() == seen


# -- state of an operator --


class BufferingSink(FlatMapFunction, CheckpointedFunction):
    def __init__(self, threshold: int) -> None:
        self.threshold = threshold
        self.buffered: list[Any] = []

    def initialize_state(self, context: Any) -> None:
        descriptor = ListStateDescriptor("buffered-elements", Types.TUPLE([Types.STRING(), Types.INT()]))
        self.checkpointed = context.get_operator_state_store().get_list_state(descriptor)
        if context.is_restored():
            for element in self.checkpointed.get():
                self.buffered.append(element)

    def flat_map(self, value: tuple[str, int]) -> Iterable[Any]:
        self.buffered.append(value)
        if len(self.buffered) >= self.threshold:
            yield list(self.buffered)
            self.buffered.clear()

    def snapshot_state(self, context: Any) -> None:
        self.checkpointed.update(self.buffered)


def test_a_buffering_sink_loses_and_doubles_nothing():
    def build(env, events):
        return events.rebalance().flat_map(BufferingSink(3)).set_parallelism(1).uid("sink")

    events = [("a", n) for n in range(8)]
    with ProgramTestHarness(build, parallelism=2) as harness:
        harness.push_all("events", events[:2])
        assert harness.run_epoch()["output"] == []
        harness.push_all("events", events[2:7])
        harness.fail_epoch()
        assert harness.run_epoch()["output"] == [events[:3], events[3:6]]
        harness.restore(harness.snapshot())
        harness.push_all("events", events[7:])
        assert harness.run_epoch()["output"] == []
        harness.push("events", ("b", 0))
        assert harness.run_epoch()["output"] == [[*events[6:], ("b", 0)]]


# -- broadcast state: pairs of shapes of one colour, by rules --


class Item(NamedTuple):
    color: str
    shape: str


class Rule(NamedTuple):
    name: str
    first: str
    second: str


RULES = MapStateDescriptor("RulesBroadcastState", Types.STRING(), Types.PICKLED_BYTE_ARRAY())


class Matches(KeyedBroadcastProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        descriptor = MapStateDescriptor("items", Types.STRING(), Types.LIST(Types.PICKLED_BYTE_ARRAY()))
        self.partial = runtime_context.get_map_state(descriptor)

    def process_broadcast_element(self, value: Rule, ctx: KeyedBroadcastProcessFunction.Context) -> None:
        ctx.get_broadcast_state(RULES).put(value.name, value)

    def process_element(self, value: Item, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> Iterable[str]:
        for name, rule in ctx.get_broadcast_state(RULES).items():
            stored = list(self.partial.get(name) or [])
            if value.shape == rule.second and stored:
                for item in stored:
                    yield f"{name} ({ctx.get_current_key()}): {item.shape} - {value.shape}"
                stored.clear()
            if value.shape == rule.first:
                stored.append(value)
            if stored:
                self.partial.put(name, stored)
            else:
                self.partial.remove(name)


def matches_of(rules: Iterable[Rule], items: Iterable[Item]) -> list[str]:
    results = []
    waiting: dict[tuple[str, str], list[str]] = {}
    for item in items:
        for rule in rules:
            held = waiting.setdefault((rule.name, item.color), [])
            if item.shape == rule.second:
                results += [f"{rule.name} ({item.color}): {shape} - {item.shape}" for shape in held]
                held.clear()
            if item.shape == rule.first:
                held.append(item.shape)
    return results


def test_patterns_of_shapes():
    def build(env, items, rules):
        return items.key_by(lambda item: item.color).connect(rules.broadcast(RULES)).process(Matches(), Types.STRING())

    first, second = Rule("one", "square", "triangle"), Rule("two", "circle", "circle")
    shapes = ("square", "circle", "square", "triangle", "circle", "circle", "triangle", "square", "triangle")
    items = [Item(color, shape) for shape in shapes for color in ("red", "blue", "green")]
    with ProgramTestHarness(build, parallelism=3) as harness:
        harness.push("rules", first)
        harness.run_epoch()
        harness.push_all("items", items[:12])
        harness.run_epoch()
        harness.push("rules", second)
        harness.run_epoch()
        harness.restore(harness.snapshot())
        harness.push_all("items", items[12:])
        harness.run_epoch()
        outputs = harness.get_output()
    # For the second rule, only later items count.
    expected = matches_of([first], items) + matches_of([second], items[12:])
    assert sorted(outputs) == sorted(expected)
    assert len(outputs) == 3 * 4


class Enabled(BroadcastProcessFunction):
    def process_element(self, value: str, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterable[str]:
        if ctx.get_broadcast_state(RULES).contains(value):
            yield value

    def process_broadcast_element(self, value: tuple[str, bool], ctx: BroadcastProcessFunction.Context) -> None:
        state = ctx.get_broadcast_state(RULES)
        if value[1]:
            state.put(value[0], True)
        else:
            state.remove(value[0])


def test_broadcast_state_beside_a_stream_without_key():
    def build(env, words, switches):
        return words.rebalance().connect(switches.broadcast(RULES)).process(Enabled(), Types.STRING())

    with ProgramTestHarness(build, parallelism=2) as harness:
        harness.push("switches", ("a", True), ("b", True), ("b", False))
        harness.run_epoch()
        harness.push("words", "a", "b", "c", "a")
        assert harness.run_epoch()["output"] == ["a", "a"]


# -- side outputs --


def test_side_outputs(env):
    words = OutputTag("words", Types.ROW_NAMED(["text", "length"], [Types.STRING(), Types.INT()]))

    class Split(ProcessFunction):
        def process_element(self, value: str, ctx: ProcessFunction.Context) -> Iterable[Any]:
            if len(value) > 5:
                yield words, Row(value, len(value))
            else:
                yield value

    split = env.from_collection(["to", "wonder", "or", "whether"]).process(Split(), Types.STRING())
    long = split.get_side_output(words)
    assert split.execute_and_collect() == ["to", "or"]
    assert long.map(lambda row: f"{row.text} {row.length}").execute_and_collect() == ["wonder 6", "whether 7"]


# -- fraud detection: the walkthrough's three versions --


class Transaction(NamedTuple):
    account: int
    at: int
    amount: float


class Alert(NamedTuple):
    account: int


class AlertOnAll(KeyedProcessFunction):
    def process_element(self, value: Transaction, ctx: KeyedProcessFunction.Context) -> Iterable[Alert]:
        yield Alert(value.account)


class FraudDetector(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.flag = runtime_context.get_state(ValueStateDescriptor("flag", Types.BOOLEAN()))

    def process_element(self, value: Transaction, ctx: KeyedProcessFunction.Context) -> Iterable[Alert]:
        if self.flag.value() is not None:
            if value.amount > 500:
                yield Alert(value.account)
            self.flag.clear()
        if value.amount < 1:
            self.flag.update(True)


class FraudDetectorOfAMinute(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.flag = runtime_context.get_state(ValueStateDescriptor("flag", Types.BOOLEAN()))
        self.timer = runtime_context.get_state(ValueStateDescriptor("timer-state", Types.LONG()))

    def process_element(self, value: Transaction, ctx: KeyedProcessFunction.Context) -> Iterable[Alert]:
        if self.flag.value() is not None:
            if value.amount > 500:
                yield Alert(value.account)
            ctx.timer_service().delete_processing_time_timer(self.timer.value())
            self.timer.clear()
            self.flag.clear()
        if value.amount < 1:
            self.flag.update(True)
            timer = ctx.timer_service().current_processing_time() + MINUTE
            ctx.timer_service().register_processing_time_timer(timer)
            self.timer.update(timer)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> None:
        self.timer.clear()
        self.flag.clear()


AMOUNTS = [13.01, 25.0, 0.09, 510.0, 102.62, 91.5, 0.02, 30.01, 701.83, 31.92, 0.5, 0.7, 900.0]
TRANSACTIONS = [Transaction(account, n, amount) for n, amount in enumerate(AMOUNTS) for account in (1, 2, 3)]
FRAUDS = [index for index in range(1, len(AMOUNTS)) if AMOUNTS[index] > 500 and AMOUNTS[index - 1] < 1]


@pytest.mark.parametrize(
    ("detector", "alerts"), [(AlertOnAll, len(AMOUNTS)), (FraudDetector, 2), (FraudDetectorOfAMinute, 2)]
)
def test_fraud_detection(env, detector, alerts):
    transactions = env.from_collection(TRANSACTIONS).name("transactions")
    result = transactions.key_by(lambda transaction: transaction.account).process(detector()).name("fraud-detector")
    assert len(FRAUDS) == 2
    assert sorted(result.execute_and_collect()) == sorted(
        Alert(account) for account in (1, 2, 3) for _ in range(alerts)
    )


def test_fraud_within_a_minute():
    with harness_for(FraudDetectorOfAMinute(), key_by=first) as harness:
        for at, amount in ((0, 0.5), (59_000, 600.0), (60_000, 0.5), (121_000, 600.0), (122_000, 0.5), (123_000, 0.5)):
            harness.set_processing_time(at)
            harness.push(Transaction(1, at, amount))
        # The flag outlives the deleted timer.
        harness.set_processing_time(182_500)
        harness.push(Transaction(1, 0, 501.0))
        assert harness.get_output() == [Alert(1), Alert(1)]
        assert harness.num_keyed_state_entries() == 0
        assert harness.num_processing_time_timers() == 0


# -- PyFlink's own examples --


def test_basic_operations(env):
    env.set_runtime_mode(RuntimeExecutionMode.STREAMING)  # the result of each record is looked at
    info = Types.ROW_NAMED(["id", "info"], [Types.INT(), Types.STRING()])
    people = [("ann", 123, "Germany"), ("bob", 135, "China"), ("cid", 124, "USA"), ("dee", 32, "China")]
    lines = [json.dumps({"name": name, "tel": tel, "addr": {"country": country}}) for name, tel, country in people]
    source = env.from_collection(collection=list(enumerate(lines, 1)), type_info=info)

    def update_tel(data):
        person = json.loads(data.info)
        person["tel"] += 1
        return data.id, person["tel"]

    assert source.map(update_tel).execute_and_collect() == [(1, 124), (2, 136), (3, 125), (4, 33)]
    assert source.filter(lambda data: data.id == 1).map(update_tel).execute_and_collect() == [(1, 124)]
    by_country = source.map(lambda data: (json.loads(data.info)["addr"]["country"], json.loads(data.info)["tel"]))
    added = by_country.key_by(lambda data: data[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    assert sorted(added.execute_and_collect()) == [("China", 135), ("China", 167), ("Germany", 123), ("USA", 124)]


def test_word_count(env):
    lines = ["To be, or not to be,--that is the question:--", "Whether 'tis nobler in the mind to suffer"]
    counted = (
        env.from_collection(lines)
        .flat_map(lambda line: line.lower().replace(",", " ").split(), Types.STRING())
        .map(lambda word: (word, 1), output_type=Types.TUPLE([Types.STRING(), Types.INT()]))
        .key_by(lambda pair: pair[0])
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
    )
    words = " ".join(lines).lower().replace(",", " ").split()
    assert dict(counted.execute_and_collect()) == {word: words.count(word) for word in words}
