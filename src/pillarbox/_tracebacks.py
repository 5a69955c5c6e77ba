"""Reduces tracebacks of errors in user code to the frames of user code."""

from __future__ import annotations

import concurrent.futures
import os
import threading
import traceback
from asyncio import base_events
from importlib.util import find_spec
from types import TracebackType

from pillarbox._errors import causes_of, encodable


def _plumbing() -> tuple[str, ...]:
    # Does not import the packages.
    specs = [find_spec(name) for name in ("pillarbox", "pillarbox_tools", "pyspark")]
    origins = [str(spec.origin) for spec in specs if spec is not None and spec.origin is not None]
    origins += [str(base_events.__file__), str(concurrent.futures.__file__)]
    return (*(os.path.dirname(origin) + os.sep for origin in origins), str(threading.__file__))


_PLUMBING = _plumbing()

_LINES = 60
_WIDTH = 400


def user_traceback(error: BaseException) -> str:
    """Format all frames of an error's tracebacks (causes first), or return "" if there are none."""
    parts: list[str] = []
    cause = error.__cause__
    if cause is not None and any(part.__traceback__ is not None for part in causes_of(cause)):
        parts += traceback.format_exception(type(cause), cause, cause.__traceback__)
    if error.__traceback__ is not None:
        parts += ["Traceback (most recent call last):\n", *traceback.format_tb(error.__traceback__)]
    return _bounded(parts)


def formatted(error: BaseException) -> str:
    """Format an error and its causes as Python does, but only with frames of user code."""
    keep_user_frames(error)
    return _bounded(traceback.format_exception(type(error), error, error.__traceback__))


def _bounded(parts: list[str]) -> str:
    lines = [line if len(line) <= _WIDTH else line[: _WIDTH - 3] + "..." for line in "".join(parts).splitlines()]
    if len(lines) > _LINES:
        lines[_LINES // 2 : -_LINES // 2] = ["  ..."]
    return encodable("\n".join(lines))


def is_user_code(filename: str) -> bool:
    return not filename.startswith(_PLUMBING)


def has_user_frames(error: BaseException) -> bool:
    return any(_user_frames(cause.__traceback__) is not None for cause in causes_of(error))


def keep_user_frames(error: BaseException) -> None:
    for cause in causes_of(error):
        cause.__traceback__ = _user_frames(cause.__traceback__)


def _user_frames(trace: TracebackType | None) -> TracebackType | None:
    steps = []
    while trace is not None:
        if is_user_code(trace.tb_frame.f_code.co_filename):
            steps.append(trace)
        trace = trace.tb_next
    user_trace: TracebackType | None = None
    for step in reversed(steps):
        user_trace = TracebackType(user_trace, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return user_trace
