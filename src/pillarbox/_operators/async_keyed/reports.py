"""Warnings about the user's functions."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pillarbox._errors import place_of_task
from pillarbox._operators.frame.operator import OperatorContext

if TYPE_CHECKING:
    from pillarbox._operators.async_keyed.steps import WorkerSteps

_log = logging.getLogger("pillarbox")


def report_slow_step(steps: WorkerSteps, now: float, context: OperatorContext) -> None:
    """Log a step that has blocked the task (R18)."""
    frame = getattr(steps.coroutine, "cr_frame", None) or getattr(steps.coroutine, "ag_frame", None)
    _log.warning(
        "a step of %s took %.1f s%s, in which nothing else of the task could proceed: await an asyncio client, or"
        " asyncio.to_thread(), instead of a call that waits %s",
        steps.element,
        now - steps.began,
        "" if frame is None else f", which ended at {frame.f_code.co_filename}:{frame.f_lineno}",
        place_of_task(context.name, context.subtask, context.epoch),
    )
