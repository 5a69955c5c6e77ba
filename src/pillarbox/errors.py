"""The errors that pillarbox raises for wrong use and for broken promises, and how they show a value.

Every message names the operator, the key or field, the value (cut short) and what to do.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "CheckpointMismatchError",
    "ConfigurationError",
    "ExchangeError",
    "KeyTypeError",
    "OperatorError",
    "PillarboxError",
    "ProgramError",
    "TaskCanceledError",
    "shorten",
]


class PillarboxError(Exception):
    """Base class of pillarbox's own errors."""


class ProgramError(PillarboxError, ValueError):
    """The program cannot run as it is written; raised while it is being built."""


class ConfigurationError(PillarboxError):
    """Spark, Java or a Python package is not set up as pillarbox needs it."""


class KeyTypeError(PillarboxError, TypeError):
    """A key has no hash that is the same in every process, so it cannot be routed."""


class OperatorError(PillarboxError):
    """User code of an operator raised; the cause is chained."""


class ExchangeError(PillarboxError):
    """A channel between two tasks lost, doubled or reordered a buffer, or ended without its barrier."""


class CheckpointMismatchError(PillarboxError):
    """The state at hand was written by another program, parallelism, or newer version of pillarbox."""


class TaskCanceledError(PillarboxError):
    """A task was cancelled while it ran an epoch."""


def shorten(value: object, limit: int = 80) -> str:
    """Give ``repr(value)`` in at most ``limit`` characters; never raises."""
    try:
        text = repr(value)
    except Exception as error:  # a user's __repr__ may be broken: the report must still come out
        text = f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def describe(error: BaseException) -> str:
    """Give an exception as one line: its type and its message."""
    message: Any = str(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
