"""Predicates that decide which request outcomes to retry. Names are as in PyFlink.

Methods of ``AsyncRetryStrategy`` take them as ``result_predicate`` and ``exception_predicate``::

    from functools import partial
    from pillarbox import AsyncRetryStrategy, async_retry_predicates

    AsyncRetryStrategy.fixed_delay(
        3,
        "100 ms",
        exception_predicate=partial(
            async_retry_predicates.exception_type_predicate, expected_error_type=TimeoutError
        ),
    )
"""

from __future__ import annotations

from collections.abc import Sized

from pillarbox._operators.async_io.api.retry import any_exception

__all__ = ["empty_result_predicate", "exception_type_predicate", "has_exception_predicate"]


def empty_result_predicate(result: Sized) -> bool:
    """Return whether a request returned no results.

    Example:
        >>> from pillarbox.async_retry_predicates import empty_result_predicate
        >>> empty_result_predicate([])
        True
    """
    return len(result) == 0


has_exception_predicate = any_exception


def exception_type_predicate(
    error: BaseException, expected_error_type: type[BaseException] | tuple[type[BaseException], ...]
) -> bool:
    """Return whether a request's error is an instance of ``expected_error_type``, a type or a tuple of types.

    Example:
        >>> from pillarbox.async_retry_predicates import exception_type_predicate
        >>> exception_type_predicate(TimeoutError(), expected_error_type=OSError)
        True
    """
    return isinstance(error, expected_error_type)
