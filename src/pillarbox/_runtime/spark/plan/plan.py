"""Plans a program as one DataFrame, from sources through levels to outputs."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pillarbox._elements.buffers import decode, dumps
from pillarbox._elements.records import Records
from pillarbox._errors import ProgramError, raise_from_user_code
from pillarbox._graph.program import Program
from pillarbox._graph.targets import output_target
from pillarbox._graph.transformations import CollectionSource, DataFrameSource, SourceTransformation
from pillarbox._operators.frame.spark_time import SparkTime
from pillarbox._runtime.shipping import ShippedVertex, ship
from pillarbox._runtime.spark.budgets.server import ledger_for
from pillarbox._runtime.spark.failures import unwrapped_failures
from pillarbox._runtime.spark.plan.registry import register
from pillarbox._runtime.spark.rows.any_names import quoted, with_plain_names
from pillarbox._runtime.spark.rows.buffer_rows import BUFFER_SCHEMA, BufferRows
from pillarbox._runtime.spark.rows.output import (
    BATCH_TIMESTAMP,
    BufferOutput,
    ColumnOutput,
    TaskOutput,
)
from pillarbox._runtime.spark.session.requirements import check_requirements
from pillarbox._runtime.spark.session.session_settings import without_setting
from pillarbox._runtime.spark.session.spark_names import BATCH_BYTES
from pillarbox._runtime.spark.tasks.task_info import TaskLayout
from pillarbox._runtime.spark.worker.batch_host import BatchTaskHost
from pillarbox._runtime.spark.worker.source_host import SourceHost
from pillarbox._runtime.spark.worker.worker_sockets import acknowledge_at_once
from pillarbox._tracebacks import keep_user_frames
from pillarbox._types.row_encoder import RowEncoder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

    from pillarbox._state.savepoint.manifest import OperatorTable


# A part of a nested type that cannot be null.
_REQUIRED = re.compile(r'"(nullable|containsNull|valueContainsNull)": ?false')


def _unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    acknowledge_at_once()
    return batches


def _one_time(millis: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    time = pa.array([millis * 1000], pa.int64()).cast(pa.timestamp("us", "UTC"))
    yield pa.RecordBatch.from_arrays([time], ["at"])


@dataclass(frozen=True)
class PlannedFirstEpoch:
    """The first epoch of a query that starts from a savepoint."""

    sources: DataFrame
    state: Callable[[Sequence[int]], DataFrame]
    tables: dict[int, OperatorTable]
    watermark: int = 0


class _Plan:
    """A program's DataFrame plan. With ``first``, it is the plan of the epoch that restores a savepoint."""

    def __init__(self, program: Program, spark: SparkSession, first: PlannedFirstEpoch | None = None) -> None:
        self._first = first
        self.program = program
        self.session = spark
        dataframes = [source.dataframe for source in program.sources.values() if isinstance(source, DataFrameSource)]
        self.is_streaming = any(df.isStreaming for df in dataframes)
        check_requirements(spark, streaming=self.is_streaming)
        if self.is_streaming and not all(df.isStreaming for df in dataframes):
            raise ProgramError(
                "the program reads streaming and batch DataFrames, but a batch DataFrame has no rows for later epochs:"
                " join it to the streaming DataFrame with Spark, before from_dataframe()"
            )
        for vertex in program.vertices:
            vertex.fires_processing_time = program.uses_processing_time or not self.is_streaming
        ledger = ledger_for(spark, program)
        self.shipped: list[ShippedVertex] = [replace(ship(vertex), ledger=ledger) for vertex in program.vertices]
        self._layout = TaskLayout.of(program)
        # A home admits only callers with this secret.
        self.secret = secrets.token_hex(16)
        factories = (node.factory for vertex in program.vertices for node in vertex.nodes)
        self._time: SparkTime | None = next((factory.spark_time for factory in factories if factory.spark_time), None)

    def rows(self, output: TaskOutput, schema: str | StructType, metrics: _Metrics | None = None) -> DataFrame:
        """Return an output as a DataFrame, without the metrics column."""
        report = None if metrics is None else metrics.column
        last = len(self.program.levels) - 1
        rows: DataFrame | None = None
        for level in range(last + 1):
            if level == last:
                rows = self._level(level, rows, output, schema)
            else:
                columns = BUFFER_SCHEMA if report is None else f"{BUFFER_SCHEMA}, {report} STRING"
                rows = self._level(level, rows, BufferOutput(report), columns)
            if metrics is not None:
                rows = metrics.observed(rows, None if level == last else level)
        assert rows is not None
        return rows

    def _level(self, level: int, rows: DataFrame | None, output: TaskOutput, schema: str | StructType) -> DataFrame:
        if rows is None:
            return self._sources(output, schema) if self._first is None else self._no_rows(self._first, schema)
        vertices = {vertex.number: self.shipped[vertex.number] for vertex in self.program.levels[level]}
        if not self.is_streaming:
            places = {code: address for code, address in self.program.subtasks.items() if address[0] in vertices}
            return self._shuffled(rows).mapInArrow(BatchTaskHost(vertices, places, output), schema)
        from pillarbox._runtime.spark.homes.relay import RelaySettings
        from pillarbox._runtime.spark.worker.processor import Processor
        from pillarbox._runtime.spark.worker.task_host import TaskHost

        time = self._time or SparkTime("append", "ProcessingTime" if self.program.uses_processing_time else "None")
        timers = time.time_mode != "None"
        if not timers:
            # Spark stores this time in the offset log, so a repeated batch has the same time. `zip_with` avoids
            # generated code, which Spark would compile again in each epoch.
            now = "zip_with(array(current_timestamp()), array(0), (now, zero) -> unix_millis(now))[0]"
            rows = rows.selectExpr("*", f"{now} AS {BATCH_TIMESTAMP}")
        homes = RelaySettings.of(vertices, self.secret, self.program.parallelism)
        host, state = TaskHost(vertices, self._layout, output, timers, homes, self._time), None
        if self._first is not None:
            from pillarbox._runtime.spark.savepoint.restore_host import RestoringHost

            host = RestoringHost(vertices, self._layout, output, timers, homes, self._first.tables, self._time)
            rows_of_state = self._first.state(list(vertices)).repartition(self.program.parallelism, "target")
            state = rows_of_state.sortWithinPartitions("target", "number").groupBy("target")
        sent = rows.groupBy("target").transformWithStateInPandas(
            Processor(host, [vertex.broadcasts for vertex in vertices.values()]),
            outputStructType=schema,
            outputMode=time.output_mode,
            timeMode=time.time_mode,
            initialState=state,
            eventTimeColumnName=time.event_time_column if self._first is None else "",
        )
        if isinstance(schema, str) or not _REQUIRED.search(schema.json()):
            return sent
        # Spark makes nested types nullable here.
        return sent.mapInArrow(_unchanged, schema)

    def _sources(self, output: TaskOutput, schema: str | StructType) -> DataFrame:
        tasks = []
        for number, source in self.program.sources.items():
            df, pickled = self._dataframe(source)
            columns = None if pickled else df.columns
            bounded = not df.isStreaming
            host = SourceHost(self.shipped[number], self._layout, output, bounded=bounded, columns=columns)
            tasks.append(with_plain_names(df).mapInArrow(host, schema))
        return reduce(lambda left, right: left.unionAll(right), tasks)

    def _no_rows(self, first: PlannedFirstEpoch, schema: str | StructType) -> DataFrame:
        """Read the sources and drop their rows, to advance Spark's watermark if an operator uses it."""
        assert isinstance(schema, str)
        rows = first.sources.where("false")
        if self._time is not None and first.watermark > 0:
            rows = rows.mapInArrow(partial(_one_time, first.watermark), "at TIMESTAMP").withWatermark("at", "0 seconds")
            # Spark would move a condition on another column below the watermark's operator.
            rows = rows.where("at IS NULL")
        return rows.selectExpr(
            *(f"CAST(NULL AS {kind}) AS {name}" for name, kind in map(str.split, schema.split(", ")))
        )

    def _dataframe(self, source: SourceTransformation) -> tuple[DataFrame, bool]:
        if isinstance(source, DataFrameSource):
            return source.dataframe, False
        assert isinstance(source, CollectionSource)
        if self.is_streaming:
            raise ProgramError(
                f"the program reads a streaming DataFrame and the collection {source.name!r}, which has no records for"
                " later epochs: use it within a function instead"
            )
        rows = [(dumps(value),) for value in source.collection]
        return self.session.createDataFrame(rows, "record BINARY").coalesce(1), True

    def _shuffled(self, buffers: DataFrame) -> DataFrame:
        # The order is independent of the shuffle, so a retried task repeats its work exactly.
        shuffled = buffers.repartition(self.program.parallelism, "target")
        return shuffled.sortWithinPartitions("target", "channel", "seq")


@dataclass(frozen=True)
class _Metrics:
    """Observes task metrics in a streaming program's rows, and removes them.

    Metrics are removed before each shuffle, because a repeated task must shuffle the same data, and its metrics differ.

    Attributes:
        program: the alias of the program's rows. The last level's metrics are observed under this name, and other
            levels' metrics under names with this prefix.
    """

    column: str
    program: str

    def observed(self, rows: DataFrame, level: int | None) -> DataFrame:
        from pyspark.sql import functions as F

        # Spark plans this again in each epoch, and strings are fast to plan.
        tasks = F.expr(f"collect_list({self.column}) AS tasks")
        name = self.program if level is None else f"{self.program} level {level}"
        marked = rows.alias(self.program) if level is None else rows
        return marked.observe(name, tasks).where(F.expr(f"{self.column} IS NULL")).drop(self.column)


def plan_first_epoch(program: Program, spark: SparkSession, first: PlannedFirstEpoch) -> DataFrame:
    return _Plan(program, spark, first).rows(BufferOutput(None), BUFFER_SCHEMA)


def write_for_each_batch(
    rows: DataFrame, schemas: dict[str, StructType], function: Callable[[dict[str, DataFrame], int], None]
) -> DataStreamWriter:
    named = getattr(function, "__name__", type(function).__name__)
    outputs = ", ".join(map(repr, schemas))
    if not rows.isStreaming:
        raise ProgramError(
            "for_each_batch() runs only streaming programs: for a batch program, call to_dataframe() for each output"
        )

    def call(batch: DataFrame, batch_id: int) -> None:
        # Without this, each output would run the program again. Spark commits only rows that were read, so the count
        # reads all rows.
        batch.persist().count()
        try:
            frames = {name: batch if len(schemas) == 1 else _rows_of(batch, name) for name in schemas}
            with without_setting(batch.sparkSession, BATCH_BYTES):  # the limit is for the program's own rows
                function(frames, batch_id)
        except Exception as error:
            keep_user_frames(error)
            failed = f"for_each_batch(): {named}() failed at batch {batch_id} of the outputs {outputs}"
            raise_from_user_code(error, failed)
        finally:
            batch.unpersist()

    call.reads_every_batch = True  # type: ignore[attr-defined]
    return rows.writeStream.foreachBatch(call)


def plan_outputs(program: Program, spark: SparkSession, schemas: dict[str, StructType]) -> DataFrame:
    """Plan a program's outputs as one DataFrame. Several outputs are struct columns, and each row sets one."""
    from pyspark.sql.types import StringType, StructField, StructType

    outputs: dict[int, tuple[str, pa.Schema]] = {}
    fields: list[StructField] = []
    for index, name in enumerate(program.outputs):
        nullable = StructType([StructField(field.name, field.dataType, True) for field in schemas[name].fields])
        outputs[output_target(index)] = (name, RowEncoder(nullable, name).arrow_schema)
        fields += nullable.fields if len(schemas) == 1 else [StructField(name, nullable, True)]
    plan = _Plan(program, spark)
    if not plan.is_streaming:
        return plan.rows(ColumnOutput(outputs, None), StructType(fields))
    names = {field.name.lower() for field in fields}
    report = next(name for name in _report_names() if name not in names)
    schema = StructType([*fields, StructField(report, StringType(), True)])
    # For recordings, which must not contain the budgets' secret.
    vertices = [replace(vertex, ledger=None) for vertex in plan.shipped]
    alias = register(spark, program, plan.secret, vertices)
    return plan.rows(ColumnOutput(outputs, report), schema, _Metrics(report, alias))


def _rows_of(batch: DataFrame, name: str) -> DataFrame:
    from pyspark.sql import functions as F

    return batch.where(F.col(quoted(name)).isNotNull()).select(f"{quoted(name)}.*")


def _report_names() -> Iterator[str]:
    return (f"__pillarbox_report{number or ''}" for number in count())


def collect_objects(program: Program, spark: SparkSession) -> Generator[list[Any], None, None]:
    plan = _Plan(program, spark)
    if plan.is_streaming:
        raise ProgramError(
            "the program reads a streaming DataFrame, which never ends: run it with to_dataframe(...).writeStream"
        )
    with unwrapped_failures():
        rows = BufferRows()
        for row in plan.rows(BufferOutput(None), BUFFER_SCHEMA).toLocalIterator():
            for buffer in rows.take([(value,) for value in row]):
                records = decode(bytes(buffer.payload))
                assert isinstance(records, Records)
                yield records.values
        rows.end()
