"""The async operator: capacity, batches, retries, limits, cache, errors, the client's life cycle."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pytest

from pillarbox import (
    AsyncCache,
    AsyncDataStream,
    AsyncFailure,
    AsyncFunction,
    AsyncRetryStrategy,
    Function,
    MapFunction,
    OperatorError,
    OutputTag,
    ProgramError,
    StreamExecutionEnvironment,
    Time,
    ValueStateDescriptor,
)
from pillarbox._elements.records import Records
from pillarbox._errors import CheckpointMismatchError
from pillarbox._operators.async_io.api.function import AsyncCombiningFunction
from pillarbox._operators.async_io.api.options import AsyncOptions
from pillarbox._operators.async_io.api.request import Request
from pillarbox._operators.async_io.loop import event_loop, workers
from pillarbox._operators.async_io.loop.event_loop import EventLoopThread
from pillarbox._operators.async_io.loop.workers import RequestWorkers, WorkerSlots
from pillarbox._operators.async_io.operator import AsyncWaitOperator
from pillarbox.testing import OneInputStreamOperatorTestHarness as Harness
from pillarbox.testing import ProgramTestHarness, harness_for, row
from tests.operators.async_io.async_service import Service, answer, settle
from tests.support.nodes import node


def harness(function: Any, *, timeout: int | None = 1000, **options: Any) -> Any:
    return Harness(node(AsyncWaitOperator, "ask", function, AsyncOptions("map_async", timeout=timeout, **options)))


# Wrong use, which the type checker would find as well.
WRONGLY: Any = AsyncDataStream
RETRY: Any = AsyncRetryStrategy
CACHE: Any = AsyncCache


def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment()


def collect(stream: Any) -> list[Any]:
    return list(stream.execute_and_collect())


class Flaky:
    def __init__(self, failures: int, error: type[Exception] = ConnectionError) -> None:
        self.failures, self.error = failures, error
        self.asked: dict[Any, int] = {}

    async def __call__(self, value: Any) -> Any:
        self.asked[value] = self.asked.get(value, 0) + 1
        if self.asked[value] <= self.failures:
            raise self.error(f"no {value}")
        return value


# -- order and room --


def test_order_is_kept_however_long_each_takes():
    async def ask(value):
        await asyncio.sleep((value * 7 % 5) / 1000)
        return value * 2

    assert collect(env().from_collection(range(500)).map_async(ask, capacity=20)) == [2 * v for v in range(500)]


def test_unordered_gives_the_quick_ones_first():
    class Ask(Function):
        def open(self, runtime_context):
            self.answered = 0
            self.quick_ones = asyncio.Event()

        async def __call__(self, value):
            if value == 0:
                await self.quick_ones.wait()
                return value
            await asyncio.sleep(0)
            self.answered += 1
            if self.answered == 49:
                self.quick_ones.set()
            return value

    out = collect(env().from_collection(range(50)).map_async(Ask(), capacity=4, ordered=False))
    assert out[-1] == 0
    assert sorted(out) == list(range(50))


def test_no_more_than_capacity_at_a_time_and_all_of_it():
    class Gauge:
        now = most = 0

        async def __call__(self, value):
            Gauge.now += 1
            Gauge.most = max(Gauge.most, Gauge.now)
            await asyncio.sleep(0.001)
            Gauge.now -= 1
            return value

    with harness(Gauge(), capacity=7) as h:
        h.push_all(range(300))
        h.drain()
        assert h.get_output() == list(range(300))
    assert Gauge.most == 7


def test_a_full_queue_holds_back_its_input():
    with harness(Service(), capacity=2) as h:
        service = h.operator.function
        worker = threading.Thread(target=_answer_all, args=(h.operator, service, 40))
        held = []
        h.operator.context.output = type(
            "Probe", (), {"process_records": lambda _, r: held.append(len(h.operator.in_flight))}
        )()
        worker.start()
        h.push_all(range(40))
        worker.join()
        settle(h)
        assert max(held) <= 4
        assert len(service.begun) == 40


def _answer_all(operator: AsyncWaitOperator, service: Service, count: int) -> None:
    answered: set[object] = set()  # the loop may not have reached the last answer yet
    while len(answered) < count:
        time.sleep(0.001)
        for value in list(service.waiting):
            future = service.waiting.get(value)
            if future is not None and value not in answered:
                answered.add(value)
                operator.in_flight.host.thread.loop.call_soon_threadsafe(future.set_result, [value])


def test_results_keep_their_records_timestamps():
    async def ask(value):
        return str(value)

    with harness(ask) as h:
        h.push_all([1, 2, 3], [10, None, 30])
        h.push(4)
        h.drain()
        assert h.get_records() == [("1", 10), ("2", None), ("3", 30), ("4", None)]


# -- kinds of functions --


def test_a_plain_function_runs_in_threads():
    threads = set()
    both = threading.Barrier(2)

    def ask(value):
        threads.add(threading.current_thread().name)
        if value < 2:
            both.wait(60)
        return value + 1

    with harness(ask, capacity=4) as h:
        h.push_all(range(40))
        h.drain()
        assert h.get_output() == list(range(1, 41))
    assert 1 < len(threads) <= 4
    assert threading.current_thread().name not in threads


def test_a_lambda_around_a_coroutine():
    async def ask(value, factor):
        return value * factor

    assert collect(env().from_collection([1, 2]).map_async(lambda value: ask(value, 10))) == [10, 20]


@pytest.mark.parametrize("plain", [True, False])
def test_batches(plain):
    sizes = []

    def ask(values):
        sizes.append(len(values))
        return [value * 10 for value in values]

    async def ask_async(values):
        return ask(values)

    with harness(ask if plain else ask_async, batch_size=8, capacity=2) as h:
        h.push_all(range(20), range(20))
        h.push_watermark(50)
        h.push_all([20, 21])
        settle(h)
        h.operator.in_flight.flush_batch()
        h.drain()
        assert h.get_output() == [value * 10 for value in range(22)]
        assert [record.timestamp for record in h.get_records()] == [*range(20), None, None]
        assert h.get_watermarks() == [50]
    assert sorted(sizes) == [2, 4, 8, 8]


def test_a_batch_waits_no_longer_than_its_timeout():
    async def ask(values):
        return values

    with harness(ask, batch_size=100, batch_timeout=50) as h:
        h.push_all([1, 2])
        settle(h)
        assert h.get_output() == []
        h.advance_processing_time(49)
        h.push(3)
        settle(h)
        assert h.get_output() == []
        h.advance_processing_time(1)
        settle(h)
        assert h.get_output() == [1, 2, 3]


@pytest.mark.parametrize("result", [[1], None, "ab", 7, {1: 2, 3: 4}, {1, 2}])
def test_a_batch_needs_a_result_for_each(result):
    async def ask(values):
        return result

    with (
        harness(ask, batch_size=2) as h,
        pytest.raises(
            OperatorError, match=r"'ask'.*for a batch of 2 records, the first of them 'a'.*one result per record"
        )
        if result != "ab"
        else pytest.raises(OperatorError, match="one result per record"),
    ):
        h.push_all(["a", "b"])
        h.drain()


def test_a_batch_may_give_an_array():
    async def ask(values):
        return np.array(values) * 2

    with harness(ask, batch_size=2) as h:
        h.push_all([1, 2])
        h.drain()
        assert h.get_output() == [2, 4]


def test_async_function_gives_any_number():
    class Times(AsyncFunction):
        async def async_invoke(self, value):
            return [value] * value

    stream = env().from_collection([0, 1, 3])
    assert collect(AsyncDataStream.ordered_wait(stream, Times(), Time.seconds(5))) == [1, 3, 3, 3]


def test_a_result_that_is_no_list_says_so():
    class Wrong(AsyncFunction):
        async def async_invoke(self, value):
            return value

    with (
        harness(Wrong()) as h,
        pytest.raises(OperatorError, match=r"'ask': async_invoke\(\) returned 5 for the record 5: return a list"),
    ):
        h.push(5)
        h.drain()


# -- failures --


def test_a_failure_names_the_record():
    with (
        harness(Flaky(9)) as h,
        pytest.raises(OperatorError, match="'ask' failed at the record 'x': ConnectionError: no x"),
    ):
        h.push("x")
        h.drain()


def test_dropping_counts():
    with harness(Flaky(9), on_failure="drop") as h:
        h.push_all("ab")
        h.drain()
        h.snapshot()
        assert h.get_output() == []
        assert h.operator.context.counters["dropped"] == 2


def test_failures_go_to_the_side():
    tag = OutputTag("failed")
    retry = AsyncRetryStrategy.fixed_delay(2, 1)
    with harness(Flaky(9), on_failure=tag, retry=retry) as h:
        h.push("x", 7)
        h.drain()
        assert h.get_side_records(tag) == [(AsyncFailure("x", "ConnectionError: no x", 3), 7)]


def test_timeouts_of_functions_and_late_results():
    with harness(Service(), timeout=100, capacity=1) as h:
        h.push_all(["a", "b"])
        settle(h)
        h.advance_processing_time(60)
        settle(h)
        answer(h, "a", ["in time"])
        h.advance_processing_time(99)
        settle(h)
        assert h.get_output() == ["in time"]
        h.advance_processing_time(1)
        settle(h)
        assert h.get_output() == ["in time", ("late", "b")]
        assert h.operator.function.cancelled == ["b"]


def test_a_timeout_of_map_async_is_a_failure():
    tag = OutputTag("failed")

    async def ask(value):
        await asyncio.sleep(3600)

    with harness(ask, timeout=100, on_failure=tag) as h:
        h.push("a")
        settle(h)
        h.advance_processing_time(100)
        h.drain()
        assert h.get_side_output(tag) == [AsyncFailure("a", "TimeoutError: no result within 100 ms", 1)]


# -- retries --


@pytest.mark.parametrize(
    "retry",
    [
        AsyncRetryStrategy.fixed_delay(3, 1),
        AsyncRetryStrategy.fixed_delay(3, "1 ms", None, ConnectionError),
        AsyncRetryStrategy.exponential_backoff(3, 1, 2, 2.0),
    ],
)
def test_retries_until_it_works(retry):
    flaky = Flaky(3)
    with harness(flaky, retry=retry, timeout=None) as h:
        h.push_all("ab")
        h.drain()
        h.snapshot()
        assert h.get_output() == ["a", "b"]
        assert h.operator.context.counters["retried"] == 6
        assert h.operator.context.counters["requests"] == 8
    assert flaky.asked == {"a": 4, "b": 4}


def test_retries_end():
    flaky = Flaky(9)
    with (
        harness(flaky, retry=AsyncRetryStrategy.fixed_delay(2, 1)) as h,
        pytest.raises(OperatorError, match="'ask' failed at the record 'x' after 3 attempts: ConnectionError"),
    ):
        h.push("x")
        h.drain()


def test_only_what_the_predicate_names_is_retried():
    retry = AsyncRetryStrategy.fixed_delay(5, 1, None, (ConnectionError, TimeoutError))
    flaky = Flaky(1, KeyError)
    with harness(flaky, retry=retry) as h, pytest.raises(OperatorError, match="KeyError"):
        h.push("x")
        h.drain()
    assert flaky.asked == {"x": 1}


def test_retry_on_a_result():
    class Later:
        asked = 0

        async def __call__(self, value):
            Later.asked += 1
            return None if Later.asked < 3 else value

    with harness(Later(), retry=AsyncRetryStrategy.fixed_delay(5, 1, lambda result: result is None, None)) as h:
        h.push("x")
        h.drain()
        assert h.get_output() == ["x"]


def test_backoff_grows_to_its_limit():
    strategy = AsyncRetryStrategy.exponential_backoff(9, 100, "1 second", 2.0)
    assert [strategy.get_backoff_time_millis(n) for n in (1, 2, 3, 4, 5, 5000)] == [100, 200, 400, 800, 1000, 1000]
    assert [strategy.can_retry(n) for n in (1, 9, 10)] == [True, True, False]
    assert not AsyncRetryStrategy.no_restart().can_retry(1)


# -- the cache --


def test_the_cache_asks_once_for_a_key():
    with harness(Service(), cache=AsyncCache(key=lambda value: value[0])) as h:
        h.push_all(["a1", "b1", "a2"], [1, 2, 3])
        settle(h)
        assert h.operator.function.begun == ["a1", "b1"]
        answer(h, "a1", ["A"])
        answer(h, "b1", ["B"])
        assert h.get_records() == [("A", 1), ("B", 2), ("A", 3)]
        h.push("a3", 4)
        assert h.get_records()[-1] == ("A", 4)
        assert h.operator.function.begun == ["a1", "b1"]
        h.snapshot()
        assert h.operator.context.counters["cache_hits"] == 2
        assert h.operator.context.counters["completed"] == 4


def test_none_is_a_key_like_any_other():
    with harness(Service(), cache=AsyncCache(key=lambda value: None)) as h:
        h.push_all(["a", "b"])
        settle(h)
        answer(h, "a", ["A"])
        assert h.get_output() == ["A", "A"]


def test_results_are_kept_apart_from_their_records():
    class Joined(AsyncCombiningFunction):
        asked = 0

        async def __call__(self, value):
            Joined.asked += 1
            return value[0].upper()

        def combine(self, value, result):
            return value, result

    with harness(Joined(), cache=AsyncCache(key=lambda value: value[0])) as h:
        h.push_all(["a1", "a2", "b1"])
        h.drain()
        h.push("a3")
        h.drain()
        assert h.get_output() == [("a1", "A"), ("a2", "A"), ("b1", "B"), ("a3", "A")]
    assert Joined.asked == 2


def test_cached_results_age_and_give_way():
    flaky = Flaky(0)
    with harness(flaky, cache=AsyncCache(max_size=2, ttl="1 second")) as h:
        for value in "aabbca":
            h.push(value)
            h.drain()
        assert flaky.asked == {"a": 2, "b": 1, "c": 1}
        h.advance_processing_time(1000)
        h.push("a")
        h.drain()
        assert flaky.asked["a"] == 3


def test_those_that_follow_share_a_failure_and_nothing_is_kept():
    tag = OutputTag("failed")
    with harness(Service(), cache=AsyncCache(key=lambda value: 1), on_failure=tag) as h:
        h.push_all(["a", "b"])
        settle(h)
        answer(h, "a", ValueError("no"))
        assert [failure.value for failure in h.get_side_output(tag)] == ["a", "b"]
        h.push("c")
        settle(h)
        assert h.operator.function.begun == ["a", "c"]


def test_those_that_follow_time_out_each_for_itself():
    with harness(Service(), cache=AsyncCache(key=lambda value: 1), timeout=10) as h:
        h.push_all(["a", "b"])
        settle(h)
        h.advance_processing_time(10)
        settle(h)
        assert h.get_output() == [("late", "a"), ("late", "b")]


def test_a_follower_is_asked_for_after_its_leader_s_timeout_and_has_its_own():
    with harness(Service(), cache=AsyncCache(key=lambda value: 1), timeout=10) as h:
        h.push("a")
        settle(h)
        h.advance_processing_time(4)
        h.push_all(["b", "c"])
        settle(h)
        h.advance_processing_time(6)
        settle(h)
        assert h.get_output() == [("late", "a")]
        assert h.operator.function.begun == ["a", "b"]
        h.advance_processing_time(3)
        h.push("d")
        settle(h)
        h.advance_processing_time(1)
        settle(h)
        assert h.get_output() == [("late", "a"), ("late", "b"), ("late", "c")]
        answer(h, "d", ["answer"])
        assert h.get_output()[3:] == ["answer"]


def test_cached_results_are_not_shared():
    async def ask(value):
        return [value]

    with harness(ask, cache=AsyncCache()) as h:
        h.push_all("aa")
        h.drain()
        first, second = h.get_output()
        assert first == second and first is not second


def test_a_key_that_cannot_be_hashed():
    with (
        harness(Flaky(0), cache=AsyncCache()) as h,
        pytest.raises(OperatorError, match=r"cache key \[1\].*pass key=... to AsyncCache"),
    ):
        h.push([1])


# -- the client's life --


class Client(Function):
    log: list[tuple[str, str]] = []

    def __init__(self, asynchronous: bool) -> None:
        self.asynchronous = asynchronous

    def open(self, runtime_context):
        if self.asynchronous:
            return self._open_later()
        return self._note("open")

    async def _open_later(self):
        await asyncio.sleep(0)
        self._note("open")

    def _note(self, what):
        asyncio.get_running_loop()
        self.log.append((what, threading.current_thread().name))

    async def __call__(self, value):
        self._note("ask")
        return value

    async def close(self):
        self._note("close")


@pytest.mark.parametrize("asynchronous", [True, False])
def test_open_and_close_run_once_in_the_loops_thread(asynchronous):
    Client.log = []
    e = env()
    out = e.from_collection([]).map_async(Client(asynchronous))
    with e.local_job(out=out) as job:
        (source,) = job.program.sources
        for epoch in range(3):
            assert job.run_epoch({source: [[Records([epoch])]]}) == {"out": [epoch]}
    assert [what for what, _ in Client.log] == ["open", "ask", "ask", "ask", "close"]
    assert {thread for _, thread in Client.log} == {"pillarbox-async map_async: Client"}


def test_errors_in_open_are_named():
    class Broken(AsyncFunction):
        async def open(self, runtime_context):
            raise ConnectionRefusedError("nobody there")

        async def async_invoke(self, value):
            return [value]

    with pytest.raises(OperatorError, match=r"'ask' failed in open\(\): ConnectionRefusedError: nobody there"):
        harness(Broken())


def test_state_is_refused():
    class Greedy(AsyncFunction):
        def open(self, runtime_context):
            runtime_context.get_state(ValueStateDescriptor("n"))

        async def async_invoke(self, value):
            return [value]

    with pytest.raises(ProgramError, match="keyed state 'n', but its function runs in another thread"):
        harness(Greedy())


def test_async_open_is_for_async_functions():
    class Confused(MapFunction):
        async def open(self, runtime_context):
            """nothing could await it"""

        def map(self, value):
            return value

    with pytest.raises(ProgramError, match=r"'Confused': open\(\) is an async def, which only"):
        harness_for(Confused())


def test_close_gives_up_what_is_under_way():
    h = harness(Service())
    h.push_all("ab")
    settle(h)
    service, thread = h.operator.function, h.operator.in_flight.host.thread._thread
    h.close()
    assert sorted(service.cancelled) == ["a", "b"]
    assert not thread.is_alive()


def test_a_coroutine_that_blocks_its_loop_is_named(monkeypatch):
    """Otherwise the operator's close would wait for the blocked loop forever."""
    monkeypatch.setattr(workers, "GRACE", 0.05)
    monkeypatch.setattr(workers, "_HEARS", 0.05)
    monkeypatch.setattr(event_loop, "GRACE", 0.05)
    asked, done = threading.Event(), threading.Event()

    async def ask(value):
        asked.set()
        done.wait(60)

    h = harness(ask)
    h.push("a")
    assert asked.wait(60)
    with pytest.raises(OperatorError, match=r"'ask': a coroutine is blocking the event loop: await an asyncio client"):
        h.close()
    done.set()


@pytest.mark.parametrize("patience", [60.0, 0.001])
def test_completed_requests_wait_for_others_while_there_is_enough_to_ask_about(monkeypatch, patience):
    monkeypatch.setattr(workers, "_PATIENCE", patience)
    waiting: list[asyncio.Future[None]] = []
    notified = threading.Event()

    async def ask(value):
        waiting.append(asyncio.get_running_loop().create_future())
        await waiting[-1]
        return value

    thread = EventLoopThread("test")
    requests = RequestWorkers(
        "test",
        thread,
        ask,
        batched=False,
        call_slots=WorkerSlots(40),
        retry=None,
        turns=None,
        clock=lambda: 0,
        notify=notified.set,
        copied=lambda result: result,
    )
    for value in range(80):
        requests.submit(Request([value], None))
    requests.start()

    async def finish(count):
        for _ in range(count):
            waiting.pop(0).set_result(None)
        for _ in range(6):
            await asyncio.sleep(0)

    thread.call(finish, 0)
    thread.call(finish, 10)  # 30 are left to ask about
    if patience > 1:
        assert not notified.is_set()
        thread.call(finish, 11)  # the last one leaves 20, half the capacity
    assert notified.wait(60)
    done = [request.result for request in requests.take_completed()]
    assert done == list(range(len(done))) and len(done) == (21 if patience > 1 else 10)
    requests.close()
    thread.close()


# -- in programs --


def test_an_epoch_drains():
    async def ask(value):
        await asyncio.sleep(0.002)
        return value

    def build(env, source):
        return source.map_async(ask, capacity=10)

    with ProgramTestHarness(build) as h:
        h.push("source", *range(100))
        assert h.run_epoch() == {"output": list(range(100))}


class Gate:
    open = threading.Event()
    asked: list[Any] = []

    async def __call__(self, value: Any) -> Any:
        Gate.asked.append(value)
        while not Gate.open.is_set():
            await asyncio.sleep(0.001)
        return value


def carrying(env: Any, source: Any) -> Any:
    return source.key_by(lambda value: 0).map_async(Gate(), on_barrier="carry", timeout=None).uid("ask")


def test_requests_are_carried_from_epoch_to_epoch():
    Gate.open.clear()
    Gate.asked = []
    with ProgramTestHarness(carrying) as h:
        h.push("source", "a", "b")
        assert h.run_epoch() == {"output": []}
        h.push("source", "c")
        assert h.run_epoch() == {"output": []}
        while len(Gate.asked) < 3:
            time.sleep(0.001)
        assert Gate.asked == ["a", "b", "c"]
        Gate.open.set()
        assert h.end_input() == {"output": ["a", "b", "c"]}
    assert Gate.asked == ["a", "b", "c"]


def test_carried_requests_are_asked_again_elsewhere():
    Gate.open.clear()
    Gate.asked = []
    with ProgramTestHarness(carrying) as h:
        h.push("source", "a", "b")
        h.run_epoch()
        snapshot = h.snapshot()
        h.push("source", "lost")
        h.fail_epoch()
    with ProgramTestHarness(carrying, snapshot=snapshot) as h:
        h.push("source", "c")
        Gate.open.set()
        out = h.run_epoch()["output"]
        out += h.end_input()["output"]
    assert out == ["a", "b", "c"]
    assert Gate.asked[-3:] == ["a", "b", "c"]


def test_carried_requests_of_an_operator_that_is_gone():
    def counted(env, source):
        return source.key_by(lambda value: 0).reduce(lambda a, b: a + b).uid("sum")

    def asked(env, source):
        return counted(env, source).map_async(Gate(), on_barrier="carry", timeout=None).uid("ask")

    Gate.open.clear()
    with ProgramTestHarness(asked) as h:
        h.push("source", "a")
        h.run_epoch()
        snapshot = h.snapshot()
    with ProgramTestHarness(counted, snapshot=snapshot) as h:
        h.push("source", "b")
        with pytest.raises(CheckpointMismatchError, match="contains unfinished work of operator 'ask'"):
            h.run_epoch()


def test_carry_needs_a_shuffle():
    stream = env().from_collection([1]).map_async(Gate(), on_barrier="carry")
    with pytest.raises(ProgramError, match=r"'map_async: Gate': on_barrier='carry' needs state.*call key_by"):
        stream.execute_and_collect()


def test_behind_a_shuffle_and_in_a_chain():
    async def ask(value):
        await asyncio.sleep(0.001)
        return value

    e = env().set_parallelism(3)
    numbers = e.from_collection(range(200)).map_async(ask, capacity=5).map_async(ask, capacity=3)
    out = numbers.key_by(lambda value: value % 7).map_async(ask, ordered=False, capacity=5).map(lambda value: value + 1)
    assert sorted(collect(out)) == list(range(1, 201))


def test_a_failing_request_fails_the_epoch_and_leaves_no_thread():
    before = {thread.name for thread in threading.enumerate()}
    with pytest.raises(OperatorError, match="'map_async: Flaky' failed at the record 1"):
        collect(env().from_collection([1]).map_async(Flaky(1)))
    assert {t.name for t in threading.enumerate() if t.name.startswith("pillarbox-async")} <= before


def test_harness_for_an_async_function():
    class Double(AsyncFunction):
        async def async_invoke(self, value):
            return [value * 2]

    with harness_for(Double()) as h:
        h.push_all([1, 2])
        h.drain()
        assert h.get_output() == [2, 4]


def test_rows_reach_the_function():
    async def ask(record):
        return record.card

    def build(env, source):
        return source.map_async(ask)

    with ProgramTestHarness(build) as h:
        h.push("source", row(card="c1"))
        assert h.end_input() == {"output": ["c1"]}


# -- wrong use --


async def some(value):
    return value


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        (some, {"capacity": 0}, "capacity= must be a positive integer, not 0"),
        (some, {"timeout": "soon"}, "'soon' is not a duration"),
        (some, {"timeout": 0}, "timeout= must be at least one millisecond"),
        (
            some,
            {"retry": "often"},
            "retry= must be an AsyncRetryStrategy, such as .*, or a number of retries, not 'often'",
        ),
        (some, {"batch_timeout": 5}, "batch_timeout= must be None without batch_size="),
        (some, {"batch_size": 1.5}, "batch_size= must be a positive integer"),
        (some, {"rate_limit": -1}, "rate_limit= must be a number of requests per second above 0, not -1"),
        (some, {"job_rate_limit": "fast"}, "job_rate_limit= must be a number of requests per second"),
        (some, {"cache": 10}, "cache= must be an AsyncCache, not 10"),
        (some, {"cache": AsyncCache(), "batch_size": 2}, "cache= must be None with batch_size="),
        (some, {"on_failure": "ignore"}, r'on_failure= must be "fail", "drop", an OutputTag or fallback\(f\)'),
        (some, {"on_barrier": "wait"}, 'on_barrier= must be "drain" or "carry"'),
        (some, {"ordered": "yes"}, "ordered= must be True or False"),
        (Service(), {}, r"an AsyncFunction: pass it to AsyncDataStream.ordered_wait\(\)"),
        (Service, {}, "pass a function"),
        (5, {}, r"map_async\(\) got 5"),
    ],
)
def test_wrong_options_are_refused_while_the_program_is_built(function, options, words):
    with pytest.raises(ProgramError, match=words):
        env().from_collection([1]).map_async(function, **options)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: WRONGLY.ordered_wait(s, some, 5), "an AsyncFunction instance"),
        (lambda s: WRONGLY.unordered_wait([1], Service(), 5), "takes a DataStream"),
        (lambda s: WRONGLY.ordered_wait_with_retry(s, Service(), 5, 3), "takes an AsyncRetryStrategy"),
        (lambda s: WRONGLY.unordered_wait_with_retry(s, Service(), 5, None), "takes an AsyncRetryStrategy"),
        (lambda s: AsyncRetryStrategy.fixed_delay(0, 5), "max_attempts= must be a positive integer"),
        (lambda s: AsyncRetryStrategy.fixed_delay(1, 0), "backoff_time_millis= must be at least one millisecond"),
        (lambda s: AsyncRetryStrategy.exponential_backoff(1, 5, 5, 0), "multiplier= must be a number above 0"),
        (lambda s: RETRY.fixed_delay(1, 5, 7), "result_predicate= must be a function"),
        (lambda s: RETRY.fixed_delay(1, 5, None, (int,)), "which is not an exception class"),
        (lambda s: AsyncCache(max_size=0), "max_size= must be a positive integer"),
        (lambda s: AsyncCache(ttl="x"), "not a duration"),
        (lambda s: CACHE(key=7), "AsyncCache: key"),
    ],
)
def test_wrong_use_of_what_goes_with_it(call, words):
    with pytest.raises(ProgramError, match=words):
        call(env().from_collection([1]))


def test_async_invoke_has_to_be_async():
    class Plain(AsyncFunction):
        def async_invoke(self, value):
            return [value]

    with pytest.raises(ProgramError, match=r"Plain.async_invoke\(\) must be an async def"):
        AsyncDataStream.ordered_wait(env().from_collection([1]), Plain(), 5)
