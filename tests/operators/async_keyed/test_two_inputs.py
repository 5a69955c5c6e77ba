"""Async keyed functions of two streams, and of a keyed and a broadcast stream."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pillarbox import (
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    MapStateDescriptor,
    OperatorError,
    ProgramError,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from pillarbox.testing import KeyedTwoInputStreamOperatorTestHarness as Harness
from pillarbox.testing import harness_for
from tests.operators.async_keyed.gates import BAD, Gate

RULES: MapStateDescriptor[str, int] = MapStateDescriptor("rules")
TOTAL: ValueStateDescriptor[int] = ValueStateDescriptor("total", int, default=0)


class Balance(KeyedCoProcessFunction[str, Any, Any, Any]):
    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(TOTAL)

    async def process_element1(self, value: Any, ctx: Any) -> Any:
        before = self.total.value()
        await self.gate(value)
        self.total.update(before + value[1])
        ctx.timer_service().register_event_time_timer(5)
        yield ctx.get_current_key(), self.total.value()

    async def process_element2(self, value: Any, ctx: Any) -> Any:
        self.total.update(self.total.value() - value[1])
        await asyncio.sleep(0)
        return [(ctx.get_current_key(), self.total.value())]

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), "timer"


def first(record: Any) -> Any:
    return record[0]


def balance(gate: Gate, **options: Any) -> Harness:
    return harness_for(Balance(gate), (first, first), **options)


def test_records_of_both_streams_share_the_order_of_their_key() -> None:
    gate = Gate()
    with balance(gate) as harness:
        harness.push1(("a", 10), 1)
        harness.push2(("a", 3), 2)
        harness.push2(("b", 1), 2)
        assert harness.get_output() == [("b", -1)]
        gate.open(harness, ("a", 10))
        assert harness.get_output() == [("b", -1), ("a", 10), ("a", 7)]
        harness.push_watermark(5)
        assert harness.get_output()[3:] == [("a", "timer")]


def test_records_of_both_streams_are_carried() -> None:
    gate = Gate()
    with balance(gate, on_barrier="carry") as harness:
        harness.push1(("a", 10), 1)
        harness.push2(("a", 3), 2)
        snapshot = harness.snapshot()
    gate.reset()
    with balance(gate, on_barrier="carry", snapshot=snapshot) as harness:
        gate.open(harness, ("a", 10))
        assert harness.get_output() == [("a", 10), ("a", 7)]


class Ruled(KeyedBroadcastProcessFunction[str, Any, Any, Any]):
    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(TOTAL)

    async def process_element(self, value: Any, ctx: Any) -> Any:
        rules = ctx.get_broadcast_state(RULES)
        before = rules.get("factor")
        await self.gate(value)
        assert rules.get("factor") == before
        self.total.update(self.total.value() + value[1] * (before or 1))
        yield value[0], self.total.value()

    async def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES).put("factor", value)
        await asyncio.sleep(0.01)
        if value < 0:
            raise ValueError(f"{value}")
        totals: list[Any] = []
        ctx.apply_to_keyed_state(TOTAL, lambda key, state: totals.append((key, state.value())))
        for total in sorted(totals):
            yield total


def ruled(gate: Gate, **options: Any) -> Harness:
    return harness_for(Ruled(gate), first, broadcast=[RULES], **options)


def test_a_broadcast_record_waits_for_all_elements_and_later_ones_wait_for_it() -> None:
    gate = Gate()
    with ruled(gate) as harness:
        harness.push1(("a", 1))
        opened = []

        def open_gate(timestamp: int) -> None:
            opened.append(timestamp)
            gate.release(("a", 1))

        harness.processing_time_service.register_timer(5, open_gate)
        with harness._patience.time_passes("1 second"):
            harness.push2(10)
        assert opened == [5]
        assert harness.get_output() == [("a", 1), ("a", 1)]
        harness.push1(("a", 2))
        gate.open(harness, ("a", 2))
        assert harness.get_output()[2:] == [("a", 21)]


def test_a_broadcast_record_that_fails_is_undone() -> None:
    gate = Gate()
    with ruled(gate, on_error=BAD) as harness, harness._patience.time_passes("1 second"):
        harness.push2(3)
        harness.push2(-1)
        harness.push1(("a", 2))
        gate.open(harness, ("a", 2))
        assert harness.get_output() == [("a", 6)]
        assert [(letter.value, letter.error) for letter in harness.get_side_output(BAD)] == [(-1, "ValueError: -1")]


def test_timers_wait_for_a_broadcast_record() -> None:
    class Timed(Ruled):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            ctx.timer_service().register_processing_time_timer(5)

        async def on_timer(self, timestamp: int, ctx: Any) -> Any:
            factor = ctx.get_broadcast_state(RULES).get("factor")
            await asyncio.sleep(0)
            self.total.update(7)
            yield "timer", factor

    options: Any = {"broadcast": [RULES], "on_error": BAD}
    with harness_for(Timed(Gate()), first, **options) as harness, harness._patience.time_passes("1 second"):
        harness.push1(("a", 1))
        harness.push2(-1)  # fails at 10
        assert harness.get_output() == [("timer", None)]
        harness.push1(("a", 1))
        harness.push2(3)
        assert harness.get_output()[1:] == [("a", 7), ("timer", 3)]


def test_a_broadcast_record_that_fails_is_named() -> None:
    message = "failed at the broadcast record -1: ValueError: -1"
    with (
        ruled(Gate()) as harness,
        harness._patience.time_passes("1 second"),
        pytest.raises(OperatorError, match=message),
    ):
        harness.push2(-1)


def test_programs_of_two_streams_run() -> None:
    class Sum(KeyedCoProcessFunction[str, int, int, int]):
        def open(self, runtime_context: Any) -> None:
            self.total = runtime_context.get_state(TOTAL)

        async def process_element1(self, value: int, ctx: Any) -> Any:
            await asyncio.sleep(0)
            self.total.update(self.total.value() + value)
            yield self.total.value()

        def process_element2(self, value: int, ctx: Any) -> Any:
            return self.process_element1(-value, ctx)

    class Scale(KeyedBroadcastProcessFunction[str, int, int, int]):
        async def process_element(self, value: int, ctx: Any) -> Any:
            await asyncio.sleep(0)
            yield value

        def process_broadcast_element(self, value: int, ctx: Any) -> Any:
            ctx.get_broadcast_state(RULES).put("factor", value)

    def key(value: int) -> str:
        return "all"

    env = StreamExecutionEnvironment.get_execution_environment()
    plus, minus = env.from_collection([5, 7]).key_by(key), env.from_collection([1]).key_by(key)
    totals = plus.connect(minus).process(Sum(), capacity=3)
    assert totals.execute_and_collect()[-1] == 11
    env = StreamExecutionEnvironment.get_execution_environment()
    rules = env.from_collection([2]).broadcast(RULES)
    scaled = env.from_collection([5, 7]).key_by(key).connect(rules).process(Scale(), on_barrier="carry")
    assert list(scaled.execute_and_collect()) == [5, 7]


class Hanging(Ruled):
    async def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            if value == "stays":
                await asyncio.Event().wait()
        yield value


@pytest.mark.parametrize("record, error", [("ends", "TimeoutError: not finished within 5 s"), ("stays", "did not end")])
def test_a_broadcast_record_has_a_timeout(record: str, error: str) -> None:
    with (
        harness_for(Hanging(Gate()), first, broadcast=[RULES], timeout="5 seconds") as harness,
        pytest.raises(OperatorError, match=error),
        harness._patience.time_passes("10 seconds"),
    ):
        harness.push2(record)


def test_broadcast_state_is_refused_elsewhere() -> None:
    class Alone(Balance):
        async def process_element1(self, value: Any, ctx: Any) -> Any:
            ctx.get_broadcast_state(RULES)
            yield value

    with harness_for(Alone(Gate()), (first, first)) as harness, pytest.raises(ProgramError, match="no stream is"):
        harness.push1(("a", 1))


def test_unknown_options_are_refused() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    left, right = (env.from_collection([("a", 1)]).key_by(first) for _ in range(2))
    with pytest.raises(
        TypeError, match="'capacities'; its options are capacity, timeout, ordered, on_barrier, budgets, j"
    ):
        left.connect(right).process(Balance(Gate()), capacities=3)  # type: ignore[call-arg]
