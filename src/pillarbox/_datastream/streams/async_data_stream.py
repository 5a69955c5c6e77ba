"""Sends asynchronous requests for a stream's records, as in PyFlink."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pillarbox._datastream.checks.given_functions import check_parameters
from pillarbox._datastream.streams.data_stream import DataStream
from pillarbox._errors import ProgramError, check_takes, shorten
from pillarbox._generics import T, U
from pillarbox._operators.async_io.api.function import AsyncBatchFunction, AsyncFunction
from pillarbox._operators.async_io.api.options import AsyncOptions, BatchWaitKeywords, WaitKeywords
from pillarbox._operators.async_io.api.retry import AsyncRetryStrategy
from pillarbox._operators.functions.basic import check_plain
from pillarbox._time.duration import DurationLike
from pillarbox._types.schema import SchemaLike

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AsyncDataStream:
    """Applies an :class:`AsyncFunction` or an :class:`AsyncBatchFunction` to a stream, as in PyFlink.

    For plain functions, use :meth:`DataStream.map_async`. It documents ``timeout``, ``capacity`` and ``options``, which
    can be ``rate_limit``, ``job_rate_limit``, ``budgets``, ``on_failure``, ``on_barrier``, ``cache`` (for single
    records) and ``retry`` (for batches). Methods raise ``ProgramError`` for invalid arguments.
    """

    @staticmethod
    def ordered_wait(
        data_stream: DataStream[T],
        async_function: AsyncFunction[T, U],
        timeout: DurationLike,
        capacity: int = 100,
        output_type: SchemaLike | None = None,
        **options: Unpack[WaitKeywords],
    ) -> DataStream[U]:
        """Send a request for each record. Results keep the records' order.

        Example:
            >>> class Length(AsyncFunction[str, int]):
            ...     async def async_invoke(self, word):
            ...         return [len(word)]
            >>> words = env.from_collection(["be", "not"])
            >>> AsyncDataStream.ordered_wait(words, Length(), "5 seconds").execute_and_collect()
            [2, 3]
        """
        return _ask("ordered_wait", data_stream, async_function, output_type, timeout, capacity, options)

    @staticmethod
    def unordered_wait(
        data_stream: DataStream[T],
        async_function: AsyncFunction[T, U],
        timeout: DurationLike,
        capacity: int = 100,
        output_type: SchemaLike | None = None,
        **options: Unpack[WaitKeywords],
    ) -> DataStream[U]:
        """Send a request for each record. Results are emitted when they arrive, but never overtake a watermark.

        Example:
            >>> class Length(AsyncFunction[str, int]):
            ...     async def async_invoke(self, word):
            ...         return [len(word)]
            >>> words = env.from_collection(["be"])
            >>> AsyncDataStream.unordered_wait(words, Length(), "5 seconds").execute_and_collect()
            [2]
        """
        return _ask("unordered_wait", data_stream, async_function, output_type, timeout, capacity, options)

    @staticmethod
    def ordered_wait_with_retry(
        data_stream: DataStream[T],
        async_function: AsyncFunction[T, U],
        timeout: DurationLike,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = 100,
        output_type: SchemaLike | None = None,
        **options: Unpack[WaitKeywords],
    ) -> DataStream[U]:
        """Send a request for each record, with retries. Results keep the records' order.

        Example:
            >>> class Length(AsyncFunction[str, int]):
            ...     async def async_invoke(self, word):
            ...         return [len(word)]
            >>> words, retry = env.from_collection(["be"]), AsyncRetryStrategy.fixed_delay(3, "100 ms")
            >>> AsyncDataStream.ordered_wait_with_retry(words, Length(), "5 seconds", retry).execute_and_collect()
            [2]
        """
        retry = _checked_strategy("ordered_wait_with_retry", async_retry_strategy)
        return _ask("ordered_wait", data_stream, async_function, output_type, timeout, capacity, options, retry=retry)

    @staticmethod
    def unordered_wait_with_retry(
        data_stream: DataStream[T],
        async_function: AsyncFunction[T, U],
        timeout: DurationLike,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = 100,
        output_type: SchemaLike | None = None,
        **options: Unpack[WaitKeywords],
    ) -> DataStream[U]:
        """Send a request for each record, with retries. Results are emitted as in :meth:`unordered_wait`.

        Example:
            >>> class Length(AsyncFunction[str, int]):
            ...     async def async_invoke(self, word):
            ...         return [len(word)]
            >>> words, retry = env.from_collection(["be"]), AsyncRetryStrategy.fixed_delay(3, "100 ms")
            >>> AsyncDataStream.unordered_wait_with_retry(words, Length(), "5 seconds", retry).execute_and_collect()
            [2]
        """
        retry = _checked_strategy("unordered_wait_with_retry", async_retry_strategy)
        return _ask("unordered_wait", data_stream, async_function, output_type, timeout, capacity, options, retry=retry)

    @staticmethod
    def ordered_wait_batch(
        data_stream: DataStream[T],
        async_function: AsyncBatchFunction[T, U],
        timeout: DurationLike,
        batch_size: int,
        batch_timeout: DurationLike | None = None,
        capacity: int = 100,
        output_type: SchemaLike | None = None,
        **options: Unpack[BatchWaitKeywords],
    ) -> DataStream[U]:
        """Send a request for each batch of records. Results keep the records' order.

        Args:
            batch_timeout: how long an incomplete batch waits, as in :meth:`DataStream.map_async`.
            capacity: the maximum number of concurrent batches in a partition.
            options: see :class:`AsyncDataStream`. Retries, failures and timeouts apply to whole batches.

        Example:
            >>> class Lengths(AsyncBatchFunction[str, int]):
            ...     async def async_invoke_batch(self, words):
            ...         return [len(word) for word in words]
            >>> words = env.from_collection(["be", "not", "to"])
            >>> AsyncDataStream.ordered_wait_batch(words, Lengths(), "5 seconds", batch_size=2).execute_and_collect()
            [2, 3, 2]
        """
        batches = {"batch_size": batch_size, "batch_timeout": batch_timeout}
        return _ask(
            "ordered_wait_batch", data_stream, async_function, output_type, timeout, capacity, options, **batches
        )

    @staticmethod
    def unordered_wait_batch(
        data_stream: DataStream[T],
        async_function: AsyncBatchFunction[T, U],
        timeout: DurationLike,
        batch_size: int,
        batch_timeout: DurationLike | None = None,
        capacity: int = 100,
        output_type: SchemaLike | None = None,
        **options: Unpack[BatchWaitKeywords],
    ) -> DataStream[U]:
        """Send a request for each batch of records. Results are emitted as in :meth:`unordered_wait`.

        Arguments are as in :meth:`ordered_wait_batch`.

        Example:
            >>> class Lengths(AsyncBatchFunction[str, int]):
            ...     async def async_invoke_batch(self, words):
            ...         return [len(word) for word in words]
            >>> words = env.from_collection(["be", "not"])
            >>> AsyncDataStream.unordered_wait_batch(words, Lengths(), "5 seconds", batch_size=2).execute_and_collect()
            [2, 3]
        """
        batches = {"batch_size": batch_size, "batch_timeout": batch_timeout}
        return _ask(
            "unordered_wait_batch", data_stream, async_function, output_type, timeout, capacity, options, **batches
        )


def _ask(
    method: str,
    stream: DataStream[Any],
    function: Any,
    output_type: SchemaLike | None,
    timeout: DurationLike,
    capacity: int,
    keywords: WaitKeywords | BatchWaitKeywords,
    **more: Any,
) -> DataStream[Any]:
    batches = "batch" in method
    expected: type = AsyncBatchFunction if batches else AsyncFunction
    check_takes(stream, DataStream, f"{method}()", "a DataStream")
    if not isinstance(function, expected):
        hint = f"for a plain function, use the stream's map_async({'..., batch_size=...' if batches else ''})"
        if isinstance(function, AsyncBatchFunction):
            hint = f"for an AsyncBatchFunction, use {method}_batch()"
        raise ProgramError(f"{method}() takes an {expected.__name__} instance, not {shorten(function)}: {hint}")
    check_parameters(function, expected, f"{method}()")
    _check_coroutine(function, "async_invoke_batch" if batches else "async_invoke")
    check_plain(function, "timeout_batch" if batches else "timeout", asked_by=f"{method}()", many=True)
    _check_names(method, keywords, BatchWaitKeywords if batches else WaitKeywords)
    if batches and more["batch_size"] is None:
        raise ProgramError(f"{method}(): batch_size= must be a positive integer, not None")
    ordered = not method.startswith("unordered")
    options = AsyncOptions(method, capacity, timeout, ordered, **more, **keywords)
    return stream._apply_async(function, options, output_type)


def _checked_strategy(method: str, strategy: object) -> AsyncRetryStrategy:
    if not isinstance(strategy, AsyncRetryStrategy):
        raise ProgramError(
            f"{method}() takes an AsyncRetryStrategy, such as AsyncRetryStrategy.fixed_delay(3, '100 ms'), not"
            f" {shorten(strategy)}"
        )
    return strategy


def _check_coroutine(function: Any, method: str) -> None:
    if inspect.isasyncgenfunction(getattr(function, method)):
        raise ProgramError(f"{type(function).__name__}.{method}() is a generator: return a list of results instead")
    if not inspect.iscoroutinefunction(getattr(function, method)):
        raise ProgramError(f"{type(function).__name__}.{method}() must be an async def")


def _check_names(method: str, keywords: Mapping[str, Any], allowed: type) -> None:
    for name in keywords:
        if name not in allowed.__annotations__:
            retries = f"; for retries, use {method}_with_retry(...)" if name == "retry" else ""
            raise TypeError(
                f"{method}() got an unexpected keyword argument {name!r}; its options are"
                f" {', '.join(allowed.__annotations__)}{retries}"
            )
