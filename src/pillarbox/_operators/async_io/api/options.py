"""How an async operator asks: the options of ``map_async`` and its kin, checked while the program is being built."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from pillarbox._errors import ProgramError, is_count, shorten
from pillarbox._operators.async_io.api.cache import AsyncCache
from pillarbox._operators.async_io.api.fallback import AsyncFallback
from pillarbox._operators.async_io.api.retry import AsyncRetryStrategy, retry_strategy
from pillarbox._operators.budgets.budget import Budget, Limits
from pillarbox._operators.functions.basic import OutputTag
from pillarbox._time.duration import DurationLike, positive_millis

OnFailure = Literal["fail", "drop"] | OutputTag[Any] | AsyncFallback
OnBarrier = Literal["drain", "carry"]


class _JobRate(Budget):
    """The ``job_rate_limit`` of one operator, which no other operator shares."""

    @property
    def limits(self) -> Limits:
        """The plain values, without a name."""
        return super().limits._replace(name="")


class WaitKeywords(TypedDict, total=False):
    """The options that the methods of ``AsyncDataStream`` take besides PyFlink's, for type checkers."""

    rate_limit: float | None
    job_rate_limit: float | None
    budgets: Sequence[Budget]
    cache: AsyncCache | None
    on_failure: OnFailure
    on_barrier: OnBarrier


class AsyncKeywords(WaitKeywords, total=False):
    """The options that ``map_async`` takes whatever its function, for type checkers."""

    capacity: int
    timeout: DurationLike | None
    ordered: bool
    retry: AsyncRetryStrategy | int | None
    batch_timeout: DurationLike | None


class BatchWaitKeywords(TypedDict, total=False):
    """The same of its methods for batches."""

    retry: AsyncRetryStrategy | int | None
    rate_limit: float | None
    job_rate_limit: float | None
    budgets: Sequence[Budget]
    on_failure: OnFailure
    on_barrier: OnBarrier


@dataclass(frozen=True)
class AsyncOptions:
    """The options of one async operator.

    Attributes:
        method: the method that the user called, for error messages.
        capacity: the maximum number of requests under way in a partition, whose subtasks share it. In each of them, the
            same number may wait for their turn, or for those before them.
        timeout: how long a request may take from its first attempt on, retries included; None: without limit.
        ordered: whether results leave in the order of the records; else as they come, but none across a watermark.
        retry: when to ask again, or how often; None: never.
        batch_size: the maximum number of records that the function gets at a time, as a list; None: one, as it is.
        batch_timeout: how long a smaller batch waits for more; None: until the epoch ends or event time advances.
        rate_limit: the maximum number of requests per second of a partition.
        job_rate_limit: the maximum number of requests per second of all subtasks together.
        budgets: what requests need before they begin.
        cache: keeps results, by a key of the record.
        on_failure: the fate of a record whose last attempt failed: fail the task, drop it, send an
            ``AsyncFailure`` to a side output, or emit what a function returns for it.
        on_barrier: whether the epoch waits for its requests, or they go into the state, and on.

    Raises:
        ProgramError: (when made) an option is invalid.
    """

    method: str
    capacity: int = 100
    timeout: DurationLike | None = "5 seconds"
    ordered: bool = True
    retry: AsyncRetryStrategy | int | None = None
    batch_size: int | None = None
    batch_timeout: DurationLike | None = None
    rate_limit: float | None = None
    job_rate_limit: float | None = None
    budgets: Sequence[Budget] = ()
    cache: AsyncCache | None = None
    on_failure: OnFailure = "fail"
    on_barrier: OnBarrier = "drain"

    def __post_init__(self) -> None:
        if not isinstance(self.ordered, bool):
            self._refuse("ordered", "True or False")
        if not is_count(self.capacity):
            self._refuse("capacity", "a whole number of at least 1")
        if self.batch_size is not None and not is_count(self.batch_size):
            self._refuse("batch_size", "a whole number of at least 1")
        if self.batch_timeout is not None and self.batch_size is None:
            self._refuse("batch_timeout", "for the batch form, which needs a batch_size")
        for name in ("rate_limit", "job_rate_limit"):
            rate = getattr(self, name)
            if rate is None:
                continue
            if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not rate > 0:
                self._refuse(name, "requests per second, a number above 0")
            if math.isinf(rate):
                self._refuse(name, "requests per second, a finite number, or None for no limit")
        if not isinstance(self.budgets, (list, tuple)) or not all(isinstance(each, Budget) for each in self.budgets):
            self._refuse("budgets", "a list of Budget")
        if len({budget.name for budget in self.budgets}) < len(self.budgets):
            self._refuse("budgets", "a list of budgets with different names")
        if self.cache is not None and not isinstance(self.cache, AsyncCache):
            self._refuse("cache", "an AsyncCache")
        if self.cache is not None and self.batch_size is not None:
            self._refuse("cache", "for single requests: the batch form asks about all of a batch")
        if self.on_failure not in ("fail", "drop") and not isinstance(self.on_failure, (OutputTag, AsyncFallback)):
            self._refuse("on_failure", '"fail", "drop", an OutputTag or fallback(f)')
        if self.on_barrier not in ("drain", "carry"):
            self._refuse("on_barrier", '"drain" or "carry"')
        # Made here for their errors.
        _ = self.timeout_millis, self.batch_timeout_millis, self.retry_strategy

    @property
    def timeout_millis(self) -> int | None:
        """The timeout in milliseconds."""
        return self._millis("timeout", self.timeout)

    @property
    def batch_timeout_millis(self) -> int | None:
        """The batch timeout in milliseconds."""
        return self._millis("batch_timeout", self.batch_timeout)

    @property
    def retry_strategy(self) -> AsyncRetryStrategy | None:
        """When to ask again."""
        return retry_strategy(self.retry)

    @property
    def carries(self) -> bool:
        """Whether requests are taken from one epoch into the next."""
        return self.on_barrier == "carry"

    @property
    def own_budget(self) -> Budget | None:
        """The budget of a partition."""
        return None if self.rate_limit is None else Budget("rate_limit", requests=self.rate_limit)

    @property
    def shared_budgets(self) -> list[Budget]:
        """The budgets of all subtasks together."""
        job = [] if self.job_rate_limit is None else [_JobRate("job_rate_limit", requests=self.job_rate_limit)]
        return [*self.budgets, *job]

    @property
    def takes_turns(self) -> bool:
        """Whether requests wait for their turn."""
        return self.rate_limit is not None or bool(self.shared_budgets)

    def _millis(self, name: str, duration: DurationLike | None) -> int | None:
        return None if duration is None else positive_millis(duration, f"{self.method}(): {name}")

    def _refuse(self, name: str, wanted: str) -> None:
        raise ProgramError(f"{self.method}(): {name} is {wanted}, not {shorten(getattr(self, name))}")
