"""The end of the plan: buffers of an output become its typed columns; task metrics become rows beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from types import UnionType
from typing import get_args, get_type_hints

import pyarrow as pa

from pillarbox.elements import ArrowRecords, TaskReport, decode
from pillarbox.graph import REPORT_TARGET

__all__ = ["REPORT_TYPES", "OutputDecoder"]

_SPARK_TYPES = {str: "STRING", int: "LONG", bool: "BOOLEAN", dict[str, int]: "MAP<STRING, LONG>"}

# A task's metrics, by name, with their Spark types. A program's observed metrics are a list of such structs.
REPORT_TYPES = {
    name: _SPARK_TYPES[get_args(hint)[0] if isinstance(hint, UnionType) else hint]
    for name, hint in get_type_hints(TaskReport).items()
}


class OutputDecoder:
    """The function for ``mapInArrow``: the columns of outputs, and a column with a task's metrics in JSON.

    A row has either the columns of one output or the metrics. One output has its columns at the top; of several, each
    has a struct column with its name.

    Args:
        outputs: name and columns of each output, by its code.
        name: the function's name in Spark's plan.
        report: the name of the column for metrics; None: they are left out.
    """

    def __init__(self, outputs: dict[int, tuple[str, pa.Schema]], name: str, report: str | None) -> None:
        self.__name__ = name
        self._report = report
        self._outputs = outputs
        self._nested = len(outputs) > 1
        fields: list[pa.Field] = []
        for name, columns in outputs.values():
            nullable = [field.with_nullable(True) for field in columns]
            fields += [pa.field(name, pa.struct(nullable))] if self._nested else nullable
        self._schema = pa.schema(fields if report is None else [*fields, (report, pa.string())])

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode Arrow batches of buffers."""
        for batch in batches:
            for target, payload in zip(batch.column(0).to_pylist(), batch.column(3)):
                yield from self.decode(target, payload.as_py())

    def decode(self, target: int, payload: bytes) -> Iterator[pa.RecordBatch]:
        """Return a buffer's rows; those of other outputs are passed over."""
        if target in self._outputs:
            records = decode(payload)
            assert isinstance(records, ArrowRecords)
            rows = records.batch
            columns = dict(zip(rows.schema.names, rows.columns))
            if self._nested:
                name = self._outputs[target][0]
                kind = self._schema.field(name).type
                columns = {name: pa.StructArray.from_arrays(rows.columns, fields=list(kind))}
            yield self._batch(rows.num_rows, columns)
        elif target == REPORT_TARGET and self._report is not None:
            report = decode(payload)
            assert isinstance(report, TaskReport)
            yield self._batch(1, {self._report: pa.array([json.dumps(vars(report))], pa.string())})

    def _batch(self, rows: int, columns: dict[str, pa.Array]) -> pa.RecordBatch:
        arrays = [
            columns[field.name] if field.name in columns else pa.nulls(rows, field.type) for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
