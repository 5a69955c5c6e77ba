"""Results for failed records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pillarbox._errors import ProgramError, shorten
from pillarbox._operators.functions.basic import check_call, check_plain


@dataclass(frozen=True)
class AsyncFallback:
    """Computes the results of failed records. Created by :func:`fallback`."""

    function: Callable[[Any, BaseException], Any]

    def __post_init__(self) -> None:
        if not callable(self.function) or isinstance(self.function, type):
            raise ProgramError(f"fallback() takes a function f(record, error), not {shorten(self.function)}")
        check_plain(self.function, "fallback", asked_by="fallback()")
        check_call(self.function, ("record", "error"), f"fallback() got {shorten(self.function)}, which")


def fallback(function: Callable[[Any, BaseException], Any]) -> AsyncFallback:
    """Return a value for ``on_failure`` that computes the results of records that failed or timed out.

    ``function(record, error)`` returns the result or, for an ``AsyncFunction``, a list of results. It runs in the
    mailbox thread and must not block. If it raises, the task fails.

    Example:
        >>> async def score(card):
        ...     raise ConnectionError("the service is down")
        >>> cards = env.from_collection(["ann", "bob"])
        >>> cards.map_async(score, on_failure=fallback(lambda card, error: (card, None))).execute_and_collect()
        [('ann', None), ('bob', None)]
    """
    return AsyncFallback(function)
