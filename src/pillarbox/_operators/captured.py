"""A function of the program, as it was when the program was given it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from pyspark import cloudpickle

__all__ = ["Captured"]

P = ParamSpec("P")
R = TypeVar("R")


class Captured(Generic[P, R]):
    """A function that travels as it is now, whatever becomes of it until the program runs.

    It may name a variable of a loop, or be an object that several operators are given: so it is pickled at once, by
    itself, as PyFlink and PySpark do. Each operator calls a copy of its own.

    What cannot be pickled is left to the runtime, which knows in which operators it is.

    Args:
        function: the user's, or what is made of it.
    """

    __slots__ = ("_payload", "function")

    def __init__(self, function: Callable[P, R]) -> None:
        self.function = function
        self._payload: bytes | None = None
        try:
            self._payload = cloudpickle.dumps(function, protocol=5)  # type: ignore[no-untyped-call]
        except Exception:
            self._payload = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_copied, (self._payload,)) if self._payload is not None else (_travelled, (self.function,))


def _copied(payload: bytes) -> Captured[Any, Any]:
    return _travelled(pickle.loads(payload))


def _travelled(function: Callable[P, R]) -> Captured[P, R]:
    captured = Captured.__new__(Captured)
    captured.function, captured._payload = function, None
    return captured
