from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time
from contextvars import ContextVar
from functools import partial
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from pillarbox import (
    AsyncCache,
    AsyncDataStream,
    AsyncFailure,
    AsyncFunction,
    AsyncRetryStrategy,
    Function,
    OperatorError,
    OutputTag,
    ProgramError,
    StreamExecutionEnvironment,
    fallback,
)
from pillarbox._elements.records import Records
from pillarbox._operators.async_io.api.options import AsyncOptions
from pillarbox._operators.async_io.loop import event_loop, host, workers
from pillarbox._operators.async_io.loop.host import is_coroutine_function
from pillarbox._operators.async_io.operator import AsyncWaitOperator
from pillarbox.testing import OneInputStreamOperatorTestHarness as Harness
from pillarbox.testing import ProgramTestHarness
from tests.support.nodes import node


class Odd(BaseException): ...


#: Errors of the program or its environment, as for `on_error` of synchronous functions.
FATAL = [MemoryError(), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Odd("odd")]
RAISED = [*FATAL, asyncio.CancelledError("mine")]
HANDLERS = ["drop", OutputTag("failed"), fallback(lambda value, error: value)]


def harness(function: Any, **options: Any) -> Any:
    return Harness(node(AsyncWaitOperator, "ask", function, AsyncOptions("map_async", **options)))


def collect(function: Any, records: Any = range(3), **options: Any) -> list[Any]:
    env = StreamExecutionEnvironment.get_execution_environment()
    return list(env.from_collection(records).map_async(function, **options).execute_and_collect())


# -- raised errors --


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("timeout", [None, "20 seconds"])
@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_any_exception_is_an_error_with_its_record(error, timeout, plain):
    def ask(value):
        if value == 1:
            raise error
        return value

    async def ask_async(value):
        return ask(value)

    with pytest.raises(OperatorError, match=f"failed at the record 1: {type(error).__name__}"):
        collect(ask if plain else ask_async, timeout=timeout)


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("on_failure", HANDLERS, ids=lambda handler: type(handler).__name__)
@pytest.mark.parametrize("error", FATAL, ids=lambda error: type(error).__name__)
def test_some_errors_fail_the_task_nevertheless(error, on_failure, plain):
    asked = []

    def ask(value):
        asked.append(value)
        raise error

    async def ask_async(value):
        ask(value)

    options: dict[str, Any] = {"on_failure": on_failure, "retry": AsyncRetryStrategy.fixed_delay(3, 1)}
    expected = rf"'ask' failed at the record 1: {type(error).__name__}"
    with harness(ask if plain else ask_async, **options) as h, pytest.raises(OperatorError, match=expected):
        h.push(1)
        h.drain()
    assert asked == [1]


@pytest.mark.parametrize("on_failure", HANDLERS, ids=lambda handler: type(handler).__name__)
def test_a_batch_with_a_fatal_error_fails_the_task(on_failure):
    async def ask(values):
        raise MemoryError

    with harness(ask, batch_size=2, on_failure=on_failure) as h, pytest.raises(OperatorError, match="MemoryError"):
        h.push_all([1, 2])
        h.drain()


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("error", [asyncio.CancelledError("mine"), ValueError("no"), StopAsyncIteration()], ids=repr)
def test_other_exceptions_cost_their_record_only(error, plain):
    def ask(value):
        if value % 2:
            raise error
        return value

    async def ask_async(value):
        return ask(value)

    assert collect(ask if plain else ask_async, range(10), on_failure="drop", capacity=1) == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=lambda error: type(error).__name__)
def test_an_error_in_a_functions_own_task_does_not_end_the_loop(error):
    async def child():
        raise error

    async def ask(value):
        if value == 1:
            await asyncio.create_task(child())
        await asyncio.sleep(0)
        return value

    with pytest.raises(OperatorError, match=f"failed at the record 1: {type(error).__name__}"):
        collect(ask, range(5), timeout=None, on_failure="drop")


def test_an_error_in_a_callback_does_not_end_the_loop():
    async def ask(value):
        if value == 1:
            asyncio.get_running_loop().call_soon(sys.exit, 3)
        await asyncio.sleep(0)
        return value

    assert collect(ask, range(5), timeout=None) == [0, 1, 2, 3, 4]


def test_a_function_that_stops_the_loop_does_not_end_it():
    async def ask(value):
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        return value

    assert collect(ask, timeout=None) == [0, 1, 2]


def test_stop_iteration_of_a_plain_function():
    def ask(value):
        return next(number for number in [0, 2] if number == value)

    with pytest.raises(OperatorError, match="failed at the record 1: RuntimeError: the function raised StopIteration"):
        collect(ask, timeout=None)


@pytest.mark.parametrize("error", [asyncio.CancelledError("mine"), StopAsyncIteration()], ids=repr)
def test_an_exception_of_a_batch(error):
    asked = []

    async def ask(values):
        asked.append(values)
        raise error

    tag = OutputTag("failed")
    with harness(ask, batch_size=2, on_failure=tag) as h:
        h.push_all([1, 2])
        h.drain()
        assert [(failure.value, failure.attempts) for failure in h.get_side_output(tag)] == [(1, 1), (2, 1)]
        assert h.get_side_output(tag)[0].error.startswith(type(error).__name__)
    assert asked == [[1, 2]]


class Life(Function):
    def __init__(self, where: str, error: BaseException) -> None:
        self.where, self.error = where, error

    async def open(self, runtime_context):
        self._pass("open")

    async def __call__(self, value):
        return value

    def close(self):
        self._pass("close")

    def _pass(self, where):
        if where == self.where:
            raise self.error


@pytest.mark.parametrize("where", ["open", "close"])
@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_any_exception_of_open_and_close(where, error):
    with pytest.raises(OperatorError, match=rf"failed in {where}\(\): {type(error).__name__}"):
        collect(Life(where, error))
    assert not [thread for thread in threading.enumerate() if thread.name == "pillarbox-async map_async: Life"]


@pytest.mark.parametrize("error", [SystemExit(3), Odd("odd"), ValueError("no")], ids=lambda error: type(error).__name__)
def test_any_exception_of_timeout(error):
    class Late(AsyncFunction):
        async def async_invoke(self, value):
            await asyncio.sleep(3600)

        def timeout(self, value):
            raise error

    with harness(Late(), timeout=10) as h:
        h.push("a")
        with pytest.raises(OperatorError, match=f"'ask' failed at the record 'a': {type(error).__name__}"):
            pass_time(h, 10)
            h.drain()


def test_timeout_may_give_a_tuple():
    class Late(AsyncFunction):
        async def async_invoke(self, value):
            await asyncio.sleep(3600)

        def timeout(self, value):
            return ("late", value)

    with harness(Late(), timeout=10) as h:
        h.push("a")
        pass_time(h, 10)
        h.drain()
        assert h.get_output() == ["late", "a"]


def until(h: Any, condition: Any) -> None:
    while not condition():
        time.sleep(0.001)
        h._settle()


def pass_time(h: Any, milliseconds: int) -> None:
    until(h, lambda: all(request.started is not None for request in h.operator.in_flight._queue.elements()))
    h.advance_processing_time(milliseconds)


# -- hangs --


class Stubborn:
    def __init__(self, stubborn: int) -> None:
        self.stubborn = stubborn

    async def __call__(self, value: int) -> int:
        while value < self.stubborn and not STOP.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass
        return value


STOP = threading.Event()


@pytest.fixture(autouse=True)
def stop(monkeypatch):
    STOP.clear()
    monkeypatch.setattr(workers, "_HEED", 0.01)
    monkeypatch.setattr(workers, "_HEARS", 60.0)
    yield
    STOP.set()


def test_coroutines_that_swallow_their_cancellation_lose_their_place_only(monkeypatch):
    monkeypatch.setattr(workers, "GRACE", 0.1)
    monkeypatch.setattr(event_loop, "GRACE", 0.1)
    with harness(Stubborn(3), capacity=2, timeout=100, on_failure="drop") as h:
        for value in range(10):
            h.push(value)
            while value < 3 and h.operator.in_flight._queue:
                time.sleep(0.001)
                h.advance_processing_time(10)
        h.drain()
        h.snapshot()
        assert h.get_output() == [3, 4, 5, 6, 7, 8, 9]
        assert h.operator.context.counters["timed_out"] == 3


@pytest.mark.parametrize("plain", [True, False])
def test_if_all_requests_hang_the_operator_names_them(monkeypatch, plain):
    monkeypatch.setattr(workers, "most_stuck", lambda capacity: 3)
    monkeypatch.setattr(workers, "_PARALYSED", 0.01)
    monkeypatch.setattr(workers, "GRACE", 0.1)
    monkeypatch.setattr(event_loop, "GRACE", 0.1)
    words = "do not return" if plain else "ignore their cancellation"
    function: Any = hang if plain else Stubborn(100)
    with (
        pytest.raises(OperatorError, match=rf"'ask': 5 calls of its function {words}.*records are 0, 1, 2, 3, 4"),
        harness(function, capacity=2, timeout=100, on_failure="drop") as h,
    ):
        h.push_all(range(4))
        for value in range(4, 20):
            while len(h.operator.in_flight) > 3:
                time.sleep(0.001)
                h.advance_processing_time(1)
            h.push(value)
        h.drain()


def test_workers_that_are_busy_again_have_their_time_again():
    set_up: Any = workers.RequestWorkers.__new__(workers.RequestWorkers)
    timers: list[MagicMock] = []
    set_up._closing, set_up._paralysed, set_up._giving_up = False, {}, None
    set_up._call_slots, set_up._active = workers.WorkerSlots(1), set()
    set_up._call_slots.take(set_up)
    set_up._active.add("the worker that has the place")
    set_up._stuck = dict.fromkeys(range(workers.most_stuck(1)))

    def call_later(*_: Any) -> MagicMock:
        timers.append(MagicMock())
        return timers[-1]

    set_up._loop = MagicMock(call_later=call_later)
    for turn in range(3):
        worker = object()
        set_up._replace(worker, MagicMock(running=worker))
        assert [timer.cancel.call_count for timer in timers] == [1] * turn + [0]
        del set_up._paralysed[worker]


def test_a_host_without_workers_ends_its_thread(monkeypatch):
    monkeypatch.setattr(host, "RequestWorkers", MagicMock(side_effect=ProgramError("aiolimiter is missing")))
    with pytest.raises(ProgramError, match="aiolimiter is missing"):
        collect(hang)
    assert not [thread.name for thread in threading.enumerate() if thread.name.endswith(" map_async")]


def hang(value):
    STOP.wait(60)
    return value


def test_a_plain_function_that_hangs_costs_its_own_request_only():
    asked = []

    def ask(value):
        asked.append(value)
        return hang(value) if value < 2 else value

    tag = OutputTag("failed")
    with harness(ask, capacity=2, timeout=500, on_failure=tag) as h:
        h.push(0)
        h.push(1)
        until(h, lambda: sorted(asked) == [0, 1])
        pass_time(h, 500)
        for value in range(2, 30):
            h.push(value)
        h.drain()
        assert h.get_output() == list(range(2, 30))
        no_answer = "TimeoutError: no result within 500 ms"
        assert h.get_side_output(tag) == [AsyncFailure(0, no_answer, 1), AsyncFailure(1, no_answer, 1)]


def test_a_hanging_function_that_fails_in_the_end_is_not_retried():
    asked = []

    def ask(value):
        asked.append(value)
        hang(value)
        raise ConnectionError

    with harness(ask, timeout=10, retry=5, on_failure="drop") as h:
        h.push("a")
        until(h, lambda: asked)
        pass_time(h, 10)
        h.drain()
        STOP.set()
        until(h, lambda: not h.operator.in_flight.host.workers._stuck)
    assert asked == ["a"]


def test_hanging_threads_do_not_hold_up_the_end_of_the_process():
    program = """
import time, asyncio
from pillarbox import StreamExecutionEnvironment
def plain(value):
    time.sleep(600)
async def in_thread(value):
    await asyncio.to_thread(time.sleep, 600)
for function in (plain, in_thread):
    env = StreamExecutionEnvironment.get_execution_environment()
    print(env.from_collection([1]).map_async(function, timeout=50, on_failure="drop").execute_and_collect())
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert run.stdout == "[]\n[]\n"


class Hanging(Function):
    def __init__(self, where: str) -> None:
        self.where = where

    async def open(self, runtime_context):
        if self.where == "open":
            await asyncio.sleep(3600)

    async def __call__(self, value):
        raise ConnectionError("the first cause")

    async def close(self):
        if self.where == "close":
            await asyncio.sleep(3600)


def test_open_has_a_limit(monkeypatch):
    monkeypatch.setattr(host, "_OPENING", 0.05)
    with pytest.raises(OperatorError, match=r"Hanging': open\(\) did not return within 0.05 s"):
        collect(Hanging("open"))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")
def test_close_has_a_limit_and_the_first_cause_is_shown(monkeypatch):
    monkeypatch.setattr(host, "_CLOSING", 0.05)
    with pytest.raises(OperatorError, match="the first cause") as caught:
        collect(Hanging("close"))
    error: Any = caught.value
    assert "close() did not return within 0.05 s" in "".join(error.__notes__)


def test_a_coroutine_that_blocks_the_loop_is_reported_once(monkeypatch, caplog):
    monkeypatch.setattr(event_loop, "_BEAT", 0.02)

    async def ask(value):
        time.sleep(0.1)
        await asyncio.sleep(0.05)
        return value

    with caplog.at_level(logging.WARNING, "pillarbox"):
        assert collect(ask, range(3), capacity=1) == [0, 1, 2]
    (record,) = [record for record in caplog.records if "event loop was blocked" in record.message]
    assert record.message.startswith("the event loop was blocked for ")
    assert record.message.endswith(" (operator 'map_async: ask')")


# -- per request --


SEEN: list[Any] = []
VARIABLE: ContextVar[Any] = ContextVar("VARIABLE", default="unset")


async def set_variable(value):
    SEEN.append(VARIABLE.get())
    VARIABLE.set(value)
    await asyncio.sleep(0)
    assert VARIABLE.get() == value
    return value


def set_variable_plainly(value):
    SEEN.append(VARIABLE.get())
    VARIABLE.set(value)
    return value


@pytest.mark.parametrize("function", [set_variable, set_variable_plainly])
def test_context_variables_do_not_leak_from_request_to_request(function):
    SEEN.clear()
    with harness(function, capacity=3) as h:
        h.push_all(range(20))
        h.drain()
        assert h.get_output() == list(range(20))
    assert SEEN == ["unset"] * 20


async def ask_once(value):
    SEEN.append(value)
    return {"n": 0}


def test_cached_results_cannot_be_changed():
    def count(counts):
        counts["n"] += 1
        return counts

    SEEN.clear()
    env = StreamExecutionEnvironment.get_execution_environment()
    out = env.from_collection([]).map_async(ask_once, cache=AsyncCache(key=lambda value: 1)).map(count)
    with env.local_job(out=out) as job:
        (source,) = job.program.sources
        for _ in range(3):
            assert job.run_epoch({source: [[Records([1, 2])]]}) == {"out": [{"n": 1}, {"n": 1}]}
    assert SEEN == [1]


# -- refusals --


def test_only_a_partial_is_looked_into():
    async def some(value):
        return value

    assert is_coroutine_function(some)
    assert is_coroutine_function(partial(partial(some)))
    assert is_coroutine_function(AsyncMock())
    assert not is_coroutine_function(MagicMock())

    class Wrapper:
        func = some

        def __call__(self, value):
            return asyncio.run(Wrapper.func(value))

    assert collect(Wrapper()) == [0, 1, 2]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_generator_is_refused(asynchronous):
    async def several(value):
        yield value

    def plainly(value):
        yield value

    with pytest.raises(ProgramError, match=r"map_async\(\) got .*which yields: pass a function that returns"):
        collect(several if asynchronous else plainly)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": -5}, r"map_async\(\): timeout=-5 is negative, which a duration cannot be"),
        ({"batch_timeout": -5, "batch_size": 2}, r"map_async\(\): batch_timeout=-5 is negative"),
        ({"rate_limit": float("inf")}, r"map_async\(\): rate_limit= must be .*a finite number.*not inf"),
        (
            {"rate_limit": float("nan")},
            r"map_async\(\): rate_limit= must be a number of requests per second above 0, not nan",
        ),
        ({"job_rate_limit": float("inf")}, r"map_async\(\): job_rate_limit= must be .*a finite number"),
    ],
)
def test_the_option_is_named(options, words):
    with pytest.raises(ProgramError, match=words):
        collect(lambda value: value, **options)


class Boxed:
    def __init__(self, value: Any) -> None:
        self.value = value

    def map(self, other: Any) -> Any:
        raise AssertionError("not meant")

    flat_map = filter = map


def test_a_class_with_a_method_of_the_operators_name_is_called_as_it_is():
    env = StreamExecutionEnvironment.get_execution_environment()
    assert [box.value for box in env.from_collection([1, 2]).map(Boxed).execute_and_collect()] == [1, 2]


def test_the_timeouts_timer_is_cancelled():
    async def ask(value):
        return value

    with harness(ask, timeout=1000) as h:
        h.push("a")
        h.drain()
        assert h.get_output() == ["a"]
        assert h.processing_time_service.active_timer_timestamps() == []
    h = harness(hang, timeout=1000, batch_size=5, batch_timeout=1000)
    h.push("a")
    h.close()
    assert h.processing_time_service.active_timer_timestamps() == []


def test_an_async_data_stream_checks_its_options():
    stream = StreamExecutionEnvironment.get_execution_environment().from_collection([1])

    class Some(AsyncFunction):
        async def async_invoke(self, value):
            return [value]

    with pytest.raises(ProgramError, match=r"unordered_wait\(\): timeout='soon' is not a duration"):
        AsyncDataStream.unordered_wait(stream, Some(), "soon")


def test_a_job_rate_limit_in_a_program():
    def build(env, source):
        return source.map_async(lambda value: value, job_rate_limit=1e6)

    with ProgramTestHarness(build) as h:
        h.push("source", 1, 2)
        assert h.run_epoch() == {"output": [1, 2]}


def test_a_function_that_ignores_cancellation_does_not_hang_the_process():
    """If the coroutine became garbage, it would loop in the collector, so it is referenced until the process ends."""
    program = """
import asyncio, gc, threading
from pillarbox._operators.async_io.loop import event_loop
event_loop.GRACE = 0.05
begun = threading.Event()

async def stubborn():
    while True:
        try:
            begun.set()
            await asyncio.sleep(1000)
        except BaseException:
            pass

thread = event_loop.EventLoopThread("test")
thread.loop.call_soon_threadsafe(lambda: thread.loop.create_task(stubborn()))
begun.wait()
thread.close()
del thread
gc.collect()
print("collected", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "collected\n"


def test_a_result_of_none_is_told_how_to_emit_nothing():
    class Nothing(AsyncFunction):
        async def async_invoke(self, value):
            return None

    stream = StreamExecutionEnvironment().from_collection([7])
    with pytest.raises(OperatorError, match=r"returned None for the record 7: .* the records to emit, \[\] for none"):
        AsyncDataStream.ordered_wait(stream, Nothing(), "1 minute").execute_and_collect()
