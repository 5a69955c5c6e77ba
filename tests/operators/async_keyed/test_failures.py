from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any

import pytest

from pillarbox import BudgetExceededError, OperatorError, OutputTag, ProgramError, TimeDomain
from pillarbox._elements.elements import Watermark
from pillarbox._errors import ConfigurationError
from pillarbox.testing._patience import HarnessTimeoutError
from tests.operators.async_keyed.gates import BAD, Gate, Stateful, end, opened

SIDE: OutputTag[Any] = OutputTag("side")


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pillarbox._operators.async_io.loop.event_loop.GRACE", 0.05)


class Changing(Stateful):
    async def process_element(self, value: Any, ctx: Any) -> Any:
        self.value.update((self.value.value() or 0) + 1)
        self.list.add(value[1])
        self.map.put("x", value[1])
        ctx.timer_service().register_event_time_timer(value[1])
        ctx.output(SIDE, value)
        yield "result", value
        await asyncio.sleep(0)
        if value[1] == 2:
            raise ValueError("two")


def test_a_dead_letter_undoes_all_that_its_element_did() -> None:
    with opened(Changing(), on_error=BAD) as harness:
        harness.push_all([("a", 1), ("a", 2), ("a", 3)])
        end(harness)
        assert harness.get_output() == [("result", ("a", 1)), ("result", ("a", 3))]
        assert harness.state_of("a") == {"value": 2, "list": [1, 3], "map": {"x": 3}}
        assert harness.event_time_timers_of("a") == [1, 3]
        (letter,) = harness.get_side_output(BAD)
        assert (letter.value, letter.key, letter.error) == (("a", 2), "a", "ValueError: two")
        assert harness.get_side_output(SIDE) == [("a", 1), ("a", 3)]


def test_without_a_tag_an_error_fails_the_task() -> None:
    with opened(Changing()) as harness, pytest.raises(OperatorError, match=r"\('a', 2\) of key 'a': ValueError: two"):
        harness.push_all([("a", 1), ("a", 2), ("a", 3)])


def test_a_letter_has_the_record_as_it_was() -> None:
    class Emptying(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> None:
            value.clear()
            await asyncio.sleep(0)
            raise ValueError

    with opened(Emptying(), on_error=BAD) as harness:
        harness.push(["a", 1])
        assert [letter.value for letter in harness.get_side_output(BAD)] == [["a", 1]]


class Timers(Stateful):
    calls: list[int]

    def process_element(self, value: Any, ctx: Any) -> None:
        for timestamp in (1, 2, 3):
            ctx.timer_service().register_event_time_timer(timestamp)

    async def on_timer(self, timestamp: int, ctx: Any) -> Any:
        self.calls.append(timestamp)
        self.list.add(timestamp)
        if timestamp == 2:
            raise ValueError("two")
        yield timestamp


def test_a_timer_that_fails_has_fired_and_others_keep_their_changes() -> None:
    function = Timers()
    function.calls = []
    with opened(function, on_error=BAD) as harness:
        harness.push(("a", 1), 0)
        harness.push_watermark(5)
        harness.push_watermark(6)
        assert function.calls == [1, 2, 3]
        assert harness.get_output() == [1, 3]
        assert harness.state_of("a") == {"list": [1, 3]}
        (letter,) = harness.get_side_output(BAD)
        assert (letter.value, letter.timestamp, letter.timer) == (None, 2, TimeDomain.EVENT_TIME)


def test_a_failing_timer_fails_the_task_and_is_named() -> None:
    function = Timers()
    function.calls = []
    with opened(function) as harness:
        harness.push(("a", 1), 0)
        with pytest.raises(OperatorError, match="failed at the event time timer at 2 of key 'a': ValueError: two"):
            harness.push_watermark(5)


class Hanging(Stateful):
    """Waits forever. The record determines the function's reaction to a cancellation."""

    async def process_element(self, value: Any, ctx: Any) -> Any:
        self.value.update(value[1])
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                assert (self.value.value(), ctx.get_current_key()) == (value[1], value[0])
                if value[1] == "ends":
                    yield "ended"
                    return
                if value[1] == "stops":
                    raise


def test_a_timeout_cancels_and_undoes() -> None:
    with opened(Hanging(), on_error=BAD, timeout="5 seconds") as harness:
        harness.push(("a", "stops"))
        harness.set_processing_time(4_999)
        assert not harness.get_side_output(BAD)
        harness.set_processing_time(5_000)
        (letter,) = harness.get_side_output(BAD)
        assert letter.error == "TimeoutError: not finished within 5 s"
        assert harness.state_of("a") == {}


def test_time_that_passes_without_timers_does_not_wait_forever() -> None:
    with opened(Hanging()) as harness:
        harness.push(("a", "stops"))
        harness._patience._limit = 0.05
        with pytest.raises(HarnessTimeoutError, match=r"has waited 0\.05 s for unfinished requests"):
            harness.snapshot(time_passes="1 second")


class HangingTimers(Stateful):
    """Sets three timers. Timers in ``hang`` wait forever, and ignore a cancellation with ``stays``."""

    hang: tuple[int, ...] = ()
    stays = False

    async def process_element(self, value: Any, ctx: Any) -> None:
        for timestamp in (1, 2, 3) if value[1] else ():
            ctx.timer_service().register_event_time_timer(timestamp)

    async def on_timer(self, timestamp: int, ctx: Any) -> Any:
        while timestamp in self.hang:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if not self.stays:
                    raise
        await asyncio.sleep(3)
        yield timestamp


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("hang", "stays"), [((1,), False), ((1, 2), False), ((2,), True), ((1, 2), True)])
def test_each_timer_has_its_own_timeout(hang: tuple[int, ...], stays: bool, ordered: bool) -> None:
    function = HangingTimers()
    function.hang, function.stays = hang, stays
    with opened(function, on_error=BAD, timeout="5 seconds", ordered=ordered) as harness:
        harness.push(("a", 1), 0)
        harness.push_watermark(5)
        harness.push(("a", 0), 6)
        harness.push_watermark(10)
        for _ in range(30):
            harness.advance_processing_time(1_000)
        letters = harness.get_side_output(BAD)
        assert [letter.timestamp for letter in letters] == list(hang)
        assert {letter.error for letter in letters} == {"TimeoutError: not finished within 5 s"}
        records = [(timestamp, timestamp) for timestamp in (1, 2, 3) if timestamp not in hang]
        assert harness.get_elements() == [*records, Watermark(5), Watermark(10)]


def test_an_element_that_returns_when_it_is_cancelled_has_ended_normally() -> None:
    with opened(Hanging(), on_error=BAD, timeout="5 seconds") as harness:
        harness.push(("a", "ends"))
        harness.set_processing_time(5_000)
        assert harness.get_output() == ["ended"]
        assert harness.state_of("a") == {"value": "ends"}
        harness.push(("b", "ends"))  # its worker is not cancelled a second time
        harness.set_processing_time(9_999)
        assert harness.get_output() == ["ended"]
        harness.set_processing_time(10_000)
        assert harness.get_output() == ["ended", "ended"]


def test_r3_ended_elements_do_not_wait_in_memory_for_their_timeout() -> None:
    class Record(tuple[str, int]):
        __slots__ = ()

    class Waiting(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> None:
            await asyncio.sleep(1)

    with opened(Waiting(), timeout="1 hour") as harness:
        for number in range(20):
            harness.push(Record((f"k{number % 3}", number)))
            harness.advance_processing_time(2_000)
        gc.collect()
        assert not [held for held in gc.get_objects() if isinstance(held, Record)]


def test_a_timeout_fails_the_task() -> None:
    with opened(Hanging(), timeout="5 seconds") as harness:
        harness.push(("a", "stops"))
        with pytest.raises(OperatorError, match=r"\('a', 'stops'\) of key 'a': TimeoutError: not finished within 5 s"):
            harness.set_processing_time(5_000)


def test_an_element_that_ignores_its_cancellation_is_cut_off() -> None:
    with opened(Hanging(), on_error=BAD, timeout="5 seconds", capacity=1) as harness:
        harness.push_all([("a", "stays"), ("a", "ends")])
        harness.set_processing_time(5_000)
        assert not harness.get_side_output(BAD)
        harness.set_processing_time(6_000)
        assert len(harness.get_side_output(BAD)) == 1
        assert harness.state_of("a") == {"value": "ends"}  # the next element has the key and the place
        harness.set_processing_time(11_000)
        assert harness.get_output() == ["ended"]


def test_too_many_elements_that_ignore_their_cancellation_fail_the_task() -> None:
    with opened(Hanging(), on_error=BAD, timeout="5 seconds", capacity=1) as harness:
        harness.push_all([(f"k{number}", "stays") for number in range(33)])
        for _ in range(32):
            harness.advance_processing_time(5_000)
            harness.advance_processing_time(1_000)
        assert len(harness.get_side_output(BAD)) == 32
        harness.advance_processing_time(5_000)
        with pytest.raises(OperatorError, match="32 elements ignore their cancellation"):
            harness.advance_processing_time(1_000)


def test_a_carried_element_becomes_a_dead_letter_in_a_later_epoch() -> None:
    gate = Gate()

    class Late(Changing):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            self.value.update(value[1])
            self.list.add(value[1])
            self.map.remove("x")
            self.map.put("x", value[1])
            if value[1] == 2:
                await gate(value)
                self.list.add("more")
                raise ValueError("two")

    with opened(Late(), on_error=BAD, on_barrier="carry") as harness:
        harness.push_all([("a", 1), ("a", 2)])
        for _ in range(3):
            harness.snapshot()
            assert harness.state_of("a") == {"value": 2, "list": [1, 2], "map": {"x": 2}}
        gate.open(harness, ("a", 2))
        assert harness.state_of("a") == {"value": 1, "list": [1], "map": {"x": 1}}
        assert [letter.value for letter in harness.get_side_output(BAD)] == [("a", 2)]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio has no TaskGroup")
def test_errors_of_a_task_group_are_letters_unless_one_concerns_the_program() -> None:
    class Grouped(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> None:
            group: Any = getattr(asyncio, "TaskGroup")  # noqa: B009  (mypy checks for Python 3.10)
            async with group() as tasks:
                for error in value[1]:
                    tasks.create_task(self.fails(error))

        async def fails(self, error: Exception) -> None:
            raise error

    with opened(Grouped(), on_error=BAD) as harness:
        harness.push(("a", [BudgetExceededError("no money"), ValueError("bad")]))
        (letter,) = harness.get_side_output(BAD)
        assert "BudgetExceededError: no money; ValueError: bad" in letter.error
        with pytest.raises(OperatorError, match="ConfigurationError: no journal"):
            harness.push(("b", [ConfigurationError("no journal")]))


def test_a_record_that_cannot_be_copied_fails_the_task() -> None:
    class Uncopied:
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("no copies")

    with (
        opened(Hanging(), on_error=BAD) as harness,
        pytest.raises(ProgramError, match=r"emitted .*, which cannot be copied \(TypeError: no copies\)"),
    ):
        harness.push(("a", Uncopied()))
