"""Asynchronous requests on a stream. Names and meaning are PyFlink's."""

from __future__ import annotations

import inspect
from typing import Any

from pillarbox.datastream.data_stream import DataStream
from pillarbox.errors import ProgramError, shorten
from pillarbox.operators.async_io.function import AsyncFunction
from pillarbox.operators.async_io.options import AsyncOptions
from pillarbox.operators.async_io.retry import AsyncRetryStrategy
from pillarbox.time.duration import DurationLike

__all__ = ["AsyncDataStream"]


class AsyncDataStream:
    """Applies an :class:`AsyncFunction` to a stream.

    Each method takes the stream, the function, how long a request may take (retries included), the most requests under
    way in a subtask, and the type of the results. :meth:`DataStream.map_async` does the same for plain functions, and
    has more options.
    """

    @staticmethod
    def ordered_wait(
        data_stream: DataStream,
        async_function: AsyncFunction,
        timeout: DurationLike,
        capacity: int = 100,
        output_type: Any = None,
    ) -> DataStream:
        """Ask about each record; results leave in the order of the records."""
        return _apply("ordered_wait", data_stream, async_function, timeout, None, capacity, output_type)

    @staticmethod
    def unordered_wait(
        data_stream: DataStream,
        async_function: AsyncFunction,
        timeout: DurationLike,
        capacity: int = 100,
        output_type: Any = None,
    ) -> DataStream:
        """Ask about each record; results leave as they come, but none across a watermark."""
        return _apply("unordered_wait", data_stream, async_function, timeout, None, capacity, output_type)

    @staticmethod
    def ordered_wait_with_retry(
        data_stream: DataStream,
        async_function: AsyncFunction,
        timeout: DurationLike,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = 100,
        output_type: Any = None,
    ) -> DataStream:
        """Ask about each record, again where the strategy says so; results leave in the order of the records."""
        strategy = _checked("ordered_wait_with_retry", async_retry_strategy)
        return _apply("ordered_wait", data_stream, async_function, timeout, strategy, capacity, output_type)

    @staticmethod
    def unordered_wait_with_retry(
        data_stream: DataStream,
        async_function: AsyncFunction,
        timeout: DurationLike,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = 100,
        output_type: Any = None,
    ) -> DataStream:
        """Ask about each record, again where the strategy says so; results leave as they come."""
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
    stream: DataStream,
    function: AsyncFunction,
    timeout: DurationLike,
    retry: AsyncRetryStrategy | None,
    capacity: int,
    output_type: Any,
) -> DataStream:
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
