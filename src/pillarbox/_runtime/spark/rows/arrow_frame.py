"""Arrow batches as pandas frames, for Spark's stateful operator.

A pandas column may contain an Arrow array, which Spark uses without a conversion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa


class _Column(pd.Series):  # type: ignore[misc]
    """A pandas column that contains an Arrow array. PySpark's conversion by ``apply`` does not change it."""

    @property
    def _constructor(self) -> Callable[..., Any]:
        return _Column

    def apply(self, *args: Any, **options: Any) -> Any:
        return self


class _Frame(pd.DataFrame):  # type: ignore[misc]
    @property
    def _constructor(self) -> Callable[..., Any]:
        return _Frame

    @property
    def _constructor_sliced(self) -> Callable[..., Any]:
        return _Column


def arrow_frame(batch: pa.RecordBatch) -> pd.DataFrame:
    """Return a batch as a frame without copying. Only Spark may use the frame's columns."""
    columns = zip(batch.schema.names, batch.columns)
    return _Frame(
        {name: pd.arrays.ArrowExtensionArray(pa.chunked_array([array])) for name, array in columns}, copy=False
    )
