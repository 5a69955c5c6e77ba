"""Arrow batches as the pandas frames that Spark's stateful operator takes.

It makes Arrow of them again, and nothing is converted in between: a pandas column may hold an Arrow array. PySpark
hands such a column on as it is, but for nested types. There it first has each value converted, by the column's
``apply``, from what users have in their frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa


class _Column(pd.Series):  # type: ignore[misc]
    """A column of an Arrow array that has its final type: there is nothing to apply to its values."""

    @property
    def _constructor(self) -> Callable[..., Any]:
        return _Column

    def apply(self, *args: Any, **options: Any) -> Any:
        return self


class _Frame(pd.DataFrame):  # type: ignore[misc]
    """A frame of such columns."""

    @property
    def _constructor(self) -> Callable[..., Any]:
        return _Frame

    @property
    def _constructor_sliced(self) -> Callable[..., Any]:
        return _Column


def arrow_frame(batch: pa.RecordBatch) -> pd.DataFrame:
    """Return the frame of a batch, without copying; its columns are for Spark only."""
    columns = zip(batch.schema.names, batch.columns)
    return _Frame(
        {name: pd.arrays.ArrowExtensionArray(pa.chunked_array([array])) for name, array in columns}, copy=False
    )
