"""Sinks, and collected results."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, ClassVar, overload

from pillarbox._datastream.checks.missing import missing_in_sink
from pillarbox._datastream.streams.operator_settings import OperatorSettings
from pillarbox._generics import Generic, T

_AHEAD = 10_000


class CollectedResults(Generic[T]):
    """The records that a program emits. As in PyFlink, the program runs while its results are read.

    The program runs ahead until 10,000 records are unread, so a small program ends, closes its functions and raises its
    errors before any result is returned.

    Results are stored, and can be used as a list; ``next()`` removes the first. For results larger than memory, use a
    ``with`` statement: in its block, results are not stored, and leaving the block ends the program.

    Example:
        >>> results = env.from_collection([1, 2, 3]).map(str).execute_and_collect()
        >>> next(results), results
        ('1', ['2', '3'])
        >>> with env.from_collection(range(1_000_000)).map(str).execute_and_collect() as results:
        ...     "".join(result for result, _ in zip(results, range(5)))
        '01234'
    """

    def __init__(self, portions: Generator[list[T], None, None]) -> None:
        self._portions: Generator[list[T], None, None] | None = portions
        self._records: list[T] = []
        self._next = 0
        self._keeps = True
        self._run_ahead(0)

    def _run_ahead(self, position: int) -> bool:
        while self._portions is not None and len(self._records) - position < _AHEAD:
            portion = next(self._portions, None)
            if portion is None:
                self._portions = None
            else:
                self._records += portion
        return position < len(self._records)

    def __next__(self) -> T:
        if self._next == len(self._records):
            if not self._keeps:
                self._records, self._next = [], 0
            if not self._run_ahead(self._next):
                raise StopIteration
        self._next += 1
        return self._records[self._next - 1]

    def __iter__(self) -> Iterator[T]:
        return self._left() if self._keeps else self

    def _left(self) -> Iterator[T]:
        position = self._next
        while position < len(self._records) or self._run_ahead(position):
            yield self._records[position]
            position += 1

    def _all_left(self) -> list[T]:
        while self._portions is not None:
            self._run_ahead(len(self._records))
        return self._records[self._next :] if self._next else self._records

    def __len__(self) -> int:
        return len(self._all_left())

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self._all_left()[index]

    def __contains__(self, record: object) -> bool:
        return record in self._all_left()

    def __eq__(self, other: object) -> bool:
        return self._all_left() == (other._all_left() if isinstance(other, CollectedResults) else other)

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._all_left())

    def close(self) -> None:
        """End the program if it is still running, and close its functions."""
        portions, self._portions = self._portions, None
        if portions is not None:
            portions.close()

    def __enter__(self) -> CollectedResults[T]:
        self._keeps = False
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class DataStreamSink(OperatorSettings):
    """A sink. It is chained to its input unless its parallelism is set."""

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            raise missing_in_sink(self, name)
