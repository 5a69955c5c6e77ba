"""Elements that are carried over a barrier."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from pillarbox import OutputTag
from pillarbox._elements.elements import Watermark
from pillarbox._errors import CheckpointMismatchError
from pillarbox._operators.async_keyed.operator import AsyncKeyedOperator
from pillarbox._operators.async_keyed.options import WAITING
from tests.operators.async_keyed.gates import BAD, Gate, Stateful, end, opened


class Counting(Stateful):
    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    async def process_element(self, value: Any, ctx: Any) -> Any:
        self.value.update((self.value.value() or 0) + 10)
        self.list.add(value[1])
        yield "early"
        ctx.timer_service().register_event_time_timer(77)
        await self.gate(value)
        self.value.update(self.value.value() + 1)
        yield self.value.value(), list(self.list.get())

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield "timer", ctx.get_current_key()


def test_the_snapshot_has_the_state_before_and_the_element_continues() -> None:
    gate = Gate()
    with opened(Counting(gate), on_barrier="carry") as harness:
        harness.push(("a", 1))
        gate.open(harness, ("a", 1))
        harness.push_all([("a", 2), ("b", 1)])
        snapshot = harness.snapshot()
        assert harness.get_output() == ["early", (11, [1])]
        assert harness.operator.is_unfinished
        assert harness.state_of("a") == {"value": 21, "list": [1, 2]}
        assert harness.state_of("b") == {"value": 10, "list": [1]}
        gate.open(harness, ("a", 2), ("b", 1))
        assert harness.get_output()[2:] == ["early", (22, [1, 2]), "early", (11, [1])]
        last = harness.snapshot()
    gate.reset()
    with opened(Counting(gate), snapshot=snapshot, on_barrier="carry") as harness:
        assert sorted(gate.waiting) == [("a", 2), ("b", 1)]
        gate.open(harness, ("a", 2), ("b", 1))
        assert harness.get_output() == ["early", (22, [1, 2]), "early", (11, [1])]
        harness.push_watermark(100)
        assert sorted(harness.get_output()[4:]) == [("timer", "a"), ("timer", "b")]
    with opened(Counting(gate), snapshot=last, on_barrier="carry") as harness:
        assert harness.state_of("a") == {"value": 22, "list": [1, 2]}
        assert harness.state_of("b") == {"value": 11, "list": [1]}
        assert harness.event_time_timers_of("a") == [77]


def test_a_snapshot_restores_the_state_before_its_elements_begin() -> None:
    states = []

    class Looking(Counting):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            states.append((self.value.value(), list(self.list.get())))
            async for result in super().process_element(value, ctx):
                yield result

    gate = Gate()
    with opened(Looking(gate), on_barrier="carry") as harness:
        harness.push(("a", 1))
        gate.open(harness, ("a", 1))
        harness.push(("a", 2))
        snapshot = harness.snapshot()
    gate.reset()
    with opened(Looking(gate), snapshot=snapshot, on_barrier="carry"):
        assert states == [(None, []), (11, [1]), (11, [1])]


def test_carried_outputs_that_the_program_no_longer_reads_are_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()

    class Slow(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            if value == ("slow", 1):
                await gate(value)
            if value == ("bad", 1):
                raise ValueError("it is bad")
            ctx.output(OutputTag("unread"), value)
            yield value

    with opened(Slow(), on_barrier="carry", on_error=BAD) as harness:
        harness.push(("slow", 1), 1)
        harness.push_watermark(5)
        harness.push_all([("fast", 2), ("bad", 1)], [6, 6])
        snapshot = harness.snapshot()
    gate.reset()
    monkeypatch.setattr("pillarbox.testing._operator_harness._SideOutputs", dict)
    with opened(Slow(), snapshot=snapshot, on_barrier="carry", on_error=BAD) as harness:
        gate.open(harness, ("slow", 1))
        end(harness)
        assert harness.get_output() == [("slow", 1), ("fast", 2)]
    assert "the side output 'bad' is not among the program's outputs" in caplog.text


def test_ended_elements_behind_a_watermark_are_kept_with_their_outputs() -> None:
    gate = Gate()
    runs: list[Any] = []

    class Slow(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            runs.append(value)
            self.value.update((self.value.value() or 0) + 1)
            if value[0] == "bad":
                raise ValueError
            if value[0] == "slow":
                await gate(value)
            yield value[0], self.value.value()

    with opened(Slow(), on_barrier="carry", on_error=BAD) as harness:
        harness.push(("slow", 1), 1)
        harness.push_watermark(5)
        harness.operator.process_status(True)
        harness.push_all([("fast", 2), ("bad", 1)], [6, 6])
        assert harness.get_output() == []
        snapshot = harness.snapshot()
    runs.clear()
    gate.reset()
    with opened(Slow(), snapshot=snapshot, on_barrier="carry", on_error=BAD) as harness:
        assert runs == [("slow", 1)]
        assert harness.state_of("fast") == {"value": 1}
        gate.open(harness, ("slow", 1))
        elements = [
            element if type(element) is not Watermark else element.timestamp for element in harness.get_elements()
        ]
        assert elements[:2] == [(("slow", 1), 1), 5]
        assert elements[3:] == [(("fast", 1), 6)]
        assert [letter.value for letter in harness.get_side_output(BAD)] == [("bad", 1)]


def test_a_timer_in_progress_fires_again_after_a_failure() -> None:
    """A running timer is no longer registered, but it is in the snapshot."""
    gate = Gate()
    calls: list[int] = []

    class Timed(Stateful):
        def process_element(self, value: Any, ctx: Any) -> None:
            ctx.timer_service().register_event_time_timer(5)
            ctx.timer_service().register_event_time_timer(7)

        async def on_timer(self, timestamp: int, ctx: Any) -> Any:
            calls.append(timestamp)
            self.list.add(timestamp)
            await gate(timestamp)
            yield timestamp

    with opened(Timed(), on_barrier="carry") as harness:
        harness.push(("a", 1), 0)
        harness.push_watermark(10)
        gate.open(harness, 5)
        assert calls == [5, 7]
        snapshot = harness.snapshot()
        assert harness.event_time_timers_of("a") == []
        gate.open(harness, 7)
        assert (harness.get_output(), harness.get_watermarks()) == ([5, 7], [10])
        assert harness.state_of("a") == {"list": [5, 7]}
    gate.reset()
    calls.clear()
    with opened(Timed(), snapshot=snapshot, on_barrier="carry") as harness:
        assert calls == [7]
        assert harness.state_of("a") == {"list": [5, 7]}
        gate.open(harness, 7)
        assert (harness.get_output(), harness.get_watermarks()) == ([5, 7], [10])


def test_a_processing_time_timer_in_progress_is_carried() -> None:
    gate = Gate()
    calls: list[int] = []

    class Timed(Stateful):
        def process_element(self, value: Any, ctx: Any) -> None:
            for timestamp in (5, 7):
                ctx.timer_service().register_processing_time_timer(timestamp)

        async def on_timer(self, timestamp: int, ctx: Any) -> Any:
            calls.append(timestamp)
            await gate(timestamp)
            yield timestamp

    with opened(Timed(), on_barrier="carry") as harness:
        harness.push(("a", 1))
        harness.set_processing_time(10)
        gate.open(harness, 5)
        snapshot = harness.snapshot()
        gate.open(harness, 7)
        assert harness.get_output() == [5, 7]
        assert harness.num_processing_time_timers() == 0
    gate.reset()
    calls.clear()
    with opened(Timed(), snapshot=snapshot, on_barrier="carry", processing_time=20) as harness:
        harness.advance_processing_time(0)
        assert calls == [7]
        gate.open(harness, 7)
        assert harness.get_output() == [5, 7]


def test_a_map_that_becomes_large_at_the_barrier() -> None:
    gate = Gate()

    class Growing(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            for number in range(value[1], value[1] + 3000):
                self.map.put(number, "x" * 100)
            if value[1]:
                self.map.remove(5)
                self.map.put(7, "changed")
                await gate(value)
            yield len(list(self.map.keys()))

    def large_map(snapshot: Any) -> dict[Any, Any]:
        with opened(Growing(), snapshot=snapshot, on_barrier="carry") as other:
            return other.state_of("a")["map"]  # type: ignore[no-any-return]

    with opened(Growing(), on_barrier="carry") as harness:
        harness.push(("a", 0))
        harness.push(("a", 10_000))
        first = harness.snapshot()
        assert len(harness.state_of("a")["map"]) == 5999
        gate.open(harness, ("a", 10_000))
        assert harness.get_output() == [3000, 5999]
        last = harness.snapshot()
    gate.reset()
    before, after = large_map(first), large_map(last)
    # The restored element has begun again.
    assert len(before) == 5999
    assert len(after) == 5999
    assert 5 not in after
    assert after[7] == "changed"


def test_large_collections_are_rewound_and_repeated() -> None:
    gate = Gate()

    class Large(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            if not value[1]:
                for number in range(1000):
                    self.map.put(number, ["x" * 50])
                    self.list.add(["y" * 50])
                return
            self.map.put(5, "changed")
            self.map.remove(6)
            self.map.put("new", 1)
            self.map.get(7).append("in place")
            self.map.put(6, "again")
            self.list.add("last")
            await gate((value, 1))
            self.map.put(8, "later")
            self.map.remove(9)
            await gate((value, 2))
            yield len(list(self.map.keys())), len(list(self.list.get()))

    def facts(harness: Any) -> tuple[Any, ...]:
        state = harness.state_of("a")
        entries, elements = state["map"], state["list"]
        return (
            *(entries.get(key) for key in (5, 6, "new", 8, 9)),
            *(len(entries), len(elements), elements[-1], list(entries)[5:8], list(entries)[-1]),
        )

    begun = ("changed", "again", 1, ["x" * 50], ["x" * 50], 1001, 1001, "last", [5, 7, 8], 6)
    ended = ("changed", "again", 1, "later", None, 1000, 1001, "last", [5, 7, 8], 6)
    with opened(Large(), on_barrier="carry") as harness:
        harness.push(("a", 0))
        harness.snapshot()
        harness.push(("a", 1))
        shots = [harness.snapshot()]
        assert facts(harness) == begun
        gate.open(harness, (("a", 1), 1))
        shots.append(harness.snapshot())
        assert facts(harness) == ended
        gate.open(harness, (("a", 1), 2))
        assert harness.get_output() == [(1000, 1001)]
        shots.append(harness.snapshot())
    for number, shot in enumerate(shots):
        gate.reset()
        with opened(Large(), snapshot=shot, on_barrier="carry") as harness:
            assert facts(harness) == (ended if number == 2 else begun)


def test_marks_of_large_maps_follow_the_log() -> None:
    """With marks from an earlier epoch, the key 3 would follow the key "new" in the log."""
    gate = Gate()

    class Marking(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> None:
            if value[1] == "fill":
                for number in range(50):
                    self.map.put(number, "x" * 1000)
            elif value[1] == "add again":
                self.map.remove(3)
                self.map.put(3, "again")
                self.map.put("new", 1)
            else:
                self.map.put(3, "waiting")
                await gate(1)
                self.value.update("changed")  # so that the row is written once more
                await gate(2)

    with opened(Marking(), on_barrier="carry") as harness:
        harness.push(("a", "fill"))
        harness.snapshot()
        harness.push_all([("a", "add again"), ("a", "wait")])
        shots = [harness.snapshot()]
        gate.open(harness, 1)
        shots.append(harness.snapshot())
        gate.open(harness, 2)
        shots.append(harness.snapshot())
    for snapshot in shots:
        gate.reset()
        with opened(Marking(), on_barrier="carry", snapshot=snapshot) as harness:
            assert list(harness.state_of("a")["map"])[-2:] == [3, "new"]


def test_an_element_is_carried_over_many_barriers() -> None:
    gate = Gate()

    class Long(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            for step in range(4):
                self.value.update((self.value.value() or 0) + 1)
                self.list.add(step)
                self.map.put(step, value[1])
                if step:
                    self.map.remove(step - 1)
                await gate((value, step))
            yield self.value.value(), dict(self.map.items())

    with opened(Long(), on_barrier="carry") as harness:
        harness.push_all([("a", 1), ("a", 2)])
        shots = []
        for value in (("a", 1), ("a", 2)):
            for step in range(4):
                shots.append((value[1], harness.snapshot()))
                gate.open(harness, (value, step))
        assert harness.get_output() == [(4, {3: 1}), (8, {3: 2})]
    for number, shot in shots:
        gate.reset()
        with opened(Long(), snapshot=shot, on_barrier="carry") as harness:
            # The first step of the element runs at once.
            steps = [0] if number == 1 else [0, 1, 2, 3, 0]
            assert harness.state_of("a")["list"] == steps
            assert harness.state_of("a")["value"] == len(steps)


def test_other_options_refuse_a_snapshot_with_carried_elements() -> None:
    gate = Gate()
    with opened(Counting(gate), on_barrier="carry") as harness:
        harness.push(("a", 1))
        snapshot = harness.snapshot()
    gate.reset()
    with opened(Counting(gate), snapshot=snapshot) as harness:
        assert gate.waiting == [("a", 1)]
        gate.open(harness, ("a", 1))
        end(harness)
        assert harness.get_output()[-1] == (11, [1])

    class Plain(Stateful):
        def process_element(self, value: Any, ctx: Any) -> Any:
            return [value]

    Plain.__name__ = "Counting"
    with pytest.raises(CheckpointMismatchError, match="contains in-flight records of operator 'Counting'"):
        opened(Plain(), snapshot=snapshot)


def test_connections_closed_between_epochs_are_seen_before_any_step() -> None:
    """The first turn of an epoch polls sockets before it runs steps."""
    events: list[str] = []

    class Connecting(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            if value[1] == "first":
                self.reader, self.writer = await asyncio.open_connection(*address)
            else:
                events.append("closed" if self.reader.at_eof() else "open")
            yield value

    with socket.create_server(("127.0.0.1", 0)) as server, opened(Connecting(), on_barrier="carry") as harness:
        address = server.getsockname()[:2]
        harness.push(("a", "first"))
        connection, _ = server.accept()
        end(harness)
        operator: Any = harness.operator
        operator.runner.loop.pause()
        connection.close()
        harness.push(("a", "second"))
        end(harness)
        assert events == ["closed"]


def test_visits_of_a_busy_key_leave_room_for_records() -> None:
    """In each epoch, the watermark fires timers (a visit) of each busy key, and a request may outlast many epochs."""
    gate = Gate()

    class Slow(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            await gate(value[1])
            yield value

    with opened(Slow(), on_barrier="carry", capacity=2, limit=1) as harness:
        harness.push(("a", 0))
        for watermark in range(WAITING + 10):
            harness.push_watermark(watermark)
        harness.push(("b", 1))
        assert gate.waiting == [0, 1]
        gate.open(harness, 0, 1)
        assert harness.get_output() == [("a", 0), ("b", 1)]


def test_r3_visits_of_a_busy_key_stay_few() -> None:
    gate = Gate()

    class Slow(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> None:
            await gate(value[1])
            for timestamp in 5, 500:
                ctx.timer_service().register_event_time_timer(timestamp)

        def on_timer(self, timestamp: int, ctx: Any) -> Any:
            yield timestamp, ctx.timer_service().current_watermark() >= timestamp

    with opened(Slow(), on_barrier="carry") as harness:
        harness.push(("a", 0))
        for watermark in range(1_000):
            harness.push_watermark(watermark)
            harness.advance_processing_time(1)
        operator = harness.operator
        assert isinstance(operator, AsyncKeyedOperator)
        assert len(operator.runner.lines["a"] or ()) < 40
        gate.open(harness, 0)
        assert harness.get_output() == [(5, True), (500, True)]
