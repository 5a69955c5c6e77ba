"""State, contexts and asyncio tasks are available only in the steps of their element."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import sys
import threading
import time
from typing import Any

import pytest

from pillarbox import OperatorError, ProgramError, StateTtlConfig, ValueStateDescriptor
from pillarbox._operators.async_keyed import steps
from tests.operators.async_keyed.gates import BAD, Gate, Stateful, end, opened, operator_of, settle


def test_children_of_gather_and_task_groups_have_the_key() -> None:
    class Children(Stateful):
        async def look(self, number: int) -> int:
            for _ in range(number):
                await asyncio.sleep(0)
            self.map.put(number, (self.map.get(number) or 0) + 1)
            return number

        async def process_element(self, value: Any, ctx: Any) -> Any:
            await asyncio.gather(*(self.look(number) for number in range(3)))
            if sys.version_info >= (3, 11):
                async with asyncio.TaskGroup() as group:
                    for number in range(3):
                        group.create_task(self.look(number))
            else:
                await asyncio.gather(*(self.look(number) for number in range(3)))
            await asyncio.wait_for(self.look(7), 1)
            yield value[0], sorted(self.map.items())

    with opened(Children()) as harness:
        harness.push_all([(f"k{number}", number) for number in range(50)])
        end(harness)
        expected = [(0, 2), (1, 2), (2, 2), (7, 1)]
        assert sorted(harness.get_output()) == sorted((f"k{number}", expected) for number in range(50))


def test_a_task_that_is_not_awaited_lives_on_without_key() -> None:
    gate = Gate()
    errors: list[str] = []

    class Forgetting(Stateful):
        async def lost(self, ctx: Any) -> None:
            await gate("lost")
            for use in (self.value.value, lambda: ctx.timer_service().register_event_time_timer(1)):
                try:
                    use()
                except ProgramError as error:
                    errors.append(str(error))

        async def process_element(self, value: Any, ctx: Any) -> Any:
            self.value.update(1)
            self.task = asyncio.get_running_loop().create_task(self.lost(ctx))
            await asyncio.sleep(0)
            yield value

    with opened(Forgetting()) as harness:
        harness.push(("a", 1))
        assert harness.get_output() == [("a", 1)]
        gate.open(harness, "lost")
        assert len(errors) == 2
        assert "no current" in errors[0]
        assert "the record ('a', 1) of key 'a' is used in another thread" in errors[1]


def test_a_callback_and_a_thread_have_no_key() -> None:
    outcomes: list[str] = []

    class Touching(Stateful):
        def touch(self, ctx: Any) -> None:
            for use in (lambda: self.value.update(9), lambda: ctx.output(BAD, 1)):
                try:
                    use()
                except ProgramError as error:
                    outcomes.append("thread" if "another thread" in str(error) else "key")

        async def process_element(self, value: Any, ctx: Any) -> Any:
            asyncio.get_running_loop().call_soon(self.touch, ctx)
            await asyncio.to_thread(self.touch, ctx)
            yield self.value.value()

    with opened(Touching()) as harness:
        harness.push(("a", 1))
        end(harness)
        assert outcomes.count("thread") == 3  # the context's error names threads, too
        assert len(outcomes) == 4
        assert harness.get_output() == [None]


@pytest.mark.parametrize("ttl", [False, True])
def test_a_thread_of_the_element_is_refused_while_its_step_runs(ttl: bool) -> None:
    refused = 0

    class Racing(Stateful):
        def open(self, runtime_context: Any) -> None:
            descriptor = ValueStateDescriptor("value")
            if ttl:
                descriptor.enable_time_to_live(StateTtlConfig.new_builder("1 hour").build())
            self.value = runtime_context.get_state(descriptor)

        def change(self) -> None:
            nonlocal refused
            try:
                self.value.update("thread")
            except ProgramError:
                refused += 1

        async def process_element(self, value: Any, ctx: Any) -> Any:
            self.value.update("step")
            thread = threading.Thread(target=self.change)
            thread.start()
            thread.join()
            yield self.value.value()

    with opened(Racing()) as harness:
        harness.push_all([("a", number) for number in range(100)])
        end(harness)
        assert refused == 100
        assert set(harness.get_output()) == {"step"}


def test_the_context_of_another_element_is_refused() -> None:
    gate = Gate()
    contexts: dict[str, Any] = {}

    class Borrowing(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            contexts[value[0]] = ctx
            if value[0] == "a":
                await gate("a")
            else:
                with pytest.raises(ProgramError, match="is used in another thread"):
                    contexts["a"].timer_service().register_event_time_timer(1)
            yield value

    with opened(Borrowing()) as harness:
        harness.push_all([("a", 1), ("b", 1)])
        gate.open(harness, "a")
        assert len(harness.get_output()) == 2


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), StopIteration(), MemoryError()],
    ids=lambda error: type(error).__name__,
)
def test_each_error_fails_the_task_and_names_its_element(error: BaseException) -> None:
    class Failing(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> None:
            await asyncio.sleep(0)
            if value[1]:
                raise error

    with (
        opened(Failing()) as harness,
        pytest.raises((OperatorError, KeyboardInterrupt), match=r"\('b', 1\) of key 'b'"),
    ):
        harness.push_all([("a", 0), ("b", 1), ("c", 0)])


def test_system_exit_in_a_child_does_not_end_the_loop() -> None:
    class Exiting(Stateful):
        async def exit(self) -> None:
            await asyncio.sleep(0)
            raise SystemExit(1)

        async def process_element(self, value: Any, ctx: Any) -> Any:
            if value[0] == "a":
                try:
                    await asyncio.gather(self.exit())
                except SystemExit:
                    yield "caught"
            else:
                for _ in range(5):
                    await asyncio.sleep(0)
                yield "fine"

    with opened(Exiting()) as harness:
        harness.push_all([("a", 1), ("b", 0)])
        end(harness)
        assert sorted(harness.get_output()) == ["caught", "fine"]


def test_context_variables_do_not_pass_between_elements() -> None:
    variable = contextvars.ContextVar("variable", default="clean")

    class Setting(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            before = variable.get()
            variable.set(value[1])
            await asyncio.sleep(0)
            yield before, variable.get() == value[1]

    with opened(Setting(), capacity=2) as harness:
        harness.push_all([(f"k{number}", number) for number in range(20)])
        end(harness)
        assert set(harness.get_output()) == {("clean", True)}


def test_the_loop_runs_within_another_one_as_in_a_notebook() -> None:
    class Awaiting(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            await asyncio.wait_for(asyncio.sleep(0), 5)
            yield value

    async def cell() -> list[Any]:
        with opened(Awaiting()) as harness:
            harness.push(("a", 1))
            end(harness)
            output = harness.get_output()
        assert asyncio.current_task() is not None
        await asyncio.sleep(0)
        return output

    assert asyncio.run(cell()) == [("a", 1)]


def test_a_slow_step_is_reported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    now = 0.0

    class Blocking(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            nonlocal now
            now += value[1]
            await gate(value)
            now += value[1]
            yield value

    with opened(Blocking()) as harness, caplog.at_level(logging.WARNING):
        operator_of(harness).runner.stopwatch = lambda: now
        harness.push_all([("a", steps.SLOW_STEP), ("b", 1.5 * steps.SLOW_STEP)])
        (warning,) = caplog.messages
        assert "the code for the record ('b', 1.5) of key 'b' blocked its task for 1.5 s, which ended at " in warning
        assert f"{__file__}:" in warning
        gate.open(harness, ("b", 1.5))
        assert len(caplog.messages) == 2
        gate.open(harness, ("a", steps.SLOW_STEP))
        for longest in (1500, 0):
            harness.snapshot()
            assert harness.operator.context.counters["blocked_ms"] == longest


def test_cancelled_children_leave_no_warnings(recwarn: pytest.WarningsRecorder) -> None:
    gc.collect()  # other tests abandon elements
    recwarn.clear()

    class Cancelling(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            children = [asyncio.ensure_future(asyncio.sleep(1)) for _ in range(10)]
            for child in children:
                child.cancel()
            await asyncio.gather(*children, return_exceptions=True)
            yield value

    with opened(Cancelling()) as harness:
        harness.push(("a", 1))
        end(harness)
    gc.collect()
    assert not [warning for warning in recwarn if "never awaited" in str(warning.message)]


def test_closing_cancels_elements_with_their_keys_and_closes() -> None:
    calls: list[Any] = []

    class Closing(Stateful):
        async def open(self, runtime_context: Any) -> None:
            super().open(runtime_context)
            await asyncio.sleep(0)
            calls.append("opened")

        async def process_element(self, value: Any, ctx: Any) -> None:
            self.value.update(value[1])
            try:
                await asyncio.Event().wait()
            finally:
                calls.append(self.value.value())

        async def close(self) -> None:
            await asyncio.sleep(0)
            calls.append("closed")

    with opened(Closing(), on_barrier="carry") as harness:
        harness.push_all([("a", 1), ("b", 2)])
        harness.snapshot()
    assert calls in (["opened", 1, 2, "closed"], ["opened", 2, 1, "closed"])
    assert operator_of(harness)._opened is None


def test_a_function_that_ignores_cancellation_delays_the_end_for_seconds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pillarbox._operators.async_io.loop.event_loop.GRACE", 0.05)
    closed = threading.Event()

    class Stubborn(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> None:
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    continue

        def close(self) -> None:
            closed.set()

    began = time.monotonic()
    with opened(Stubborn()) as harness:
        harness.push(("a", 1))
    assert closed.is_set()
    assert time.monotonic() - began < 4


def test_signal_handlers_are_refused() -> None:
    class Handling(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> None:
            asyncio.get_running_loop().add_signal_handler(15, print)

    with opened(Handling()) as harness, pytest.raises(ProgramError, match="cannot install signal handlers"):
        harness.push(("a", 1))
        settle(harness)
