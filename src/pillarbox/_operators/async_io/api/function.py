"""The functions that ask a service. Names and meaning are PyFlink's, where it has them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

from pillarbox._errors import SHOWN, describe, shorten
from pillarbox._generics import Generic, In, Out
from pillarbox._operators.functions.basic import Function
from pillarbox._unpickle import make


class AsyncFunction(Function, ABC, Generic[In, Out]):
    """Asks a service about each record, many at a time; ``AsyncDataStream`` applies it.

    ``open`` and ``close`` may be ``async def``. They run in the event loop's thread, once for as long as the task lives
    in its worker: a client that ``open`` makes serves all epochs.

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
        """Ask about a record; return a list of the records to emit. Runs in the event loop's thread."""

    def timeout(self, value: In, /) -> list[Out]:
        """Return a list of the records to emit for a record whose request took too long. Runs in the mailbox thread.

        Raises:
            TimeoutError: by default.
        """
        raise TimeoutError(f"no answer in time for {shorten(value)}")


class AsyncBatchFunction(Function, ABC, Generic[In, Out]):
    """Asks a service about several records at a time; ``AsyncDataStream.ordered_wait_batch`` applies it.

    ``open`` and ``close`` work as in an :class:`AsyncFunction`.

    Example:
        >>> class Score(AsyncBatchFunction[str, tuple[str, int]]):
        ...     async def async_invoke_batch(self, cards):
        ...         await asyncio.sleep(0.001)  # or one request for all
        ...         return [(card, len(card)) for card in cards]
        >>> cards = env.from_collection(["ann", "robert", "bob"])
        >>> AsyncDataStream.ordered_wait_batch(cards, Score(), "5 seconds", batch_size=2).execute_and_collect()
        [('ann', 3), ('robert', 6), ('bob', 3)]
    """

    @abstractmethod
    async def async_invoke_batch(self, values: list[In], /) -> list[Out]:
        """Ask about records; return a list with one result for each, in their order.

        Runs in the event loop's thread.
        """

    def timeout_batch(self, values: list[In], /) -> list[Out]:
        """Return one result for each record of a batch whose request took too long. Runs in the mailbox thread.

        Raises:
            TimeoutError: by default.
        """
        raise TimeoutError(f"no answer in time for a batch of {len(values)} records")


class CombiningFunction(Function, ABC):
    """A function whose results are kept and shared as they are, and leave together with their records.

    Attributes:
        takes_failures: whether records that failed for good leave as well, as ``combine_failure`` returns them.
    """

    takes_failures = False

    @abstractmethod
    def combine(self, value: Any, result: Any) -> Any:
        """Return the record to emit for a record, from its result. Runs in the mailbox thread."""

    def combine_failure(self, value: Any, error: BaseException, attempts: int) -> Any:
        """Return the record to emit for a record that failed for good. Runs in the mailbox thread."""
        raise NotImplementedError


class _Failure(NamedTuple):
    value: Any
    error: str
    attempts: int


class AsyncFailure(_Failure):
    """A record whose requests failed for good, as a side output for failures gets it.

    ``on_failure=OutputTag(...)`` asks for it.

    Attributes:
        value: the record.
        error: type and message of the last error.
        attempts: the number of attempts.
        COLUMNS: the columns of :meth:`as_text`.

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
        """Return the failure as columns of text, for ``failures.map(AsyncFailure.as_text, AsyncFailure.COLUMNS)``.

        The value is what ``repr()`` says of it, in at most 10 000 characters.

        Example:
            >>> AsyncFailure({"id": 3}, "TimeoutError", 2).as_text()
            ("{'id': 3}", 'TimeoutError', 2)
        """
        return shorten(self.value, SHOWN), self.error, self.attempts

    @staticmethod
    def of(value: Any, error: BaseException, attempts: int) -> AsyncFailure:
        """Return the failure of a record."""
        return AsyncFailure(value, describe(error), attempts)

    def __reduce__(self) -> Any:
        return make, ("AsyncFailure", *self)
