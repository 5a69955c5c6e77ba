"""Coroutines that wrap a user's coroutine, so that its element's key is current during each step.

Any library's awaitables work. Wrappers are classes, because Python reports an ``async def`` as never awaited if its
task is cancelled before the first step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any

from pillarbox._errors import place_of_task

if TYPE_CHECKING:
    from pillarbox._operators.async_keyed.element import AsyncElement
    from pillarbox._operators.async_keyed.runner import ElementRunner

_log = logging.getLogger("pillarbox")

# Steps that take longer (seconds) are reported.
SLOW_STEP = 1.0


class _Steps(Coroutine[Any, Any, Any]):
    """The steps of a coroutine. Subclasses set each step's key."""

    __slots__ = ("_inner", "_runner")

    def __init__(self, runner: ElementRunner, inner: Any) -> None:
        self._runner = runner
        self._inner = inner

    def _step(self, step: Any, *arguments: Any) -> Any:
        raise NotImplementedError

    def send(self, value: Any) -> Any:
        return self._step(self._inner.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._inner.throw, *error)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise TypeError("an asyncio task runs it")


class WorkerSteps(_Steps):
    """The steps of a worker, which runs one element after another.

    Attributes:
        element: the running element, or None between elements and after the worker's element was cut off.
        coroutine: the coroutine or generator of the element's function, or None.
        has_waited: whether any of the worker's elements has awaited something.
        is_cut_off: whether the worker lost its call slot, because its element ignored a cancellation.
        turn_began: when the current step began (seconds).
        began: when the current element began to run in this step (seconds): ``turn_began``, or its own start if later.
    """

    __slots__ = ("began", "coroutine", "element", "has_waited", "is_cut_off", "task", "turn_began")

    def __init__(self, runner: ElementRunner) -> None:
        super().__init__(runner, runner.work(self))
        self.element: AsyncElement | None = None
        self.coroutine: Any = None
        self.has_waited = False
        self.is_cut_off = False
        self.turn_began = self.began = 0.0
        self.task: asyncio.Task[None]

    def _step(self, step: Any, *arguments: Any) -> Any:
        runner, element = self._runner, self.element
        self.turn_began = self.began = runner.stopwatch()
        if element is not None:
            runner.enter(element)
        try:
            awaited = step(*arguments)
        finally:
            runner.leave()
        self._suspend()
        return awaited

    def _suspend(self) -> None:
        runner, element = self._runner, self.element
        if element is None:
            return
        self.has_waited = True
        if element.steps is None:  # its first wait
            runner.first_wait(element, self)
        if runner.stopwatch() - self.began > SLOW_STEP:
            report_slow_step(self, runner.stopwatch())
        if runner.ready or runner.run is not None:
            runner.start_workers()


class AsyncChildSteps(_Steps):
    """The steps of an asyncio task that an element created. They have no current key after the element has finished."""

    __slots__ = ("_element",)

    def __init__(self, runner: ElementRunner, element: AsyncElement, inner: Any) -> None:
        super().__init__(runner, inner)
        self._element = element

    def _step(self, step: Any, *arguments: Any) -> Any:
        runner, element = self._runner, self._element
        try:
            if element.is_over:
                return step(*arguments)
            runner.enter(element)
            try:
                return step(*arguments)
            finally:
                runner.leave()
        except (SystemExit, KeyboardInterrupt) as error:
            runner.loop.raised_by_child = error
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # such as cr_frame, for code that inspects the task


def report_slow_step(steps: WorkerSteps, now: float) -> None:
    context = steps._runner.context
    steps._runner.figures.add_slow_step(now - steps.began)
    frame = getattr(steps.coroutine, "cr_frame", None) or getattr(steps.coroutine, "ag_frame", None)
    _log.warning(
        "the code for %s blocked its task for %.1f s%s: await an asyncio client, or asyncio.to_thread(), instead of a"
        " blocking call %s",
        steps.element,
        now - steps.began,
        "" if frame is None else f", which ended at {frame.f_code.co_filename}:{frame.f_lineno}",
        place_of_task(context.name, context.subtask, context.epoch),
    )
