"""Keyed functions with ``async def``: order, concurrency, timers and watermarks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pillarbox import ProgramError
from pillarbox._elements.elements import Watermark
from pillarbox._elements.records import Records
from pillarbox._operators.async_keyed import options as options_module
from pillarbox._operators.frame.shared_resources import SharedResources
from pillarbox.testing import StreamRecord
from tests.operators.async_keyed.gates import Gate, Stateful, end, opened, operator_of, settle


class Waiting(Stateful):
    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    async def process_element(self, value: Any, ctx: Any) -> Any:
        await self.gate(value)
        yield value


def test_keys_are_processed_concurrently_and_records_of_a_key_in_order() -> None:
    gate = Gate()
    with opened(Waiting(gate)) as harness:
        harness.push_all([("a", 1), ("a", 2), ("b", 1)])
        assert gate.waiting == [("a", 1), ("b", 1)]
        gate.open(harness, ("b", 1))
        assert harness.get_output() == [("b", 1)]
        gate.open(harness, ("a", 1))
        assert gate.waiting[-1] == ("a", 2)
        gate.open(harness, ("a", 2))
        assert harness.get_output() == [("b", 1), ("a", 1), ("a", 2)]


def test_ordered_results_keep_the_order_of_the_records() -> None:
    gate = Gate()
    with opened(Waiting(gate), ordered=True) as harness:
        harness.push_all([("a", 1), ("b", 1), ("c", 1)])
        gate.open(harness, ("c", 1), ("b", 1))
        assert harness.get_output() == []
        gate.open(harness, ("a", 1))
        assert harness.get_output() == [("a", 1), ("b", 1), ("c", 1)]


def test_at_most_capacity_elements_are_in_progress() -> None:
    gate = Gate()
    with opened(Waiting(gate), capacity=2) as harness:
        harness.push_all([(key, 1) for key in "abc"])
        assert gate.waiting == [("a", 1), ("b", 1)]
        gate.open(harness, ("b", 1))
        assert gate.waiting == [("a", 1), ("b", 1), ("c", 1)]


def test_subtasks_of_a_partition_share_the_capacity() -> None:
    gate = Gate()
    with opened(Waiting(gate), capacity=1) as first, opened(Waiting(gate), capacity=1) as second:
        shared = operator_of(first).runner._call_slots
        operator_of(second).runner._call_slots = shared
        first.push(("a", 1))
        second.push_all([("b", 1), ("c", 1)])
        # A subtask without a place may always take one.
        assert gate.waiting == [("a", 1), ("b", 1)]


def test_input_waits_when_the_waiting_room_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options_module.WAITING > 3
    monkeypatch.setattr(options_module, "WAITING", 3)
    most = 0

    class Counting(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            nonlocal most
            most = max(most, len(operator_of(harness)._queue))
            await asyncio.sleep(0)
            yield value

    with opened(Counting(), capacity=2) as harness:
        harness.push_all([("a", number) for number in range(50)])
        end(harness)
        assert most == 5
        assert harness.get_output() == [("a", number) for number in range(50)]


def test_a_hot_key_is_counted() -> None:
    gate = Gate()
    with opened(Waiting(gate), on_barrier="carry") as harness:
        harness.push_all([("b", 1), ("b", 2), *(("a", number) for number in range(5))])
        counters = harness.operator.context.counters
        for _ in range(2):  # carried elements count again
            harness.snapshot()
            assert (counters["longest_key"], counters["in_flight"], counters["in_flight_max"]) == (4, 7, 2)
            assert harness.operator.hot_key == "'a'"
        for number in range(2):
            gate.open(harness, ("a", number))
        harness.snapshot()
        assert (counters["longest_key"], harness.operator.hot_key) == (4, "'a'")
        harness.snapshot()
        assert (counters["longest_key"], harness.operator.hot_key) == (2, "'a'")
        for name in (("a", 2), ("a", 3), ("a", 4), ("b", 1), ("b", 2)):
            gate.open(harness, name)
        harness.snapshot()
        harness.snapshot()
        assert (counters["longest_key"], counters["in_flight_max"], harness.operator.hot_key) == (0, 0, None)


class Timing(Stateful):
    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    async def process_element(self, value: Any, ctx: Any) -> Any:
        if value[1] == "set":
            ctx.timer_service().register_event_time_timer(5)
            return
        await self.gate(value)
        self.value.update(value[1])
        yield value

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp, self.value.value(), ctx.timer_service().current_watermark()


def test_a_timer_waits_for_its_keys_elements_and_the_watermark_for_both() -> None:
    gate = Gate()
    with opened(Timing(gate)) as harness:
        harness.push_all([("a", "set"), ("b", "set")], [0, 0])
        harness.push(("a", 1), 1)
        harness.push_watermark(10)
        harness.push_all([("a", 2), ("b", 3)], [20, 20])
        assert harness.get_output() == [("b", 5, None, 10)]
        gate.open(harness, ("b", 3))
        assert harness.get_output() == [("b", 5, None, 10)]  # a later element does not cross the watermark
        gate.open(harness, ("a", 1))
        gate.open(harness, ("a", 2))
        elements = [e.value if isinstance(e, StreamRecord) else e for e in harness.get_elements()]
        assert elements == [("b", 5, None, 10), ("a", 1), ("a", 5, 1, 10), Watermark(10), ("b", 3), ("a", 2)]


def test_an_element_in_progress_deletes_a_due_timer() -> None:
    gate = Gate()

    class Deleting(Timing):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            ctx.timer_service().register_event_time_timer(5)
            if value[1]:
                await gate(value)
                ctx.timer_service().delete_event_time_timer(5)
                yield value

    with opened(Deleting(gate)) as harness:
        harness.push_all([("a", 0), ("a", 1)], [0, 0])
        harness.push_watermark(10)
        assert harness.num_event_time_timers() == 1
        gate.open(harness, ("a", 1))
        assert harness.get_output() == [("a", 1)]
        assert harness.num_event_time_timers() == 0
        assert harness.get_watermarks() == [10]


def test_an_element_in_progress_sets_timers_that_are_due() -> None:
    gate = Gate()

    class Setting(Timing):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            await gate(value)
            for timestamp in (7, 5, 11):
                ctx.timer_service().register_event_time_timer(timestamp)

        async def on_timer(self, timestamp: int, ctx: Any) -> Any:
            await asyncio.sleep(0)
            yield timestamp

    with opened(Setting(gate)) as harness:
        harness.push(("a", 1), 0)
        harness.push_watermark(10)
        gate.open(harness, ("a", 1))
        assert harness.get_output() == [5, 7]
        assert harness.get_watermarks() == [10]


def test_a_timer_at_or_before_the_watermark_fires_with_the_next_one() -> None:
    class Late(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            ctx.timer_service().register_event_time_timer(5)
            await asyncio.sleep(0)

        async def on_timer(self, timestamp: int, ctx: Any) -> Any:
            await asyncio.sleep(0)
            yield ctx.timer_service().current_watermark()

    with opened(Late()) as harness:
        harness.push_watermark(10)
        harness.push(("a", 0), 0)
        assert harness.get_output() == []
        harness.push_watermark(11)
        assert harness.get_output() == [11]


def test_an_element_sees_the_watermark_of_its_arrival() -> None:
    gate = Gate()

    class Looking(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            await gate(value)
            yield value[1], ctx.timer_service().current_watermark()

    with opened(Looking()) as harness:
        harness.push_watermark(1)
        harness.push(("a", 1))
        harness.push_watermark(9)
        harness.push(("a", 2))
        gate.open(harness, ("a", 1))
        gate.open(harness, ("a", 2))
        assert harness.get_output() == [(1, 1), (2, 9)]


class Alarm(Stateful):
    """Sets a processing-time timer at the record's second field, and waits at a gate if there is a third field."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    async def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_processing_time_timer(value[1])
        if len(value) > 2:
            await self.gate(value)
        yield value

    async def on_timer(self, timestamp: int, ctx: Any) -> Any:
        await asyncio.sleep(0)
        yield ctx.get_current_key(), timestamp, ctx.time_domain().value


def test_processing_time_timers_wait_for_their_keys_elements() -> None:
    gate = Gate()
    with opened(Alarm(gate)) as harness:
        harness.push_all([("a", 100), ("a", 100, "wait"), ("b", 200)])
        harness.set_processing_time(150)
        assert harness.get_output() == [("a", 100), ("b", 200)]
        gate.open(harness, ("a", 100, "wait"))
        assert harness.get_output()[2:] == [("a", 100, "wait"), ("a", 100, "processing time")]
        harness.set_processing_time(200)
        assert harness.get_output()[4:] == [("b", 200, "processing time")]
        assert harness.get_records()[-1].timestamp is None


def test_overdue_timers_fire_after_the_epochs_records() -> None:
    gate = Gate()
    with opened(Alarm(gate)) as harness:
        harness.push(("a", 100))
        operator = operator_of(harness)
        (service,) = operator.time_services.services()
        service.unschedule()
        service.begin_epoch(100)
        harness.push(("a", 90, "wait"))
        service.fire_overdue_processing_time_timers()
        gate.open(harness, ("a", 90, "wait"))
        end(harness)
        assert [output[1] for output in harness.get_output()] == [100, 90, 90, 100]


def test_waiting_ends_by_the_harnesses_clock() -> None:
    class Sleeping(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            await asyncio.sleep(60)
            yield value

    with opened(Sleeping()) as harness:
        harness.push(("a", 1))
        with pytest.raises(TimeoutError, match=r"is waiting for a later time.*advance_processing_time"):
            harness.drain()
        harness.advance_processing_time(59_999)
        assert harness.get_output() == []
        harness.advance_processing_time(1)
        assert harness.get_output() == [("a", 1)]
        harness.push(("b", 1))
        harness.snapshot(time_passes="2 minutes")
        assert harness.get_output() == [("a", 1), ("b", 1)]


def test_tasks_of_a_thread_share_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """R23: each element is emitted in its own epoch."""
    shared = SharedResources()
    monkeypatch.setattr("pillarbox.testing._operator_harness.SharedResources", lambda **_: shared)
    gate = Gate()
    events: list[Any] = []

    class Waits(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            self.value.update(value)
            await gate(value)
            events.append((value, self.value.value(), ctx.get_current_key()))
            yield value

    with opened(Waits(), on_barrier="carry") as first, opened(Waits(), on_barrier="carry") as second:
        first.push(("a", 1))
        second.push(("a", 2))
        first.snapshot()
        gate.release(("a", 1))
        gate.open(second, ("a", 2))
        assert sorted(events) == [(("a", number), ("a", number), "a") for number in (1, 2)]
        assert (first.get_output(), second.get_output()) == ([], [("a", 2)])
        settle(first)
        assert first.get_output() == [("a", 1)]
        assert first.state_of("a")["value"] == ("a", 1)


def test_sleeps_one_after_another_end_within_one_advance() -> None:

    class Sleeping(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            for _ in range(3):
                await asyncio.sleep(0.1)
            yield ctx.timer_service().current_processing_time()

    with opened(Sleeping()) as harness:
        harness.push_all([("a", 1), ("a", 2)])
        harness.advance_processing_time(599)
        assert harness.get_output() == [300]
        harness.advance_processing_time(1)
        assert harness.get_output() == [300, 600]


def test_plain_and_async_methods_mix() -> None:
    class Mixed(Stateful):
        def process_element(self, value: Any, ctx: Any) -> Any:
            self.value.update(value)
            ctx.timer_service().register_event_time_timer(5)
            return [("record", value)]

        async def on_timer(self, timestamp: int, ctx: Any) -> Any:
            await asyncio.sleep(0)
            return [("timer", self.value.value())]

    with opened(Mixed()) as harness:
        harness.push(("a", 1), 0)
        harness.push_watermark(5)
        assert harness.get_output() == [("record", ("a", 1)), ("timer", ("a", 1))]
        assert [record.timestamp for record in harness.get_records()] == [0, 5]


def test_without_homes_carry_drains() -> None:
    class Slow(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            await asyncio.sleep(1)
            yield value

    with opened(Slow(), on_barrier="carry") as harness:
        harness.operator.context.shared.stay = False
        harness.push(("a", 1))
        harness.snapshot(time_passes="1 second")
        assert harness.get_output() == [("a", 1)]


def test_options_are_checked() -> None:
    class Plain(Stateful):
        def process_element(self, value: Any, ctx: Any) -> Any:
            return [value]

    with pytest.raises(ProgramError, match=r"capacity, ordered with .*, which has no async def"):
        opened(Plain(), capacity=3, ordered=True)
    with pytest.raises(ProgramError, match="capacity= must be a positive integer, not 0"):
        opened(Waiting(Gate()), capacity=0)
    with pytest.raises(ProgramError, match="on_barrier= must be"):
        opened(Waiting(Gate()), on_barrier="wait")


def test_never_suspending_functions_start_few_workers_and_starve_nobody() -> None:
    """R2: a task per element would cost more than the element's function."""
    workers = set()

    class Quick(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            workers.add(asyncio.current_task())
            self.value.update((self.value.value() or 0) + 1)
            yield value

    with opened(Quick()) as harness:
        operator_of(harness).process_records(Records([(f"k{n % 100}", n) for n in range(1000)]))
        end(harness)
        assert len(harness.get_output()) == 1000
        assert len(workers) <= 20
        assert harness.state_of("k7") == {"value": 10}
