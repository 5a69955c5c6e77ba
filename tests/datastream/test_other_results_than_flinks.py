"""Rows of docs/pyflink.md ("The same name, and another result") whose code is longer than one expression."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from pillarbox import (
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    KeyedBroadcastProcessFunction,
    MapStateDescriptor,
    ProcessWindowFunction,
    ProgramError,
    ReduceFunction,
    RuntimeExecutionMode,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from pillarbox._operators.async_io.api.options import AsyncOptions
from pillarbox._operators.async_io.operator import AsyncWaitOperator
from pillarbox.testing import OneInputStreamOperatorTestHarness
from tests.operators.windowing.windows import Contents, key_of, open_windows
from tests.support.nodes import node

AT = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda record: record[1])


def keyed(*records: tuple[Any, ...], env: StreamExecutionEnvironment | None = None) -> Any:
    env = StreamExecutionEnvironment() if env is None else env
    return env.from_collection(list(records)).assign_timestamps_and_watermarks(AT).key_by(key_of)


CALLS: list[str] = []


def called(name: str, value: Any) -> Any:
    CALLS.append(f"{name}{value}")
    return value


def test_operators_of_a_chain_hand_on_runs():
    CALLS.clear()
    numbers = StreamExecutionEnvironment().from_collection([1, 2])
    stream = numbers.map(lambda n: called("f", n)).map(lambda n: called("g", n))
    assert stream.execute_and_collect() == [1, 2]
    assert CALLS == ["f1", "f2", "g1", "g2"]


def test_a_list_that_was_emitted_is_a_copy():
    elements: list[int] = []

    def gathered(number: int) -> list[int]:
        elements.append(number)
        return elements

    numbers = StreamExecutionEnvironment().from_collection([1, 2, 3])
    assert numbers.map(gathered).execute_and_collect() == [[1], [1, 2], [1, 2, 3]]


def test_folds_of_windows_that_overlap_go_by_the_time_of_their_parts():
    with open_windows(lambda s: s.window(SlidingEventTimeWindows.of(10, 5)).reduce(lambda a, b: b)) as harness:
        harness.push_all([("a", "later part"), ("a", "came last")], [7, 2])
        harness.push_watermark(9)
        assert harness.get_output()[-1] == ("a", "later part")
    with open_windows(lambda s: s.window(SlidingEventTimeWindows.of(10, 5)).process(Contents())) as harness:
        harness.push_all([("a", "later part"), ("a", "came last")], [7, 2])
        harness.push_watermark(9)
        assert harness.get_output()[-1] == ("a", (0, 10), ["later part", "came last"])


class Sum(ReduceFunction):
    def reduce(self, value1, value2):
        return value1[0], value1[1] + value2[1]


class Number(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, len(elements)


def test_a_window_of_which_an_evictor_leaves_nothing():
    windows = keyed(("a", 1), ("a", 2)).window(TumblingEventTimeWindows.of(10)).evictor(CountEvictor.of(0))
    assert windows.reduce(Sum()).execute_and_collect() == []
    assert windows.reduce(Sum(), Number()).execute_and_collect() == []
    assert windows.process(Number()).execute_and_collect() == [("a", 0)]


def test_a_session_that_takes_in_others_and_equals_one_of_them_counts_on():
    gaps = EventTimeSessionWindows.with_dynamic_gap(lambda record: record[1])
    with open_windows(lambda s: s.window(gaps).trigger(CountTrigger.of(2)).process(Number())) as harness:
        harness.push(("a", 10), 0)
        harness.push(("a", 3), 4)  # [4, 7) lies in [0, 10)
        assert harness.get_output() == [("a", 2)]


def test_count_windows_keep_their_size_under_another_trigger():
    with open_windows(lambda s: s.count_window(3).trigger(CountTrigger.of(2)).process(Contents())) as harness:
        for number in range(4):
            harness.push(("a", number))
        assert harness.get_output() == [("a", (0,), [0, 1])]


def test_windows_after_count_windows_need_timestamps_of_their_own():
    counted = keyed(("a", 1), ("a", 2)).count_window(2).reduce(Sum())
    again = counted.key_by(key_of).window(TumblingEventTimeWindows.of(10)).reduce(Sum())
    with pytest.raises(ProgramError, match="as count windows and global windows emit: put assign"):
        again.execute_and_collect()
    timed = counted.assign_timestamps_and_watermarks(AT).key_by(key_of).window(TumblingEventTimeWindows.of(10))
    assert timed.reduce(Sum()).execute_and_collect() == [("a", 3)]


def test_results_of_a_global_window_have_the_last_timestamp():
    with open_windows(lambda s: s.window(GlobalWindows.create()).trigger(CountTrigger.of(1)).reduce(Sum())) as harness:
        harness.push(("a", 1), 5)
        assert harness.get_records() == [(("a", 1), 2**63 - 1)]


def test_rolling_results_of_batch_mode_have_the_time_of_the_last_record():
    env = StreamExecutionEnvironment().set_runtime_mode(RuntimeExecutionMode.BATCH)
    totals = keyed(("a", 3), ("a", 1), env=env).sum(1)
    assert totals.process(lambda total, ctx: [(total, ctx.timestamp())]).execute_and_collect() == [(("a", 4), 3)]


RULES = MapStateDescriptor[str, int]("rules")
SEEN = ValueStateDescriptor[int]("seen")


class Visited(KeyedBroadcastProcessFunction):
    def open(self, runtime_context):
        self.seen = runtime_context.get_state(SEEN)

    def process_element(self, value, ctx):
        self.seen.update(value[1])
        yield "record"

    def process_broadcast_element(self, value, ctx):
        keys: list[str] = []
        ctx.apply_to_keyed_state(SEEN, lambda key, state: keys.append(key))
        yield keys


def test_broadcast_records_of_batch_mode_find_no_keys():
    env = StreamExecutionEnvironment().set_runtime_mode(RuntimeExecutionMode.BATCH)
    rules = env.from_collection(["rule"]).broadcast(RULES)
    results = keyed(("a", 1), ("b", 2), env=env).connect(rules).process(Visited()).execute_and_collect()
    assert list(results) == [[], "record", "record"]


def test_finished_requests_take_no_room_from_those_under_way():
    release = threading.Event()
    begun: list[int] = []

    async def ask(number: int) -> int:
        begun.append(number)
        if number == 0:
            await asyncio.to_thread(release.wait)
        return number

    options = AsyncOptions("map_async", capacity=2, timeout=None)
    with OneInputStreamOperatorTestHarness(node(AsyncWaitOperator, "ask", ask, options)) as harness:
        # In order, 1 and 2 wait for 0 when they have ended. Flink's queue of 2 would hold 3 back until then.
        harness.push_all([0, 1, 2, 3])
        while len(begun) < 4:
            harness._settle()
        assert harness.get_output() == []
        release.set()
        harness.end_input()
        assert harness.get_output() == [0, 1, 2, 3]
