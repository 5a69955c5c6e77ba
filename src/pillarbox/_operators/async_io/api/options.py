"""Options of ``map_async`` and similar methods, checked when the program is built."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypedDict

from pillarbox._errors import ProgramError, is_count, shorten
from pillarbox._operators.async_io.api.cache import AsyncCache
from pillarbox._operators.async_io.api.fallback import AsyncFallback
from pillarbox._operators.async_io.api.retry import AsyncRetryStrategy, retry_strategy
from pillarbox._operators.budgets.budget import Budget, BudgetLimits
from pillarbox._operators.functions.basic import check_interface_plain, check_plain
from pillarbox._operators.functions.output_tag import OutputTag
from pillarbox._time.duration import DurationLike, positive_millis

OnFailure = Literal["fail", "drop"] | OutputTag[Any] | AsyncFallback
OnBarrier = Literal["drain", "carry"]


class _JobRate(Budget):
    """One operator's ``job_rate_limit``, without a name, so that no other operator can share it."""

    @property
    def limits(self) -> BudgetLimits:
        return super().limits._replace(name="")


class WaitKeywords(TypedDict, total=False):
    """``AsyncDataStream``'s options that PyFlink lacks, for type checkers."""

    rate_limit: float | None
    job_rate_limit: float | None
    budgets: Sequence[Budget]
    cache: AsyncCache | None
    on_failure: OnFailure
    on_barrier: OnBarrier


class AsyncKeywords(WaitKeywords, total=False):
    """The options of ``map_async``, for type checkers."""

    capacity: int
    timeout: DurationLike | None
    ordered: bool
    retry: AsyncRetryStrategy | int | None
    batch_timeout: DurationLike | None
    record: bool


class BatchWaitKeywords(TypedDict, total=False):
    """The options of ``AsyncDataStream``'s batch methods, for type checkers."""

    retry: AsyncRetryStrategy | int | None
    rate_limit: float | None
    job_rate_limit: float | None
    budgets: Sequence[Budget]
    on_failure: OnFailure
    on_barrier: OnBarrier


class AsyncOperatorOptions:
    """Options of all async operators.

    Attributes:
        capacity: the maximum number of concurrent calls in a partition.
        on_barrier: whether an epoch, at its end, waits for pending calls or carries them over as state.
    """

    capacity: int
    ordered: bool
    budgets: Sequence[Budget]
    on_barrier: OnBarrier

    @property
    def caller(self) -> str:
        raise NotImplementedError

    @property
    def carries(self) -> bool:
        return self.on_barrier == "carry"

    def check(self) -> None:
        if not isinstance(self.ordered, bool):
            self.refuse("ordered", "True or False")
        if not is_count(self.capacity):
            self.refuse("capacity", "a positive integer")
        if self.on_barrier not in ("drain", "carry"):
            self.refuse("on_barrier", '"drain" or "carry"')
        if not isinstance(self.budgets, (list, tuple)) or not all(
            isinstance(budget, Budget) for budget in self.budgets
        ):
            self.refuse("budgets", "a list of Budget objects")
        if len({budget.name for budget in self.budgets}) < len(self.budgets):
            self.refuse("budgets", "a list of budgets with different names")
        for budget in self.budgets:
            for option in ("unit_cost", "estimate"):
                check_plain(getattr(budget, option), option, asked_by=f"Budget({budget.name!r}, {option}=...)")

    def refuse(self, name: str, expected: str) -> NoReturn:
        raise ProgramError(f"{self.caller}: {name}= must be {expected}, not {shorten(getattr(self, name))}")


@dataclass(frozen=True)
class AsyncOptions(AsyncOperatorOptions):
    """The options of one async operator, as in :meth:`DataStream.map_async`.

    The subtasks in a process share ``capacity``. Each may queue up to ``capacity`` further requests. Invalid options
    raise ``ProgramError``.
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
    record: bool = False

    def __post_init__(self) -> None:
        self.check()
        if self.record is not False and not (self.record is True and self.carries):
            self.refuse("record", 'False, or True with on_barrier="carry"')
        if self.batch_size is not None and not is_count(self.batch_size):
            self.refuse("batch_size", "a positive integer")
        if self.batch_timeout is not None and self.batch_size is None:
            self.refuse("batch_timeout", "None without batch_size=")
        for name in ("rate_limit", "job_rate_limit"):
            rate = getattr(self, name)
            if rate is None:
                continue
            if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not rate > 0:
                self.refuse(name, "a number of requests per second above 0")
            if math.isinf(rate):
                self.refuse(name, "a finite number of requests per second, or None for no limit")
        if self.cache is not None and not isinstance(self.cache, AsyncCache):
            self.refuse("cache", "an AsyncCache")
        if self.cache is not None and self.batch_size is not None:
            self.refuse("cache", "None with batch_size= (a cache needs single requests)")
        if self.on_failure not in ("fail", "drop") and not isinstance(self.on_failure, (OutputTag, AsyncFallback)):
            self.refuse("on_failure", '"fail", "drop", an OutputTag or fallback(f)')
        # Reading the properties raises their errors.
        _ = self.timeout_millis, self.batch_timeout_millis, self.retry_strategy
        if isinstance(self.retry, AsyncRetryStrategy):
            check_interface_plain(self.retry, AsyncRetryStrategy, asked_by=f"{self.caller}: retry=")

    @property
    def caller(self) -> str:
        return f"{self.method}()"

    @property
    def timeout_millis(self) -> int | None:
        return self._millis("timeout", self.timeout)

    @property
    def batch_timeout_millis(self) -> int | None:
        return self._millis("batch_timeout", self.batch_timeout)

    @property
    def retry_strategy(self) -> AsyncRetryStrategy | None:
        return retry_strategy(self.retry)

    @property
    def own_budget(self) -> Budget | None:
        return None if self.rate_limit is None else Budget("rate_limit", requests=self.rate_limit)

    @property
    def shared_budgets(self) -> list[Budget]:
        job = [] if self.job_rate_limit is None else [_JobRate("job_rate_limit", requests=self.job_rate_limit)]
        return [*self.budgets, *job]

    @property
    def takes_turns(self) -> bool:
        return self.rate_limit is not None or bool(self.shared_budgets)

    def _millis(self, name: str, duration: DurationLike | None) -> int | None:
        return None if duration is None else positive_millis(duration, f"{self.caller}: {name}=")
