"""Wraps Arrow batches in pandas frames, which Spark's stateful operator requires."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa


class _Column(pd.Series):  # type: ignore[misc]
    """A pandas column with an Arrow array. PySpark's conversion with ``apply`` leaves it unchanged."""

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
