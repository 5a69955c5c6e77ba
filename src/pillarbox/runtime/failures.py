"""Whatever leaves a task leaves it as one error that says where, with the frames of the user's code and no others."""

from __future__ import annotations

import concurrent.futures
import os
import threading
import traceback
from asyncio import base_events
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import pyspark

import pillarbox
from pillarbox.errors import OperatorError, PillarboxError, causes_of, describe

__all__ = ["failures_of", "located", "user_traceback"]

# Code that runs the user's code: whole packages, and modules.
_PACKAGES = (pillarbox, pyspark, base_events, concurrent.futures)
_PLUMBING = (*(os.path.dirname(str(package.__file__)) + os.sep for package in _PACKAGES), str(threading.__file__))

_LINES = 60
_WIDTH = 400


@contextmanager
def failures_of(task: str, subtask: int) -> Iterator[None]:
    """Add the place to the errors that leave a task: see :func:`located`."""
    try:
        yield
    except BaseException as error:
        outcome = located(error, task, subtask)
        if outcome is error:
            raise
        raise outcome from error


def located(error: BaseException, task: str, subtask: int) -> BaseException:
    """Return the error that leaves a task for another: one of pillarbox's, unless that is no ``Exception`` at all.

    Of its tracebacks the user's frames stay. Only where the mistake must be pillarbox's, all of them do.

    Args:
        task: the operators' names.
    """
    if isinstance(error, PillarboxError):
        error.at(subtask=subtask)
        _keep_user_frames(error)
        return error
    if any(_user_frames(each.__traceback__) is not None for each in causes_of(error)):
        _keep_user_frames(error)
    if not isinstance(error, Exception):
        return error
    outcome = OperatorError(f"the task of {task!r} failed: {describe(error)}")
    outcome.at(subtask=subtask)
    outcome.__cause__ = error
    return outcome


def user_traceback(error: BaseException) -> str:
    """Return the tracebacks of an error and of its causes as text, causes first; "" where no frame is left of them."""
    parts: list[str] = []
    cause = error.__cause__
    if cause is not None and any(each.__traceback__ is not None for each in causes_of(cause)):
        parts += traceback.format_exception(type(cause), cause, cause.__traceback__)
    if error.__traceback__ is not None:
        parts += ["Traceback (most recent call last):\n", *traceback.format_tb(error.__traceback__)]
    lines = [line if len(line) <= _WIDTH else line[: _WIDTH - 3] + "..." for line in "".join(parts).splitlines()]
    if len(lines) > _LINES:
        lines[_LINES // 2 : -_LINES // 2] = ["  ..."]
    return "\n".join(lines)


def _keep_user_frames(error: BaseException) -> None:
    """Take the frames that are not the user's out of the tracebacks of an error and of its causes."""
    for each in causes_of(error):
        each.__traceback__ = _user_frames(each.__traceback__)


def _user_frames(trace: TracebackType | None) -> TracebackType | None:
    steps = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_PLUMBING):
            steps.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for step in reversed(steps):
        kept = TracebackType(kept, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return kept
