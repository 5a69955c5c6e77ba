from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
    OutputTag,
    ProgramError,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from pillarbox.testing import ProgramTestHarness, row
from tests.support.programs import Paid, paid

PARALLELISM = st.integers(1, 4)


def cut(items, places):
    edges = [0, *sorted(cut % (len(items) + 1) for cut in places), len(items)]
    return [items[start:end] for start, end in pairwise(edges)]


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 6), st.integers(0, 9)), max_size=30),
    st.lists(st.integers(0, 1000), max_size=4),
    PARALLELISM,
    st.lists(st.booleans(), max_size=5),
)
def test_both_streams_share_state_and_timers(events, places, parallelism, restarts):
    ordered: set[int] = set()
    once = []  # each order once, with any number of payments
    for is_order, key, amount in events:
        if not is_order or key not in ordered:
            once.append((is_order, key, amount))
        if is_order:
            ordered.add(key)
    harness = ProgramTestHarness(paid, parallelism=parallelism)
    collected: Counter[tuple[int, int]] = Counter()
    unpaid: Counter[int] = Counter()
    total: defaultdict[int, Counter[int]] = defaultdict(Counter)
    try:
        for number, part in enumerate(cut(once, places)):
            for is_order, key, amount in part:
                if is_order:
                    harness.push("orders", row(id=key, at=1000))
                else:
                    harness.push("payments", row(order_id=key, amount=amount, at=1000))
                    total[key][amount] += 1
            if number < len(restarts) and restarts[number]:
                harness.fail_epoch()
            out = harness.run_epoch()
            collected.update(out["paid"])
            unpaid.update(out["unpaid"])
            if number < len(restarts) and restarts[number]:
                snapshot = harness.snapshot()
                harness.close()
                harness = ProgramTestHarness(paid, parallelism=parallelism, snapshot=snapshot)
        out = harness.end_input()
        collected.update(out["paid"])
        unpaid.update(out["unpaid"])
    finally:
        harness.close()
    assert collected == Counter({(key, amount): n for key in ordered for amount, n in total[key].items()})
    assert unpaid == Counter(key for key in ordered if not total[key])


def test_event_time_is_the_least_of_both_streams():
    with ProgramTestHarness(paid, parallelism=2) as harness:
        harness.push("orders", row(id=1, at=0))
        harness.push("payments", row(order_id=2, amount=5, at=0))
        harness.run_epoch()
        harness.push("orders", row(id=3, at=100_000_000))
        assert harness.run_epoch()["unpaid"] == []  # the payments may still arrive
        harness.push("payments", row(order_id=4, amount=5, at=100_000_000))
        assert harness.run_epoch()["unpaid"] == [1]


def test_a_stream_is_connected_with_itself_by_another_key():
    class Links(KeyedCoProcessFunction):
        def open(self, runtime_context):
            self.ins = runtime_context.get_state(ValueStateDescriptor("ins"))
            self.outs = runtime_context.get_state(ValueStateDescriptor("outs"))

        def process_element1(self, value, ctx):
            self.outs.update((self.outs.value() or 0) + 1)
            yield ctx.get_current_key(), self.ins.value() or 0, self.outs.value()

        def process_element2(self, value, ctx):
            self.ins.update((self.ins.value() or 0) + 1)
            yield ctx.get_current_key(), self.ins.value(), self.outs.value() or 0

    def build(env, links):
        return links.key_by("source").connect(links.key_by("target")).process(Links())

    with ProgramTestHarness(build, parallelism=3) as harness:
        for source, target in [(1, 2), (2, 3), (1, 3), (3, 1)]:
            harness.push("links", row(source=source, target=target))
        out = harness.run_epoch()["output"]
    last = {
        key: max((entry for entry in out if entry[0] == key), key=lambda entry: entry[1] + entry[2])
        for key in (1, 2, 3)
    }
    assert last == {1: (1, 1, 2), 2: (2, 1, 1), 3: (3, 2, 1)}


@given(st.lists(st.integers(), max_size=40), PARALLELISM, st.integers(1, 3))
def test_behind_a_rebalance_each_record_comes_once(values, parallelism, partitions):
    def build(env, numbers):
        return numbers.rebalance().map(lambda value: (value, 1))

    with ProgramTestHarness(build, parallelism=parallelism) as harness:
        for number, value in enumerate(values):
            harness.push("numbers", value, partition=number % partitions)
        harness.fail_epoch()
        out = harness.run_epoch()["output"]
        assert Counter(value for value, _ in out) == Counter(values)
        assert harness.end_input()["output"] == []


def test_behind_a_rebalance_event_time_goes_on():
    def build(env, orders, payments):
        return paid(env, orders.rebalance().map(lambda order: order), payments.rebalance().filter(lambda payment: True))

    with ProgramTestHarness(build, parallelism=3) as harness:
        harness.push("orders", row(id=1, at=0))
        out = harness.end_input()
        assert (out["paid"], out["unpaid"]) == ([], [1])


def test_behind_a_rebalance_there_is_no_keyed_state():
    from pillarbox import MapFunction

    class Counts(MapFunction):
        def open(self, runtime_context):
            self.count = runtime_context.get_state(ValueStateDescriptor("count"))

        def map(self, value):
            return value

    stream = StreamExecutionEnvironment().from_collection([1]).rebalance().map(Counts())
    with pytest.raises(ProgramError, match="uses the keyed state 'count' on a stream without keys"):
        stream.execute_and_collect()


def test_requests_are_carried_behind_a_rebalance():
    async def slow(value):
        return value * 2

    stream = StreamExecutionEnvironment().set_parallelism(2).from_collection(list(range(10))).rebalance()
    assert sorted(stream.map_async(slow, on_barrier="carry").execute_and_collect()) == list(range(0, 20, 2))


class Labels(CoMapFunction):
    def map1(self, value):
        return ("first", value) if value % 2 else None

    def map2(self, value):
        return "second", value


class Yields(CoMapFunction):
    def map1(self, value):
        yield value

    def map2(self, value):
        return value


class Repeats(CoFlatMapFunction):
    def flat_map1(self, value):
        return [value] * (value % 3)

    def flat_map2(self, value):
        if value % 2:
            yield -value


class SideBySide(CoProcessFunction):
    def process_element1(self, value, ctx):
        yield value, ctx.timestamp()

    def process_element2(self, value, ctx):
        ctx.output(OutputTag("second"), (value, ctx.timestamp()))


@given(st.lists(st.integers(0, 50)), st.lists(st.integers(0, 50)), PARALLELISM, st.integers(1, 3))
def test_two_streams_without_key(first, second, parallelism, partitions):
    def build(env, first, second):
        both = first.connect(second)
        by_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value: value)
        times = first.assign_timestamps_and_watermarks(by_time).connect(second).process(SideBySide())
        return {
            "map": both.map(Labels()),
            "flat_map": both.flat_map(Repeats()),
            "process": times,
            "side": times.get_side_output(OutputTag("second")),
        }

    with ProgramTestHarness(build, parallelism=parallelism) as harness:
        for name, values in (("first", first), ("second", second)):
            for number, value in enumerate(values):
                harness.push(name, value, partition=number % partitions)
        harness.fail_epoch()
        out = harness.run_epoch()
        assert all(not values for values in harness.end_input().values())
    assert Counter(out["map"]) == Counter(
        [("first", value) for value in first if value % 2] + [("second", value) for value in second]
    )
    assert Counter(out["flat_map"]) == Counter(
        [value for value in first for _ in range(value % 3)] + [-value for value in second if value % 2]
    )
    assert Counter(out["process"]) == Counter((value, value) for value in first)
    assert Counter(out["side"]) == Counter((value, None) for value in second)


def test_keyed_streams_share_the_state_of_a_map():
    class Balance(CoMapFunction):
        def open(self, runtime_context):
            self.balance = runtime_context.get_state(ValueStateDescriptor("balance"))

        def add(self, event):
            self.balance.update((self.balance.value() or 0) + event.amount)
            return event.name, self.balance.value()

        map1 = map2 = add

    def build(env, paid_in, paid_out):
        return paid_in.connect(paid_out).key_by("name", "name").map(Balance())

    with ProgramTestHarness(build, parallelism=3) as harness:
        harness.push("paid_in", row(name="ann", amount=50), row(name="bob", amount=7))
        harness.run_epoch()
        harness.fail_epoch()
        harness.push("paid_out", row(name="ann", amount=-20))
        assert harness.run_epoch()["output"] == [("ann", 30)]


def test_an_operator_of_two_inputs_sees_the_streams_of_one_chain_together():
    class Seen(CoFlatMapFunction):
        def __init__(self):
            self.seen = [0, 0]

        def flat_map1(self, value):
            self.seen[0] += 1

        def flat_map2(self, value):
            self.seen[1] += 1
            yield tuple(self.seen)

    numbers = StreamExecutionEnvironment().set_parallelism(1).from_collection([1, 2, 3])
    seen = numbers.connect(numbers.map(str)).flat_map(Seen()).execute_and_collect()
    assert sorted(second for _, second in seen) == [1, 2, 3]
    assert all(first == 3 for first, _ in seen) or all(first == 0 for first, _ in seen)


def test_wrong_arguments_of_connect_are_refused():
    env = StreamExecutionEnvironment()
    left, right = env.from_collection([1]), env.from_collection([2])
    with pytest.raises(ProgramError, match=r"connect\(\) takes a stream, not 5"):
        left.connect(5)  # type: ignore[call-overload]
    with pytest.raises(ProgramError, match="from the same StreamExecutionEnvironment"):
        left.connect(StreamExecutionEnvironment().from_collection([1]))
    with pytest.raises(ProgramError, match="pass a CoMapFunction"):
        left.connect(right).map(lambda value: value)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match=r"pass an instance: Labels\(\)"):
        left.connect(right).map(Labels)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="whose map1 yields"):
        left.connect(right).map(Yields())
    with pytest.raises(ProgramError, match="the first stream has no key"):
        left.connect(right).process(Paid())
    with pytest.raises(ProgramError, match="the second stream has no key"):
        left.key_by("a").connect(right).process(Paid())
    with pytest.raises(ProgramError, match=r"pass an instance: Paid\(\)"):
        left.connect(right).key_by("a", "b").process(Paid)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="pass a KeyedCoProcessFunction"):
        left.connect(right).key_by("a", "b").process(lambda value: value)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="STRING, the second keys BIGINT, so they are never equal"):
        left.key_by(str, key_type=Types.STRING()).connect(right.key_by(int, key_type=Types.LONG())).process(Paid())
