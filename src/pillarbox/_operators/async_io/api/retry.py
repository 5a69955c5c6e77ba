"""Retry strategies, as in PyFlink."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from pillarbox._errors import ProgramError, check_count, is_count, shorten
from pillarbox._generics import Generic, In
from pillarbox._operators.functions.basic import check_plain
from pillarbox._time.duration import Duration, DurationLike, positive_millis

ResultPredicate = Callable[[Any], bool]
ExceptionPredicate = Callable[[Exception], bool] | type[Exception] | tuple[type[Exception], ...]


def any_exception(error: Exception) -> bool:
    return True


class AsyncRetryPredicate(ABC, Generic[In]):
    """Decides which outcomes to retry."""

    @abstractmethod
    def result_predicate(self) -> ResultPredicate | None:
        """Return the predicate that is True for results to retry, or None to retry no result."""

    @abstractmethod
    def exception_predicate(self) -> Callable[[Exception], bool] | None:
        """Return the predicate that is True for exceptions to retry, or None to retry no exception."""


class AsyncRetryStrategy(ABC, Generic[In]):
    """Decides whether and when to retry a request. All requests share the strategy, so it must be stateless."""

    @abstractmethod
    def can_retry(self, current_attempts: int) -> bool:
        """Return whether another attempt may follow after ``current_attempts`` attempts."""

    @abstractmethod
    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """Return the delay (ms) after ``current_attempts`` attempts.

        The actual delay is longer if the error's attribute ``retry_after`` (seconds), or a ``Retry-After`` header of
        the error or its response, asks for more.
        """

    @abstractmethod
    def get_retry_predicate(self) -> AsyncRetryPredicate:
        """Return the predicates for outcomes to retry."""

    @staticmethod
    def no_restart() -> AsyncRetryStrategy:
        """Return a strategy that never retries."""
        return _Backoff(0, 1, 1, 1.0, None, None)

    @staticmethod
    def fixed_delay(
        max_attempts: int,
        backoff_time_millis: DurationLike,
        result_predicate: ResultPredicate | None = None,
        exception_predicate: ExceptionPredicate | None = any_exception,
    ) -> AsyncRetryStrategy:
        """Return a strategy that retries after a fixed delay.

        Args:
            max_attempts: the maximum number of *further* attempts, as in Flink.
            backoff_time_millis: milliseconds or another duration.
            result_predicate: decides whether to retry a result. By default, no result is retried.
            exception_predicate: the exception types to retry, or a function that decides.
        """
        pause = positive_millis(backoff_time_millis, "AsyncRetryStrategy: backoff_time_millis=")
        check_count(max_attempts, "AsyncRetryStrategy: max_attempts=")
        return _Backoff(max_attempts, pause, pause, 1.0, result_predicate, exception_predicate)

    @staticmethod
    def exponential_backoff(
        max_attempts: int,
        initial_delay: DurationLike,
        max_retry_delay: DurationLike,
        multiplier: float = 2.0,
        result_predicate: ResultPredicate | None = None,
        exception_predicate: ExceptionPredicate | None = any_exception,
    ) -> AsyncRetryStrategy:
        """Return a strategy that retries after growing delays. Other arguments are as in :meth:`fixed_delay`.

        Args:
            multiplier: the factor between one delay and the next.
        """
        if isinstance(multiplier, bool) or not isinstance(multiplier, (int, float)) or multiplier <= 0:
            raise ProgramError(f"AsyncRetryStrategy: multiplier= must be a number above 0, not {shorten(multiplier)}")
        check_count(max_attempts, "AsyncRetryStrategy: max_attempts=")
        return _Backoff(
            max_attempts,
            positive_millis(initial_delay, "AsyncRetryStrategy: initial_delay="),
            positive_millis(max_retry_delay, "AsyncRetryStrategy: max_retry_delay="),
            multiplier,
            result_predicate,
            exception_predicate,
        )


class _Backoff(AsyncRetryStrategy, AsyncRetryPredicate):
    def __init__(
        self,
        further_attempts: int,
        first: int,
        longest: int,
        multiplier: float,
        result_predicate: ResultPredicate | None,
        exception_predicate: ExceptionPredicate | None,
    ) -> None:
        self._further_attempts = further_attempts
        self._first = first
        self._longest = longest
        self._multiplier = multiplier
        self._result_predicate = _checked(result_predicate, "result_predicate")
        if isinstance(exception_predicate, (type, tuple)):
            self._exception_predicate: Callable[[Exception], bool] | None = _OfTypes(exception_predicate)
        else:
            self._exception_predicate = _checked(exception_predicate, "exception_predicate")

    def can_retry(self, current_attempts: int) -> bool:
        return current_attempts <= self._further_attempts

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        try:
            return int(min(self._longest, self._first * self._multiplier ** (current_attempts - 1)))
        except OverflowError:
            return self._longest

    def get_retry_predicate(self) -> AsyncRetryPredicate:
        return self

    def result_predicate(self) -> ResultPredicate | None:
        return self._result_predicate

    def exception_predicate(self) -> Callable[[Exception], bool] | None:
        return self._exception_predicate


class _OfTypes:
    def __init__(self, types: type[Exception] | tuple[type[Exception], ...]) -> None:
        for kind in types if isinstance(types, tuple) else (types,):
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise ProgramError(
                    f"AsyncRetryStrategy: exception_predicate= has {shorten(kind)}, which is not an exception class"
                )
        self._types = types

    def __call__(self, error: Exception) -> bool:
        return isinstance(error, self._types)


def retry_strategy(retry: AsyncRetryStrategy | int | None) -> AsyncRetryStrategy | None:
    """Return the strategy for a ``retry`` option. A number is the maximum number of retries, with growing delays."""
    if retry is None or isinstance(retry, AsyncRetryStrategy):
        return retry
    if not is_count(retry, 0):
        raise ProgramError(
            "retry= must be an AsyncRetryStrategy, such as AsyncRetryStrategy.fixed_delay(3, '100 ms'), or a"
            f" number of retries, not {shorten(retry)}"
        )
    return AsyncRetryStrategy.exponential_backoff(retry, 100, Duration.of_seconds(10)) if retry else None


def is_retried(strategy: AsyncRetryStrategy | None, attempts: int, result: Any, error: Exception | None) -> bool:
    if strategy is None or not strategy.can_retry(attempts):
        return False
    predicate = strategy.get_retry_predicate()
    if error is not None:
        of_errors = predicate.exception_predicate()
        return of_errors is not None and of_errors(error)
    of_results = predicate.result_predicate()
    return of_results is not None and of_results(result)


def retry_after_millis(error: BaseException) -> int:
    delay = getattr(error, "retry_after", None)
    for holder in (error, getattr(error, "response", None)):
        # urllib's headers are an email message, not a Mapping.
        find = getattr(getattr(holder, "headers", None), "get", None)
        if delay is None and callable(find):
            delay = find("Retry-After", find("retry-after"))
    try:
        return _waits(delay)
    except (OverflowError, TypeError, ValueError):
        return 0


def _waits(delay: Any) -> int:
    if delay is None or isinstance(delay, bool):
        return 0
    if isinstance(delay, timedelta):
        return max(0, int(delay.total_seconds() * 1000))
    try:
        seconds = float(delay)
    except ValueError:
        seconds = parsedate_to_datetime(delay).timestamp() - time.time()
    return max(0, math.ceil(seconds * 1000))


def _checked(predicate: Callable[[Any], bool] | None, what: str) -> Callable[[Any], bool] | None:
    if predicate is not None and not callable(predicate):
        raise ProgramError(f"AsyncRetryStrategy: {what}= must be a function, not {shorten(predicate)}")
    if predicate is not None:
        check_plain(predicate, what, asked_by=f"AsyncRetryStrategy({what}=...)")
    return predicate


def backoff_seconds(strategy: AsyncRetryStrategy, attempts: int, failure: Exception | None) -> float:
    """Return the pause before the next attempt, at least as long as the service asked for."""
    asked = 0 if failure is None else retry_after_millis(failure)
    return max(strategy.get_backoff_time_millis(attempts), asked) / 1000
