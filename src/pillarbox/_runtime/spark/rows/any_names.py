"""Functions on the Arrow batches of a DataFrame, whatever its columns are called.

``DataFrame.mapInArrow`` looks columns up by their names, and takes a dot in one for a field of a struct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["map_in_arrow"]

_Function = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(df: DataFrame, function: _Function, schema: StructType | str) -> DataFrame:
    """Return what ``df.mapInArrow(function, schema)`` does where all names of columns are plain."""
    names = df.columns
    if not any("." in name or "`" in name for name in names):
        return df.mapInArrow(function, schema)
    return df.toDF(*(f"c{place}" for place in range(len(names)))).mapInArrow(_Named(function, names), schema)


class _Named:
    """Calls a function with batches whose columns have their names again."""

    def __init__(self, function: _Function, names: list[str]) -> None:
        self._function = function
        self._names = names

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._function(batch.rename_columns(self._names) for batch in batches)
