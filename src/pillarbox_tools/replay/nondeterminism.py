"""Detects nondeterministic inputs of user code (random numbers, ids, the clock) or makes them reproducible."""

from __future__ import annotations

import datetime as dt
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any
from unittest import mock

from pillarbox._errors import ConfigurationError
from pillarbox._tracebacks import is_user_code

_NAMED = 10

# Modules with nondeterministic functions, and the prefix of these functions' names.
_MODULES = {"random": "", "secrets": "", "uuid": "uuid"}
_CLOCKS = ("time", "time_ns", "monotonic", "perf_counter", "localtime", "gmtime")
_FUNCTIONS = {os.urandom: "os.urandom()", **{getattr(time, name): f"time.{name}()" for name in _CLOCKS}}
# Python's own modules, which call these functions for user code.
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_METHODS = ("now", "utcnow", "today")


@contextmanager
def nondeterministic_calls() -> Iterator[list[str]]:
    """Collect user code's nondeterministic calls, with line numbers, in this thread within the block.

    Uses Python's profiler, which makes code several times slower.
    """
    names: dict[str, None] = {}

    def look(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            name, caller = _name_of(argument), frame
        elif event == "call" and frame.f_back is not None:
            module, function, caller = frame.f_globals.get("__name__", ""), frame.f_code.co_name, frame.f_back
            is_one = module in _MODULES and function.startswith(_MODULES[module])
            name = f"{module}.{function}()" if is_one else None
        else:
            return
        if name is not None and len(names) < _NAMED and is_code_of_user(caller.f_code.co_filename):
            names[f"{name} at {caller.f_code.co_filename}:{caller.f_lineno}"] = None

    calls: list[str] = []
    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield calls
    finally:
        sys.setprofile(before)
        calls += names


def is_code_of_user(filename: str) -> bool:
    """Return whether a file belongs to the user or an installed library, and not to Python or pillarbox."""
    is_python = filename.startswith((_LIBRARY, "<")) and "site-packages" not in filename
    return not is_python and is_user_code(filename)


def _name_of(function: Any) -> str | None:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, random.Random):
        return f"random.{function.__name__}()"
    if isinstance(owner, type) and issubclass(owner, dt.date) and function.__name__ in _METHODS:
        return f"{owner.__name__}.{function.__name__}()"
    try:
        return _FUNCTIONS.get(function)
    except TypeError:
        return None


@contextmanager
def fixed_inputs(seed: int | None, clock: int | None) -> Iterator[None]:
    """Make random numbers and the clock reproducible for user code within the block.

    Args:
        seed: seed of ``random``, ``numpy.random`` and ``os.urandom`` (and thereby ``uuid``), or None.
        clock: constant time for ``time`` and ``datetime`` (Unix time in ms), or None.
    """
    with ExitStack() as stack:
        if seed is not None:
            stack.callback(random.setstate, random.getstate())
            random.seed(seed)
            numpy: Any = sys.modules.get("numpy")
            if numpy is not None:
                numpy.random.seed(seed % (1 << 32))
            stack.enter_context(mock.patch("os.urandom", random.Random(seed).randbytes))
        if clock is not None:
            try:
                import time_machine
            except ImportError as error:
                raise ConfigurationError(
                    "a fixed clock needs the package time-machine, which is not installed: pip install 'pillarbox[cli]'"
                ) from error
            at = dt.datetime.fromtimestamp(clock / 1000, dt.timezone.utc)
            stack.enter_context(time_machine.travel(at, tick=False))
        yield
