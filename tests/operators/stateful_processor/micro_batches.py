"""Runs the operator for Spark's stateful programs micro-batch by micro-batch, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from pillarbox._elements.records import ArrowRecords
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorFactory
from pillarbox._operators.frame.spark_time import SparkMicroBatch
from pillarbox._operators.stateful_processor.frames import FrameOptions
from pillarbox._operators.stateful_processor.group_state import STATE, GroupStateOperator
from pillarbox._operators.stateful_processor.handle import HandleDeclarations, StateVariable, declare
from pillarbox._operators.stateful_processor.operator import ProcessorSettings, StatefulProcessorOperator
from pillarbox._task.vertex import ChainNode
from pillarbox._types.row_encoder import RowEncoder
from pillarbox._types.schema import resolve_schema
from pillarbox.testing import KeyedOneInputStreamOperatorTestHarness, OperatorSnapshot


class MicroBatches:
    """Runs micro-batches of rows ``(key, time in milliseconds, value)``.

    Args:
        program: a ``StatefulProcessor``, or a function with a ``GroupState`` that has columns ``state``.
        late: whether the watermark makes rows late.
        pandas: maximum number of rows per frame, or 0 for PySpark rows.
        zone: the session's time zone.
    """

    def __init__(
        self,
        program: Any,
        output: str = "k STRING, v INT",
        mode: str = "none",
        *,
        state: str = "",
        late: bool = False,
        pandas: int = 0,
        zone: str = "UTC",
        key: Sequence[str] = ("k",),
        initial: pa.Table | None = None,
        snapshot: OperatorSnapshot | None = None,
    ) -> None:
        self.columns = pa.schema([("k", pa.string()), ("t", pa.timestamp("us", zone)), ("v", pa.int32())])
        schema = resolve_schema(output)
        kinds = {"k": "STRING", "t": "TIMESTAMP", "v": "INT"}
        key_columns = resolve_schema(", ".join(f"{name} {kinds[name]}" for name in key))
        arrow = RowEncoder(schema, "test").arrow_schema
        keys = RowEncoder(key_columns, "test").arrow_schema
        conversion = {"safecheck": False, "assign_cols_by_name": True, "int_to_decimal_coercion_enabled": False}
        frames = FrameOptions(
            tuple(self.columns.names), keys, schema, zone, pandas or 100, 2**31 - 1, False, conversion
        )
        make: Any = StatefulProcessorOperator
        if state:
            make = GroupStateOperator
            declarations = HandleDeclarations({STATE: StateVariable("value", (resolve_schema(state),), None)})
        else:
            declarations = declare(program, mode, resolve_schema)
        settings = ProcessorSettings(
            program,
            declarations,
            mode,
            StructType(key_columns.fields),
            arrow,
            "t" if late else None,
            frames if pandas or state else None,
            None if initial is None else (initial, ("0 key",)),
        )
        keying = Keying(key[0] if len(key) == 1 else tuple(key), "test")
        factory = OperatorFactory(partial(make, settings=settings, keying=keying), keyed=True)
        self.harness = KeyedOneInputStreamOperatorTestHarness(ChainNode("test", "test", factory), snapshot=snapshot)
        self.operator: Any = self.harness.operator

    def run(
        self, rows: Sequence[tuple[Any, ...]], number: int | None = None, *, time: int = 0, watermark: int = 0
    ) -> list[tuple[Any, ...]]:
        if rows:
            columns = list(zip(*rows))
            columns[1] = tuple(None if at is None else round(1000 * at) for at in columns[1])
            arrays = [
                pa.array(column, pa.int64() if i == 1 else kind)
                for i, (column, kind) in enumerate(zip(columns, self.columns.types))
            ]
            arrays[1] = arrays[1].cast(self.columns.types[1])
            self.harness.push_records(ArrowRecords(pa.RecordBatch.from_arrays(arrays, schema=self.columns)))
        self.operator.context.micro_batch = SparkMicroBatch(number, time, watermark)
        self.harness.set_processing_time(time)
        self.harness.clear_output()
        self.snapshot = self.harness.snapshot()
        return [tuple(row) for row in self.harness.get_output()]
