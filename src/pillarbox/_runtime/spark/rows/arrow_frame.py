"""Wraps Arrow batches in pandas frames, which Spark's stateful operator requires.

A pandas column may contain an Arrow array, which Spark uses without a conversion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa


class _Column(pd.Series):  # type: ignore[misc]
    """A pandas column that contains an Arrow array, which PySpark's conversion with ``apply`` leaves unchanged."""

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
    """Wrap a batch in a frame without copying. Only Spark may use the frame's columns."""
    columns = zip(batch.schema.names, batch.columns)
    return _Frame(
        {name: pd.arrays.ArrowExtensionArray(pa.chunked_array([array])) for name, array in columns}, copy=False
    )
