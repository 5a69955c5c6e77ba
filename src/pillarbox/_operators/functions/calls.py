"""``ctx.call``: service calls whose answers are recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

from pillarbox._errors import ProgramError

if TYPE_CHECKING:
    from pillarbox._operators.async_io.api.retry import AsyncRetryStrategy
    from pillarbox._operators.budgets.budget import Budget
    from pillarbox._time.duration import DurationLike


class _CallAgain(Enum):
    """The type of ``CALL_AGAIN``."""

    CALL_AGAIN = "call again"


CALL_AGAIN = _CallAgain.CALL_AGAIN
"""The result of ``reconcile`` if the service has not received the call."""


class CallContext:
    """Adds ``call`` to the contexts of keyed functions."""

    def call(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        key: str | None = None,
        retry: AsyncRetryStrategy | int | None = None,
        timeout: DurationLike | None = None,
        budget: Budget | None = None,
        record_errors: type[Exception] | tuple[type[Exception], ...] = (),
        reconcile: Callable[..., Any] | None = None,
    ) -> Awaitable[Any]:
        """Call a service and record its answer, as in ``await ctx.call(charge, order, cents)``.

        Requires an ``async def``. If the record or timer is processed again after a failure, the recorded answer is
        returned, and the service is not called. With ``on_barrier="carry"`` or ``journal=...``, answers are stored
        until the record or timer has finished. A call is identified by its function and arguments, so calls may be
        concurrent.

        Args:
            function: an ``async def``, or a plain function, which runs in a thread. Its parameter ``idempotency_key``,
                if any, receives a string that is the same whenever the call is repeated, in any process.
            args: the function's arguments: plain data that can be pickled, unless ``key`` is set.
            key: the call's idempotency key, which then identifies the call. Required for a lambda and for arguments
                that cannot be pickled. Using the key for another function or other arguments is an error.
            retry: a strategy or a number of retries, as in ``map_async``.
            timeout: the maximum total time, including retries and waits for the budget. A call that exceeds it raises
                ``TimeoutError``.
            budget: one of the budgets of ``process(..., budgets=[...])``. If its ``estimate`` is a function, that
                function receives the tuple of arguments.
            record_errors: exception types that count as answers, such as ``Declined``. They are recorded, not retried.
            reconcile: ``f(idempotency_key, *args)``, which asks the service for the outcome of a call that may have
                reached it, and returns the result, or ``CALL_AGAIN`` if the service has not received the call. Called
                before a retry, and after a failure if no answer was recorded.
        """
        raise ProgramError("ctx.call() works only in an async def: await ctx.call(...)")
