"""A task with carried requests dies at random points. Then invariants are checked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._time.manual_clock import ManualProcessingTimeService
from tests.operators.async_io.test_async_carry import Resident

pytestmark = pytest.mark.slow("a model")

TIMEOUT = 100


class CarryMachine(RuleBasedStateMachine):
    @initialize(ordered=st.booleans(), capacity=st.integers(1, 3))
    def start(self, ordered: bool, capacity: int) -> None:
        self.options = {"timeout": TIMEOUT, "capacity": capacity, "ordered": ordered, "on_failure": "drop"}
        self.store = MemoryChunkStore()
        self.clock = ManualProcessingTimeService()
        self.resident = self.new_resident()
        self.pushed = 0
        # Requests that the last epoch left in the state.
        self.carried = 0
        self.out: list[Any] = []
        self.asked: dict[int, int] = {}
        self.failed: set[int] = set()

    def new_resident(self) -> Resident:
        resident = Resident(self.store, self.clock, **self.options)
        prepare = resident.operator.prepare_snapshot_pre_barrier

        def prepare_when_all_has_begun(checkpoint_id: int) -> None:
            resident.turn()
            prepare(checkpoint_id)
            resident.turn()

        resident.operator.prepare_snapshot_pre_barrier = prepare_when_all_has_begun
        return resident

    # -- events --

    @rule(records=st.integers(0, 3))
    def epoch(self, records: int) -> None:
        records = min(records, 2 * self.options["capacity"] - self.carried)  # type: ignore[operator]
        resident = self.resident
        values = range(self.pushed, self.pushed + records)
        self.pushed += records
        answering = self.answer_all_that_is_overdue(resident)
        before = len(self.out)
        self.out += resident.run_epoch(*values)
        if answering is not None:
            answering.cancel()
            resident.turn()  # it has ended
        self.carried = len(resident.operator.in_flight)
        now = self.clock.current_processing_time()
        for outcome in self.out[before:]:
            if isinstance(outcome, tuple):
                assert now >= self.asked[outcome[1]] + TIMEOUT, "given up too early"
        self.note()
        left = {outcome[1] if isinstance(outcome, tuple) else outcome for outcome in self.out}
        for value in resident.service.waiting:
            assert value not in left
            # It may still complete if it was only sent now.
            assert now < self.asked[value] + TIMEOUT or answering is not None, "not given up in time"

    def answer_all_that_is_overdue(self, resident: Resident) -> Any:
        now = self.clock.current_processing_time()
        if all(now < asked + TIMEOUT for asked in self.asked.values()):
            return None

        async def answer() -> None:
            while True:
                for value, future in list(resident.service.waiting.items()):
                    if now >= self.asked.get(value, now) + TIMEOUT and not future.done():
                        future.set_result([value])
                await asyncio.sleep(0.001)

        if resident.operator._opened is None:
            assert resident.task.restore(self.store)
        return asyncio.run_coroutine_threadsafe(answer(), resident.operator.in_flight.host.thread.loop)

    def note(self) -> None:
        for value in self.resident.service.begun:
            self.asked.setdefault(value, self.clock.current_processing_time())

    def waiting(self) -> list[int]:
        return list(self.resident.service.waiting)

    @precondition(lambda self: self.waiting())
    @rule(data=st.data())
    def answer(self, data: Any) -> None:
        value = data.draw(st.sampled_from(self.waiting()))
        self.resident.answer(value, value)
        self.note()

    @precondition(lambda self: self.waiting())
    @rule(data=st.data(), kind=st.sampled_from([ValueError, KeyError, asyncio.CancelledError]))
    def fail(self, data: Any, kind: type[BaseException]) -> None:
        value = data.draw(st.sampled_from(self.waiting()))
        self.resident.fail(value, kind())
        self.failed.add(value)
        self.note()

    @rule(milliseconds=st.integers(1, TIMEOUT // 2))
    def wait(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)

    @rule()
    def die(self) -> None:
        self.resident.task.cancel()
        self.resident = self.new_resident()

    # -- invariants --

    @invariant()
    def at_most_capacity_under_way_and_each_asked_once(self) -> None:
        if hasattr(self, "resident"):
            service = self.resident.service
            assert len(service.waiting) <= self.options["capacity"]  # type: ignore[operator]
            assert len(set(service.begun)) == len(service.begun), "asked again in one process"

    def teardown(self) -> None:
        if not hasattr(self, "resident"):
            return
        try:
            self.epoch(0)
            while self.carried:
                for value in self.waiting():
                    self.resident.answer(value, value)
                self.epoch(0)
            left = [outcome[1] if isinstance(outcome, tuple) else outcome for outcome in self.out]
            assert len(set(left)) == len(left), "out twice"
            assert set(range(self.pushed)) - set(left) <= self.failed, "lost"
            if self.options["ordered"]:
                assert left == sorted(left)
        finally:
            self.resident.task.cancel()


TestCarry = CarryMachine.TestCase
