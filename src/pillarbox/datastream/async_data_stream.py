"""Asynchronous requests on a stream. Names and meaning are PyFlink's."""

from __future__ import annotations

import inspect
from typing import Any

from pillarbox._generics import T, U
from pillarbox.datastream.data_stream import DataStream
from pillarbox.errors import ProgramError, shorten
from pillarbox.operators.async_io.function import AsyncFunction
from pillarbox.operators.async_io.options import AsyncOptions
from pillarbox.operators.async_io.retry import AsyncRetryStrategy
from pillarbox.time.duration import DurationLike
from pillarbox.types import SchemaLike

__all__ = ["AsyncDataStream"]


class AsyncDataStream:
    """Applies an :class:`AsyncFunction` to a stream; ``DataStream.map_async`` takes plain functions and more options.

    Of each method, ``timeout`` is how long a request may take, retries included (an int: milliseconds), ``capacity``
    the maximum number of requests under way in a subtask, and ``output_type`` the columns of the results, for
    ``to_dataframe()``. Each raises ``ProgramError`` where an argument is invalid.
    """

    @staticmethod
    def ordered_wait(
        data_stream: DataStream[T],
        async_function: AsyncFunction[T, U],
        timeout: DurationLike,
        capacity: int = 100,
        output_type: SchemaLike | None = None,
    ) -> DataStream[U]:
        """Ask about each record; results leave in the order of the records.

        Args:
            data_stream: the records.
            async_function: asks about each of them.
            timeout: for each record, retries included.
            capacity: of each subtask.
            output_type: the columns of the results.

        Example:
            >>> class Length(AsyncFunction[str, int]):
            ...     async def async_invoke(self, word):
            ...         return [len(word)]
            >>> words = env.from_collection(["be", "not"])
            >>> AsyncDataStream.ordered_wait(words, Length(), "5 seconds").execute_and_collect()
            [2, 3]
        """
        return _apply("ordered_wait", data_stream, async_function, timeout, None, capacity, output_type)

    @staticmethod
    def unordered_wait(
        data_stream: DataStream[T],
        async_function: AsyncFunction[T, U],
        timeout: DurationLike,
        capacity: int = 100,
        output_type: SchemaLike | None = None,
    ) -> DataStream[U]:
        """Ask about each record; results leave as they come, but none crosses a watermark.

        Args:
            data_stream: the records.
            async_function: asks about each of them.
            timeout: for each record, retries included.
            capacity: of each subtask.
            output_type: the columns of the results.

        Example:
            >>> class Length(AsyncFunction[str, int]):
            ...     async def async_invoke(self, word):
            ...         return [len(word)]
            >>> words = env.from_collection(["be", "not"])
            >>> sorted(AsyncDataStream.unordered_wait(words, Length(), "5 seconds").execute_and_collect())
            [2, 3]
        """
        return _apply("unordered_wait", data_stream, async_function, timeout, None, capacity, output_type)

    @staticmethod
    def ordered_wait_with_retry(
        data_stream: DataStream[T],
        async_function: AsyncFunction[T, U],
        timeout: DurationLike,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = 100,
        output_type: SchemaLike | None = None,
    ) -> DataStream[U]:
        """Ask about each record, again where the strategy says so; results leave in the order of the records.

        Args:
            data_stream: the records.
            async_function: asks about each of them.
            timeout: for each record, retries included.
            async_retry_strategy: when to ask again, and how long to wait before.
            capacity: of each subtask.
            output_type: the columns of the results.

        Example:
            >>> class Length(AsyncFunction[str, int]):
            ...     async def async_invoke(self, word):
            ...         return [len(word)]
            >>> words = env.from_collection(["be", "not"])
            >>> lengths = AsyncDataStream.ordered_wait_with_retry(
            ...     words, Length(), "5 seconds", AsyncRetryStrategy.fixed_delay(3, "100 ms")
            ... )
            >>> lengths.execute_and_collect()
            [2, 3]
        """
        strategy = _checked("ordered_wait_with_retry", async_retry_strategy)
        return _apply("ordered_wait", data_stream, async_function, timeout, strategy, capacity, output_type)

    @staticmethod
    def unordered_wait_with_retry(
        data_stream: DataStream[T],
        async_function: AsyncFunction[T, U],
        timeout: DurationLike,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = 100,
        output_type: SchemaLike | None = None,
    ) -> DataStream[U]:
        """Ask about each record, again where the strategy says so; results leave as they come.

        Args:
            data_stream: the records.
            async_function: asks about each of them.
            timeout: for each record, retries included.
            async_retry_strategy: when to ask again, and how long to wait before.
            capacity: of each subtask.
            output_type: the columns of the results.

        Example:
            >>> class Length(AsyncFunction[str, int]):
            ...     async def async_invoke(self, word):
            ...         return [len(word)]
            >>> words = env.from_collection(["be", "not"])
            >>> lengths = AsyncDataStream.unordered_wait_with_retry(
            ...     words, Length(), "5 seconds", AsyncRetryStrategy.fixed_delay(3, "100 ms")
            ... )
            >>> sorted(lengths.execute_and_collect())
            [2, 3]
        """
        strategy = _checked("unordered_wait_with_retry", async_retry_strategy)
        return _apply("unordered_wait", data_stream, async_function, timeout, strategy, capacity, output_type)


def _checked(method: str, strategy: AsyncRetryStrategy) -> AsyncRetryStrategy:
    if not isinstance(strategy, AsyncRetryStrategy):
        raise ProgramError(
            f"{method}() takes an AsyncRetryStrategy, not {shorten(strategy)}: for example"
            " AsyncRetryStrategy.fixed_delay(3, '100 ms')"
        )
    return strategy


def _apply(
    method: str,
    stream: DataStream[Any],
    function: AsyncFunction[Any, Any],
    timeout: DurationLike,
    retry: AsyncRetryStrategy | None,
    capacity: int,
    output_type: SchemaLike | None,
) -> DataStream[Any]:
    if not isinstance(stream, DataStream):
        raise ProgramError(f"{method}() takes a DataStream, not {shorten(stream)}")
    if not isinstance(function, AsyncFunction):
        raise ProgramError(
            f"{method}() takes an instance of an AsyncFunction, not {shorten(function)}; for a plain function there is"
            " map_async() of the stream"
        )
    if not inspect.iscoroutinefunction(function.async_invoke):
        raise ProgramError(f"{type(function).__name__}.async_invoke() has to be an async def")
    options = AsyncOptions(method, capacity, timeout, ordered=method == "ordered_wait", retry=retry)
    return stream._apply_async(function, options, output_type)
