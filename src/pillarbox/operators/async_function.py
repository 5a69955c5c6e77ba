"""What a user writes for requests to a service. Names and meaning are PyFlink's, where it has them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pillarbox.errors import ProgramError, describe, shorten
from pillarbox.operators.functions import Function
from pillarbox.operators.keys import Keying
from pillarbox.time.duration import DurationLike, positive_millis

__all__ = ["AsyncCache", "AsyncFailure", "AsyncFunction", "CombiningFunction"]


class AsyncFunction(Function, ABC):
    """Asks a service about each record, many at a time.

    ``open`` and ``close`` may be ``async def``. They run in the event loop's thread, once for as long as the task lives
    in its worker: a client that ``open`` makes serves all epochs.
    """

    @abstractmethod
    async def async_invoke(self, value: Any) -> list[Any]:
        """Ask about a record; give a list of what to emit. Runs in the event loop's thread."""

    def timeout(self, value: Any) -> list[Any]:
        """Give what to emit for a record that took too long; raises by default. Runs in the mailbox thread."""
        raise TimeoutError(f"no answer in time for {shorten(value)}")


class CombiningFunction(Function, ABC):
    """A function whose results are kept and shared as they are, and leave together with their records."""

    @abstractmethod
    def combine(self, value: Any, result: Any) -> Any:
        """Give what to emit for a record, from its result. Runs in the mailbox thread."""


class AsyncFailure(NamedTuple):
    """What a side output for failures gets.

    Attributes:
        value: the record.
        error: type and message of what was raised last.
        attempts: how often the service was asked.
    """

    value: Any
    error: str
    attempts: int

    @staticmethod
    def of(value: Any, error: BaseException, attempts: int) -> AsyncFailure:
        """Give the failure of a record."""
        return AsyncFailure(value, describe(error), attempts)


@dataclass(frozen=True)
class AsyncCache:
    """Keep results, and ask once for several records with the same key. One cache per task, for as long as it lives.

    Attributes:
        max_size: the most results; the one used longest ago goes first.
        ttl: how long a result is good; None: as long as there is room.
        key: gives the key of a record: a function, or names of columns; None: the record itself.

    Raises:
        ProgramError: (when made) one of them is of no use.
    """

    max_size: int = 10_000
    ttl: DurationLike | None = None
    key: Callable[[Any], Any] | str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.max_size, bool) or not isinstance(self.max_size, int) or self.max_size < 1:
            raise ProgramError(f"AsyncCache: max_size is a whole number of at least 1, not {shorten(self.max_size)}")
        if self.ttl is not None:
            try:
                positive_millis(self.ttl, "AsyncCache: ttl")
            except ValueError as error:
                raise ProgramError(str(error)) from None
        if self.key is not None:
            try:
                Keying(self.key, "AsyncCache")
            except ProgramError:
                raise ProgramError(
                    f"AsyncCache: key is a function of the record, or column names, not {shorten(self.key)}"
                ) from None
