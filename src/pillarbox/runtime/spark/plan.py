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
from pillarbox.runtime.spark.batch_host import BatchTaskHost
from pillarbox.runtime.spark.failures import unwrapped_failures
from pillarbox.runtime.spark.output import REPORT_TYPES, OutputDecoder
from pillarbox.runtime.spark.session import check_session, worker_pool
from pillarbox.runtime.spark.source_host import BUFFER_SCHEMA, SourceHost
from pillarbox.runtime.spark.start import metrics_names, register, take_metrics_name
from pillarbox.types import RowEncoder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

__all__ = ["collect_objects", "plan_for_each_batch", "plan_output"]


class _Plan:
    """A program's plan, up to the buffers of its outputs, in the session of the DataFrames that it reads."""

    def __init__(self, program: Program, spark: SparkSession) -> None:
        self.program = program
        self.session = spark
        dataframes = [source.dataframe for source in program.sources.values() if source.dataframe is not None]
        self.is_streaming = any(df.isStreaming for df in dataframes)
        check_session(spark, streaming=self.is_streaming)
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
            columns = None if pickled else df.columns
            if columns is not None and any("." in name or "`" in name for name in columns):
                df = df.toDF(*(f"c{position}" for position in range(len(columns))))  # mapInArrow looks them up by name
            host = SourceHost(self.shipped[number], bounded=not df.isStreaming, columns=columns)
            sources.append((df, host))
        return sources

    def _dataframe(self, source: SourceTransformation) -> tuple[DataFrame, bool]:
        if source.dataframe is not None:
            return source.dataframe, False
        if self.is_streaming:
            raise ProgramError(
                f"the program reads a streaming DataFrame and the collection {source.name!r}: a collection has no share"
                " in later epochs; keep it in a function instead"
            )
        rows = [(dumps(value),) for value in source.collection or ()]
        return self.session.createDataFrame(rows, "record BINARY").coalesce(1), True

    def buffers(self, levels: int) -> DataFrame:
        """Return the buffers behind the first ``levels`` levels."""
        sources = self._sources()
        with worker_pool(self.session, None):
            level0 = [df.mapInArrow(host, BUFFER_SCHEMA) for df, host in sources]
        buffers = reduce(lambda left, right: left.unionAll(right), level0)
        for level in range(1, levels):
            if self.is_streaming:
                buffers = self._stateful_level(buffers, level)
            else:
                shuffled = self._shuffled(buffers)
                with worker_pool(self.session, None):
                    buffers = shuffled.mapInArrow(self._batch_host(level), BUFFER_SCHEMA)
        return buffers

    def _stateful_level(self, buffers: DataFrame, level: int) -> DataFrame:
        from pillarbox.runtime.spark.processor import Processor
        from pillarbox.runtime.spark.task_host import TaskHost

        vertices, places = self._keyed(level)
        timers = self.program.uses_processing_time
        host = TaskHost(vertices, places, timers)
        with worker_pool(self.session, self._pool(level)):
            return buffers.groupBy("target").transformWithStateInPandas(
                Processor(host),
                outputStructType=BUFFER_SCHEMA,
                outputMode="append",
                timeMode="ProcessingTime" if timers else "None",
            )

    def _pool(self, level: int) -> str:
        vertices, _ = self._keyed(level)
        digests = "-".join(vertex.digest[:8] for _, vertex in sorted(vertices.items()))
        return f"level {level} {digests}"

    @property
    def pools(self) -> list[str]:
        """The names of the pools of workers that the levels behind a shuffle have."""
        return [self._pool(level) for level in range(1, len(self.program.levels))]

    def _keyed(self, level: int) -> tuple[dict[int, ShippedVertex], dict[int, tuple[int, int]]]:
        vertices = {vertex.number: self.shipped[vertex.number] for vertex in self.program.levels[level]}
        places = {code: place for code, place in self.program.subtasks.items() if place[0] in vertices}
        return vertices, places

    def _batch_host(self, level: int) -> BatchTaskHost:
        return BatchTaskHost(*self._keyed(level))

    def _shuffled(self, buffers: DataFrame) -> DataFrame:
        # A number that is given is kept, whatever the session's settings. Each target's buffers come together, and in
        # an order that does not depend on the shuffle: a task that is tried again does what it did.
        shuffled = buffers.repartition(self.program.parallelism, "target")
        return shuffled.sortWithinPartitions("target", "channel", "seq")

    def rows(self, decoder: OutputDecoder, schema: str | StructType) -> DataFrame:
        """Return decoded rows of the buffers that reach the end."""
        levels = len(self.program.levels)
        # Where the last tasks have no state of Spark's, one pass through Python does both.
        if levels == 1:
            sources = self._sources()
            with worker_pool(self.session, None):
                fused = [df.mapInArrow(_Fused(host, decoder), schema) for df, host in sources]
            return reduce(lambda left, right: left.unionAll(right), fused)
        last: OutputDecoder | _Fused = decoder
        if self.is_streaming:
            buffers = self.buffers(levels)
        else:
            buffers = self._shuffled(self.buffers(levels - 1))
            last = _Fused(self._batch_host(levels - 1), decoder)
        with worker_pool(self.session, None):
            return buffers.mapInArrow(last, schema)


class _Fused:
    """Tasks and the decoding of their output in one function."""

    def __init__(self, host: SourceHost | BatchTaskHost, decoder: OutputDecoder) -> None:
        self.__name__ = decoder.__name__
        self._host = host
        self._decoder = decoder

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for buffers in self._host.buffers(batches):
            for buffer in buffers:
                yield from self._decoder.decode(buffer.target, buffer.payload)


def plan_output(program: Program, spark: SparkSession, schema: StructType) -> DataFrame:
    """Return the one output of a program as a DataFrame; a streaming one observes the tasks' metrics."""
    outputs = _Outputs(program, spark, {program.outputs[0]: schema})
    return _output(outputs.rows, program.outputs[0], nested=outputs.nested, report=outputs.report)


def plan_for_each_batch(
    program: Program,
    spark: SparkSession,
    schemas: dict[str, StructType],
    function: Callable[[dict[str, DataFrame], int], None],
) -> DataStreamWriter:
    """Return the writer of a query that calls ``function`` with the outputs of each micro-batch, by name.

    Raises:
        ProgramError: the program reads no streaming DataFrame.
    """
    outputs = _Outputs(program, spark, schemas)
    if not outputs.rows.isStreaming:
        raise ProgramError(
            "for_each_batch() runs streaming programs; use to_dataframe() for each output of a batch one"
        )
    nested, report = outputs.nested, outputs.report

    def call(batch: DataFrame, batch_id: int) -> None:
        # Each output is read by itself: without this, the program would run once for each of them. Spark commits only
        # what was read to the end, whatever the function reads.
        batch.persist().count()
        try:
            function({name: _output(batch, name, nested=nested, report=report) for name in schemas}, batch_id)
        finally:
            batch.unpersist()

    return outputs.rows.writeStream.foreachBatch(call)


class _Outputs:
    """The rows of a program's outputs, those of several beside each other.

    Attributes:
        rows: with the metrics of a streaming program's tasks among them, and observed: only a streaming query has
            progress reports for them.
        nested: whether each output is a column; else its columns are at the top.
        report: the column with the metrics, if there is one.
    """

    def __init__(self, program: Program, spark: SparkSession, schemas: dict[str, StructType]) -> None:
        from pyspark.sql.types import StringType, StructField, StructType

        outputs: dict[int, tuple[str, pa.Schema]] = {}
        fields: list[StructField] = []
        for index, name in enumerate(program.outputs):
            nullable = StructType([StructField(field.name, field.dataType, True) for field in schemas[name].fields])
            outputs[output_target(index)] = (name, RowEncoder(nullable, name).arrow_schema)
            fields += nullable.fields if len(schemas) == 1 else [StructField(name, nullable, True)]
        plan = _Plan(program, spark)
        self.nested = len(schemas) > 1
        self.report: str | None = None
        if not plan.is_streaming:
            self.rows = plan.rows(OutputDecoder(outputs, "pillarbox", None), StructType(fields))
            return
        taken = {field.name.lower() for field in fields}
        self.report = next(name for name in _report_names() if name not in taken)
        decoder = OutputDecoder(outputs, register(program, spark, plan.pools), self.report)
        decoded = StructType([*fields, StructField(self.report, StringType(), True)])
        self.rows = _observe(plan.rows(decoder, decoded), self.report)


def _output(rows: DataFrame, name: str, *, nested: bool, report: str | None) -> DataFrame:
    """Return the rows of one output."""
    from pyspark.sql import functions as F

    if nested:
        column = "`" + name.replace("`", "``") + "`"
        return rows.where(F.col(column).isNotNull()).select(f"{column}.*")
    return rows if report is None else rows.where(F.col(report).isNull()).drop(report)


def _report_names() -> Iterator[str]:
    """Return names for the column with the metrics: any but those of the user's columns."""
    return (f"__pillarbox_report{number or ''}" for number in count())


def _observe(rows: DataFrame, report: str) -> DataFrame:
    """Observe the metrics as ``pillarbox``, or as ``pillarbox 2`` and so on where programs may meet in one query."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    # One expression: made of functions, each of them is a dozen calls to the JVM.
    schema = ", ".join(f"{name} {kind}" for name, kind in REPORT_TYPES.items())
    tasks = F.expr(f"collect_list(from_json({report}, '{schema}')) AS tasks")
    for name in metrics_names(rows.sparkSession):
        try:
            observed = rows.observe(name, tasks)
            _ = observed.schema  # under Spark Connect only this has the plan looked at
        except AnalysisException as error:  # a program before this one has it
            if error.getCondition() != "DUPLICATED_METRICS_NAME":
                raise
        else:
            take_metrics_name(rows.sparkSession, name)
            return observed
    raise AssertionError("there is no end of names")


def collect_objects(program: Program, spark: SparkSession) -> dict[str, list[Any]]:
    """Run a bounded program and return the records of its outputs.

    Raises:
        ProgramError: a source is a streaming DataFrame.
    """
    plan = _Plan(program, spark)
    if plan.is_streaming:
        raise ProgramError(
            "the program reads a streaming DataFrame, which has no end: use to_dataframe(...).writeStream to run it"
        )
    names = {output_target(index): name for index, name in enumerate(program.outputs)}
    outputs: dict[str, list[Any]] = {name: [] for name in program.outputs}
    with unwrapped_failures():
        for target, payload in plan.buffers(len(program.levels)).select("target", "payload").toLocalIterator():
            if target in names:
                records = decode(bytes(payload))
                assert isinstance(records, Records)
                outputs[names[target]].extend(records.values)
    return outputs
