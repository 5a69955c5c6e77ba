"""Results of user functions. Mailbox thread only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set, Sized
from typing import Any

from pillarbox._errors import OperatorError, describe, raise_from_user_code, shorten, shorten_record
from pillarbox._operators.async_io.api.fallback import AsyncFallback
from pillarbox._operators.async_io.api.function import AsyncBatchFunction, AsyncFunction
from pillarbox._operators.async_io.api.options import AsyncOptions
from pillarbox._operators.async_io.api.request import Request
from pillarbox._operators.frame.operator import OperatorContext


class AsyncResults:
    """Checks the results of an operator's function, and converts them to records."""

    def __init__(self, context: OperatorContext, function: Any, options: AsyncOptions) -> None:
        self._context = context
        self._function = function
        self._options = options
        self._copied = context.copier.copied

    def of(self, request: Request) -> Sequence[Any]:
        result = request.result
        request.result = None
        if self._options.batch_size is not None:
            return self._one_each("the function", request.values, result)
        if not isinstance(self._function, AsyncFunction):
            return [result]
        return self._checked("async_invoke", request.values[0], result)

    def of_timeout(self, request: Request) -> Sequence[Any]:
        function, values = self._function, request.values
        if isinstance(function, AsyncFunction):
            return self._checked("timeout", values[0], self._copied(function.timeout(values[0])))
        if isinstance(function, AsyncBatchFunction):
            return self._one_each("timeout_batch()", values, self._copied(function.timeout_batch(values)))
        raise TimeoutError(f"no result within {self._options.timeout_millis} ms")

    def of_fallback(self, request: Request, fallback: AsyncFallback, error: BaseException) -> list[Any]:
        results: list[Any] = []
        for value in request.values:
            try:
                result = self._copied(fallback.function(value, error))
            except BaseException as failed:
                where = (
                    f"operator {self._context.name!r}: the fallback failed at the record {shorten_record(value)}, which"
                    f" had failed with {describe(error)}"
                )
                details = {"operator": self._context.name, "subtask": self._context.subtask, "record": value}
                raise_from_user_code(failed, where, **details)
            if isinstance(self._function, AsyncFunction):
                results += self._checked("fallback", value, result)
            else:
                results.append(result)
        return results

    def _one_each(self, asked: str, values: Sequence[Any], result: Any) -> Sequence[Any]:
        # Accepts arrays and columns, too.
        countable = isinstance(result, Sized) and not isinstance(result, (str, bytes, Mapping, Set))
        if not countable or len(result) != len(values):
            what = f"{len(result)} results" if countable else shorten(result)
            raise OperatorError(
                f"operator {self._context.name!r}: {asked} returned {what} for a batch of {len(values)} records,"
                f" the first of them {shorten_record(values[0])}: return a list with one result per record"
            )
        return list(result)

    def _checked(self, method: str, value: Any, results: Any) -> Sequence[Any]:
        if isinstance(results, list):
            return results
        if isinstance(results, tuple):
            return list(results)
        example = "[] for none" if results is None else f"such as [{shorten(results, 20)}]"
        raise OperatorError(
            f"operator {self._context.name!r}: {method}() returned {shorten(results)} for the record"
            f" {shorten_record(value)}: return a list of the records to emit, {example}"
        )
