"""A micro-batch's rows, buffered as columns and ordered by key at the barrier, as in Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pillarbox._operators.stateful_processor.value_codec import row_maker
from pillarbox._rows import column_to_list

_PORTION = 8192


def values_of(column: pa.Array) -> list[Any]:
    is_, kind = pa.types, column.type
    if is_.is_integer(kind) or is_.is_floating(kind) or is_.is_string(kind) or is_.is_boolean(kind):
        return column_to_list(column)
    if is_.is_timestamp(kind) and kind.tz is not None:
        zone = pa.lib.string_to_tzinfo(kind.tz)
        return [None if value is None else value.astimezone(zone) for value in column_to_list(column)]
    values: list[Any] = column.to_pylist()
    return values


def without_late(table: pa.Table, column: str, watermark: int) -> pa.Table:
    """Return the rows whose event time is null or after ``watermark`` (ms)."""
    times = table.column(column)
    if pa.types.is_struct(times.type):
        times = pc.struct_field(times, "end")
    keeps = pc.fill_null(pc.greater(times.cast(pa.int64()), watermark * 1000), True)
    return table.filter(keeps)


class SortedRows:
    """Rows ordered by key, nulls first. There is at least one row."""

    def __init__(self, table: pa.Table, columns: Sequence[str]) -> None:
        flat = [part for name in columns for part in _parts(table.column(name))]
        parts = pa.table(flat, list(map(str, range(len(flat)))))
        order = pc.sort_indices(parts, [(name, "ascending") for name in parts.column_names])
        (self.batch,) = table.take(order).combine_chunks().to_batches()
        differs = np.zeros(self.batch.num_rows, np.bool_)
        differs[0] = True
        for part in parts.take(order).combine_chunks().columns:
            codes = part.chunk(0).dictionary_encode("encode").indices.to_numpy()
            differs[1:] |= codes[1:] != codes[:-1]
        self.starts = np.flatnonzero(differs)
        self.keys: Any = self.batch.take(pa.array(self.starts))
        self.counts: list[int] = np.diff(self.starts, append=self.batch.num_rows).tolist()

    def rows(self) -> Iterator[Any]:
        make = row_maker(tuple(self.batch.schema.names))
        for start in range(0, self.batch.num_rows, _PORTION):
            columns = self.batch.slice(start, _PORTION).columns
            yield from map(make, zip(*map(values_of, columns)))


def _parts(column: Any) -> Iterator[Any]:
    """Return flat columns that are equal for equal keys, and that sort keys as Spark does.

    A null flag precedes each nullable column, because Spark sorts nulls first, and Arrow last. 0.0 replaces -0.0,
    because they are equal in Spark, but not in Arrow's dictionaries.
    """
    if column.null_count:
        yield column.is_valid()
    if pa.types.is_struct(column.type):
        for field in column.flatten():
            yield from _parts(field)
    elif pa.types.is_floating(column.type):
        yield pc.add(column, pa.scalar(0, column.type))
    else:
        yield column


class RowResults:
    """Converts emitted rows to columns by name, like PySpark. Missing columns become null."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._is_flat = not any(pa.types.is_nested(field.type) for field in schema)
        self.rows: list[Any] = []
        self.take: Callable[[Iterable[Any]], None] = self.rows.extend

    def __len__(self) -> int:
        return len(self.rows)

    def batches(self) -> list[pa.RecordBatch]:
        rows = self.rows.copy()
        self.rows.clear()
        try:
            return [self._columns(rows)]
        except (TypeError, AttributeError, pa.ArrowException) as error:
            for row in rows:
                self._explain(row)
            raise error

    def _columns(self, rows: list[Any]) -> pa.RecordBatch:
        fields = [getattr(row, "__fields__", None) for row in rows]
        first = fields[0]
        if not self._is_flat or first is None or fields.count(first) < len(fields) or len(set(first)) < len(first):
            return pa.RecordBatch.from_pylist([row.asDict(True) for row in rows], schema=self._schema)
        columns = dict(zip(first, zip(*rows)))
        nulls = (None,) * len(rows)
        arrays = [pa.array(columns.get(field.name, nulls), field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _explain(self, row: Any) -> None:
        try:
            self._columns([row])
        except (TypeError, AttributeError, pa.ArrowException) as error:
            raise type(error)(f"{error}: the processor emitted {row!r}") from error
