"""Timeouts of elements, and of each timer of a visit, measured by the event loop's clock."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pillarbox._errors import OperatorError
from pillarbox._operators.async_io.loop.event_loop import uncancel
from pillarbox._operators.async_keyed.element import DueTimersElement

if TYPE_CHECKING:
    from pillarbox._operators.async_keyed.element import AsyncElement
    from pillarbox._operators.async_keyed.runner import ElementRunner

# Seconds for a cancelled element to end before it loses its call slot.
HEED_SECONDS = 1.0


class Timeouts:
    """Cancels overdue elements.

    Args:
        most_stuck: how many elements may ignore their cancellation before the task fails.
    """

    def __init__(self, runner: ElementRunner, seconds: float, most_stuck: int) -> None:
        self._runner = runner
        self._seconds = seconds
        self._most_stuck = most_stuck
        # The deadlines (seconds) of unfinished elements, earliest first.
        self._deadlines: dict[AsyncElement, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, element: AsyncElement) -> None:
        loop = self._runner.loop.loop
        self._deadlines[element] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._expire)

    def renew(self, visit: DueTimersElement) -> None:
        """Watch a visit's next timer, instead of the last one."""
        assert visit.steps is not None
        if visit.overdue is not None:
            visit.overdue = None
            uncancel(visit.steps.task)
        self.forget(visit)
        self.watch(visit)

    def forget(self, element: AsyncElement) -> None:
        self._deadlines.pop(element, None)

    def _error(self, element: AsyncElement) -> TimeoutError:
        budget = self._runner.caller.budget_awaited_by(element)
        reason = "" if budget is None else f", because a call was waiting for the budget {budget!r}"
        return TimeoutError(f"not finished within {self._seconds:g} s{reason}")

    def _expire(self) -> None:
        self._timer = None
        loop, deadlines = self._runner.loop.loop, self._deadlines
        while deadlines:
            element, deadline = next(iter(deadlines.items()))
            if deadline > loop.time():
                self._timer = loop.call_at(deadline, self._expire)
                return
            del deadlines[element]
            assert element.steps is not None
            element.overdue = self._error(element)
            element.steps.task.cancel()
            loop.call_later(HEED_SECONDS, self._cut_off, element, element.overdue)

    def _cut_off(self, element: AsyncElement, overdue: TimeoutError) -> None:
        runner, steps = self._runner, element.steps
        if element.is_over or steps is None or runner.closing or element.overdue is not overdue:
            return
        if len(runner.cut_off) >= self._most_stuck:
            runner.fail(
                element,
                OperatorError(
                    f"operator {runner.name!r}: {len(runner.cut_off)} elements ignore their cancellation after their"
                    f" timeout, the last of them {element}: do not catch CancelledError in the function, or raise it"
                    " again"
                ),
            )
            return
        runner.raised(element, overdue)
        if runner.failure is None:
            steps.is_cut_off = True
            steps.element = None
            runner.cut_off.add(steps)
            if type(element) is DueTimersElement:
                runner.continue_visit(element)
            runner.end(element)
            runner.release_slot(steps)
            runner.start_workers()
