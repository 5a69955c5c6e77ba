"""Results for records whose last attempt failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pillarbox._errors import ProgramError, shorten
from pillarbox._operators.functions.basic import check_call, check_plain


@dataclass(frozen=True)
class AsyncFallback:
    """A function that returns the results of failed records; made by :func:`fallback`.

    Attributes:
        function: ``f(record, error)``.

    Raises:
        ProgramError: (when made) not a function, an ``async def``, or the wrong parameters.
    """

    function: Callable[[Any, BaseException], Any]

    def __post_init__(self) -> None:
        if not callable(self.function) or isinstance(self.function, type):
            raise ProgramError(f"fallback() takes a function f(record, error), not {shorten(self.function)}")
        check_plain(self.function, "fallback", asked_by="fallback()")
        check_call(self.function, ("record", "error"), f"fallback() got {shorten(self.function)}, which")


def fallback(function: Callable[[Any, BaseException], Any]) -> AsyncFallback:
    """Return an ``on_failure`` that computes results for records that failed or timed out.

    Args:
        function: ``f(record, error)`` is called in the mailbox thread, and must not wait. It returns the result of the
            requesting function for the record: for ``map_async`` one result, for an ``AsyncFunction`` a list. For
            batches it is called for each record. If it raises, the task fails.

    Raises:
        ProgramError: not a function, or an ``async def``.

    Example:
        >>> async def score(card):
        ...     raise ConnectionError("the service is down")
        >>> cards = env.from_collection(["ann", "bob"])
        >>> cards.map_async(score, on_failure=fallback(lambda card, error: (card, None))).execute_and_collect()
        [('ann', None), ('bob', None)]
    """
    return AsyncFallback(function)
