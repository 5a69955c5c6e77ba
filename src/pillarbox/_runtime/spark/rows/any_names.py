"""Allows any column names in ``DataFrame.mapInArrow``, which reads a dot as access to a struct's field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from pillarbox._runtime.spark.failures import failures_in_worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_Function = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def with_plain_names(df: DataFrame) -> DataFrame:
    names = df.columns
    if not any("." in name or "`" in name for name in names):
        return df
    return df.toDF(*(f"c{index}" for index in range(len(names))))


def map_in_arrow(df: DataFrame, task: str, function: _Function, schema: StructType | str) -> DataFrame:
    return with_plain_names(df).mapInArrow(_Mapped(task, function, df.columns), schema)


class _Mapped:
    def __init__(self, task: str, function: _Function, names: list[str]) -> None:
        self._task = task
        self._function = function
        self._names = names

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with failures_in_worker(self._task, 0):
            yield from self._function(batch.rename_columns(self._names) for batch in batches)
