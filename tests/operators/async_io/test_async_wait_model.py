"""The async operator, compared with a model under random completions, timeouts, watermarks and restores."""

from __future__ import annotations

import asyncio
import copy
from itertools import repeat
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pillarbox import OutputTag
from pillarbox._operators.async_io.api.options import AsyncOptions
from pillarbox._operators.async_io.operator import AsyncWaitOperator
from pillarbox.testing import OneInputStreamOperatorTestHarness as Harness
from tests.operators.async_io.async_service import Log, Service, answer, settle
from tests.support.nodes import node

pytestmark = pytest.mark.slow("a model")

TIMEOUT = 100
FAILED = OutputTag("failed")


class Element:
    def __init__(self, value: Any, stamp: int | None, watermark: bool = False) -> None:
        self.value, self.stamp, self.watermark = value, stamp, watermark
        self.started: int | None = None
        self.outputs: list[Any] | None = None
        self.completed = 0
        # It timed out before it was sent, so the next epoch waits for it.
        self.last_chance = False


class Model:
    """Flink's contract of the operator, in plain Python."""

    def __init__(self, ordered: bool, capacity: int) -> None:
        self.ordered, self.capacity = ordered, capacity
        self.now = 0
        self.held: list[Element] = []
        # Records in starting order; completed ones are removed.
        self.turn: list[Element] = []
        self.emitted: list[Any] = []
        self.completions = 0

    def put(self, element: Element) -> None:
        self.held.append(element)
        if not element.watermark:
            self.turn.append(element)
        self.advance()

    def advance(self) -> None:
        for element in self.turn[: self.capacity]:
            if element.started is None:
                element.started = self.now
        if self.ordered:
            self._emit_in_order()

    def _emit_in_order(self) -> None:
        while self.held and (self.held[0].watermark or self.held[0].outputs is not None):
            self._emit(self.held.pop(0))

    def _emit(self, element: Element) -> None:
        if element.watermark:
            self.emitted.append(("watermark", element.value))
        else:
            assert element.outputs is not None
            self.emitted += [("record", output, element.stamp) for output in element.outputs]

    def complete(self, element: Element, outputs: list[Any]) -> None:
        element.outputs = outputs
        self.completions += 1
        element.completed = self.completions
        self.turn.remove(element)
        if not self.ordered:
            self._emit_unordered()
        self.advance()

    def _emit_unordered(self) -> None:
        while self.held:
            end = next((index for index, element in enumerate(self.held) if element.watermark), len(self.held))
            ready = [element for element in self.held[:end] if element.outputs is not None]
            for element in sorted(ready, key=lambda element: element.completed):
                self.held.remove(element)
                self._emit(element)
            if not (self.held and self.held[0].watermark):
                return
            self._emit(self.held.pop(0))

    def put_watermark(self, timestamp: int) -> None:
        self.put(Element(timestamp, None, watermark=True))
        if not self.ordered:
            self._emit_unordered()

    @property
    def begun(self) -> list[Element]:
        return self.turn[: self.capacity]

    def restored(self) -> Model:
        """Repeat the requests of all held records.

        The snapshot contains the time of each record's first request, and a timeout counts from it.
        Between two watermarks, Flink's unordered queue lists completed records first.
        """
        other = copy.deepcopy(self)
        if not self.ordered:
            watermarks, places = 0, {}
            for element in other.held:
                places[element] = watermarks, element.watermark, element.outputs is None, element.completed
                watermarks += element.watermark
            other.held.sort(key=places.__getitem__)
        for element in other.held:
            element.outputs, element.completed = None, 0
            if element.started is not None and element.started + TIMEOUT <= self.now:
                element.last_chance = True
                element.started = None
        other.turn = [element for element in other.held if not element.watermark]
        other.advance()
        return other


class AsyncWaitMachine(RuleBasedStateMachine):
    @initialize(ordered=st.booleans(), capacity=st.integers(1, 4))
    def start(self, ordered: bool, capacity: int) -> None:
        self.ordered, self.capacity = ordered, capacity
        self.model = Model(ordered, capacity)
        self.next_value = 0
        self.watermark = 0
        self.harness = self.new_harness(None)
        self.log = self.watch()
        self.saved = (self.harness.snapshot(), copy.deepcopy(self.model), 0)

    def new_harness(self, snapshot: Any) -> Any:
        operator = node(
            AsyncWaitOperator,
            "ask",
            Service(),
            AsyncOptions(
                "map_async",
                timeout=TIMEOUT,
                capacity=self.capacity,
                ordered=self.ordered,
                on_failure=FAILED,
                on_barrier="carry",
            ),
        )
        return Harness(operator, snapshot=snapshot, processing_time=self.model.now)

    def watch(self) -> Log:
        log = Log()
        self.harness.operator.context.output = log
        log.elements += self.model.emitted
        return log

    # -- events --

    @precondition(lambda self: len(self.model.turn) < 2 * self.capacity and len(self.model.held) < 2 * self.capacity)
    @rule(data=st.data(), stamped=st.booleans())
    def push(self, data: Any, stamped: bool) -> None:
        room = 2 * self.capacity - sum(not element.watermark for element in self.model.held)
        count = data.draw(st.integers(1, max(1, room)))
        if count > room:
            return
        values = list(range(self.next_value, self.next_value + count))
        self.next_value += count
        stamps = [self.watermark + 1 + value % 3 for value in values] if stamped else None
        self.harness.push_all(values, stamps)
        for value, stamp in zip(values, stamps or repeat(None, count)):
            self.model.put(Element(value, stamp))
        settle(self.harness)

    @rule(step=st.integers(1, 5))
    def push_watermark(self, step: int) -> None:
        self.watermark += step
        self.harness.operator.process_watermark(self.watermark)
        settle(self.harness)
        self.model.put_watermark(self.watermark)

    @precondition(lambda self: self.model.turn)
    @rule(data=st.data(), outputs=st.integers(0, 2))
    def complete(self, data: Any, outputs: int) -> None:
        element = data.draw(st.sampled_from(self.model.begun))
        results = [(element.value, index) for index in range(outputs)]
        answer(self.harness, element.value, results)
        self.model.complete(element, results)

    @precondition(lambda self: self.model.turn)
    @rule(data=st.data(), kind=st.sampled_from([ValueError, KeyError, asyncio.CancelledError]))
    def fail(self, data: Any, kind: type[BaseException]) -> None:
        element = data.draw(st.sampled_from(self.model.begun))
        answer(self.harness, element.value, kind(element.value))
        self.model.complete(element, [])

    @rule(milliseconds=st.integers(1, TIMEOUT))
    def wait(self, milliseconds: int) -> None:
        # In small steps, so that requests start at known times when others expire.
        for _ in range(milliseconds // 10 + 1):
            self.model.now += 10
            self.harness.set_processing_time(self.model.now)
            settle(self.harness)
            late = [e for e in self.model.turn if e.started is not None and e.started + TIMEOUT <= self.model.now]
            # Simultaneous timeouts expire together before other requests start, in queue order.
            begun = self.model.begun
            for element in sorted(late, key=self.order_of_giving_up):
                if element in begun:
                    self.model.complete(element, [("late", element.value)])
                else:
                    element.started, element.last_chance = self.model.now, True

    def order_of_giving_up(self, element: Element) -> int:
        return self.model.held.index(element)

    @precondition(lambda self: not any(element.last_chance for element in self.model.turn))
    @rule()
    def snapshot(self) -> None:
        self.saved = (self.harness.snapshot(), copy.deepcopy(self.model), self.watermark)

    @rule()
    def restore(self) -> None:
        snapshot, model, self.watermark = self.saved
        now = self.model.now
        self.model = copy.deepcopy(model)
        self.model.now = now
        self.model = self.model.restored()
        self.harness.close()
        self.harness = self.new_harness(snapshot)
        log = self.watch()
        self.log = log
        settle(self.harness)

    # -- invariants --

    @invariant()
    def emitted_as_the_model_says(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.log.elements == self.model.emitted

    @invariant()
    def at_most_capacity_under_way(self) -> None:
        if not hasattr(self, "log"):
            return
        assert set(self.harness.operator.function.waiting) == {element.value for element in self.model.begun}

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        try:
            while self.model.turn:
                element = self.model.begun[-1]
                answer(self.harness, element.value, [element.value])
                self.model.complete(element, [element.value])
                self.emitted_as_the_model_says()
            self.harness.end_input()
            assert not self.model.held
            assert self.log.elements[:-1] == self.model.emitted
        finally:
            self.harness.close()


TestAsyncWait = AsyncWaitMachine.TestCase
