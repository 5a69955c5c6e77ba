"""Converts rows to pandas frames, and emitted frames to Arrow columns, like PySpark.

All keys' rows are converted together if this gives the same types as converting them key by key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from math import ceil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkValueError
from pyspark.sql.types import StructType

from pillarbox._operators.stateful_processor.sorted_rows import SortedRows

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class FrameOptions:
    """Settings of the program and the session for the conversion between Spark rows and pandas frames.

    Attributes:
        conversion: arguments for Spark to convert frames.
    """

    columns: tuple[str, ...]
    key: pa.Schema
    schema: StructType
    zone: str
    records: int
    bytes: int
    int_extension: bool
    conversion: Mapping[str, bool]

    def to_frame(self, batch: pa.RecordBatch) -> pd.DataFrame:
        import pandas as pd
        from pyspark.sql.conversion import ArrowBatchTransformer

        columns = ArrowBatchTransformer.to_pandas(batch, timezone=self.zone, prefer_int_ext_dtype=self.int_extension)
        return pd.concat(columns, axis=1)

    def keys(self, batch: pa.RecordBatch, *, keeps_types: bool) -> Iterator[tuple[Any, ...]]:
        """Return the keys in a batch's columns. With ``keeps_types``, numbers are numpy's."""
        columns = [series for _, series in self.to_frame(batch).items()]
        return zip(*[c.to_numpy() if keeps_types and c.dtype.kind in "iufb" else list(c) for c in columns])

    def to_columns(self, frame: pd.DataFrame) -> pa.RecordBatch:
        from pyspark.sql.conversion import PandasToArrowConversion

        return PandasToArrowConversion.convert(
            frame, self.schema, timezone=self.zone, arrow_cast=True, **self.conversion
        )


class SortedFrames:
    """Converts the rows of each key to a frame.

    Args:
        keeps_types: whether frames have the columns' types, as in ``applyInPandasWithState``. Otherwise, pandas infers
            types from values.
    """

    def __init__(self, rows: SortedRows, options: FrameOptions, *, keeps_types: bool) -> None:
        is_ = pa.types
        self._options, self._batch, self._keeps_types = options, rows.batch, keeps_types
        self.frame: Any = options.to_frame(rows.batch)
        nulls = [field.type for field, column in zip(rows.batch.schema, rows.batch.columns) if column.null_count]
        # A column's type depends on whether it has nulls, or on the types of its values.
        changing = (is_.is_boolean, is_.is_integer) if keeps_types else (is_.is_boolean,)
        self._by_key = options.int_extension or any(is_kind(kind) for is_kind in changing for kind in nulls)
        if not keeps_types and not self._by_key:
            kinds = {name: dtype.kind for name, dtype in self.frame.dtypes.items() if dtype.kind in "iuf"}
            self.frame = self.frame.astype({name: "float64" if k == "f" else "int64" for name, k in kinds.items()})
        row_bytes = rows.batch.nbytes / rows.batch.num_rows
        self._size = min(options.records, max(1, ceil(options.bytes / row_bytes))) if row_bytes else options.records

    def of_key(self, start: int, count: int) -> Iterator[Any]:
        end = start + count
        for at in range(start, end, self._size):
            yield self._frame(at, min(at + self._size, end))

    def _frame(self, start: int, end: int) -> pd.DataFrame:
        if not self._by_key:
            frame: pd.DataFrame = self.frame.iloc[start:end].reset_index(drop=True)
            return frame
        if self._keeps_types:
            return self._options.to_frame(self._batch.slice(start, end - start))
        import pandas as pd

        rows = list(self.frame.iloc[start:end].itertuples(index=False, name=None))
        return pd.DataFrame(rows, columns=self.frame.columns)


class FrameResults:
    """Converts emitted frames to Arrow columns, after concatenating consecutive frames with equal columns and types."""

    def __init__(self, schema: pa.Schema, options: FrameOptions) -> None:
        self._schema = schema
        self._options = options
        self._frames: list[pd.DataFrame] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def take(self, results: Iterable[Any]) -> None:
        import pandas as pd

        for result in results:
            if not isinstance(result, pd.DataFrame):
                raise PySparkValueError(
                    "Invalid return type. Please make sure that the UDF returns a pandas.DataFrame when the specified"
                    " return type is StructType."
                )
            if len(result):
                self._frames.append(result)
                self._length += len(result)

    def batches(self) -> Iterator[pa.RecordBatch]:
        import pandas as pd

        frames, self._frames, self._length = self._frames, [], 0
        for _, group in groupby(frames, lambda frame: (*frame.columns, *frame.dtypes)):
            alike = list(group)
            try:
                whole = alike[0] if len(alike) == 1 else pd.concat(alike, ignore_index=True)
                columns = [self._options.to_columns(whole)]
            except Exception:
                columns = list(map(self._options.to_columns, alike))
            for batch in columns:
                yield batch.cast(self._schema)
