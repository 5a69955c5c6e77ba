"""The output for a record whose requests failed for good."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pillarbox._errors import ProgramError, shorten
from pillarbox._operators.functions.basic import check_call, check_plain


@dataclass(frozen=True)
class AsyncFallback:
    """A function that returns the results of records whose last attempt failed: made by :func:`fallback`.

    Attributes:
        function: ``f(record, error)``.

    Raises:
        ProgramError: (when made) it is no function, one that nobody would wait for, or one of other parameters.
    """

    function: Callable[[Any, BaseException], Any]

    def __post_init__(self) -> None:
        if not callable(self.function) or isinstance(self.function, type):
            raise ProgramError(f"fallback() takes a function f(record, error), not {shorten(self.function)}")
        check_plain(self.function, "fallback", asked_by="fallback()")
        check_call(self.function, ("record", "error"), f"fallback() got {shorten(self.function)}, which")


def fallback(function: Callable[[Any, BaseException], Any]) -> AsyncFallback:
    """Return what ``on_failure`` takes for results of records whose last attempt failed, or that took too long.

    Args:
        function: ``f(record, error)`` is called in the mailbox thread, and must not wait. It returns what the asking
            function would have returned for the record: of ``map_async`` a result, of an ``AsyncFunction`` a list of
            them; of batches one result for each of their records, for which it is called one by one. If it raises, the
            task fails.

    Raises:
        ProgramError: it is no function, or is an ``async def``.

    Example:
        >>> async def score(card):
        ...     raise ConnectionError("the service is down")
        >>> cards = env.from_collection(["ann", "bob"])
        >>> cards.map_async(score, on_failure=fallback(lambda card, error: (card, None))).execute_and_collect()
        [('ann', None), ('bob', None)]
    """
    return AsyncFallback(function)
