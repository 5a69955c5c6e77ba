"""Tracebacks of errors that user code raised: the frames of the user's code, and no others."""

from __future__ import annotations

import concurrent.futures
import os
import threading
import traceback
from asyncio import base_events
from importlib.util import find_spec
from types import TracebackType

from pillarbox._errors import causes_of


def _plumbing() -> tuple[str, ...]:
    """Return where the code lies that runs the user's code: directories of packages, and modules."""
    # Spark is looked up, not loaded: nothing below the runtimes needs it.
    found = [find_spec(name) for name in ("pillarbox", "pillarbox_tools", "pyspark")]
    origins = [str(spec.origin) for spec in found if spec is not None and spec.origin is not None]
    origins += [str(base_events.__file__), str(concurrent.futures.__file__)]
    return (*(os.path.dirname(origin) + os.sep for origin in origins), str(threading.__file__))


_PLUMBING = _plumbing()

_LINES = 60
_WIDTH = 400


def user_traceback(error: BaseException) -> str:
    """Return the tracebacks of an error and of its causes as text, causes first; "" where no frame is left of them."""
    parts: list[str] = []
    cause = error.__cause__
    if cause is not None and any(each.__traceback__ is not None for each in causes_of(cause)):
        parts += traceback.format_exception(type(cause), cause, cause.__traceback__)
    if error.__traceback__ is not None:
        parts += ["Traceback (most recent call last):\n", *traceback.format_tb(error.__traceback__)]
    return _bounded(parts)


def formatted(error: BaseException) -> str:
    """Return an error and its causes as Python prints them, but for frames that are not the user's."""
    keep_user_frames(error)
    return _bounded(traceback.format_exception(type(error), error, error.__traceback__))


def _bounded(parts: list[str]) -> str:
    lines = [line if len(line) <= _WIDTH else line[: _WIDTH - 3] + "..." for line in "".join(parts).splitlines()]
    if len(lines) > _LINES:
        lines[_LINES // 2 : -_LINES // 2] = ["  ..."]
    return "\n".join(lines)


def is_user_code(filename: str) -> bool:
    """Return whether code of a file is shown in tracebacks: it is none of what runs the user's code."""
    return not filename.startswith(_PLUMBING)


def has_user_frames(error: BaseException) -> bool:
    """Return whether the user's code is in the traceback of an error, or of one of its causes."""
    return any(_user_frames(each.__traceback__) is not None for each in causes_of(error))


def keep_user_frames(error: BaseException) -> None:
    """Take the frames that are not the user's out of the tracebacks of an error and of its causes."""
    for each in causes_of(error):
        each.__traceback__ = _user_frames(each.__traceback__)


def _user_frames(trace: TracebackType | None) -> TracebackType | None:
    steps = []
    while trace is not None:
        if is_user_code(trace.tb_frame.f_code.co_filename):
            steps.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for step in reversed(steps):
        kept = TracebackType(kept, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return kept
