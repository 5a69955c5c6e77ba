"""Event loops and inputs that take turns with the mailbox thread, in that thread.

An async operator has an event loop in a thread of its own, and its task reads the input in another one. How fast they
are is up to the machine: a run could not be repeated. In the simulation each runs when its turn comes; whose turn it
is, and for how long, is drawn from the seed.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import selectors
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pillarbox._operators.async_io.loop.event_loop import CallFailed
from pillarbox._operators.async_io.operator import AsyncWaitOperator
from pillarbox._operators.async_keyed.operator import AsyncKeyedOperator
from pillarbox._operators.frame.operator import StreamOperator
from pillarbox._task.network.task_input import EXHAUSTED, Reader
from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox.mailbox import MailboxExecutor
from pillarbox.testing._patience import Patience


class _Moments(selectors.SelectSelector):
    """What a loop waits in: here it either leaves the loop, or sets its time forward to the next timer.

    Attributes:
        now: the loop's time (seconds).
        may_leap: whether its time may be set forward, once.
    """

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
        self.moments = _Moments(self.stop)
        super().__init__(self.moments)

    def time(self) -> float:
        return self.moments.now


class EventLoopInTurn:
    """Stands in for an ``EventLoopThread``: the loop runs only within the methods here."""

    def __init__(self) -> None:
        self.loop = _Loop()

    def call(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
        """Call a function in the loop, and wait for the coroutine if it returns one; time passes meanwhile."""

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
            raise CallFailed(error) from error
        return result

    def step(self) -> None:
        """Do what is ready, but not what becomes ready by it."""
        self.loop.stop()
        self.loop.run_forever()

    def rest(self) -> None:
        """Run until nothing is ready."""
        self.loop.run_forever()

    def leap(self) -> bool:
        """Advance to the next timer of the loop, and run until nothing is ready; tell whether there was one."""
        self.loop.moments.may_leap = True
        self.loop.run_forever()
        leapt = not self.loop.moments.may_leap
        self.loop.moments.may_leap = False
        return leapt

    def close(self) -> None:
        """Close the loop; what ran in it has ended."""
        self.loop.close()


class InputInTurn(Reader[Any]):
    """Stands in for a ``ThreadedReader``: what it reads is available when its turn comes."""

    def __init__(
        self, turns: Turns, items: Iterable[Any], executor: MailboxExecutor, fail: Callable[[BaseException], None]
    ) -> None:
        self._turns = turns
        self._items: Iterator[Any] = iter(items)
        self._executor = executor
        self._fail = fail
        self._ended = False

    def poll(self) -> Any:
        """Return the next item, if its turn has come."""
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
        """Have ``callback`` called after the waiting mails; the task of an input that failed is at its end."""
        if not self._ended:
            self._executor.execute(callback, "input has come")


class Turns(Patience):
    """Whose turn it is: the mailbox thread's, its event loops', or its input's.

    Args:
        clock: processing time. Where all else is at rest, it is set forward to the next timer or answer.
        rng: draws the turns; None: the loops run when the mailbox thread waits for them, until nothing is ready.
    """

    def __init__(self, clock: ManualProcessingTimeService, rng: random.Random | None) -> None:
        super().__init__(clock, limit=0.0)
        self._rng = rng
        # How often the loops get a turn before the input does, and how often the input is not available even then.
        self._loops_first = 0.0 if rng is None else rng.choice([0.0, 0.3, 1.0])
        self._input_late = 0.0 if rng is None else rng.choice([0.0, 0.3])
        self._loops: list[EventLoopInTurn] = []

    # -- what stands in for threads --

    def event_loop(self, name: str, blocked: Callable[[float], None] | None = None) -> EventLoopInTurn:
        """Return the loop of an operator."""
        loop = EventLoopInTurn()
        self._loops.append(loop)
        return loop

    def input(
        self, items: Iterable[Any], executor: MailboxExecutor, fail: Callable[[BaseException], None]
    ) -> InputInTurn:
        """Return what reads the input of a task."""
        return InputInTurn(self, items, executor, fail)

    # -- turns --

    def input_comes(self) -> bool:
        """Give the loops their turns; tell whether the input is available then."""
        rng = self._rng
        if rng is None:
            return True
        if rng.random() < self._loops_first:
            self._step(self._open_loops())
        return rng.random() >= self._input_late

    def answer(self, now: int) -> bool:
        """Answer what is due at ``now`` by the services of a simulation; tell whether there was anything.

        There are none here: what a function asks has to wait in its event loop.
        """
        return False

    def times_of_answers(self) -> Iterable[int]:
        """Return when what is under way will be answered."""
        return ()

    def settle(self) -> None:
        """Let the loops become idle, answer what is due by the clock, and let them become idle again."""
        loops = self._open_loops()
        for loop in loops:
            loop.rest()
        if self.answer(self._clock.current_processing_time()):
            for loop in loops:
                loop.rest()

    def await_mail(self, executor: MailboxExecutor, name: str, chain: Iterable[StreamOperator]) -> None:
        """Run one mail; the loops of the chain get their turns until there is one, and at the last time passes."""
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
        moments = [*self._clock.active_timer_timestamps(), *self.times_of_answers()]
        following = min((moment for moment in moments if moment > now), default=None)
        if following is None:
            raise AssertionError(f"operator {name!r} waits for what never comes")
        self._clock.set_current_time(following)
        self.settle()

    def _open_loops(self) -> list[EventLoopInTurn]:
        self._loops = [loop for loop in self._loops if not loop.loop.is_closed()]
        return self._loops
