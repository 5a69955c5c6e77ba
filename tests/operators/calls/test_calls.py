"""Recorded calls of async keyed functions."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest

from pillarbox import (
    CALL_AGAIN,
    AsyncRetryStrategy,
    Budget,
    BudgetExceededError,
    OperatorError,
    ProgramError,
    TimeDomain,
)
from pillarbox.testing import KeyedOneInputStreamOperatorTestHarness as Harness
from tests.operators.async_keyed.gates import BAD, Stateful, end, opened, settle
from tests.operators.calls.services import Calling, DeclinedError, Service


@pytest.fixture
def service() -> Service:
    return Service()


def calling(service: Service, run: Any, **options: Any) -> Harness:
    return opened(Calling(service, run), **{"on_barrier": "carry", **options})


def crashed(service: Service, run: Any, harness: Harness, **options: Any) -> Harness:
    snapshot = harness.snapshot()
    harness.close()
    service.restart()
    return calling(service, run, snapshot=snapshot, **options)


def run_twice(service: Service, run: Any, first: list[str], second: list[str]) -> list[Any]:
    """Crash while an element waits at the gate "wait", run it again, and return its results.

    Args:
        first: the calls that the service answers in the first run.
        second: the same for the second run.
    """
    harness = calling(service, run)
    harness.push(("a", 1))
    for name in first:
        service.gate.open(harness, name)
    assert service.gate.waiting[-1] == "wait"
    with crashed(service, run, harness) as again:
        for name in (*second, "wait"):
            service.gate.open(again, name)
        return again.get_output()


async def two_calls(service: Service, value: Any, ctx: Any) -> Any:
    first = await ctx.call(service.ask, "first")
    second = await ctx.call(service.ask, "second")
    yield first, second


def test_an_answered_call_is_not_made_again_after_a_failure(service: Service) -> None:
    """R25, R30: the snapshot of the epoch that received the answer contains the call's record."""
    harness = calling(service, two_calls)
    harness.push(("a", 1))
    service.gate.open(harness, "first")
    with crashed(service, two_calls, harness) as again:
        service.gate.open(again, "second")
        assert again.get_output() == [(("answer to first", 1), ("answer to second", 3))]
    assert service.counts == {"first": 1, "second": 2}


def test_concurrent_calls_are_found_in_any_order(service: Service) -> None:
    async def run(service: Service, value: Any, ctx: Any) -> Any:
        names = ["x", "x", "y"] if not service.calls else ["y", "x", "x"]
        yield await asyncio.gather(*(ctx.call(service.ask, name) for name in names))

    harness = calling(service, run)
    harness.push(("a", 1))
    assert service.calls == ["x", "x", "y"]
    service.gate.open(harness, "x", "y")
    assert harness.get_output() == [[("answer to x", 3), ("answer to x", 3), ("answer to y", 3)]]
    harness.close()


def test_concurrent_calls_of_which_some_have_answers(service: Service) -> None:
    async def run(service: Service, value: Any, ctx: Any) -> Any:
        names = ["x", "x", "y"] if not service.calls else ["y", "x", "x"]
        yield await asyncio.gather(*(ctx.call(service.ask, name) for name in names))

    harness = calling(service, run)
    harness.push(("a", 1))
    service.gate.open(harness, "x")
    with crashed(service, run, harness) as again:
        assert service.calls == ["x", "x", "y", "y"]
        service.gate.open(again, "y")
        assert [answer for answer, _ in again.get_output()[0]] == ["answer to y", "answer to x", "answer to x"]


def test_records_belong_to_their_element(service: Service) -> None:
    """R26: later records of the key make their own calls, even with the same arguments."""

    async def run(service: Service, value: Any, ctx: Any) -> Any:
        yield await ctx.call(service.ask, "x", key="x")

    with calling(service, run) as harness:
        for _ in range(2):
            harness.push(("a", 1))
            service.gate.open(harness, "x")
            harness.snapshot()
    assert service.calls == ["x", "x"]


@pytest.mark.parametrize("domain", TimeDomain)
def test_each_timer_has_its_own_records(service: Service, domain: TimeDomain) -> None:
    class Timed(Stateful):
        def process_element(self, value: Any, ctx: Any) -> None:
            timers = ctx.timer_service()
            for timestamp in (5, 7):
                if domain is TimeDomain.EVENT_TIME:
                    timers.register_event_time_timer(timestamp)
                else:
                    timers.register_processing_time_timer(timestamp)

        async def on_timer(self, timestamp: int, ctx: Any) -> Any:
            yield await ctx.call(service.charge, "both")
            await service.gate(("then", timestamp))

    def moved(harness: Harness) -> Harness:
        snapshot = harness.snapshot()
        harness.close()
        service.restart()
        return opened(Timed(), on_barrier="carry", snapshot=snapshot, processing_time=10)

    harness = opened(Timed(), on_barrier="carry")
    harness.push(("a", 1), 0)
    (harness.push_watermark if domain is TimeDomain.EVENT_TIME else harness.set_processing_time)(10)
    service.gate.open(harness, "both")
    harness = moved(harness)
    assert service.gate.waiting == [("then", 5)]
    service.gate.open(harness, ("then", 5))
    assert service.gate.waiting == [("then", 5), "both"]
    harness = moved(harness)
    assert service.gate.waiting == ["both"]
    service.gate.open(harness, "both")
    service.gate.open(harness, ("then", 7))
    assert not harness.operator.is_unfinished
    harness.close()
    assert sorted(map(len, service.charged.values())) == [1, 2]


def test_a_key_stands_for_one_call(service: Service) -> None:

    async def run(service: Service, value: Any, ctx: Any) -> Any:
        asked = [await ctx.call(service.ask, "x", key="k"), await ctx.call(service.ask, "x", key="k")]
        yield asked
        if value[1] == "arguments":
            await ctx.call(service.ask, "y", key="k")
        if value[1] == "function":
            await ctx.call(service.charge, "x", key="k")
        if value[1] == "concurrent":
            await asyncio.gather(*(ctx.call(service.ask, "z", key="z") for _ in range(2)))

    for value, error in (
        ("arguments", r"ctx.call\(\) of .*Service.ask: this record or timer has already used the key 'k'"),
        ("function", r"ctx.call\(\) of .*Service.charge: .*has already used the key 'k' .* another function"),
        ("concurrent", "a call with the key 'z' is still running"),
    ):
        with calling(service, run, on_barrier="drain") as harness:
            harness.push(("a", value))
            with pytest.raises(ProgramError, match=error):
                service.gate.open(harness, "x")
            assert service.calls.count("x") == 1
        service = Service()


def test_exceptions_are_recorded_only_if_they_are_answers(service: Service) -> None:

    once = AsyncRetryStrategy.no_restart()

    async def run_once(service: Service, value: Any, ctx: Any) -> Any:
        with pytest.raises(DeclinedError, match="too much"):
            await ctx.call(service.ask, "declined", record_errors=(DeclinedError, KeyError))
        with pytest.raises(ConnectionError):
            await ctx.call(service.ask, "broken", retry=once)
        await service.gate("wait")
        yield "end"

    service.errors = {"declined": [DeclinedError("too much")], "broken": [ConnectionError("1"), ConnectionError("2")]}
    assert run_twice(service, run_once, ["declined", "broken"], ["broken"]) == ["end"]
    assert service.counts == {"declined": 1, "broken": 2}


def test_a_memory_error_is_neither_retried_nor_recorded(service: Service) -> None:
    async def run(service: Service, value: Any, ctx: Any) -> Any:
        with pytest.raises(MemoryError):
            await ctx.call(service.ask, "full", retry=AsyncRetryStrategy.fixed_delay(3, 1))
        with pytest.raises(MemoryError):
            await ctx.call(service.ask, "large", record_errors=Exception)
        await service.gate("wait")
        yield "end"

    service.errors = {"full": [MemoryError(), MemoryError()], "large": [MemoryError(), MemoryError()]}
    assert run_twice(service, run, ["full", "large"], ["full", "large"]) == ["end"]
    assert service.counts == {"full": 2, "large": 2}


async def charge_twice(service: Service, value: Any, ctx: Any) -> Any:
    await ctx.call(service.charge, value[1:])
    yield await ctx.call(service.charge, value[1:])


def test_idempotency_keys_are_the_same_when_an_element_runs_again(service: Service) -> None:
    """R29: the element may run in another process, in a later epoch, and among other records."""
    harness = calling(service, charge_twice)
    before = harness.snapshot()
    harness.push_all([("a", 1), ("b", 1)])
    service.gate.open(harness, (1,))
    harness.close()  # the epoch fails between its two calls
    assert len(service.charged) == 4
    service.restart()
    harness = calling(service, charge_twice, snapshot=before)
    harness.push(("b", 1))
    with crashed(service, charge_twice, harness) as again:  # it is carried
        service.gate.open(again, (1,))
        service.gate.open(again, (1,))
        assert len(again.get_output()) == 1
    assert sorted(map(len, service.charged.values())) == [1, 1, 2, 3]


def test_a_call_that_failed_is_the_same_call_when_the_function_repeats_it(service: Service) -> None:
    async def run(service: Service, value: Any, ctx: Any) -> Any:
        answer = None
        while answer is None:
            try:
                answer = await ctx.call(service.charge, "x")
            except ConnectionError:
                pass
        yield answer
        await service.gate("wait")

    service.errors["x"] = [ConnectionError()]
    harness = calling(service, run)
    harness.push(("a", 1))
    service.gate.open(harness, "x")
    service.gate.open(harness, "x")
    with crashed(service, run, harness) as again:
        service.gate.open(again, "wait")
        assert again.get_output() == [("answer to x", 2)]
    assert list(service.charged.values()) == [["x", "x"]]


def test_equal_records_have_different_idempotency_keys(service: Service) -> None:
    """The keys differ with and without a barrier between the records."""

    async def run(service: Service, value: Any, ctx: Any) -> Any:
        yield await ctx.call(service.charge, value[1])

    def keys(order: list[Any], barrier_after: int) -> set[str]:
        service = Service()
        harness = calling(service, run)
        harness.push_all(order)
        for number in range(4):
            if number == barrier_after:
                harness = crashed(service, run, harness)
            harness._settle()
            service.gate.open(harness, *dict.fromkeys(service.gate._futures))
        assert not harness.operator.is_unfinished
        harness.close()
        return set(service.charged)

    records = [("a", 1), ("a", 1), ("a", 2), ("a", 1)]
    expected = keys(records, 9)
    assert len(expected) == 4
    for barrier in range(4):
        assert keys(records, barrier) == expected
        assert keys(records[::-1], barrier) == expected


def test_reconcile_is_asked_before_a_call_that_may_have_been_made(service: Service) -> None:
    asked: list[Any] = []
    outcomes: dict[str, Any] = {}

    async def find(idempotency_key: str, name: Any) -> Any:
        asked.append((idempotency_key, name))
        return outcomes.get(name, CALL_AGAIN)

    async def run(service: Service, value: Any, ctx: Any) -> Any:
        yield await ctx.call(service.charge, value[1], key=value[1], reconcile=find, retry=1)

    harness = calling(service, run)
    harness.push_all([("a", "x"), ("b", "y")])
    assert asked == []
    outcomes["x"] = "charged before"
    with crashed(service, run, harness) as again:
        assert asked == [("x", "x"), ("y", "y")]
        assert again.get_output() == ["charged before"]
        service.errors["y"] = [ConnectionError("reset")]
        outcomes["y"] = "charged by the first attempt"
        service.gate.open(again, "y")
        again.advance_processing_time(100)
        assert again.get_output()[1:] == ["charged by the first attempt"]
    assert service.charged == {"x": ["x"], "y": ["y", "y"]}


def test_reconcile_is_retried_as_its_call(service: Service) -> None:
    outcomes: list[Any] = [ConnectionError("reset"), "charged before"]

    async def find(idempotency_key: str, name: Any) -> Any:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def run(service: Service, value: Any, ctx: Any) -> Any:
        yield await ctx.call(service.charge, "x", key="x", reconcile=find, retry=1)

    harness = calling(service, run)
    harness.push(("a", "x"))
    with crashed(service, run, harness) as again:
        again.advance_processing_time(100)
        assert again.get_output() == ["charged before"]
        assert not outcomes


def test_retries_and_timeouts_follow_the_clock(service: Service) -> None:
    async def run(service: Service, value: Any, ctx: Any) -> Any:
        try:
            yield await ctx.call(service.ask, "x", retry=2, timeout="1 second")
        except TimeoutError as error:
            yield str(error)

    service.errors["x"] = [ConnectionError("1")]
    with calling(service, run) as harness:
        harness.push(("a", 1))
        service.gate.open(harness, "x")
        harness.advance_processing_time(99)
        assert service.calls == ["x"]
        harness.advance_processing_time(1)
        assert service.calls == ["x", "x"]
        harness.snapshot()  # the clock of a harness stands still meanwhile
        harness.advance_processing_time(899)
        assert harness.get_output() == []
        harness.advance_processing_time(1)
        (error,) = harness.get_output()
        assert "no result of" in error and "within 1000 ms" in error


def test_a_time_out_of_the_service_is_its_own(service: Service) -> None:
    async def run(service: Service, value: Any, ctx: Any) -> Any:
        try:
            yield await ctx.call(service.ask, "x", timeout="1 second")
        except TimeoutError as error:
            yield str(error)

    service.errors["x"] = [TimeoutError("the database is locked")]
    with calling(service, run) as harness:
        harness.push(("a", 1))
        service.gate.open(harness, "x")
        assert harness.get_output() == ["the database is locked"]


MODEL = Budget("model", requests="1 per second", units="100 per second", unit_cost=len, estimate=lambda args: args[1])
CEILING = Budget("money", ceiling=(10, "1 day"), estimate=6, when_exceeded="fail")


def test_calls_wait_for_their_budget(service: Service) -> None:
    async def answered(name: str, units: int) -> str:
        service.calls.append(name)
        return name

    async def run(service: Service, value: Any, ctx: Any) -> Any:
        yield await ctx.call(answered, value[1], 3, budget=MODEL)

    with calling(service, run, budgets=[MODEL]) as harness:
        harness.push_all([("a", "one"), ("b", "two")])
        settle(harness)
        assert service.calls == ["one"]
        harness.advance_processing_time(900)
        settle(harness)
        assert service.calls == ["one"]
        harness.advance_processing_time(110)
        settle(harness)
        assert service.calls == ["one", "two"]
        harness.snapshot()
        counters = harness.operator.context.counters
        assert (counters["budget.model.granted"], counters["budget.model.spent"]) == (2, 6)
        assert (counters["calls"], counters["calls_reused"]) == (2, 0)


def test_a_call_that_its_budget_refuses_is_an_error_of_its_record(service: Service) -> None:
    async def free() -> int:
        return 1

    async def run(service: Service, value: Any, ctx: Any) -> Any:
        yield await ctx.call(free, budget=CEILING)

    with calling(service, run, budgets=[CEILING], on_error=BAD) as harness:
        harness.push_all([("a", 1), ("b", 1)])
        end(harness)
        assert harness.get_output() == [1]
        (letter,) = harness.get_side_output(BAD)
        assert letter.error.startswith(BudgetExceededError.__name__)


def test_an_unknown_budget_is_refused(service: Service) -> None:
    async def run(service: Service, value: Any, ctx: Any) -> Any:
        yield await ctx.call(service.ask, "x", budget=MODEL)

    with (
        calling(service, run) as harness,
        pytest.raises(ProgramError, match=r"the budget 'model', which .* budgets=\[\.\.\.\]"),
    ):
        harness.push(("a", 1))


def test_a_plain_function_runs_in_a_thread(service: Service) -> None:
    def square(number: int) -> int:
        if number < 0:
            raise StopIteration
        return number**2

    async def run(service: Service, value: Any, ctx: Any) -> Any:
        yield await ctx.call(square, value[1])
        yield await ctx.call(partial(square, value[1]), key="again")

    with calling(service, run) as harness:
        harness.push(("a", 3))
        harness.drain()
        assert harness.get_output() == [9, 9]
        with pytest.raises(OperatorError, match="raised StopIteration"):
            harness.push(("a", -3))
            harness.drain()


def test_hung_calls_leave_threads_for_others(service: Service) -> None:
    goes_on, answered = threading.Event(), threading.Event()

    def ask(value: Any) -> Any:
        if value == "hangs":
            assert goes_on.wait(60)
        else:
            answered.set()
        return value

    async def run(service: Service, value: Any, ctx: Any) -> Any:
        yield await ctx.call(ask, value[1])

    with calling(service, run) as harness:
        try:
            harness.push_all([(f"k{number}", "hangs") for number in range(40)])
            harness.push(("other", "answers"))
            assert answered.wait(30)
        finally:
            goes_on.set()
        harness.drain()
        assert len(harness.get_output()) == 41


def test_arguments_and_results_may_change_after_the_call(service: Service) -> None:
    """The record of the call contains the arguments and the result at the time of the call."""

    async def ask(names: list[str]) -> list[str]:
        await service.ask("x")
        return [*names, "answer"]

    async def run(service: Service, value: Any, ctx: Any) -> Any:
        names = ["x"]
        call = asyncio.ensure_future(ctx.call(ask, names))
        await asyncio.sleep(0)
        names.append("changed")
        result = await call
        yield list(result)
        result.append("changed")
        await service.gate("wait")

    harness = calling(service, run)
    harness.push(("a", 1))
    service.gate.open(harness, "x")
    with crashed(service, run, harness) as again:
        service.gate.open(again, "wait")
        assert again.get_output() == [["x", "changed", "answer"]]
    assert service.calls == ["x"]


class Opaque:
    def __reduce__(self) -> Any:
        raise TypeError("opaque")


def test_calls_without_a_lasting_name_need_a_key(service: Service) -> None:
    async def run(service: Service, value: Any, ctx: Any) -> Any:
        async def ask(argument: Any) -> str:
            return "answer"

        if value[1] == "lambda":
            await ctx.call(lambda: 1)
        if value[1] == "argument":
            await ctx.call(ask, Opaque())
        if value[1] == "result":
            await ctx.call(type, Opaque(), key="x")
            await ctx.call(Opaque)
        yield await ctx.call(ask, Opaque(), key="key")

    for what, error in (
        ("lambda", "a lambda has no name.* pass key="),
        ("argument", r"ask: its arguments cannot be pickled \(TypeError: opaque\).* pass key="),
        ("result", "its result, of type Opaque, cannot be recorded: TypeError: opaque"),
    ):
        with calling(service, run) as harness, pytest.raises(ProgramError, match=error):
            harness.push(("a", what))
            harness.drain()
    with calling(service, run) as harness:
        harness.push(("a", "key"))
        assert harness.get_output() == ["answer"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"key": 1}, "key= must be a non-empty string, not 1"),
        ({"record_errors": [ValueError]}, "record_errors= must be exception classes"),
        ({"budget": "model"}, "budget= must be one of the Budget objects"),
        ({"reconcile": "x"}, "reconcile= must be a function, not 'x'"),
        ({"retry": "x"}, "retry= must be an AsyncRetryStrategy"),
        ({"timeout": 0}, "timeout"),
        ({"verbose": True}, r"ctx.call\(\) has no option 'verbose': pass the function's own arguments by position"),
    ],
)
def test_invalid_options_are_refused(service: Service, options: dict[str, Any], error: str) -> None:
    async def run(service: Service, value: Any, ctx: Any) -> Any:
        yield await ctx.call(service.ask, "x", **options)

    with calling(service, run) as harness, pytest.raises(ProgramError, match=error):
        harness.push(("a", 1))


def test_plain_functions_cannot_make_calls() -> None:
    class Plain(Stateful):
        def process_element(self, value: Any, ctx: Any) -> None:
            ctx.call(len, "x")

    with opened(Plain()) as harness, pytest.raises(ProgramError, match=r"ctx.call\(\) works only in an async def"):
        harness.push(("a", 1))
