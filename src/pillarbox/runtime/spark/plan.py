"""From a program to one DataFrame plan: sources, levels, outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pillarbox.elements import Records, decode, dumps
from pillarbox.errors import ProgramError
from pillarbox.graph import Program, SourceTransformation, output_target
from pillarbox.runtime.shipping import ShippedVertex, ship
from pillarbox.runtime.spark.failures import unwrapped_failures
from pillarbox.runtime.spark.output import REPORT_COLUMN, REPORT_SCHEMA, OutputDecoder
from pillarbox.runtime.spark.session import move, program_session, worker_pool
from pillarbox.runtime.spark.source_host import BUFFER_SCHEMA, SourceHost
from pillarbox.types import RowEncoder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

__all__ = ["collect_objects", "plan_for_each_batch", "plan_output"]


class _Plan:
    """A program's plan, up to the buffers of its outputs."""

    def __init__(self, program: Program) -> None:
        self.program = program
        dataframes = [source.dataframe for source in program.sources.values() if source.dataframe is not None]
        self.session: SparkSession = program_session(dataframes[0].sparkSession, program.parallelism)
        self.is_streaming = any(df.isStreaming for df in dataframes)
        if self.is_streaming and not all(df.isStreaming for df in dataframes):
            raise ProgramError(
                "the program reads streaming and batch DataFrames: a batch one has no share in later epochs;"
                " join it to the streaming one with Spark before from_dataframe()"
            )
        for vertex in program.vertices:
            vertex.fires_processing_time = program.uses_processing_time or not self.is_streaming
        self.shipped: list[ShippedVertex] = [ship(vertex) for vertex in program.vertices]

    def _sources(self) -> list[tuple[DataFrame, SourceHost]]:
        sources = []
        for number, source in self.program.sources.items():
            df, pickled = self._dataframe(source)
            host = SourceHost(self.shipped[number], bounded=not df.isStreaming, pickled=pickled)
            sources.append((df, host))
        return sources

    def _dataframe(self, source: SourceTransformation) -> tuple[DataFrame, bool]:
        if source.dataframe is not None:
            return move(source.dataframe, self.session), False
        if self.is_streaming:
            raise ProgramError(
                f"the program reads a streaming DataFrame and the collection {source.name!r}: a collection has no share"
                " in later epochs; keep it in a function instead"
            )
        rows = [(dumps(value),) for value in source.collection or ()]
        return self.session.createDataFrame(rows, "record BINARY").coalesce(1), True

    def buffers(self) -> DataFrame:
        """Give the buffers that reach the end."""
        from pillarbox.runtime.spark.processor import Processor
        from pillarbox.runtime.spark.task_host import TaskHost

        level0 = [df.mapInArrow(host, BUFFER_SCHEMA) for df, host in self._sources()]
        buffers = reduce(lambda left, right: left.unionAll(right), level0)
        for vertices in self.program.levels[1:]:
            numbers = {vertex.number for vertex in vertices}
            places = {code: place for code, place in self.program.subtasks.items() if place[0] in numbers}
            timers = self.program.uses_processing_time and self.is_streaming
            host = TaskHost({number: self.shipped[number] for number in numbers}, places, timers)
            digests = "-".join(self.shipped[number].digest[:8] for number in sorted(numbers))
            with worker_pool(f"level {vertices[0].level} {digests}"):
                buffers = buffers.groupBy("target").transformWithStateInPandas(
                    Processor(host),
                    outputStructType=BUFFER_SCHEMA,
                    outputMode="append",
                    timeMode="ProcessingTime" if timers else "None",
                )
        return buffers

    def rows(self, decoder: OutputDecoder, schema: str | StructType) -> DataFrame:
        """Give decoded rows of the buffers that reach the end."""
        if len(self.program.levels) > 1:
            return self.buffers().mapInArrow(decoder, schema)
        # Without a shuffle, one pass through Python does it all.
        fused = [df.mapInArrow(_Fused(host, decoder), schema) for df, host in self._sources()]
        return reduce(lambda left, right: left.unionAll(right), fused)


class _Fused:
    """A source's task and the decoding of its output in one function."""

    def __init__(self, host: SourceHost, decoder: OutputDecoder) -> None:
        self._host = host
        self._decoder = decoder

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for buffers in self._host.buffers(batches):
            for buffer in buffers:
                yield from self._decoder.decode(buffer.target, buffer.payload)


def plan_output(program: Program, schema: StructType) -> DataFrame:
    """Give the one output of a program as a DataFrame; the tasks' metrics are observed under ``pillarbox``."""
    return _without_reports(_observed(program, {program.outputs[0]: schema}))


def plan_for_each_batch(
    program: Program, schemas: dict[str, StructType], function: Callable[[dict[str, DataFrame], int], None]
) -> DataStreamWriter:
    """Give the writer of a query that calls ``function`` with the outputs of each micro-batch, by name.

    Raises:
        ProgramError: the program reads no streaming DataFrame.
    """
    from pyspark.sql import functions as F

    observed = _observed(program, schemas)
    if not observed.isStreaming:
        raise ProgramError(
            "for_each_batch() runs streaming programs; use to_dataframe() for each output of a batch one"
        )

    def call(batch: DataFrame, batch_id: int) -> None:
        # Each output is read by itself: without this, the program would run once for each of them.
        batch.persist()
        try:
            function({name: _frame(batch, name) for name in schemas}, batch_id)
        finally:
            batch.unpersist()

    def _frame(batch: DataFrame, name: str) -> DataFrame:
        if len(schemas) == 1:
            return _without_reports(batch)
        return batch.where(F.col(name).isNotNull()).select(f"`{name}`.*")

    return observed.writeStream.foreachBatch(call)


def _observed(program: Program, schemas: dict[str, StructType]) -> DataFrame:
    from pyspark.sql.types import StringType, StructField, StructType

    outputs: dict[int, tuple[str, pa.Schema]] = {}
    fields: list[StructField] = []
    for index, name in enumerate(program.outputs):
        nullable = StructType([StructField(field.name, field.dataType, True) for field in schemas[name].fields])
        outputs[output_target(index)] = (name, RowEncoder(nullable, name).arrow_schema)
        fields += nullable.fields if len(schemas) == 1 else [StructField(name, nullable, True)]
    decoded = StructType([*fields, StructField(REPORT_COLUMN, StringType(), True)])
    rows = _Plan(program).rows(OutputDecoder(outputs), decoded)
    return _observe(rows)


def _without_reports(rows: DataFrame) -> DataFrame:
    return rows.where(f"{REPORT_COLUMN} IS NULL").drop(REPORT_COLUMN)


def _observe(rows: DataFrame) -> DataFrame:
    """Observe the metrics as ``pillarbox``; behind another program in the same query as ``pillarbox 2``, and so on."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    # One expression: made of functions, each of them is a dozen calls to the JVM.
    tasks = F.expr(f"collect_list(from_json({REPORT_COLUMN}, '{REPORT_SCHEMA}')) AS tasks")
    for number in count(1):
        try:
            observed = rows.observe("pillarbox" if number == 1 else f"pillarbox {number}", tasks)
            _ = observed.schema  # under Spark Connect only this has the plan looked at
        except AnalysisException as error:
            if error.getCondition() != "DUPLICATED_METRICS_NAME":
                raise
        else:
            return observed
    raise AssertionError("there is no end of numbers")


def collect_objects(program: Program) -> dict[str, list[Any]]:
    """Run a bounded program and give the records of its outputs.

    Raises:
        ProgramError: a source is a streaming DataFrame.
    """
    plan = _Plan(program)
    if plan.is_streaming:
        raise ProgramError(
            "the program reads a streaming DataFrame, which has no end: use to_dataframe(...).writeStream to run it"
        )
    names = {output_target(index): name for index, name in enumerate(program.outputs)}
    outputs: dict[str, list[Any]] = {name: [] for name in program.outputs}
    with unwrapped_failures():
        for target, payload in plan.buffers().select("target", "payload").toLocalIterator():
            if target in names:
                records = decode(bytes(payload))
                assert isinstance(records, Records)
                outputs[names[target]].extend(records.values)
    return outputs
