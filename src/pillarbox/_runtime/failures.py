"""Adds operator, subtask and epoch to a task's errors, and reduces tracebacks to user code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pillarbox._errors import OperatorError, PillarboxError, describe, shorten
from pillarbox._tracebacks import has_user_frames, keep_user_frames

_MANY = 100


@contextmanager
def failures_of(task: str, subtask: int) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        outcome = located(error, task, subtask)
        if outcome is error:
            raise
        raise outcome from error


def located(error: BaseException, task: str, subtask: int) -> BaseException:
    """Convert an ``Exception`` in a task to a PillarboxError. Returns any other error unchanged.

    If the traceback has frames of user code, it keeps only these.
    """
    if isinstance(error, PillarboxError):
        error.at(subtask=subtask)
        keep_user_frames(error)
        return error
    if has_user_frames(error):
        keep_user_frames(error)
    if not isinstance(error, Exception):
        return error
    failed = f"the task of {shorten(task, 200)} failed"
    operators = task.count(" -> ") + 1
    if isinstance(error, RecursionError) and operators > _MANY:
        failed += f": its {operators} operators call each other; divide the chain by start_new_chain()"
    outcome = OperatorError(f"{failed}: {describe(error)}")
    outcome.at(subtask=subtask)
    outcome.__cause__ = error
    return outcome
