"""pillarbox for DataFrames: one call, a DataFrame in, a DataFrame out, no stream in sight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pillarbox.datastream import Function, RuntimeContext, StreamExecutionEnvironment
from pillarbox.errors import OperatorError, ProgramError, shorten
from pillarbox.operators.async_io.cache import AsyncCache
from pillarbox.operators.async_io.function import CombiningFunction
from pillarbox.operators.async_io.host import is_coroutine_function
from pillarbox.types import resolve_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["async_map"]


def async_map(
    df: DataFrame,
    fn: Callable[..., Any],
    output: Any,
    *,
    columns: str | Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """Add columns that a service gives, with many requests under way at a time.

    Args:
        df: a streaming or batch DataFrame; its columns stay.
        fn: ``async def f(row)``, a plain function (it runs in a thread pool), or an object with such a ``__call__``; as
            in :meth:`DataStream.map_async`. With ``batch_size`` it gets a list of rows, and gives a list of results.
        output: the columns to add: a DDL string such as ``"score DOUBLE"``, or anything else that tells columns. For
            one column, ``fn`` gives its value; for several a tuple, dict, dataclass or ``NamedTuple``.
        columns: what of a row to give to ``fn``: these columns, as so many arguments (of a batch: tuples of them, or
            single values where it is one column); by default the row.
        options: those of :meth:`DataStream.map_async`: ``capacity``, ``timeout``, ``ordered``, ``cache``
            (whose key is by default that of ``columns``), ...

    Returns:
        the columns of ``df``, then those of ``output``; streaming if ``df`` is.

    Raises:
        ProgramError: a column is not there, or there twice; an option is of no use.
    """
    from pyspark.sql.types import StructField, StructType

    if not hasattr(df, "mapInArrow"):
        raise ProgramError(f"async_map() takes a Spark DataFrame, not {shorten(df)}")
    added = resolve_schema(output)
    doubled = sorted(set(added.names) & set(df.columns))
    if doubled:
        raise ProgramError(f"async_map(): the DataFrame has a column {doubled[0]!r} already: name the output otherwise")
    wanted = (columns,) if isinstance(columns, str) else None if columns is None else tuple(columns)
    for column in wanted or ():
        if column not in df.columns:
            raise ProgramError(
                f"async_map(): there is no column {column!r} to give to the function; the columns are"
                f" {', '.join(df.columns)}"
            )
    if callable(fn) and not isinstance(fn, type):
        kind = _AsyncRowCall if is_coroutine_function(fn) else _PlainRowCall
        call = kind(fn, wanted, added.names, batched=options.get("batch_size") is not None)
    else:
        raise ProgramError(f"async_map() got {shorten(fn)}: give it a function, such as an async def")
    cache = options.get("cache")
    if isinstance(cache, AsyncCache) and cache.key is None and wanted:
        options["cache"] = replace(cache, key=wanted)
    kept = [StructField(field.name, field.dataType, field.nullable, field.metadata) for field in df.schema.fields]
    env = StreamExecutionEnvironment.get_execution_environment(df.sparkSession)
    stream = env.from_dataframe(df).map_async(call, **options).name(call.__name__)
    return stream.to_dataframe(StructType([*kept, *added.fields]))


class _RowCall(CombiningFunction):
    """Calls a function with what it wants of a row, and puts what it gives behind the row's columns."""

    def __init__(
        self, function: Callable[..., Any], columns: tuple[str, ...] | None, names: list[str], *, batched: bool
    ) -> None:
        self._function = function
        self._columns = columns
        self._names = names
        self._batched = batched
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def open(self, runtime_context: RuntimeContext) -> Any:
        """Open the function, if there is something to open; an ``async def`` gives its coroutine."""
        return self._function.open(runtime_context) if isinstance(self._function, Function) else None

    def close(self) -> Any:
        """Close the function."""
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
        """Put what the function gave behind the row's columns."""
        return (*value, *self._added(result))

    def _added(self, result: Any) -> Sequence[Any]:
        names = self._names
        if len(names) == 1:
            return (result,)
        if isinstance(result, dict):
            return [result.get(name) for name in names]
        if isinstance(result, (tuple, list)) and len(result) == len(names):
            return result
        if all(hasattr(result, name) for name in names):
            return [getattr(result, name) for name in names]
        raise OperatorError(
            f"async_map(): {self.__name__} gave {shorten(result)} for the columns {', '.join(names)}: it has to give a"
            f" tuple of {len(names)} values, or a dict or an object with these names"
        )


class _AsyncRowCall(_RowCall):
    async def __call__(self, value: Any) -> Any:
        return await self._function(*self._arguments(value))


class _PlainRowCall(_RowCall):
    def __call__(self, value: Any) -> Any:
        return self._function(*self._arguments(value))
