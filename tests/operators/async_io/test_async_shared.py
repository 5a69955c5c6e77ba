from __future__ import annotations

import asyncio
import datetime
import math
import threading
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from pillarbox import AsyncCache, Budget, Function, StreamExecutionEnvironment
from pillarbox._errors import OperatorError
from pillarbox._operators.async_io.api.options import AsyncOptions
from pillarbox._operators.async_io.loop import event_loop, host, workers
from pillarbox._operators.async_io.loop.turns import Turns
from pillarbox._operators.async_io.operator import AsyncWaitOperator
from pillarbox._operators.budgets.budget import BudgetLimits
from pillarbox._operators.budgets.ledger import LedgerScope
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.frame.shared_resources import SharedResources
from pillarbox.testing import OneInputStreamOperatorTestHarness as Harness
from pillarbox.testing import row
from tests.support.nodes import node


class Service(Function):
    """A service that answers when the test calls ``answer``. Each subtask has a copy, as if unpickled."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.loops: list[asyncio.AbstractEventLoop] = []
        self._answers: dict[Any, asyncio.Future[Any]] = {}
        self._changed = threading.Condition()

    async def __call__(self, value):
        answer = asyncio.get_running_loop().create_future()
        with self._changed:
            self.loops.append(asyncio.get_running_loop())
            self._answers[value] = answer
            self.asked.append(value)
            self._changed.notify_all()
        return await answer

    def await_asked(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.asked) >= count, 60)

    def settle(self) -> None:
        async def pause() -> None:
            for _ in range(10):
                await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(pause(), self.loops[0]).result(60)

    def answer(self, value: Any) -> None:
        self.loops[0].call_soon_threadsafe(self._answers[value].set_result, value)


def task(shared: SharedResources, function: Any, *, subtask: int = 0, **options: Any) -> Any:
    operator = node(AsyncWaitOperator, "ask", function, AsyncOptions("map_async", on_barrier="carry", **options))

    def make(context: OperatorContext) -> Any:
        context.shared = shared
        return operator.factory.make(context)

    return Harness(replace(operator, factory=replace(operator.factory, make=make)), subtask=subtask, parallelism=2)


@dataclass(frozen=True)
class Question:
    about: Any
    asked_by: Any = field(default=None, compare=False)


AT = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.timezone.utc)
ALIKE = [
    *(1, True, 1.0, Decimal(1), Decimal("1.00"), np.float64(1), 0.0, -0.0, 0, False, None, "1", b"1"),
    *(math.nan, float("nan"), np.float64("nan"), Decimal("nan"), Decimal("nan"), 1j, complex(1, 0)),
    *(AT, AT.astimezone(datetime.timezone(datetime.timedelta(hours=2))), datetime.date(2024, 5, 1)),
    *((1,), (True,), (float("nan"),), (float("nan"),), ((1,), 2), ((True,), 2)),
    *(row(a=1), row(b=1), row(a=True), row(a=math.nan), frozenset([1]), frozenset([True])),
    *(Question(1), Question(True), Question(math.nan), Question(float("nan")), Question, float, bool),
]


@pytest.mark.parametrize("key", [None, lambda value: value])
def test_equal_records_of_different_types_share_no_answer(key):
    numbers = iter(range(1000))

    async def ask(value):
        return type(value).__name__, repr(value), next(numbers)

    stream = StreamExecutionEnvironment().from_collection(ALIKE * 2)
    answers = stream.map_async(ask, cache=AsyncCache(key=key), ordered=True).execute_and_collect()
    expected = [(type(value).__name__, repr(value)) for value in ALIKE * 2]
    assert [answer[:2] for answer in answers] == expected
    assert len({number for *_, number in answers}) == len(set(expected))


def test_a_resource_is_made_once_and_closed_with_its_last_share():
    resources: list[Any] = []

    class Resource:
        is_closed = False

        def __init__(self) -> None:
            resources.append(self)

        def close(self) -> None:
            self.is_closed = True

    shared = SharedResources()
    first, second = shared.lease("a", Resource), shared.lease("a", Resource)
    other = shared.lease("b", Resource)
    assert first.resource is second.resource is resources[0] and other.resource is resources[1] and len(resources) == 2
    first.release()
    assert not resources[0].is_closed
    second.spoil()
    assert second.is_spoilt and shared.lease("a", Resource).resource is resources[2]
    second.release()
    assert [resource.is_closed for resource in resources] == [True, False, False]


def test_they_share_a_loop_which_ends_with_the_last_of_them():
    shared, service = SharedResources(), Service()
    with task(shared, service, timeout=None) as second:
        first = task(shared, service, timeout=None)
        first.push(1)
        second.push(2)
        service.await_asked(2)
        assert service.loops[0] is service.loops[1]
        first.close()  # its request is abandoned
        service.answer(2)
        second.drain()
        assert second.get_output() == [2]
        assert service.loops[0].is_running()
    assert service.loops[0].is_closed()


def test_capacity_is_theirs_together_and_nobody_waits_for_ever():
    shared, service = SharedResources(), Service()
    with (
        task(shared, service, capacity=3, timeout=None) as first,
        task(shared, service, capacity=3, timeout=None) as second,
    ):
        first.push_all(["a", "b", "c", "d"])
        service.await_asked(3)
        second.push_all(["x", "y"])
        service.await_asked(4)
        # All slots are taken, and a subtask without one may always have one.
        assert service.asked == ["a", "b", "c", "x"]
        service.answer("x")
        service.await_asked(5)
        assert service.asked[4:] == ["y"]  # as before: three, and one more
        service.answer("a")  # three are under way: one more may not be
        service.answer("b")
        service.await_asked(6)
        assert service.asked[5:] == ["d"]
        for value in "cdy":
            service.answer(value)
        first.drain()
        second.drain()
        assert first.get_output() == ["a", "b", "c", "d"] and second.get_output() == ["x", "y"]


def test_the_first_waiting_request_gets_the_next_slot():
    shared, service = SharedResources(), Service()
    with (
        task(shared, service, capacity=2, timeout=None) as first,
        task(shared, service, capacity=2, timeout=None) as second,
    ):
        first.push_all([1, 2, 3, 4])
        service.await_asked(2)
        second.push_all([11, 12, 13, 14])
        service.await_asked(3)
        # Answers, and the requests that follow. Two are in flight, plus one of a subtask that would have none.
        for value, asked in [(11, [12]), (1, []), (12, [13]), (2, [14, 3]), (13, []), (14, [4])]:
            before = len(service.asked)
            service.answer(value)
            service.await_asked(before + len(asked))
            service.settle()
            assert service.asked[before:] == asked
        service.answer(3)
        service.answer(4)
        first.drain()
        second.drain()
        assert not shared_slots(first).line


def shared_slots(harness: Any) -> workers.WorkerSlots:
    call_slots: workers.WorkerSlots = harness.operator.in_flight.host._lease.resource.call_slots
    return call_slots


def test_results_are_kept_for_all_of_them():
    asked = []

    async def ask(value):
        asked.append(value)
        return value

    shared, cache = SharedResources(), AsyncCache(max_size=10)
    with task(shared, ask, cache=cache) as first, task(shared, ask, cache=cache) as second:
        first.push("a")
        first.drain()
        second.push_all(["a", "b"])
        second.drain()
        assert second.get_output() == ["a", "b"] and asked == ["a", "b"]


def test_tasks_started_by_a_function_end_with_its_task():
    ended = []

    class Polling(Function):
        def __init__(self, name: str) -> None:
            self.name = name

        async def open(self, runtime_context):
            self.polling = asyncio.create_task(self.poll())

        async def poll(self):
            try:
                await asyncio.create_task(asyncio.sleep(3600))
            finally:
                ended.append(self.name)

        async def __call__(self, value):
            return value

    shared = SharedResources()
    with task(shared, Polling("one")):
        with task(shared, Polling("two")) as two:
            two.push(1)
            two.drain()
        assert ended == ["two"]
    assert ended == ["two", "one"]


def test_a_blocked_loop_is_not_for_those_who_come_later(monkeypatch):
    monkeypatch.setattr(workers, "_HEARS", 0.1)
    monkeypatch.setattr(workers, "GRACE", 0.1)
    monkeypatch.setattr(event_loop, "GRACE", 0.1)
    monkeypatch.setattr(host, "GRACE", 0.1)
    blocked, may_end = threading.Event(), threading.Event()

    async def ask(value):
        if value == "blocks":
            blocked.set()
            may_end.wait()
        return value

    shared = SharedResources()
    try:
        first, second = task(shared, ask, timeout=None), task(shared, ask, timeout=None)
        first.push("blocks")
        assert blocked.wait(60)
        with pytest.raises(OperatorError, match="a coroutine is blocking the event loop"):
            first.close()
        with task(shared, ask, timeout=None) as again:
            again.push(1)
            again.drain()
            assert again.get_output() == [1]
    finally:
        may_end.set()
    second.close()


def test_a_limit_is_that_of_all_in_a_partition():
    """The subtasks of a partition share their event loop, and therefore the slots of all limits."""
    options: Any = {"rate_limit": 5, "budgets": [Budget("model", requests=5)]}
    shared = SharedResources()
    with task(shared, Service(), **options) as first, task(shared, Service(), **options) as second:
        assert first.operator.in_flight.host.turns is second.operator.in_flight.host.turns is not None
        with task(SharedResources(), Service(), **options) as other:
            assert other.operator.in_flight.host.turns is not first.operator.in_flight.host.turns


@pytest.mark.parametrize(("parallelism", "partitions", "rate"), [(16, 2, 50), (1, 2, 100), (16, 1, 100), (0, 1, 25)])
def test_without_a_ledger_the_tasks_that_run_at_the_same_time_have_equal_shares(parallelism, partitions, rate):
    """Tasks under Spark Connect have no ledger."""
    options = AsyncOptions("map_async", job_rate_limit=100)
    scope = LedgerScope(None, partitions)
    turns = Turns(None, options.shared_budgets, scope, "ask", scope.tasks(parallelism, 4))
    (gate,) = turns._gates
    assert gate._limits == BudgetLimits("\0ask", rate)


@pytest.mark.parametrize("stay", [True, False])
def test_requests_are_carried_only_where_the_next_epoch_runs_in_the_same_process(stay):
    answers = threading.Event()

    def ask(value):
        assert answers.wait(60)
        return value

    with task(SharedResources(stay=stay), ask, timeout=None) as harness:
        harness.push(1)
        if not stay:
            answers.set()
        harness.snapshot()
        assert harness.get_output() == ([] if stay else [1])
        answers.set()
