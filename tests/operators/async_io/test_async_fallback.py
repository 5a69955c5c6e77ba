from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from pillarbox import (
    AsyncBatchFunction,
    AsyncCache,
    AsyncDataStream,
    AsyncFunction,
    AsyncRetryStrategy,
    OperatorError,
    OutputTag,
    ProgramError,
    StreamExecutionEnvironment,
    fallback,
)
from pillarbox._operators.async_io.api.options import AsyncOptions
from pillarbox._operators.async_io.operator import AsyncWaitOperator
from pillarbox.testing import OneInputStreamOperatorTestHarness as Harness
from pillarbox.testing import ProgramTestHarness
from tests.support.nodes import node

BAD = OutputTag[Any]("bad")


def env(*values: Any) -> Any:
    return StreamExecutionEnvironment.get_execution_environment().from_collection(list(values))


async def odd(value):
    if value % 2 == 0:
        raise ConnectionError(f"not {value}")
    return value


def error_text(value, error):
    return f"{value}: {type(error).__name__}"


class Odd(AsyncFunction):
    async def async_invoke(self, value):
        return [await odd(value)]


# -- fallbacks --


def test_a_fallback_answers_for_what_failed():
    stream = env(1, 2, 3, 4).map_async(odd, on_failure=fallback(error_text))
    assert stream.execute_and_collect() == [1, "2: ConnectionError", 3, "4: ConnectionError"]


def test_a_fallback_of_an_async_function_returns_lists():
    def twice(value, error):
        return [value, value]

    stream = AsyncDataStream.ordered_wait(env(1, 2, 3), Odd(), "1 minute", on_failure=fallback(twice))
    assert stream.execute_and_collect() == [1, 2, 2, 3]
    none = AsyncDataStream.ordered_wait(env(1, 2, 3), Odd(), "1 minute", on_failure=fallback(lambda v, error: []))
    assert none.execute_and_collect() == [1, 3]


def test_a_fallback_of_batches_is_asked_for_each_record():
    async def batch(values):
        return [await odd(value) for value in values]

    stream = env(1, 3, 5, 6, 7).map_async(batch, batch_size=2, on_failure=fallback(error_text))
    assert stream.execute_and_collect() == [1, 3, "5: ConnectionError", "6: ConnectionError", 7]


def test_a_fallback_comes_after_the_last_attempt_and_counts_as_a_failure():
    asked = []

    async def never(value):
        asked.append(value)
        raise ConnectionError

    options = AsyncOptions("map_async", retry=AsyncRetryStrategy.fixed_delay(3, 1), on_failure=fallback(error_text))
    with Harness(node(AsyncWaitOperator, "ask", never, options)) as harness:
        harness.push(7, 100)
        harness.drain()
        assert [(record.value, record.timestamp) for record in harness.get_records()] == [("7: ConnectionError", 100)]
        harness.snapshot()
        assert harness.operator.context.counters["failed"] == 1
    assert asked == [7, 7, 7, 7]


@pytest.mark.parametrize("kind", ["plain", "list"])
def test_a_fallback_answers_for_what_took_too_long(kind):
    async def hangs(value):
        await asyncio.sleep(3600)

    class Hangs(AsyncFunction):
        async def async_invoke(self, value):
            await asyncio.sleep(3600)

    fell = fallback(error_text) if kind == "plain" else fallback(lambda value, error: [error_text(value, error)])
    options = AsyncOptions("map_async", timeout="1 second", on_failure=fell)
    with Harness(node(AsyncWaitOperator, "ask", hangs if kind == "plain" else Hangs(), options)) as harness:
        harness.push(7)
        harness.end_input(time_passes="2 seconds")
        assert harness.get_output() == ["7: TimeoutError"]


def test_a_fallback_is_not_kept_in_the_cache():
    asked = []

    async def second_time(value):
        asked.append(value)
        if len(asked) == 1:
            raise ConnectionError
        return "fine"

    def program(env, words):
        return words.map_async(second_time, cache=AsyncCache(), on_failure=fallback(error_text))

    options = AsyncOptions("map_async", cache=AsyncCache(), on_failure=fallback(error_text))
    with Harness(node(AsyncWaitOperator, "ask", second_time, options)) as harness:
        for _ in range(3):
            harness.push(1)
            harness.drain()
        assert harness.get_output() == ["1: ConnectionError", "fine", "fine"]


def test_a_fallback_that_raises_fails_the_task():
    def broken(value, error):
        return 1 // 0

    with pytest.raises(OperatorError, match=r"the fallback failed at the record 2, which had failed with Conn.*not 2"):
        env(1, 2).map_async(odd, on_failure=fallback(broken)).execute_and_collect()
    with pytest.raises(OperatorError, match=r"fallback\(\) returned 5 for the record 2: return a list"):
        five = fallback(lambda value, error: 5)
        AsyncDataStream.ordered_wait(env(1, 2), Odd(), "1 minute", on_failure=five).execute_and_collect()


def test_a_fallback_of_another_kind_is_refused():
    async def waits(value, error):
        return 1

    anything: Any = fallback
    for wrong, says in ((5, "not 5"), (int, "not <class 'int'>"), (waits, "is an async def")):
        with pytest.raises(ProgramError, match=says):
            anything(wrong)


# -- functions of batches --


class Sizes(AsyncBatchFunction):
    async def open(self, runtime_context):
        self.opened = runtime_context.get_task_name()

    async def async_invoke_batch(self, values):
        assert self.opened
        return [(value, len(values)) for value in values]


def test_batches_in_order():
    stream = AsyncDataStream.ordered_wait_batch(env(*range(5)), Sizes(), "1 minute", 2)
    assert stream.execute_and_collect() == [(0, 2), (1, 2), (2, 2), (3, 2), (4, 1)]


def test_batches_as_they_come():
    class Slow(Sizes):
        async def open(self, runtime_context):
            await super().open(runtime_context)
            self.other = asyncio.Event()

        async def async_invoke_batch(self, values):
            if 0 in values:
                await self.other.wait()
            self.other.set()
            return values

    stream = AsyncDataStream.unordered_wait_batch(env(*range(4)), Slow(), "1 minute", 2)
    assert stream.execute_and_collect() == [2, 3, 0, 1]


def test_a_batch_that_waits_long_enough_goes():
    def program(env, numbers):
        return AsyncDataStream.ordered_wait_batch(numbers, Sizes(), "1 minute", 10, "2 seconds")

    with ProgramTestHarness(program) as harness:
        harness.push("numbers", 1, 2, 3)
        assert harness.run_epoch(time_passes="5 seconds")["output"] == [(1, 3), (2, 3), (3, 3)]


class Hangs(AsyncBatchFunction):
    async def async_invoke_batch(self, values):
        await asyncio.sleep(3600)


class GivesUp(Hangs):
    def timeout_batch(self, values):
        return [-value for value in values]


class Forgets(Hangs):
    def timeout_batch(self, values):
        return []


def test_a_batch_that_takes_too_long():
    def program(function, **options):
        def build(env, numbers):
            return AsyncDataStream.ordered_wait_batch(numbers, function, "1 second", 2, **options)

        return build

    with ProgramTestHarness(program(GivesUp())) as harness:
        harness.push("numbers", 1, 2, 3)
        assert harness.run_epoch(time_passes="5 seconds")["output"] == [-1, -2, -3]
    with ProgramTestHarness(program(Hangs(), on_failure=fallback(error_text))) as harness:
        harness.push("numbers", 1, 2)
        assert harness.run_epoch(time_passes="5 seconds")["output"] == ["1: TimeoutError", "2: TimeoutError"]
    with ProgramTestHarness(program(Forgets())) as harness:
        harness.push("numbers", 1, 2)
        with pytest.raises(OperatorError, match=r"timeout_batch\(\) returned 0 results for a batch of 2 records"):
            harness.run_epoch(time_passes="5 seconds")


def test_batches_that_fail_are_asked_again_or_go_to_a_side_output():
    class Flaky(AsyncBatchFunction):
        def open(self, runtime_context):
            self.asked = 0

        async def async_invoke_batch(self, values):
            self.asked += 1
            if self.asked == 1:
                raise ConnectionError
            return [self.asked] * len(values)

    stream = AsyncDataStream.ordered_wait_batch(env(1, 2), Flaky(), "1 minute", 2, retry=1)
    assert stream.execute_and_collect() == [2, 2]
    stream = AsyncDataStream.ordered_wait_batch(env(1, 2), Flaky(), "1 minute", 2, on_failure=BAD)
    assert [failure.value for failure in stream.get_side_output(BAD).execute_and_collect()] == [1, 2]


# -- the options of AsyncDataStream --


def test_an_async_function_with_a_cache_and_a_limit():
    class Counts(AsyncFunction):
        def open(self, runtime_context):
            self.asked = 0

        async def async_invoke(self, value):
            self.asked += 1
            return [(value, self.asked), value]

    stream = AsyncDataStream.ordered_wait(env("a", "a", "a"), Counts(), "1 minute", cache=AsyncCache(), rate_limit=100)
    assert stream.execute_and_collect() == [("a", 1), "a"] * 3


GATE = threading.Event()


class Waits(AsyncFunction):
    async def async_invoke(self, value):
        while value == "held" and not GATE.is_set():
            await asyncio.sleep(0.001)
        return [value]


def test_requests_of_an_async_function_are_carried_into_the_next_epoch():
    def program(env, words):
        return AsyncDataStream.unordered_wait(words.key_by(len), Waits(), "1 minute", on_barrier="carry")

    GATE.clear()
    with ProgramTestHarness(program) as harness:
        harness.push("words", "held")
        assert harness.run_epoch()["output"] == []
        snapshot = harness.snapshot()
    GATE.set()
    with ProgramTestHarness(program, snapshot=snapshot) as harness:
        harness.end_input()
        assert harness.get_output() == ["held"]


def test_failures_of_an_async_function_go_to_a_side_output():
    stream = AsyncDataStream.unordered_wait_with_retry(
        env(1, 2), Odd(), "1 minute", AsyncRetryStrategy.fixed_delay(2, 1), on_failure=BAD
    )
    assert [failure.value for failure in stream.get_side_output(BAD).execute_and_collect()] == [2]


WRONGLY: Any = AsyncDataStream


@pytest.mark.parametrize(
    ("build", "kind", "says"),
    [
        (lambda s: WRONGLY.ordered_wait(s, Odd(), 1, capasity=3), TypeError, "unexpected keyword argument 'capasity'"),
        (
            lambda s: WRONGLY.ordered_wait(s, Odd(), 1, on_failure="x"),
            ProgramError,
            r"on_failure= must be .*or fallback\(f\)",
        ),
        (
            lambda s: WRONGLY.ordered_wait(s, Sizes(), 1),
            ProgramError,
            r"AsyncBatchFunction, use ordered_wait_batch",
        ),
        (
            lambda s: WRONGLY.ordered_wait_batch(s, Odd(), 1, 2),
            ProgramError,
            "takes an AsyncBatchFunction instance",
        ),
        (
            lambda s: WRONGLY.ordered_wait_batch(s, Sizes(), 1, None),
            ProgramError,
            "batch_size= must be a positive integer",
        ),
        (lambda s: WRONGLY.ordered_wait_batch(s, Sizes(), 1, 0), ProgramError, "batch_size= must be a positive"),
        (lambda s: WRONGLY.ordered_wait_batch(s, Sizes(), 1, 2, cache=AsyncCache()), TypeError, "argument 'cache'"),
        (lambda s: WRONGLY.unordered_wait_batch([], Sizes(), 1, 2), ProgramError, "takes a DataStream"),
        (lambda s: s.map_async(Sizes()), ProgramError, "an AsyncBatchFunction: pass it to"),
    ],
)
def test_wrong_options_are_refused(build, kind, says):
    with pytest.raises(kind, match=says):
        build(env(1))


def test_a_batch_function_that_is_no_coroutine_function():
    class Plain(AsyncBatchFunction):
        def async_invoke_batch(self, values):
            return values

    with pytest.raises(ProgramError, match=r"Plain.async_invoke_batch\(\) must be an async def"):
        AsyncDataStream.ordered_wait_batch(env(1), Plain(), 1, 2)
