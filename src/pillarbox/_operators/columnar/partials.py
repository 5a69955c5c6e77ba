"""Partial results of aggregates: record batches with keys, row counts, and each aggregate's columns.

They are sent through the shuffle, stored as state, and merged into results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.types as spark

from pillarbox._errors import CheckpointMismatchError, OperatorError, PillarboxError, ProgramError, shorten
from pillarbox._operators.columnar.accumulators import (
    Accumulator,
    AccumulatorColumn,
    AccumulatorOverflow,
    GroupedAccumulator,
    KernelAccumulator,
    arrow_type,
)
from pillarbox._operators.columnar.aggregates import ColumnAggregate
from pillarbox._operators.columnar.key_columns import grouped_fields, key_array
from pillarbox._operators.windowing.by_key import positions_by_key
from pillarbox._rows import batch_from_bytes, batch_to_bytes, column_to_list

ALL = "__pillarbox_all"
"""The key column of windows over all rows. All its values are zero."""
ROWS = "__pillarbox_rows"
"""The column of the number of rows in a partial result."""
START = "__pillarbox_start"
"""The column of the starts of sessions, in epoch milliseconds."""
END = "__pillarbox_end"
"""The column of the ends of sessions, in epoch milliseconds."""

# Metadata of a stored stream: the boundaries of its panes.
_WINDOWS = b"pillarbox.windows"
_INT64_MAX = 2**63 - 1
_LONG = pa.decimal128(38, 0)


@dataclass(frozen=True)
class PartialColumns:
    """The columns of a program's aggregates. Pickled and sent to the workers.

    Attributes:
        keys: the key columns with their types, or :data:`ALL` for windows over all rows.
        inputs: non-key columns that aggregates read.
        sessions: whether each partial result has its own start and end.
    """

    keys: spark.StructType
    inputs: spark.StructType
    aggregates: Mapping[str, ColumnAggregate]
    sessions: bool = False

    def grouped(self) -> list[spark.StructField]:
        return list(grouped_fields(self.keys.fields))

    def accumulators(self) -> dict[str, Accumulator]:
        types = {field.name: field.dataType for field in (*self.keys.fields, *self.inputs.fields)}
        accumulators = {}
        for name, aggregate in self.aggregates.items():
            try:
                accumulators[name] = aggregate.bind([types[column] for column in aggregate.columns])
            except ProgramError as error:
                raise ProgramError(f"aggregate({name}={aggregate!r}): {error}") from error
        return accumulators

    def result_type(self) -> spark.StructType:
        results = [spark.StructField(name, bound.result_type) for name, bound in self.accumulators().items()]
        bounds = [spark.StructField(name, spark.TimestampType()) for name in ("window_start", "window_end")]
        keys = [spark.StructField(field.name, field.dataType) for field in self.keys.fields if field.name != ALL]
        return spark.StructType([*keys, *bounds, *results])


class _Bound(NamedTuple):
    name: str
    aggregate: ColumnAggregate
    accumulator: Accumulator
    names: list[str]


class Partials:
    """Creates and merges an operator's partial results, and computes its results.

    Args:
        windows: describes the panes of stored partial results. None if they are never stored.
    """

    def __init__(self, columns: PartialColumns, operator: str, windows: str | None = None) -> None:
        self._operator = operator
        self._windows = windows
        self._keys = [field.name for field in columns.grouped()]
        self._key_types = {field.name: arrow_type(field.dataType) for field in columns.keys.fields if field.name != ALL}
        self._bound: list[_Bound] = []
        fields = [pa.field(field.name, arrow_type(field.dataType)) for field in columns.grouped()]
        fields.append(pa.field(ROWS, pa.int64()))
        if columns.sessions:
            fields += [pa.field(START, pa.int64()), pa.field(END, pa.int64())]
        for name, accumulator in columns.accumulators().items():
            aggregate = columns.aggregates[name]
            names = [f"{name}: {aggregate!r}[{index}]" for index in range(len(accumulator.parts))]
            fields += [pa.field(part, kind.kind) for part, kind in zip(names, accumulator.parts)]
            self._bound.append(_Bound(name, aggregate, accumulator, names))
        self._by_kernels = [
            (bound, it) for bound in self._bound if isinstance(it := bound.accumulator, KernelAccumulator)
        ]
        self._by_groups = [
            (bound, it) for bound in self._bound if isinstance(it := bound.accumulator, GroupedAccumulator)
        ]
        self.schema: pa.Schema = pa.schema(fields)
        self._sessions = columns.sessions
        self._result_schema = pa.schema(
            [pa.field(field.name, arrow_type(field.dataType)) for field in columns.result_type().fields]
        )

    def of_rows(
        self,
        columns: Mapping[str, pa.Array],
        times: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64] | None = None,
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        """Aggregate rows into partial results, one per key and start. Return (partial results, their starts).

        Args:
            times: Unix times in ms.
            starts: the start of each row's pane or session.
            ends: for sessions, each row's time plus the gap.
        """
        elements: dict[str, pa.Array] = {name: columns[name] for name in self._keys}
        elements[ROWS] = pa.array(np.ones(len(times), np.int64))
        if ends is not None:
            elements |= {START: pa.array(starts), END: pa.array(ends)}
        for bound, by_kernels in self._by_kernels:
            inputs = [columns[name] for name in bound.aggregate.columns]
            elements.update(zip(bound.names, by_kernels.elements(*inputs)))
        grouped, groups = self._group([*self._keys, _GROUP], {**elements, _GROUP: pa.array(starts)}, None)
        for bound, accumulator in self._by_groups:
            inputs = [columns[name] for name in bound.aggregate.columns]
            with self._located_errors():
                parts = accumulator.partial(groups, len(grouped[ROWS]), times, *inputs)
            grouped.update(zip(bound.names, parts))
        return self._batch(grouped), grouped[_GROUP].to_numpy()

    @contextmanager
    def _located_errors(self) -> Iterator[None]:
        try:
            yield
        except PillarboxError as error:
            error.at(operator=self._operator)
            raise

    def merged(self, batches: Sequence[pa.RecordBatch], start: int | None) -> pa.RecordBatch:
        return self._merged(batches, {}, [*self._keys], start)[0]

    def merged_apart(
        self, groups: Sequence[Sequence[pa.RecordBatch]], starts: Sequence[int]
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        """Merge partial results window by window, in one pass. Windows may share batches.

        Return one partial result per window and key, with the window's index.
        """
        lengths = [sum(batch.num_rows for batch in batches) for batches in groups]
        numbers = np.repeat(np.arange(len(groups)), lengths)
        batches = [batch for batches in groups for batch in batches]
        by = [*self._keys, _GROUP]
        merged, columns = self._merged(batches, {_GROUP: pa.array(numbers)}, by, np.array(starts, np.int64))
        return merged, columns[_GROUP].to_numpy()

    def of_keys(self, batches: Sequence[pa.RecordBatch], others: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Return the partial results whose keys are in ``others``, and possibly more."""
        values = self._different_keys(others)
        return [batch.filter(self._among(batch, values)) for batch in batches]

    def split(self, batch: pa.RecordBatch, other: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        among = self._among(batch, self._different_keys([other]))
        return batch.filter(among), batch.filter(pc.invert(among))

    def _different_keys(self, batches: Sequence[pa.RecordBatch]) -> list[pa.Array]:
        table = pa.Table.from_batches(batches)
        return [_array(table.column(name)).unique() for name in self._keys]

    def _among(self, batch: pa.RecordBatch, values: Sequence[pa.Array]) -> pa.Array:
        among = pa.array(np.ones(batch.num_rows, np.bool_))
        for name, column in zip(self._keys, values):
            among = pc.and_(among, pc.is_in(batch.column(name), value_set=column))
        return among

    def touched(
        self, batches: Sequence[pa.RecordBatch], marks: Sequence[bool], start: int
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_]]:
        parts = [np.full(batch.num_rows, mark) for batch, mark in zip(batches, marks)]
        merged, columns = self._merged(batches, {_MARK: pa.array(np.concatenate(parts))}, [*self._keys], start)
        return merged, columns[_MARK].to_numpy(zero_copy_only=False)

    def merged_by(
        self, batch: pa.RecordBatch, numbers: npt.NDArray[np.int64], marks: npt.NDArray[np.bool_]
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_]]:
        more = {_GROUP: pa.array(numbers), _MARK: pa.array(marks)}
        merged, columns = self._merged([batch], more, [*self._keys, _GROUP], None)
        return merged, columns[_MARK].to_numpy(zero_copy_only=False)

    def by_key(self, columns: Mapping[str, pa.Array]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return row positions, grouped by key and in order within a key, and each position's key number."""
        positions, lengths = positions_by_key([columns[name] for name in self._keys])
        return positions, np.repeat(np.arange(len(lengths)), lengths)

    def _merged(
        self, batches: Sequence[pa.RecordBatch], more: dict[str, Any], by: list[str], starts: Any
    ) -> tuple[pa.RecordBatch, dict[str, pa.Array]]:
        table = pa.Table.from_batches(batches)
        grouped, groups = self._group(by, {**dict(zip(table.column_names, table.columns)), **more}, starts)
        for bound, accumulator in self._by_groups:
            parts = [_array(table.column(name)) for name in bound.names]
            with self._located_errors():
                merged = accumulator.merge(groups, len(grouped[ROWS]), *parts)
            grouped.update(zip(bound.names, merged))
        return self._batch(grouped), grouped

    def _group(
        self, by: list[str], columns: dict[str, Any], starts: Any
    ) -> tuple[dict[str, pa.Array], npt.NDArray[np.int64]]:
        kernels = {ROWS: AccumulatorColumn(pa.int64(), "count")}
        if self._sessions:
            kernels |= {START: AccumulatorColumn(pa.int64(), "min"), END: AccumulatorColumn(pa.int64(), "max")}
        if _MARK in columns:
            kernels[_MARK] = AccumulatorColumn(pa.bool_(), "max")
        for bound, by_kernels in self._by_kernels:
            kernels.update(zip(bound.names, by_kernels.parts))
        # Columns are named by numbers, because users may choose any names.
        count = len(columns[ROWS])
        arrays = [columns[name] for name in by]
        names = [str(index) for index in range(len(by))]
        aggregations: list[tuple[str, str]] = []
        for name, part in kernels.items():
            column = columns[name]
            arrays.append(_wide(column, part, count) if part.kernel == "sum" else column)
            aggregations.append((str(len(names)), "sum" if part.kernel == "count" else part.kernel))
            names.append(aggregations[-1][0])
        if self._by_groups:
            arrays.append(pa.array(np.arange(count)))
            aggregations.append((str(len(names)), "list"))
            names.append(aggregations[-1][0])
        table = pa.table(arrays, names=names)
        grouped = table.group_by(names[: len(by)], use_threads=False).aggregate(aggregations)
        outcome = {name: _array(grouped.column(str(index))) for index, name in enumerate(by)}
        for (name, part), (index, function) in zip(kernels.items(), aggregations):
            try:
                outcome[name] = _narrow(_array(grouped.column(f"{index}_{function}")), part)
            except AccumulatorOverflow as overflow:
                bound = next(bound for bound in self._bound if name in bound.names)
                raise self._overflow(bound, overflow.index, outcome, starts) from None
        groups = np.empty(count, np.int64)
        if self._by_groups:
            positions = _array(grouped.column(f"{aggregations[-1][0]}_list"))
            lengths = pc.list_value_length(positions).to_numpy()
            groups[positions.flatten().to_numpy()] = np.repeat(np.arange(len(positions)), lengths)
        return outcome, groups

    def _batch(self, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    def results(
        self, merged: pa.RecordBatch, starts: int | npt.NDArray[np.int64], ends: int | npt.NDArray[np.int64]
    ) -> pa.RecordBatch:
        count = merged.num_rows
        columns = dict(zip(merged.schema.names, merged.columns))
        arrays = self._key_arrays(columns)
        for bound in (starts, ends):
            millis = np.full(count, bound) if isinstance(bound, int) else bound
            arrays.append(pa.array(millis * 1000).view(pa.timestamp("us", tz="UTC")))
        for aggregate in self._bound:
            kind = self._result_schema.field(len(arrays)).type
            try:
                with self._located_errors():
                    results = aggregate.accumulator.result(columns[ROWS], *(columns[name] for name in aggregate.names))
            except AccumulatorOverflow as overflow:
                raise self._overflow(aggregate, overflow.index, columns, starts) from None
            arrays.append(results if results.type == kind else results.cast(kind))
        return pa.RecordBatch.from_arrays(arrays, schema=self._result_schema)

    def _key_arrays(self, columns: Mapping[str, Any]) -> list[pa.Array]:
        return [key_array(name, kind, columns) for name, kind in self._key_types.items()]

    def _overflow(self, bound: _Bound, index: int, columns: Mapping[str, Any], starts: Any) -> OperatorError:
        keys = [_shown(key.slice(index, 1)) for key in self._key_arrays(columns)]
        key = keys[0] if len(keys) == 1 else tuple(keys)
        whose = f" of key {shorten(key)}" if keys else ""
        start = starts if isinstance(starts, int) else None
        if isinstance(starts, np.ndarray):
            start = int(starts[columns[_GROUP][index].as_py() if _GROUP in columns else index])
        for name in (START, _GROUP):
            if start is None and name in columns:
                start = columns[name][index].as_py()
        where = "" if start is None else f" in the window from {start} (epoch ms)"
        kind = bound.accumulator.result_type
        advice = "cast the column to a type with more digits, such as DECIMAL(38, 0), or to DOUBLE"
        if isinstance(kind, spark.DayTimeIntervalType):
            advice = "aggregate its seconds instead, as DOUBLE"
        error = OperatorError(
            f"operator {self._operator!r}: {bound.name}={bound.aggregate!r}{whose}{where} does not fit"
            f" {kind.simpleString()}: {advice}"
        )
        error.at(operator=self._operator, **({"key": key} if keys else {}))
        return error

    def encode(self, batch: pa.RecordBatch) -> bytes:
        noted = None if self._windows is None else {_WINDOWS: self._windows}
        return batch_to_bytes(batch.replace_schema_metadata(noted))

    def decode(self, payload: bytes) -> pa.RecordBatch:
        batch = batch_from_bytes(payload)
        noted = (batch.schema.metadata or {}).get(_WINDOWS)
        windows = None if noted is None else noted.decode()
        if windows != self._windows:
            raise self._others("windows of another kind", windows, self._windows)
        if not batch.schema.equals(self.schema):
            had, has = (
                ", ".join(name for name in schema.names if not name.startswith("__pillarbox"))
                for schema in (batch.schema, self.schema)
            )
            raise self._others("windows with other aggregates", had, has)
        return batch

    def _others(self, what: str, had: str | None, has: str | None) -> CheckpointMismatchError:
        return CheckpointMismatchError(
            f"operator {self._operator!r}: the checkpoint holds {what}: it has {had}, but the program has {has}: give"
            " the changed windows another uid() and start from a savepoint with allow_non_restored_state=True, which"
            " drops unfinished windows, or use a new checkpoint directory"
        )


_GROUP = "__pillarbox_group"
_MARK = "__pillarbox_mark"


def _shown(column: pa.Array) -> Any:
    try:
        return column_to_list(column)[0]
    except ValueError:
        return column.cast(pa.string())[0].as_py()


def _array(column: Any) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _wide(column: Any, part: AccumulatorColumn, count: int) -> Any:
    """Cast numbers to a type that can hold their sum, because Arrow's sums overflow silently."""
    kind = part.kind
    if pa.types.is_floating(kind) or (pa.types.is_decimal(kind) and kind.precision < 38):
        return column  # a sum of decimals could exceed it only with 10**10 rows
    bounds = pc.min_max(column).as_py()
    if bounds["min"] is None:
        return column
    if pa.types.is_decimal(kind):
        # Compares digits, because Decimal arithmetic has its own precision.
        largest = max(int("".join(map(str, bound.as_tuple().digits))) for bound in bounds.values())
        return column if largest * count < 10**38 else column.cast(pa.decimal256(76, kind.scale))
    largest = max(abs(bounds["min"]), abs(bounds["max"]))
    return column if largest * count <= _INT64_MAX else column.cast(_LONG)


def _narrow(column: pa.Array, part: AccumulatorColumn) -> pa.Array:
    if column.type == part.kind:
        return column
    try:
        return column.cast(part.kind)
    except pa.ArrowInvalid:
        for index in range(len(column)):
            try:
                column.slice(index, 1).cast(part.kind)
            except pa.ArrowInvalid:
                raise AccumulatorOverflow(index) from None
        raise
