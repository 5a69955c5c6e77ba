from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pillarbox import AsyncFunction, OutputTag, ProgramError
from pillarbox._elements.elements import Watermark
from pillarbox._elements.records import Records
from pillarbox._operators.async_io.api.options import AsyncOptions
from pillarbox._operators.async_io.operator import AsyncWaitOperator
from pillarbox._operators.frame.operator import OperatorContext, StreamOperator
from pillarbox._operators.stateless.pass_through import PASS_THROUGH
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._task.multiple_input_stream_task import MultipleInputStreamTask
from pillarbox._task.vertex import ChainNode
from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox.testing import OneInputStreamOperatorTestHarness as Harness
from tests.operators.async_io.async_service import Service, answer, settle
from tests.support.nodes import node
from tests.task.tasks import run_shuffled, vertex_of

TIMEOUT = 1000
BAD: OutputTag[Any] = OutputTag("bad")


class Tail(StreamOperator):
    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self.received: list[Any] = []

    def process_records(self, records: Records) -> None:
        self.received += records.values

    def process_watermark(self, timestamp: int) -> None:
        self.received.append(Watermark(timestamp))

    def take(self) -> list[Any]:
        received, self.received = self.received, []
        return received


class Resident:
    def __init__(self, store: MemoryChunkStore, clock: ManualProcessingTimeService, **options: Any) -> None:
        options = {"timeout": TIMEOUT, "on_barrier": "carry", **options}
        self.store = store
        self.service = Service()
        asking = node(AsyncWaitOperator, "ask", self.service, AsyncOptions("ask", **options))
        vertex = vertex_of(ChainNode("head", "head", PASS_THROUGH), asking, node(Tail, "tail"), shuffled=True)
        self.task = MultipleInputStreamTask(vertex, 0, clock=clock)
        self.operator: Any
        self.tail: Any
        _, self.operator, self.tail = self.task.chain.operators

    def run_epoch(self, *values: Any) -> list[Any]:
        records = [Records(list(values), list(range(len(values))))] if values else []
        run_shuffled(self.task, self.store, *records)
        self.turn()
        return list(self.tail.take())

    def ask(self, *values: Any) -> None:
        assert [*self.run_epoch(*values), *self.run_epoch()] == []

    def turn(self) -> None:
        async def turns() -> None:
            for _ in range(6):
                await asyncio.sleep(0)

        self.operator.in_flight.host.thread.call(turns)

    def answer(self, value: Any, *results: Any) -> None:
        self.operator.in_flight.host.thread.call(self.service.waiting[value].set_result, list(results))
        self.turn()

    def fail(self, value: Any, error: BaseException) -> None:
        self.operator.in_flight.host.thread.call(self.service.waiting[value].set_exception, error)
        self.turn()

    def close(self) -> None:
        self.task.close()


@pytest.fixture
def clock():
    return ManualProcessingTimeService(5_000)


@pytest.fixture
def pair(clock):
    store = MemoryChunkStore()
    residents = [Resident(store, clock), Resident(store, clock)]
    yield residents
    for resident in residents:
        resident.close()


def test_a_request_is_sent_once_however_many_epochs_there_are(pair, clock):
    resident, _ = pair
    assert resident.run_epoch("slow", "other") == []
    for _ in range(20):
        clock.advance(10)
        assert resident.run_epoch() == []
    assert resident.service.begun == ["slow", "other"]
    resident.answer("slow", "S")
    resident.answer("other", "O")
    assert resident.run_epoch("new") == ["S", "O"]
    resident.answer("new", "N")
    assert resident.run_epoch() == ["N"]
    assert resident.service.begun == ["slow", "other", "new"] and resident.service.cancelled == []


@pytest.mark.parametrize("ordered", [True, False])
def test_recorded_answers_behind_a_slow_request_are_not_asked_for_again(clock, ordered):
    store = MemoryChunkStore()
    first, second = (Resident(store, clock, record=True, ordered=ordered, on_failure=BAD) for _ in range(2))
    first.ask("slow", "failed")
    first.task.chain.process_watermark(9)
    first.operator.process_records(Records(["fast"], [10]))
    first.turn()
    first.answer("fast", "F", "f")
    first.fail("failed", OSError())
    assert first.run_epoch() == []
    assert first.run_epoch() == []
    first.task.cancel()
    assert second.run_epoch() == []
    assert second.service.begun == (["slow", "failed"] if ordered else ["slow"])
    second.answer("slow", "S")
    if ordered:
        second.answer("failed", "again")
    assert second.run_epoch() == ["S", *(["again"] if ordered else []), Watermark(9), "F", "f"]
    second.close()


def test_only_carried_answers_are_recorded():
    with pytest.raises(ProgramError, match='record= must be False, or True with on_barrier="carry"'):
        AsyncOptions("map_async", record=True)


def test_requests_of_a_task_that_is_out_of_step_are_abandoned(pair):
    first, second = pair
    first.run_epoch("a")
    assert second.run_epoch() == [] and second.service.begun == ["a"]
    assert not first.task.restore(first.store)
    assert first.service.cancelled == ["a"]
    second.answer("a", "A")
    assert second.run_epoch() == ["A"]


def test_a_request_times_out_by_when_it_was_asked_first(pair, clock):
    first, second = pair
    first.ask("a")
    first.task.cancel()
    clock.advance(TIMEOUT // 2)
    assert second.run_epoch() == []
    clock.advance(TIMEOUT // 2 - 1)
    assert second.run_epoch() == []
    clock.advance(1)
    assert second.run_epoch() == [("late", "a")]
    assert first.service.begun == second.service.begun == ["a"]


def test_a_request_whose_time_ran_out_meanwhile_is_asked_before_it_is_given_up(pair, clock):
    first, second = pair
    first.ask("a", "b")
    first.task.cancel()
    clock.advance(10 * TIMEOUT)
    epoch = second.task
    assert epoch.restore(second.store)
    parts = epoch.run_epoch([], second.store)

    # The epoch waits for it, because with a new worker in each epoch, it might never end.
    async def answer_when_asked():
        while len(second.service.waiting) < 2:
            await asyncio.sleep(0.001)
        second.service.waiting["a"].set_result(["A"])
        for _ in range(6):
            await asyncio.sleep(0)
        clock.advance(TIMEOUT)

    outcome = asyncio.run_coroutine_threadsafe(answer_when_asked(), second.operator.in_flight.host.thread.loop)
    assert list(parts)
    assert second.tail.take() == ["A", ("late", "b")]
    outcome.result()


def test_a_request_waiting_for_its_turn_does_not_time_out_unsent(clock):
    first = Resident(MemoryChunkStore(), clock, capacity=1)
    first.run_epoch("a", "b")
    clock.advance(TIMEOUT // 2)
    first.answer("a", "A")
    assert first.run_epoch() == ["A"]
    clock.advance(TIMEOUT // 2)
    assert first.run_epoch() == []
    clock.advance(TIMEOUT // 2)
    assert first.run_epoch() == [("late", "b")]
    assert first.service.begun == ["a", "b"]
    first.close()


class SetClock(ManualProcessingTimeService):
    """A wall clock that can be set. Setting it does not change how long timers wait."""

    ahead = 0

    def current_processing_time(self) -> int:
        return super().current_processing_time() + self.ahead

    def _due(self, timestamp: int) -> int:
        return super()._due(timestamp) - self.ahead


HOUR = 3_600_000


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_setting_the_wall_clock_neither_hastens_nor_delays_a_timeout(jump):
    clock = SetClock(2 * HOUR)
    resident = Resident(MemoryChunkStore(), clock)
    resident.ask("a")
    clock.advance(TIMEOUT // 2)
    resident.ask("b")
    clock.ahead += jump
    clock.advance(TIMEOUT // 2)
    assert resident.run_epoch() == [("late", "a")]
    clock.advance(TIMEOUT // 2)
    assert resident.run_epoch() == [("late", "b")]
    resident.close()


def test_a_request_from_a_worker_whose_clock_is_ahead_times_out_in_time():
    store = MemoryChunkStore()
    ahead, behind = SetClock(2 * HOUR), SetClock(2 * HOUR)
    ahead.ahead = HOUR
    first, second = Resident(store, ahead), Resident(store, behind)
    first.ask("a")
    first.task.cancel()
    assert second.run_epoch() == []
    behind.advance(TIMEOUT)
    assert second.run_epoch() == [("late", "a")]
    second.close()


@pytest.mark.parametrize("ordered", [True, False])
def test_watermarks_stay_in_their_places(clock, ordered):
    first = Resident(MemoryChunkStore(), clock, ordered=ordered)
    first.run_epoch("a", "b")
    first.operator.process_watermark(7)
    first.operator.in_flight.process_records(Records(["c"], [8]))
    first.turn()
    # Like another epoch: the received records are in the state.
    assert first.run_epoch() == []
    first.answer("b", "B")
    first.answer("c", "C")
    assert first.run_epoch() == ([] if ordered else ["B"])
    first.answer("a", "A")
    expected = ["A", "B", Watermark(7), "C"] if ordered else ["A", Watermark(7), "C"]
    assert first.run_epoch() == expected
    first.close()


# -- restored --


class Squares(AsyncFunction):
    async def async_invoke(self, value: int) -> list[int]:
        return [value * value]


async def squares(values: list[int]) -> list[int]:
    SIZES.append(len(values))
    return [value * value for value in values]


async def square(value: int) -> int:
    return value * value


SIZES: list[int] = []


def carrying(function: Any, **options: Any) -> ChainNode:
    return node(AsyncWaitOperator, "ask", function, AsyncOptions("ask", on_barrier="carry", **options))


REQUESTS: list[tuple[Any, ...]] = [
    ("request", [1], [10], 1, None),
    ("watermark", 15),
    ("request", [2, 3, 4], [20, None, 40], 2, None),
    ("request", [5, 6], None, 3, None),
    ("request", [7], None, 4, None),
]


@pytest.mark.parametrize(
    ("function", "size", "sizes"),
    [
        (square, None, []),
        (Squares(), None, []),
        (squares, 1, [1] * 7),
        (squares, 2, [1, 1, 1, 2, 2]),
        (squares, 3, [1, 1, 2, 3]),
        (squares, 100, [1, 1, 2, 3]),
    ],
)
def test_requests_of_other_batch_sizes(function, size, sizes):
    SIZES.clear()
    with Harness(carrying(function, batch_size=size)) as h:
        h.operator.restore_state(REQUESTS)
        h.drain()
        assert h.get_output() == [value * value for value in range(1, 8)]
        assert [record.timestamp for record in h.get_records()] == [10, 20, None, 40, None, None, None]
        assert h.get_watermarks() == [15]
    assert sorted(SIZES) == sizes


@pytest.mark.parametrize("before", [None, 1, 3])
@pytest.mark.parametrize("after", [None, 1, 2, 5])
def test_a_program_with_another_batch_size_goes_on(before, after):
    class Hanging:
        async def __call__(self, values: Any) -> Any:
            await asyncio.sleep(3600)

    with Harness(carrying(Hanging(), batch_size=before)) as h:
        h.push_all([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6])
        snapshot = h.snapshot()
    with Harness(carrying(square if after is None else squares, batch_size=after), snapshot=snapshot) as h:
        h.drain()
        assert h.get_records() == [(value * value, value) for value in range(1, 7)]


def test_failures_of_restored_requests_name_the_attempts_made_here():
    tag = OutputTag("failed")

    class Refusing:
        async def __call__(self, value: Any) -> Any:
            raise ConnectionError("no")

    with Harness(carrying(Service())) as h:
        h.push("a")
        settle(h)
        snapshot = h.snapshot()
    with Harness(carrying(Refusing(), on_failure=tag), snapshot=snapshot) as h:
        h.drain()
        (failure,) = h.get_side_output(tag)
        assert (failure.value, failure.attempts) == ("a", 1)


def test_the_snapshot_of_a_resident_is_what_another_one_continues():
    service = Service()
    with Harness(carrying(service)) as h:
        h.push_all(["a", "b"])
        settle(h)
        first = h.snapshot()
        answer(h, "a", ["A"])
        assert h.get_output() == ["A"]
        state = h.operator.snapshot_state(2)
        assert [entry[1] for entry in state] == [["b"]]
        assert h.operator.snapshot_state(3) == state
    service = Service()
    with Harness(carrying(service), snapshot=first) as h:
        settle(h)
        assert service.begun == ["a", "b"]
