"""``async_map``, ``window_aggregate`` and ``interval_join``, which take DataFrames and return a DataFrame."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pillarbox._datastream.environment.environment import StreamExecutionEnvironment
from pillarbox._datastream.windows.columnar_windows import aggregate_columns
from pillarbox._datastream.windows.windowed import WindowsOfOneStream
from pillarbox._errors import OperatorError, ProgramError, describe, shorten, shorten_record
from pillarbox._operators.async_io.api.cache import AsyncCache
from pillarbox._operators.async_io.api.function import AsyncCombiningFunction
from pillarbox._operators.async_io.api.options import AsyncOptions, OnBarrier
from pillarbox._operators.async_io.api.retry import AsyncRetryStrategy
from pillarbox._operators.async_io.loop.host import is_coroutine_function, is_generator_function
from pillarbox._operators.budgets.budget import Budget
from pillarbox._operators.columnar.aggregates import ColumnAggregate
from pillarbox._operators.functions.basic import Function
from pillarbox._operators.functions.contexts import RuntimeContext
from pillarbox._operators.windowing.api.assigner import WindowAssigner
from pillarbox._time.duration import DurationLike
from pillarbox._time.watermark_strategy import WatermarkStrategy
from pillarbox._types.schema import SchemaLike, resolve_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField, StructType

__all__ = ["async_map", "interval_join", "window_aggregate"]


def async_map(
    df: DataFrame,
    fn: Callable[..., Any],
    output: SchemaLike,
    *,
    columns: str | Sequence[str] | None = None,
    failures: str | None = None,
    capacity: int = 100,
    timeout: DurationLike | None = "5 seconds",
    ordered: bool = True,
    retry: AsyncRetryStrategy | int | None = None,
    batch_size: int | None = None,
    batch_timeout: DurationLike | None = None,
    rate_limit: float | None = None,
    job_rate_limit: float | None = None,
    budgets: Sequence[Budget] = (),
    cache: AsyncCache | None = None,
    on_failure: Literal["fail", "drop"] = "fail",
    on_barrier: OnBarrier = "drain",
) -> DataFrame:
    """Call a service for each row, with many concurrent requests, and add the service's results as columns.

    The parameters after ``failures`` are as in :meth:`DataStream.map_async`.

    Args:
        fn: ``async def f(row)``, a plain function (which runs in a thread pool), or a callable object. With
            ``batch_size``, it receives a list of rows and returns a list of results.
        output: the columns to add: a DDL string such as ``"score DOUBLE"``, or any other schema. For one column, ``fn``
            returns the column's value; for several, a tuple, dict, dataclass or ``NamedTuple``, which is converted as
            in ``to_dataframe()``.
        columns: the columns to pass to ``fn`` as arguments; by default, ``fn`` receives the row. With ``batch_size``,
            ``fn`` receives a list of tuples or, for a single column, a list of values.
        failures: the name of a column for errors. If set, a failed request does not fail the task. The column contains
            a struct of the error's ``type``, its ``message`` and the number of ``attempts``, or null for a successful
            request. After a failure, the ``output`` columns are null.
        cache: a cache, whose default key is ``columns``.

    Returns:
        a DataFrame with the columns of ``df``, ``output`` and ``failures``. It is streaming if ``df`` is streaming.

    Raises:
        ProgramError: a column is missing or occurs twice, or an option is invalid.

    Example:
        >>> import pillarbox.functions as PF
        >>> async def score(card, amount):
        ...     await asyncio.sleep(0.001)  # or a request
        ...     return amount / 100
        >>> payments = spark.sql("SELECT 'ann' AS card, 50 AS amount")
        >>> PF.async_map(payments, score, "score DOUBLE", columns=["card", "amount"], capacity=200).collect()
        [Row(card='ann', amount=50, score=0.5)]
    """
    from pyspark.sql.types import StructField, StructType

    if not hasattr(df, "mapInArrow"):
        raise ProgramError(f"async_map() takes a Spark DataFrame, not {shorten(df)}")
    if not callable(fn) or isinstance(fn, type):
        raise ProgramError(f"async_map() got {shorten(fn)}: pass a function, such as an async def")
    if is_generator_function(fn):
        raise ProgramError(f"async_map() got {shorten(fn)}, which yields: pass a function that returns one result")
    if on_failure not in ("fail", "drop"):
        raise ProgramError(
            f'async_map(): on_failure= must be "fail" or "drop", not {shorten(on_failure)}. A DataFrame has no'
            " side output: for a column with failures, pass its name as failures="
        )
    if failures is not None and on_failure != "fail":
        raise ProgramError('async_map(): failures= keeps failed rows, but on_failure="drop" drops them: pass only one')
    added = resolve_schema(output)
    if failures is not None:
        if not isinstance(failures, str) or not failures:
            raise ProgramError(f"async_map(): failures= must be a column name, not {shorten(failures)}")
        added = StructType([StructField(field.name, field.dataType, True, field.metadata) for field in added.fields])
    _check_new_columns(df, [*added.names, *([] if failures is None else [failures])])
    columns_read = None if columns is None else tuple(_names(columns, "async_map(): columns="))
    for column in columns_read or ():
        if column not in df.columns:
            raise ProgramError(
                f"async_map(): there is no column {column!r} for the function; the columns are {', '.join(df.columns)}"
            )
    if isinstance(cache, AsyncCache) and cache.key is None and columns_read:
        cache = dataclasses.replace(cache, key=columns_read)
    options = AsyncOptions(
        "async_map",
        capacity=capacity,
        timeout=timeout,
        ordered=ordered,
        retry=retry,
        batch_size=batch_size,
        batch_timeout=batch_timeout,
        rate_limit=rate_limit,
        job_rate_limit=job_rate_limit,
        budgets=budgets,
        cache=cache,
        on_failure=on_failure,
        on_barrier=on_barrier,
    )
    kind = _AsyncRowCall if is_coroutine_function(fn) else _PlainRowCall
    call = kind(fn, columns_read, added, batched=batch_size is not None, takes_failures=failures is not None)
    input_fields = [
        StructField(field.name, field.dataType, field.nullable, field.metadata) for field in df.schema.fields
    ]
    failure_fields = [] if failures is None else [_failure_column(failures)]
    env = StreamExecutionEnvironment.get_execution_environment(df.sparkSession)
    stream = env.from_dataframe(df)._apply_async(call, options).name(call.__name__)
    return stream.to_dataframe(StructType([*input_fields, *added.fields, *failure_fields]))


def window_aggregate(
    df: DataFrame,
    *,
    keys: str | Sequence[str],
    time: str,
    window: WindowAssigner,
    delay: DurationLike = 0,
    allowed_lateness: DurationLike = 0,
    uid: str | None = None,
    **aggregates: ColumnAggregate,
) -> DataFrame:
    """Aggregate the rows of each key in event-time windows, with Arrow.

    State is columnar, and rows are never converted to Python objects. See :meth:`WindowedStream.aggregate`.

    Args:
        keys: one or more column names, or ``[]`` for windows over all rows.
        time: the event-time column: a timestamp, a date, or Unix time in ms; not null. Dates and TIMESTAMP_NTZ are in
            the session's time zone.
        window: the window assigner, such as ``TumblingEventTimeWindows.of("1 minute")``.
        delay: the maximum out-of-orderness, as in Spark's ``withWatermark``. The rows of a batch DataFrame may be in
            any order.
        allowed_lateness: how long a window is kept after its end. During this time, late rows fire the window again for
            their keys.
        uid: the uid of the operator's state, by default derived from the operator's position in the program.
        aggregates: column aggregates by result column, as in ``total=sum_("amount")``.

    Returns:
        a DataFrame with the keys, ``window_start`` and ``window_end`` (TIMESTAMP), and the aggregates. It is streaming
        if ``df`` is streaming. Late rows are dropped and counted in the metric ``late_records_dropped``.

    Raises:
        ProgramError: there is no aggregate, a column is missing or has the wrong type, or the windows are not
            event-time windows.

    Example:
        >>> import pillarbox.functions as PF
        >>> payments = spark.sql("SELECT 'ann' AS card, TIMESTAMP'2024-01-01 10:00:05Z' AS at, 50 AS amount")
        >>> minutes = TumblingEventTimeWindows.of("1 minute")
        >>> totals = PF.window_aggregate(
        ...     payments, keys="card", time="at", window=minutes, n=count_(), total=sum_("amount"))
        >>> totals.select("card", "n", "total").collect()
        [Row(card='ann', n=1, total=50)]
    """
    if not hasattr(df, "mapInArrow"):
        raise ProgramError(f"window_aggregate() takes a Spark DataFrame, not {shorten(df)}")
    if not aggregates:
        raise ProgramError("window_aggregate() takes at least one aggregate, such as total=sum_('amount')")
    if not isinstance(time, str):
        raise ProgramError(f"window_aggregate(): time= must be a column name, not {shorten(time)}")
    names = _names(keys, "window_aggregate(): keys=")
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(delay).with_timestamp_assigner(time)
    env = StreamExecutionEnvironment.get_execution_environment(df.sparkSession)
    timed = env.from_dataframe(df).assign_timestamps_and_watermarks(strategy)
    windows: WindowsOfOneStream[Any, Any] = timed.key_by(names).window(window) if names else timed.window_all(window)
    if allowed_lateness != 0:
        windows.allowed_lateness(allowed_lateness)
    stream = aggregate_columns(windows, aggregates)
    return (stream if uid is None else stream.uid(uid)).to_dataframe()


def interval_join(
    left: DataFrame,
    right: DataFrame,
    *,
    on: str | Sequence[str],
    time: str | tuple[str, str],
    lower: DurationLike,
    upper: DurationLike,
    how: Literal["inner", "left"] = "inner",
    lower_bound_exclusive: bool = False,
    upper_bound_exclusive: bool = False,
    delay: DurationLike = 0,
    suffixes: tuple[str, str] | None = None,
    uid: str | None = None,
) -> DataFrame:
    """Join rows of two DataFrames that have equal keys and close event times, with Arrow.

    State is columnar, and rows are never converted to Python objects. See :meth:`IntervalJoin.columns`.

    Args:
        left: a streaming or batch DataFrame.
        right: another DataFrame of the same session.
        on: the column or columns to join on. Nulls match nothing; NaN matches NaN.
        time: the event-time column, as in :func:`window_aggregate`, or (left column, right column).
        lower: the minimum of the right row's time minus the left row's time, such as ``"-5 seconds"``; an int is
            milliseconds.
        upper: the maximum of this difference.
        how: ``"inner"`` emits pairs. ``"left"`` also emits left rows without a match, with nulls in the right columns,
            as soon as event time rules out a match.
        delay: as in :func:`window_aggregate`.
        suffixes: as in :meth:`IntervalJoin.columns`.
        uid: as in :func:`window_aggregate`.

    Returns:
        a DataFrame with the columns of ``left``, then the columns of ``right`` except ``on``. It is streaming if both
        inputs are. Late rows are dropped.

    Raises:
        ProgramError: a column is missing or has the wrong type, both sides have a column of the same name but
            ``suffixes`` is not set, or the bounds exclude every pair.

    Example:
        >>> import pillarbox.functions as PF
        >>> sent = spark.sql("SELECT 7 AS id, TIMESTAMP'2024-01-01 10:00:05Z' AS sent")
        >>> got = spark.sql("SELECT 7 AS id, TIMESTAMP'2024-01-01 10:00:07Z' AS got, 'ok' AS answer")
        >>> both = PF.interval_join(sent, got, on="id", time=("sent", "got"), lower=0, upper="5 seconds")
        >>> both.select("id", "answer").collect()
        [Row(id=7, answer='ok')]
    """
    for which, df in (("left", left), ("right", right)):
        if not hasattr(df, "mapInArrow"):
            raise ProgramError(f"interval_join() takes Spark DataFrames, but {which} is {shorten(df)}")
    times = (time, time) if isinstance(time, str) else time
    if not isinstance(times, tuple) or len(times) != 2 or not all(isinstance(name, str) for name in times):
        raise ProgramError(
            f"interval_join(): time= must be a column name, or a (left, right) tuple of names, not {shorten(time)}"
        )
    names = _names(on, "interval_join(): on=")
    env = StreamExecutionEnvironment.get_execution_environment(left.sparkSession)
    left_stream, other = (
        env.from_dataframe(df, which)
        .assign_timestamps_and_watermarks(
            WatermarkStrategy.for_bounded_out_of_orderness(delay).with_timestamp_assigner(column)
        )
        .key_by(names)
        for df, which, column in ((left, "left", times[0]), (right, "right", times[1]))
    )
    joined = left_stream.interval_join(other).between(lower, upper)
    joined = joined.lower_bound_exclusive() if lower_bound_exclusive else joined
    joined = joined.upper_bound_exclusive() if upper_bound_exclusive else joined
    stream = joined.columns(how, suffixes=suffixes)
    return (stream if uid is None else stream.uid(uid)).to_dataframe()


def _names(columns: Any, what: str) -> list[str]:
    if isinstance(columns, str):
        return [columns]
    if not isinstance(columns, Sequence) or not all(isinstance(name, str) for name in columns):
        raise ProgramError(f"{what} must be a column name or a list of names, not {shorten(columns)}")
    return list(columns)


def _check_new_columns(df: DataFrame, names: Sequence[str]) -> None:
    sensitive = (df.sparkSession.conf.get("spark.sql.caseSensitive", "false") or "false").lower() == "true"

    def folded(name: str) -> str:
        return name if sensitive else name.lower()

    there = {folded(name): name for name in df.columns}
    new: set[str] = set()
    for name in names:
        if folded(name) in there:
            existing = there[folded(name)]
            hint = "" if existing == name else f", which Spark does not distinguish from {name!r}"
            raise ProgramError(f"async_map(): the DataFrame already has a column {existing!r}{hint}: rename the output")
        if folded(name) in new:
            raise ProgramError(f"async_map(): the output has two columns {name!r}: rename one")
        new.add(folded(name))


def _failure_column(name: str) -> StructField:
    from pyspark.sql.types import IntegerType, StringType, StructField, StructType

    fields = [StructField("type", StringType()), StructField("message", StringType())]
    return StructField(name, StructType([*fields, StructField("attempts", IntegerType())]))


class _Failure(NamedTuple):
    """A value of ``async_map``'s column for failures."""

    type: str
    message: str
    attempts: int


class _RowCall(AsyncCombiningFunction):
    """Calls a function with columns of a row, and appends the result to the row."""

    def __init__(
        self,
        function: Callable[..., Any],
        columns: tuple[str, ...] | None,
        added: StructType,
        *,
        batched: bool,
        takes_failures: bool,
    ) -> None:
        self._function = function
        self._columns = columns
        self._names = added.names
        self._required = {field.name for field in added.fields if not field.nullable}
        self._batched = batched
        self.takes_failures = takes_failures
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def open(self, runtime_context: RuntimeContext) -> Any:
        """Open the function. Return its coroutine, if any."""
        return self._function.open(runtime_context) if isinstance(self._function, Function) else None

    def close(self) -> Any:
        return self._function.close() if isinstance(self._function, Function) else None

    def _arguments(self, value: Any) -> Sequence[Any]:
        if self._batched:
            return [[self._part(row) for row in value]]
        return [value] if self._columns is None else [value[name] for name in self._columns]

    def _part(self, row: Any) -> Any:
        if self._columns is None:
            return row
        return row[self._columns[0]] if len(self._columns) == 1 else tuple(row[name] for name in self._columns)

    def combine(self, value: Any, result: Any) -> Any:
        added = (result,) if len(self._names) == 1 else self._added(value, result)
        return (*value, *added, None) if self.takes_failures else (*value, *added)

    def combine_failure(self, value: Any, error: BaseException, attempts: int) -> Any:
        kind = type(error).__name__
        message = describe(error).removeprefix(kind).removeprefix(": ")
        return (*value, *[None] * len(self._names), _Failure(kind, message, attempts))

    def _added(self, row: Any, result: Any) -> Sequence[Any]:
        names = self._names
        if isinstance(result, dict):
            wrong = self._misnamed(result)
            if wrong is not None:
                raise self._misfit(row, result, f"it {wrong}")
            return [result.get(name) for name in names]
        if isinstance(result, (tuple, list)):
            fields = getattr(result, "_fields", getattr(result, "__fields__", ()))
            if set(fields) == set(names):
                return [result[fields.index(name)] for name in names]
            if len(result) == len(names):
                return result
        elif _has_fields(result) and all(hasattr(result, name) for name in names):
            return [getattr(result, name) for name in names]
        raise self._misfit(
            row, result, f"it must return a tuple of {len(names)} values, or a dict or an object with these fields"
        )

    def _misnamed(self, result: dict[Any, Any]) -> str | None:
        unknown = sorted(map(repr, result.keys() - set(self._names)))
        if unknown:
            return f"has a field {unknown[0]}, which is not declared"
        missing = sorted(map(repr, self._required - result.keys()))
        return f"has no field {missing[0]}, which must not be null" if missing else None

    def _misfit(self, row: Any, result: Any, why: str) -> OperatorError:
        return OperatorError(
            f"async_map(): {self.__name__} returned {shorten(result)} for the record {shorten_record(row)} and the"
            f" columns {', '.join(self._names)}: {why}"
        )


def _has_fields(value: Any) -> bool:
    """Return whether a value's attributes can be columns. False for plain values such as a ``str``."""
    return dataclasses.is_dataclass(value) or (
        type(value).__module__ != "builtins" and (hasattr(value, "__dict__") or hasattr(type(value), "__slots__"))
    )


class _AsyncRowCall(_RowCall):
    async def __call__(self, value: Any) -> Any:
        return await self._function(*self._arguments(value))


class _PlainRowCall(_RowCall):
    def __call__(self, value: Any) -> Any:
        return self._function(*self._arguments(value))
