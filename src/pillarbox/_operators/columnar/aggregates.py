"""Column aggregates, which handle nulls, overflow and decimals as in Spark SQL's ANSI mode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyspark.sql.types as spark

from pillarbox._errors import ProgramError, describe, shorten
from pillarbox._operators.columnar.accumulators import (
    Accumulator,
    ApproxCountDistinctAccumulator,
    AverageAccumulator,
    CountAccumulator,
    CountRowsAccumulator,
    FirstOrLast,
    MinMaxAccumulator,
    SumAccumulator,
    UserAccumulator,
)
from pillarbox._types.type_information import TypeInformation


class ColumnAggregate(ABC):
    """A column aggregate, for ``aggregate(name=...)`` and ``window_aggregate()``."""

    columns: tuple[str, ...]

    @abstractmethod
    def bind(self, types: Sequence[spark.DataType]) -> Accumulator:
        """Return the accumulator for these column types."""


@dataclass(frozen=True)
class _BuiltIn(ColumnAggregate):
    name: str
    columns: tuple[str, ...]

    def bind(self, types: Sequence[spark.DataType]) -> Accumulator:
        return _BOUND_BY[self.name](*types) if types else CountRowsAccumulator()

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.columns))})"


_BOUND_BY: dict[str, Callable[[spark.DataType], Accumulator]] = {
    "approx_count_distinct_": ApproxCountDistinctAccumulator,
    "avg_": AverageAccumulator,
    "count_": CountAccumulator,
    "first_": partial(FirstOrLast, latest=False),
    "last_": partial(FirstOrLast, latest=True),
    "max_": partial(MinMaxAccumulator, which="max"),
    "min_": partial(MinMaxAccumulator, which="min"),
    "sum_": SumAccumulator,
}


def _of(name: str, *columns: str) -> ColumnAggregate:
    for column in columns:
        if not isinstance(column, str):
            raise ProgramError(f"{name}() takes a column name, not {shorten(column)}")
    return _BuiltIn(name, columns)


def sum_(column: str) -> ColumnAggregate:
    """Sum a column's non-null values. Without values, the sum is null.

    The sum of integers is a LONG, of floats a DOUBLE, of ``DECIMAL(p, s)`` a ``DECIMAL(p + 10, s)`` of at most 38
    digits, and of day-time intervals an interval. A sum that exceeds its type fails the task.

    Example:
        >>> sum_("amount")
        sum_('amount')
    """
    return _of("sum_", column)


def count_(column: str | None = None) -> ColumnAggregate:
    """Count rows or, with a column, its non-null values. The result is a LONG.

    Example:
        >>> count_(), count_("amount")
        (count_(), count_('amount'))
    """
    return _of("count_") if column is None else _of("count_", column)


def min_(column: str) -> ColumnAggregate:
    """Compute the minimum of a column's non-null values. NaN is greater than any other number.

    Example:
        >>> min_("amount")
        min_('amount')
    """
    return _of("min_", column)


def max_(column: str) -> ColumnAggregate:
    """Compute the maximum of a column's non-null values. NaN is greater than any other number.

    Example:
        >>> max_("amount")
        max_('amount')
    """
    return _of("max_", column)


def avg_(column: str) -> ColumnAggregate:
    """Compute the mean of a column's non-null values. Without values, the mean is null.

    The mean of integers and floats is a DOUBLE. The mean of ``DECIMAL(p, s)`` is a ``DECIMAL(p + 4, s + 4)`` of at most
    38 digits, and of day-time intervals an ``INTERVAL DAY TO SECOND``, both rounded half up.

    Example:
        >>> avg_("amount")
        avg_('amount')
    """
    return _of("avg_", column)


def first_(column: str) -> ColumnAggregate:
    """Take a column's value from the row with the earliest event time.

    If several rows have this time (in ms), the smallest value is taken, or null if all values are null.

    Example:
        >>> first_("amount")
        first_('amount')
    """
    return _of("first_", column)


def last_(column: str) -> ColumnAggregate:
    """Take a column's value from the row with the latest event time. Ties and nulls are as in :func:`first_`.

    Example:
        >>> last_("amount")
        last_('amount')
    """
    return _of("last_", column)


def approx_count_distinct_(column: str) -> ColumnAggregate:
    """Estimate the number of a column's distinct non-null values. The result is a LONG.

    A number less than 1,024 is exact. For larger numbers, the relative standard error is 3.1 %, and each key stores 8
    KiB per window.

    Example:
        >>> approx_count_distinct_("shop")
        approx_count_distinct_('shop')
    """
    return _of("approx_count_distinct_", column)


class ArrowAggregateFunction(ColumnAggregate):
    """Base class of user-defined aggregates, which compute with Arrow arrays.

    Each call processes many groups (key and window). ``groups`` is an Arrow array of each row's group number, from 0 to
    ``size - 1``; every number occurs. Partial results are one or more arrays with one value per group. Their types must
    depend only on the columns' types. Arrays may be empty.

    Example:
        >>> import numpy as np, pyarrow as pa
        >>> class SumOfSquares(ArrowAggregateFunction):
        ...     output_type = Types.DOUBLE()
        ...
        ...     def partial(self, groups, size, values):
        ...         numbers = values.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        ...         return [pa.array(np.bincount(groups.to_numpy(), numbers**2, size))]
        ...
        ...     def merge(self, groups, size, sums):
        ...         return [pa.array(np.bincount(groups.to_numpy(), sums.to_numpy(), size))]
        ...
        ...     def result(self, sums):
        ...         return sums
        >>> SumOfSquares("amount").columns
        ('amount',)
    """

    output_type: TypeInformation[Any] | spark.DataType
    """The type of the results: one of ``Types``, or a Spark type."""

    def __init__(self, *columns: str) -> None:
        self.columns: tuple[str, ...] = _of(type(self).__name__, *columns).columns

    @abstractmethod
    def partial(self, groups: Any, size: int, /, *columns: Any) -> Sequence[Any]:
        """Return partial results, as arrays with one value per group. ``columns`` are Arrow arrays of rows."""

    @abstractmethod
    def merge(self, groups: Any, size: int, /, *partials: Any) -> Sequence[Any]:
        """Merge each group's partial results. Return arrays of the same types, with one value per group."""

    @abstractmethod
    def result(self, /, *partials: Any) -> Any:
        """Convert partial results to an array with one result per group."""

    def bind(self, types: Sequence[spark.DataType]) -> Accumulator:
        declared: Any = getattr(self, "output_type", None)
        if isinstance(declared, TypeInformation):
            declared = declared.data_type
        if not isinstance(declared, spark.DataType):
            raise ProgramError(
                f"{type(self).__name__} has no output_type: set it to the type of the results, such as Types.DOUBLE()"
            )
        try:
            return UserAccumulator(self, types, declared)
        except ProgramError:
            raise
        except Exception as error:
            raise ProgramError(
                f"{self!r} raised {describe(error)} when called with empty arrays: support empty arrays"
            ) from error

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.columns))})"
