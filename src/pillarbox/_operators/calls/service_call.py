"""A service call, with its attempts, budget and timeout."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from pillarbox._errors import ProgramError, check_kind, check_text, shorten
from pillarbox._operators.async_io.api.retry import AsyncRetryStrategy, backoff_seconds, is_retried, retry_strategy
from pillarbox._operators.async_io.loop.threads import outcome_of
from pillarbox._operators.async_io.loop.turns import Turns
from pillarbox._operators.budgets.budget import Budget
from pillarbox._operators.calls.digests import Callee
from pillarbox._operators.dead_letters.dead_letter import concerns_record
from pillarbox._operators.functions.calls import CALL_AGAIN
from pillarbox._time.duration import DurationLike, positive_millis


@dataclass(frozen=True)
class ServiceCallOptions:
    """The options of ``ctx.call``."""

    key: str | None = None
    retry: AsyncRetryStrategy | int | None = None
    timeout: DurationLike | None = None
    budget: Budget | None = None
    record_errors: Any = ()
    reconcile: Callable[..., Any] | None = None

    @staticmethod
    def of(options: dict[str, Any]) -> ServiceCallOptions:
        unknown = options.keys() - ServiceCallOptions.__dataclass_fields__.keys()
        if unknown:
            raise ProgramError(
                f"ctx.call() has no option {min(unknown)!r}: pass the function's own arguments by position, or use"
                " functools.partial"
            )
        return ServiceCallOptions(**options) if options else _NO_OPTIONS

    def __post_init__(self) -> None:
        if self.key is not None:
            check_text(self.key, "ctx.call(): key=")
        if self.budget is not None:
            check_kind(
                self.budget, Budget, "ctx.call(): budget=", "one of the Budget objects of process(budgets=[...])"
            )
        kinds = self.record_errors if isinstance(self.record_errors, tuple) else (self.record_errors,)
        if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
            raise ProgramError(
                f"ctx.call(): record_errors= must be exception classes, not {shorten(self.record_errors)}"
            )
        if self.reconcile is not None and not callable(self.reconcile):
            raise ProgramError(f"ctx.call(): reconcile= must be a function, not {shorten(self.reconcile)}")


_NO_OPTIONS = ServiceCallOptions()


class ServiceCall(NamedTuple):
    """A call to a service, including retries.

    Attributes:
        turns: delays attempts to meet the budget, or None if there is no budget.
        owner: the element that makes the call.
        threads: run plain functions. asyncio's own pool would let hung calls of one service block all others.
    """

    function: Callable[..., Any]
    callee: Callee
    args: tuple[Any, ...]
    options: ServiceCallOptions
    turns: Turns | None
    owner: object
    threads: Executor
    idempotency_key: str | None = None

    @property
    def keywords(self) -> dict[str, Any]:
        return {"idempotency_key": self.idempotency_key} if self.callee.takes_key else {}

    async def answer(self, *, was_begun: bool) -> Any:
        """Call the service and return its answer, or raise ``TimeoutError``.

        If the call may have been made before (``was_begun``), call ``reconcile`` first.
        """
        timeout = self.options.timeout
        if self.options is _NO_OPTIONS and self.callee.is_async:
            return await self.function(*self.args, **self.keywords)
        if timeout is None:
            return await self._attempts(was_begun)
        millis = positive_millis(timeout, "ctx.call(): timeout=")
        attempts = asyncio.ensure_future(self._attempts(was_begun))
        try:
            return await asyncio.wait_for(attempts, millis / 1000)
        except asyncio.TimeoutError as error:
            if not attempts.cancelled():
                raise  # the service's own
            raise TimeoutError(f"no result of {self.callee} within {millis} ms") from error

    async def _attempts(self, is_begun: bool) -> Any:
        reconcile, attempts, strategy = self.options.reconcile, 0, retry_strategy(self.options.retry)
        while True:
            attempts += 1
            if is_begun and reconcile is not None:
                try:
                    answer = await self._called(reconcile, Callee.of(reconcile), (self.idempotency_key, *self.args), {})
                except Exception as error:
                    if isinstance(error, self.options.record_errors) or not concerns_record(error):
                        raise
                    if strategy is None or not is_retried(strategy, attempts, None, error):
                        raise
                    await asyncio.sleep(backoff_seconds(strategy, attempts, error))
                    continue
                if answer is not CALL_AGAIN:
                    return answer
            is_begun = True
            slots = () if self.turns is None else await self.turns.take(self.args, self.owner)
            result: Any = None
            failure: Exception | None = None
            try:
                result = await self._called(self.function, self.callee, self.args, self.keywords)
            except self.options.record_errors:
                if self.turns is not None:
                    self.turns.answered(slots)
                raise
            except BaseException as error:
                if self.turns is not None:
                    self.turns.failed(slots, error)
                if not concerns_record(error):
                    raise
                failure = error
            else:
                if self.turns is not None:
                    self.turns.succeeded(slots, result)
            if strategy is None or not is_retried(strategy, attempts, result, failure):
                if failure is not None:
                    raise failure
                return result
            await asyncio.sleep(backoff_seconds(strategy, attempts, failure))

    async def _called(
        self, function: Callable[..., Any], callee: Callee, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        if callee.is_async:
            return await function(*args, **keywords)
        call = partial(copy_context().run, outcome_of, partial(function, *args, **keywords))
        result, error = await asyncio.get_running_loop().run_in_executor(self.threads, call)
        if error is not None:
            raise error
        return await result if inspect.isawaitable(result) else result
