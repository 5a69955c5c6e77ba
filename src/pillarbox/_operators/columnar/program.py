"""``ColumnarProgram``, and the conversion of records to columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyspark.sql.types as spark

from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._errors import ProgramError
from pillarbox._operators.columnar.accumulators import arrow_type
from pillarbox._operators.columnar.key_columns import grouped_arrays
from pillarbox._operators.columnar.partials import ALL, PartialColumns
from pillarbox._operators.windowing.api.assigner import WindowAssigner
from pillarbox._types.row_encoder import RowEncoder


@dataclass(frozen=True)
class ColumnarProgram:
    """A columnar operator's windows and aggregates.

    Attributes:
        lateness: allowed lateness (ms).
        encoder: converts Python rows to columns, or the reason why it cannot.
    """

    assigner: WindowAssigner
    columns: PartialColumns
    lateness: int
    encoder: RowEncoder | str

    def columns_of(self, records: Records, operator: str) -> Mapping[str, pa.Array]:
        keys = self.columns.keys.fields
        inputs = [field.name for field in self.columns.inputs.fields]
        fields = {field.name: field for field in (*keys, *self.columns.inputs.fields) if field.name != ALL}
        run = columns_of_run(records, fields.values(), self.encoder, operator)
        columns = {name: run[name] for name in inputs}
        for field in keys:
            key = pa.array(np.zeros(len(records), np.int64)) if field.name == ALL else run[field.name]
            columns.update(grouped_arrays(field.name, key))
        return columns


def columns_of_run(
    records: Records, fields: Iterable[spark.StructField], encoder: RowEncoder | str, operator: str
) -> dict[str, pa.Array]:
    """Convert records to columns. Raises if a column is missing or a value does not fit its column."""
    if isinstance(records, ArrowRecords):
        batch = records.batch
    elif isinstance(encoder, str):
        raise ProgramError(
            f"operator {operator!r}: an earlier Python function, such as a filter, has turned the rows into Python"
            f" objects, but {encoder}; or drop the column before from_dataframe(), or apply the filter to the DataFrame"
        )
    else:
        batch = encoder.encode(records.values)
    columns: dict[str, pa.Array] = {}
    for field in fields:
        index = batch.schema.get_field_index(field.name)
        kind = arrow_type(field.dataType)
        if index < 0:
            raise ProgramError(
                f"operator {operator!r}: there is no column {field.name!r}; the columns are"
                f" {', '.join(batch.schema.names)}"
            )
        column = batch.column(index)
        columns[field.name] = column if column.type == kind else column.cast(kind)
    return columns


def times_of_run(records: Records, reader: str, before: str) -> npt.NDArray[np.int64]:
    stamps = records.stamps if isinstance(records, ArrowRecords) else records.timestamps
    if stamps is None or (not isinstance(stamps, np.ndarray) and None in stamps):
        raise ProgramError(
            f"{reader} got an element without a timestamp: put assign_timestamps_and_watermarks(...) before {before}"
        )
    return np.asarray(stamps, np.int64)
