"""Functions that send requests, as in PyFlink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

from pillarbox._errors import SHOWN, describe, shorten
from pillarbox._generics import Generic, In, Out
from pillarbox._operators.functions.basic import Function
from pillarbox._unpickle import make


class AsyncFunction(Function, ABC, Generic[In, Out]):
    """Sends a request for each record, many concurrently. For ``AsyncDataStream``.

    ``open`` and ``close`` may be ``async def``, and run once per task, in the event loop's thread.

    Example:
        >>> class Score(AsyncFunction[str, tuple[str, int]]):
        ...     async def async_invoke(self, card):
        ...         await asyncio.sleep(0.001)  # or a request
        ...         return [(card, len(card))]
        >>> cards = env.from_collection(["ann", "robert"])
        >>> AsyncDataStream.ordered_wait(cards, Score(), timeout="5 seconds").execute_and_collect()
        [('ann', 3), ('robert', 6)]
    """

    @abstractmethod
    async def async_invoke(self, value: In, /) -> list[Out]:
        """Send a record's request and return its results. Runs in the event loop's thread."""

    def timeout(self, value: In, /) -> list[Out]:
        """Return the results of a record whose request timed out. By default, raise. Runs in the mailbox thread."""
        raise TimeoutError(f"no result within the timeout for {shorten(value)}")


class AsyncBatchFunction(Function, ABC, Generic[In, Out]):
    """Sends a request for several records. For ``AsyncDataStream.ordered_wait_batch``.

    ``open`` and ``close`` are as in :class:`AsyncFunction`.

    Example:
        >>> class Score(AsyncBatchFunction[str, tuple[str, int]]):
        ...     async def async_invoke_batch(self, cards):
        ...         return [(card, len(card)) for card in cards]  # or one request for all
        >>> cards = env.from_collection(["ann", "robert", "bob"])
        >>> AsyncDataStream.ordered_wait_batch(cards, Score(), "5 seconds", batch_size=2).execute_and_collect()
        [('ann', 3), ('robert', 6), ('bob', 3)]
    """

    @abstractmethod
    async def async_invoke_batch(self, values: list[In], /) -> list[Out]:
        """Send a batch's request and return one result per record, in order. Runs in the event loop's thread."""

    def timeout_batch(self, values: list[In], /) -> list[Out]:
        """Return one result per record of a batch that timed out. By default, raise. Runs in the mailbox thread."""
        raise TimeoutError(f"no result within the timeout for a batch of {len(values)} records")


class AsyncCombiningFunction(Function, ABC):
    """A function whose result is combined with its record on emission. A cache stores only the result.

    The methods run in the mailbox thread.

    Attributes:
        takes_failures: whether ``combine_failure`` handles failed records, which otherwise fail the task.
    """

    takes_failures = False

    @abstractmethod
    def combine(self, value: Any, result: Any) -> Any:
        """Return the record to emit for a record and its result."""

    def combine_failure(self, value: Any, error: BaseException, attempts: int) -> Any:
        """Return the record to emit for a failed record."""
        raise NotImplementedError


class _Failure(NamedTuple):
    value: Any
    error: str
    attempts: int


class AsyncFailure(_Failure):
    """A record whose last attempt failed, emitted to the side output of ``on_failure=OutputTag(...)``.

    Attributes:
        error: the type and message of the last attempt's error.

    Example:
        >>> async def score(n):
        ...     return 100 / n
        >>> BAD = OutputTag[AsyncFailure]("bad")
        >>> failures = env.from_collection([5, 0]).map_async(score, on_failure=BAD).get_side_output(BAD)
        >>> failures.map(AsyncFailure.as_text, AsyncFailure.COLUMNS).execute_and_collect()
        [Row(value='0', error='ZeroDivisionError: division by zero', attempts=1)]
    """

    __slots__ = ()

    COLUMNS: ClassVar[str] = "value STRING, error STRING, attempts INT"

    def as_text(self) -> tuple[str, str, int]:
        """Return the values of :attr:`COLUMNS`. The value is a ``repr()``, cut to 10,000 characters.

        Example:
            >>> AsyncFailure({"id": 3}, "TimeoutError", 2).as_text()
            ("{'id': 3}", 'TimeoutError', 2)
        """
        return shorten(self.value, SHOWN), self.error, self.attempts

    @staticmethod
    def of(value: Any, error: BaseException, attempts: int) -> AsyncFailure:
        return AsyncFailure(value, describe(error), attempts)

    def __reduce__(self) -> Any:
        return make, ("AsyncFailure", *self)
