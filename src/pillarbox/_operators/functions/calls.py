"""Recorded calls, as functions make them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

from pillarbox._errors import ProgramError

if TYPE_CHECKING:
    from pillarbox._operators.async_io.api.retry import AsyncRetryStrategy
    from pillarbox._operators.budgets.budget import Budget
    from pillarbox._time.duration import DurationLike


class CallAgain(Enum):
    """The type of ``CALL_AGAIN``."""

    CALL_AGAIN = "call again"


CALL_AGAIN = CallAgain.CALL_AGAIN
"""The result of a ``reconcile`` function for a call that the service has not received."""


class CallContext:
    """The context of a record or timer of a keyed function, which may be ``async def``."""

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
        """Call a service and record its answer: ``await ctx.call(charge, order, cents)``. Needs an ``async def``.

        If the record or timer runs again after a failure, the recorded answer is returned, and the service is not
        called. Records of calls are kept with ``on_barrier="carry"`` and with ``journal=...``, until the record or
        timer ends. A call is found by its function and arguments, in any order: calls may be concurrent.

        Args:
            function: an ``async def``, or a plain function, which runs in a thread. A parameter ``idempotency_key``
                receives a text that is the same whenever this call is made again, in any process.
            args: its arguments: plain data, which can be pickled.
            key: the name of the call, and the idempotency key. Needed for arguments that cannot be pickled, and for a
                lambda. Another function or other arguments with the same key are an error.
            retry: a strategy, or a number of further attempts, as for ``map_async``.
            timeout: the longest duration, including retries and waits for the budget; then ``TimeoutError`` is raised.
            budget: a budget of ``process(..., budgets=[...])``. A function as its ``estimate`` receives the tuple of
                arguments.
            record_errors: exceptions that are answers, such as ``Declined``: they are recorded, and never retried.
            reconcile: ``f(idempotency_key, *args)`` asks the service for the outcome of a call that may have been made:
                before another attempt, and after a failure for a call without a recorded answer. It returns the result,
                or ``CALL_AGAIN``.
        """
        raise ProgramError("ctx.call() needs an async def, which awaits it: await ctx.call(...)")
