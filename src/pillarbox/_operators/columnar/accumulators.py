"""Computes aggregates in two steps: partial results of rows, then merges of partial results.

Arrow's grouping kernels merge most aggregates. Functions that receive each row's group number merge the others.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.types as spark

from pillarbox._errors import ProgramError, raise_from_user_code
from pillarbox._operators.columnar import sketch
from pillarbox._types.codecs import codec_for
from pillarbox._types.schema import is_collated

Numbers = npt.NDArray[np.int64]

_INTEGERS = (spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType)
_FLOATS = (spark.FloatType, spark.DoubleType)
_DIGITS = 38
_MORE_DIGITS = 4


def arrow_type(declared: spark.DataType) -> pa.DataType:
    try:
        return codec_for(declared, dt.timezone.utc, "").arrow
    except ProgramError:
        raise ProgramError(
            f"{declared.simpleString()} columns cannot be read: cast the column, for example to STRING"
        ) from None


class AccumulatorColumn(NamedTuple):
    """A column of an aggregate's partial results.

    Attributes:
        kernel: the Arrow kernel that merges the column: ``"sum"`` (fails on overflow), ``"count"``, ``"min"`` or
            ``"max"``. Empty if the aggregate merges all its columns together.
    """

    kind: pa.DataType
    kernel: str = ""


class AccumulatorOverflow(Exception):
    """Raised for a result that does not fit its type. ``index`` is the group number."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class Accumulator(ABC):
    """An aggregate for columns of certain types. ``parts`` are its partial results' columns."""

    result_type: spark.DataType
    parts: tuple[AccumulatorColumn, ...]

    def result(self, rows: pa.Array, *parts: pa.Array) -> pa.Array:
        """Return the results (by default, the first part), which the caller casts to the result type.

        ``rows`` is the number of rows in each group. Raises :class:`AccumulatorOverflow`.
        """
        return parts[0]


class KernelAccumulator(Accumulator):
    """An aggregate that Arrow's kernels merge."""

    @abstractmethod
    def elements(self, *columns: pa.Array) -> Sequence[pa.Array]: ...


class GroupedAccumulator(Accumulator):
    """An aggregate that updates all its columns together, from each row's group number."""

    @abstractmethod
    def partial(self, groups: Numbers, size: int, times: Numbers, *columns: pa.Array) -> Sequence[pa.Array]:
        """Return the rows' partial results, as arrays with one value per group. ``times`` are Unix times in ms."""

    @abstractmethod
    def merge(self, groups: Numbers, size: int, *parts: pa.Array) -> Sequence[pa.Array]: ...


class CountRowsAccumulator(KernelAccumulator):
    """The number of rows. Needs no partial results, because rows are always counted."""

    result_type: spark.DataType = spark.LongType()
    parts: tuple[AccumulatorColumn, ...] = ()

    def elements(self, *columns: pa.Array) -> Sequence[pa.Array]:
        return ()

    def result(self, rows: pa.Array, *parts: pa.Array) -> pa.Array:
        return rows


class CountAccumulator(KernelAccumulator):
    """The number of non-null values."""

    def __init__(self, kind: spark.DataType) -> None:
        arrow_type(kind)

    result_type: spark.DataType = spark.LongType()
    parts: tuple[AccumulatorColumn, ...] = (AccumulatorColumn(pa.int64(), "count"),)

    def elements(self, *columns: pa.Array) -> Sequence[pa.Array]:
        return [columns[0].is_valid().cast(pa.int64())]


class SumAccumulator(KernelAccumulator):
    """The sum of numbers or intervals."""

    def __init__(self, kind: spark.DataType) -> None:
        self.result_type: spark.DataType = _sum_type(kind, "sum_")
        self.parts: tuple[AccumulatorColumn, ...] = (AccumulatorColumn(_added_as(self.result_type), "sum"),)

    def elements(self, *columns: pa.Array) -> Sequence[pa.Array]:
        return [columns[0].cast(self.parts[0].kind)]


class AverageAccumulator(KernelAccumulator):
    """The mean of numbers or intervals. Integers are summed as doubles, as in Spark."""

    def __init__(self, kind: spark.DataType) -> None:
        total = _sum_type(kind, "avg_")
        self.result_type: spark.DataType
        if isinstance(kind, spark.DecimalType):
            self._scale = kind.scale
            self.result_type = _decimal(kind.precision + _MORE_DIGITS, kind.scale + _MORE_DIGITS)
        elif isinstance(kind, spark.DayTimeIntervalType):
            self.result_type = spark.DayTimeIntervalType()
        else:
            self.result_type = total = spark.DoubleType()
        self.parts: tuple[AccumulatorColumn, ...] = (
            AccumulatorColumn(_added_as(total), "sum"),
            AccumulatorColumn(pa.int64(), "count"),
        )

    def elements(self, *columns: pa.Array) -> Sequence[pa.Array]:
        # An unsafe cast rounds integers of more than 53 bits, which Arrow would otherwise refuse.
        total = columns[0].cast(self.parts[0].kind, safe=not pa.types.is_floating(self.parts[0].kind))
        return [total, columns[0].is_valid().cast(pa.int64())]

    def result(self, rows: pa.Array, *parts: pa.Array) -> pa.Array:
        total, count = parts
        counts = count.to_numpy()
        if isinstance(self.result_type, spark.DecimalType):
            kind = self.result_type
            means = _half_up(int128_values(total), 10 ** (kind.scale - self._scale), counts, 10**kind.precision)
            return int128_array(means, arrow_type(kind), counts == 0)
        if isinstance(self.result_type, spark.DayTimeIntervalType):
            micros = _half_up(total.fill_null(0).to_numpy(), 1, counts, 2**64).astype(np.int64)
            return pa.array(micros, mask=counts == 0).cast(arrow_type(self.result_type))
        sums = total.fill_null(0.0).to_numpy()
        return pa.array(sums / np.maximum(counts, 1), pa.float64(), mask=counts == 0)


def _half_up(sums: npt.NDArray[Any], factor: int, counts: Numbers, limit: int) -> npt.NDArray[Any]:
    # Not abs(), because the smallest 64-bit integer is its own absolute value.
    largest = max(-int(sums.min()), int(sums.max())) if len(sums) else 0
    if sums.dtype != object and largest <= (2**62) // (2 * factor):
        divisors = np.maximum(counts, 1)
        scaled = sums * factor
        means: npt.NDArray[Any] = np.sign(scaled) * ((2 * np.abs(scaled) + divisors) // (2 * divisors))
        return means
    means = np.empty(len(sums), object)
    for index, (total, count) in enumerate(zip(sums.tolist(), counts.tolist())):
        divisor = max(count, 1)
        mean = (2 * abs(total) * factor + divisor) // (2 * divisor)
        if mean >= limit:
            raise AccumulatorOverflow(index)
        means[index] = mean if total >= 0 else -mean
    return means


class MinMaxAccumulator(KernelAccumulator):
    """The minimum or maximum. Floats are mapped to integers of the same order, with NaN greatest."""

    def __init__(self, kind: spark.DataType, which: str) -> None:
        _check_compared(kind, f"{which}_", "it has no order")
        self.result_type: spark.DataType = kind
        self._kind = arrow_type(kind)
        part = pa.int64() if isinstance(kind, (*_FLOATS, spark.DayTimeIntervalType)) else self._kind
        self.parts: tuple[AccumulatorColumn, ...] = (AccumulatorColumn(part, which),)

    def elements(self, *columns: pa.Array) -> Sequence[pa.Array]:
        (column,) = columns
        return [_ordered(column) if pa.types.is_floating(column.type) else column.cast(self.parts[0].kind)]

    def result(self, rows: pa.Array, *parts: pa.Array) -> pa.Array:
        return _numbers_of(parts[0], self._kind) if pa.types.is_floating(self._kind) else parts[0]


class FirstOrLast(GroupedAccumulator):
    """The value of the row with the earliest or latest event time, or the smallest of several such values."""

    def __init__(self, kind: spark.DataType, *, latest: bool) -> None:
        _check_compared(kind, "last_" if latest else "first_", "it has no order for rows with equal times")
        self.result_type: spark.DataType = kind
        self._order = "descending" if latest else "ascending"
        # Arrow cannot sort durations.
        self._stored = pa.int64() if isinstance(kind, spark.DayTimeIntervalType) else arrow_type(kind)
        self.parts: tuple[AccumulatorColumn, ...] = (AccumulatorColumn(self._stored), AccumulatorColumn(pa.int64()))

    def partial(self, groups: Numbers, size: int, times: Numbers, *columns: pa.Array) -> Sequence[pa.Array]:
        return self.merge(groups, size, columns[0].cast(self._stored), pa.array(times))

    def merge(self, groups: Numbers, size: int, *parts: pa.Array) -> Sequence[pa.Array]:
        table = pa.table({"value": parts[0], "time": parts[1]})
        keys = [("time", self._order), ("value", "ascending")]
        order = pc.sort_indices(table, sort_keys=keys).to_numpy()
        chosen = np.empty(size, np.int64)
        chosen[groups[order[::-1]]] = order[::-1]
        indices = pa.array(chosen)
        return [part.take(indices) for part in parts]


class ApproxCountDistinctAccumulator(GroupedAccumulator):
    """The approximate number of distinct values, estimated from their smallest hashes."""

    result_type: spark.DataType = spark.LongType()
    parts: tuple[AccumulatorColumn, ...] = (AccumulatorColumn(pa.list_(pa.uint64())),)

    def __init__(self, kind: spark.DataType) -> None:
        _check_compared(kind, "approx_count_distinct_", "it has no hash")

    def partial(self, groups: Numbers, size: int, times: Numbers, *columns: pa.Array) -> Sequence[pa.Array]:
        present = columns[0].is_valid().to_numpy(zero_copy_only=False)
        return [sketch.least(groups[present], sketch.hashes(columns[0].drop_null()), size)]

    def merge(self, groups: Numbers, size: int, *parts: pa.Array) -> Sequence[pa.Array]:
        lengths = pc.list_value_length(parts[0]).to_numpy()
        return [sketch.least(np.repeat(groups, lengths), parts[0].flatten().to_numpy(), size)]

    def result(self, rows: pa.Array, *parts: pa.Array) -> pa.Array:
        return sketch.estimates(parts[0])


class UserAccumulator(GroupedAccumulator):
    """Calls a user's :class:`ArrowAggregateFunction`."""

    def __init__(self, function: Any, types: Sequence[spark.DataType], result_type: spark.DataType) -> None:
        self._function = function
        self.result_type: spark.DataType = result_type
        self._result_kind = arrow_type(result_type)
        self.parts: tuple[AccumulatorColumn, ...] = ()
        none = pa.array([], pa.int64())
        empty = list(function.partial(none, 0, *(pa.array([], arrow_type(kind)) for kind in types)))
        if not empty or not all(isinstance(part, pa.Array) for part in empty):
            raise ProgramError(f"{function!r}: partial() must return a list of one or more Arrow arrays")
        self.parts = tuple(AccumulatorColumn(part.type) for part in empty)
        self._checked("merge()", function.merge(none, 0, *empty), 0)
        function.result(*empty).cast(self._result_kind)

    def partial(self, groups: Numbers, size: int, times: Numbers, *columns: pa.Array) -> Sequence[pa.Array]:
        return self._called("partial()", self._function.partial, size, pa.array(groups), size, *columns)

    def merge(self, groups: Numbers, size: int, *parts: pa.Array) -> Sequence[pa.Array]:
        return self._called("merge()", self._function.merge, size, pa.array(groups), size, *parts)

    def result(self, rows: pa.Array, *parts: pa.Array) -> pa.Array:
        try:
            results = self._function.result(*parts).cast(self._result_kind)
        except BaseException as error:
            raise_from_user_code(error, f"result() of {self._function!r} failed")
        if len(results) != len(rows):
            raise ProgramError(
                f"result() of {self._function!r} returned {len(results)} values for {len(rows)} groups: return one each"
            )
        return results

    def _called(self, method: str, call: Any, size: int, *arguments: Any) -> Sequence[pa.Array]:
        try:
            parts = call(*arguments)
        except BaseException as error:
            raise_from_user_code(error, f"{method} of {self._function!r} failed")
        return self._checked(method, parts, size)

    def _checked(self, method: str, parts: Any, size: int) -> Sequence[pa.Array]:
        arrays = list(parts)
        kinds = [part.kind for part in self.parts]
        if [getattr(array, "type", None) for array in arrays] != kinds or {len(array) for array in arrays} != {size}:
            returned = ", ".join(f"{len(array)} of {getattr(array, 'type', type(array).__name__)}" for array in arrays)
            raise ProgramError(
                f"{method} of {self._function!r} must return arrays of {size} values of the types"
                f" {', '.join(map(str, kinds))}, but returned {returned or 'none'}"
            )
        return arrays


_ORDERED: tuple[type[spark.DataType], ...] = (
    *_INTEGERS,
    *_FLOATS,
    spark.DecimalType,
    spark.StringType,
    spark.BinaryType,
    spark.BooleanType,
    spark.DateType,
    spark.TimestampType,
    spark.TimestampNTZType,
    spark.TimeType,
    spark.DayTimeIntervalType,
)


def _decimal(precision: int, scale: int) -> spark.DecimalType:
    return spark.DecimalType(min(precision, _DIGITS), min(scale, _DIGITS))


def _sum_type(kind: spark.DataType, name: str) -> spark.DataType:
    if isinstance(kind, _INTEGERS):
        return spark.LongType()
    if isinstance(kind, _FLOATS):
        return spark.DoubleType()
    if isinstance(kind, spark.DecimalType):
        return _decimal(kind.precision + 10, kind.scale)
    if isinstance(kind, spark.DayTimeIntervalType):
        return kind
    raise ProgramError(
        f"{name}() takes a column of numbers or intervals, but this column is {kind.simpleString()}: cast"
        " it, for example to DOUBLE"
    )


def _added_as(kind: spark.DataType) -> pa.DataType:
    """Return the type for sums of a column. Intervals become microseconds, because Arrow cannot add them."""
    return pa.int64() if isinstance(kind, spark.DayTimeIntervalType) else arrow_type(kind)


def _check_compared(kind: spark.DataType, name: str, why_not: str) -> None:
    if is_collated(kind):
        why_not = "strings are compared byte by byte"
    elif is_compared(kind):
        return
    raise ProgramError(
        f"{name}() does not support {kind.simpleString()}: {why_not}. Select a field of it, or cast it,"
        " for example to STRING"
    )


def is_compared(kind: spark.DataType) -> bool:
    return isinstance(kind, _ORDERED) and not is_collated(kind)


_NAN = np.int64(0x7FF8000000000000)
_MAGNITUDE = np.int64(0x7FFFFFFFFFFFFFFF)


def _ordered(column: pa.Array) -> pa.Array:
    """Map floats to integers that sort in the same order. -0.0 sorts before 0.0, and NaN sorts last."""
    numbers = column.cast(pa.float64()).fill_null(0.0).to_numpy()
    bits = np.where(np.isnan(numbers), _NAN, numbers.view(np.int64))
    return pa.array(bits ^ ((bits >> 63) & _MAGNITUDE), mask=_nulls(column))


def _numbers_of(column: pa.Array, kind: pa.DataType) -> pa.Array:
    bits = column.fill_null(0).to_numpy()
    numbers = (bits ^ ((bits >> 63) & _MAGNITUDE)).view(np.float64)
    return pa.array(numbers, mask=_nulls(column)).cast(kind, safe=False)


def _nulls(column: pa.Array) -> npt.NDArray[np.bool_] | None:
    return column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None


def int128_values(column: pa.Array) -> npt.NDArray[Any]:
    """Return 128-bit decimals' unscaled values as int64, or as objects if any does not fit. Null becomes 0."""
    words = np.frombuffer(column.buffers()[1], np.uint64)[2 * column.offset : 2 * (column.offset + len(column))]
    low, high = words[0::2], words[1::2].view(np.int64)
    nulls = _nulls(column)
    if nulls is not None:
        low, high = np.where(nulls, np.uint64(0), low), np.where(nulls, np.int64(0), high)
    if (high == low.view(np.int64) >> 63).all():
        return low.view(np.int64)
    return np.array([(up << 64) | down for up, down in zip(high.tolist(), low.tolist())], object)


def int128_array(values: npt.NDArray[Any], kind: pa.DataType, nulls: npt.NDArray[np.bool_]) -> pa.Array:
    if values.dtype == object:
        content = b"".join([value.to_bytes(16, "little", signed=True) for value in values.tolist()])
    else:
        words = np.empty((len(values), 2), np.int64)
        words[:, 0], words[:, 1] = values, values >> 63
        content = words.tobytes()
    valid = pa.array(~nulls).buffers()[1]
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(content)])
