# ruff: noqa: B023
# Loop variables in functions are tested.
from __future__ import annotations

import threading
from typing import Any

import pytest

from pillarbox import (
    CheckpointedFunction,
    KeyedProcessFunction,
    KeySelector,
    ListStateDescriptor,
    MapFunction,
    OutputTag,
    ProgramError,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from pillarbox.testing import ProgramTestHarness, row


class Number(MapFunction[Any, int]):
    def open(self, runtime_context):
        self.calls = 0

    def map(self, value):
        self.calls += 1
        return self.calls


class NumberInState(MapFunction[Any, int], CheckpointedFunction):
    def initialize_state(self, context):
        self.saved = context.get_operator_state_store().get_list_state(ListStateDescriptor("calls", int))
        self.calls = sum(self.saved)

    def map(self, value):
        self.calls += 1
        return self.calls

    def snapshot_state(self, context):
        self.saved.update([self.calls])


class Limit(KeyedProcessFunction[str, Any, Any]):
    def __init__(self, limit: int) -> None:
        self.limit = limit

    def open(self, runtime_context):
        self.sum = runtime_context.get_state(ValueStateDescriptor[int]("sum"))

    def process_element(self, value, ctx):
        self.sum.update((self.sum.value() or 0) + value.n)
        if self.sum.value() > self.limit:
            yield self.limit, ctx.get_current_key(), self.sum.value()


class ByColumn(KeySelector[Any, Any]):
    def __init__(self, column: str) -> None:
        self.column = column

    def get_key(self, value):
        return value[self.column]


def numbers(env: StreamExecutionEnvironment, count: int = 4) -> Any:
    return env.from_collection([row(n=n, odd=n % 2, third=n // 3) for n in range(count)])


def test_a_variable_of_a_loop_is_what_it_was_when_the_function_was_given():
    env = StreamExecutionEnvironment()
    records = numbers(env)
    streams = [records.filter(lambda r: r.n == number).map(lambda r: (number, r.n)) for number in (1, 2, 3)]
    assert sorted(streams[0].union(*streams[1:]).execute_and_collect()) == [(1, 1), (2, 2), (3, 3)]


def test_so_it_is_in_keys_partitioners_and_timestamps():
    env = StreamExecutionEnvironment().set_parallelism(2)
    records = numbers(env)
    sums: list[Any] = []
    spread: list[Any] = []
    stamped: list[Any] = []
    for column in ("odd", "third"):
        timed = records.assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda r: r[column] * 1000)
        )
        keyed = timed.key_by(lambda r: r[column])
        sums.append(keyed.process(Limit(-1)).map(lambda result: (column, *result[1:])))
        stamped.append(timed.process(lambda r, ctx: [(column, r.n, ctx.timestamp())]))
        to = len(spread)
        spread.append(
            records.partition_custom(lambda key, n: (key + to) % 2, lambda r: r[column]).process(
                lambda r, ctx: [(column, r.n)]
            )
        )
    assert sorted(sums[0].union(sums[1]).execute_and_collect()) == [
        *(("odd", 0, 0), ("odd", 0, 2), ("odd", 1, 1), ("odd", 1, 4)),
        *(("third", 0, 0), ("third", 0, 1), ("third", 0, 3), ("third", 1, 3)),
    ]
    assert sorted(stamped[0].union(stamped[1]).execute_and_collect()) == [
        *(("odd", n, n % 2 * 1000) for n in range(4)),
        *(("third", n, n // 3 * 1000) for n in range(4)),
    ]
    assert spread[0].execute_and_collect() == [("odd", 0), ("odd", 2), ("odd", 1), ("odd", 3)]
    assert spread[1].execute_and_collect() == [("third", 3), ("third", 0), ("third", 1), ("third", 2)]


def test_an_object_that_is_changed_afterwards_is_what_it_was():
    env = StreamExecutionEnvironment()
    function, selector, streams = Limit(0), ByColumn("odd"), []
    for limit, column in ((1, "odd"), (2, "third")):
        function.limit, selector.column = limit, column
        late = OutputTag[Any](f"above {limit}")
        streams.append(numbers(env).key_by(selector).process(function, on_error=late))
    function.limit = 100
    selector.column = "n"
    assert streams[0].union(streams[1]).execute_and_collect() == [(1, 0, 2), (1, 1, 4), (2, 0, 3), (2, 1, 3)]


def test_operators_of_a_chain_that_are_given_one_object_have_a_copy_each():
    function = Number()
    assert numbers(StreamExecutionEnvironment()).map(function).map(function).execute_and_collect() == [1, 2, 3, 4]
    branches = numbers(StreamExecutionEnvironment())
    both = branches.map(function).union(branches.map(function)).execute_and_collect()
    assert sorted(both) == [1, 1, 2, 2, 3, 3, 4, 4]


def test_a_function_may_have_javas_names_beside_those_that_are_called():
    class Both(Limit):
        def on_timer(self, timestamp, ctx):
            return []

        onTimer = on_timer

    assert numbers(StreamExecutionEnvironment()).key_by("odd").process(Both(3)).execute_and_collect() == [(3, 1, 4)]


def test_so_do_operators_with_state_of_their_own():
    function = NumberInState()

    def build(env: StreamExecutionEnvironment, records: Any) -> Any:
        return records.rebalance().map(function).uid("one").map(function).uid("two")

    with ProgramTestHarness(build) as harness:
        for epoch in range(2):
            harness.push("records", *range(3))
            assert harness.run_epoch()["output"] == [3 * epoch + 1, 3 * epoch + 2, 3 * epoch + 3]


def test_unpicklable_captured_values_are_refused_when_the_program_runs():
    class Locks(MapFunction[Any, int]):
        def __init__(self) -> None:
            self.lock: Any = threading.Lock()

        def map(self, value):
            return value.n

    function = Locks()
    stream = numbers(StreamExecutionEnvironment()).map(function).name("locks")
    with pytest.raises(ProgramError, match=r"operator 'locks' cannot be pickled for the workers.*cannot pickle"):
        stream.execute_and_collect()
    function.lock = None
    assert stream.execute_and_collect() == [0, 1, 2, 3]
