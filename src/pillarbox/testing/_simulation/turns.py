"""Runs event loops, inputs and the mailbox in turns, in a single thread.

The seed determines the order and length of turns, so a run can be repeated.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import selectors
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pillarbox._operators.async_io.loop.event_loop import EventLoopCallError
from pillarbox._operators.async_io.operator import AsyncWaitOperator
from pillarbox._operators.async_keyed.operator import AsyncKeyedOperator
from pillarbox._operators.frame.operator import StreamOperator
from pillarbox._task.network.task_input import EXHAUSTED, InputReader
from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox.mailbox import MailboxExecutor
from pillarbox.testing._patience import Patience


class _VirtualTimeSelector(selectors.SelectSelector):
    """A selector with virtual time. Instead of waiting, it ends the loop's turn or jumps to the next timer."""

    def __init__(self, leave: Callable[[], None]) -> None:
        super().__init__()
        self.now = 0.0
        self.may_leap = False
        self._leave = leave

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout == 0:
            return []
        if self.may_leap and timeout is not None:
            self.now += timeout
            self.may_leap = False
        else:
            self._leave()
        return []


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.selector = _VirtualTimeSelector(self.stop)
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.now


class SteppedEventLoop:
    """Replaces an ``EventLoopThread``. The loop runs only during calls of its methods."""

    def __init__(self) -> None:
        self.loop = _Loop()

    def call(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
        """Call a function in the loop. If it returns a coroutine, run the loop until the coroutine ends."""

        async def run() -> tuple[Any, BaseException | None]:
            try:
                result = function(*args)
                return (await result if inspect.isawaitable(result) else result), None
            except BaseException as error:
                return None, error

        task = self.loop.create_task(run())
        while not task.done():
            self.rest()
            if not task.done() and not self.leap():
                raise AssertionError(f"{function} does not end")
        result, error = task.result()
        if error is not None:
            raise EventLoopCallError(error) from error
        return result

    def step(self) -> None:
        """Run the callbacks that are ready, but not callbacks that they schedule."""
        self.loop.stop()
        self.loop.run_forever()

    def rest(self) -> None:
        self.loop.run_forever()

    def leap(self) -> bool:
        """Advance to the loop's next timer, and run until no callback is ready. Return whether there was a timer."""
        self.loop.selector.may_leap = True
        self.loop.run_forever()
        leapt = not self.loop.selector.may_leap
        self.loop.selector.may_leap = False
        return leapt

    def close(self) -> None:
        self.loop.close()


class SteppedInputReader(InputReader[Any]):
    """Replaces a ``ThreadedInputReader``. Items become available only when it is the input's turn."""

    def __init__(
        self, turns: Turns, items: Iterable[Any], executor: MailboxExecutor, fail: Callable[[BaseException], None]
    ) -> None:
        self._turns = turns
        self._items: Iterator[Any] = iter(items)
        self._executor = executor
        self._fail = fail
        self._ended = False

    def poll(self) -> Any:
        if self._ended:
            return EXHAUSTED
        if not self._turns.input_comes():
            return None
        try:
            item = next(self._items, EXHAUSTED)
        except Exception as error:
            self._ended = True
            self._fail(error)
            return None
        self._ended = item is EXHAUSTED
        return item

    def when_available(self, callback: Callable[[], None]) -> None:
        """Schedule ``callback`` after the pending mails, unless the input has failed."""
        if not self._ended:
            self._executor.execute(callback, "input has come")


class Turns(Patience):
    """Decides whether the mailbox, an event loop or the input runs next.

    Args:
        clock: the processing-time clock. If nothing else can run, it advances to the next timer or answer.
        rng: draws the turns. If None, an event loop only runs while the mailbox waits for it.
    """

    def __init__(self, clock: ManualProcessingTimeService, rng: random.Random | None) -> None:
        super().__init__(clock, limit=0.0)
        self._rng = rng
        self._loops_first = 0.0 if rng is None else rng.choice([0.0, 0.3, 1.0])
        self._input_late = 0.0 if rng is None else rng.choice([0.0, 0.3])
        self._loops: list[SteppedEventLoop] = []

    # -- replacements for threads --

    def event_loop(self, name: str, blocked: Callable[[float], None] | None = None) -> SteppedEventLoop:
        loop = SteppedEventLoop()
        self._loops.append(loop)
        return loop

    def input(
        self, items: Iterable[Any], executor: MailboxExecutor, fail: Callable[[BaseException], None]
    ) -> SteppedInputReader:
        return SteppedInputReader(self, items, executor, fail)

    def input_comes(self) -> bool:
        rng = self._rng
        if rng is None:
            return True
        if rng.random() < self._loops_first:
            self._step(self._open_loops())
        return rng.random() >= self._input_late

    def answer(self, now: int) -> bool:
        """Send the simulated service's answers that are due at ``now``. Return whether there were any."""
        return False

    def times_of_answers(self) -> Iterable[int]:
        return ()

    def settle(self) -> None:
        loops = self._open_loops()
        for loop in loops:
            loop.rest()
        if self.answer(self._clock.current_processing_time()):
            for loop in loops:
                loop.rest()

    def await_mail(self, executor: MailboxExecutor, name: str, chain: Iterable[StreamOperator]) -> None:
        """Wait for a mail and run it.

        During the wait, run the chain's event loops or, if they are idle, advance the clock.
        """
        operators = list(chain)
        loops: list[Any] = [op.in_flight.host.thread for op in operators if isinstance(op, AsyncWaitOperator)]
        keyed = [op for op in operators if isinstance(op, AsyncKeyedOperator)]
        if self._rng is not None:
            self._step(loops)
        while not executor.try_yield():
            for loop in loops:
                loop.rest()
            for operator in keyed:
                operator.run_ready()
            if executor.try_yield():
                return
            if any(operator.has_ready for operator in keyed):
                continue
            leapt = [loop.leap() for loop in loops]
            if not any(leapt):
                self._let_time_pass(name)

    def _step(self, loops: list[Any]) -> None:
        assert self._rng is not None
        for _ in range(self._rng.choice([0, 1, 2, 5, 20])):
            for loop in loops:
                loop.step()

    def _let_time_pass(self, name: str) -> None:
        now = self._clock.current_processing_time()
        times = [*self._clock.active_timer_timestamps(), *self.times_of_answers()]
        following = min((time for time in times if time > now), default=None)
        if following is None:
            raise AssertionError(f"operator {name!r} would wait forever: no timer and no response is pending")
        self._clock.set_current_time(following)
        self.settle()

    def _open_loops(self) -> list[SteppedEventLoop]:
        self._loops = [loop for loop in self._loops if not loop.loop.is_closed()]
        return self._loops
