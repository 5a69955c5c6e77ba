"""``StreamExecutionEnvironment``: a program's sources and its execution."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, overload

from pillarbox._datastream.checks.missing import missing_in_environment
from pillarbox._datastream.checks.schemas import check_column_names
from pillarbox._datastream.environment.settings import ProgramSettings
from pillarbox._datastream.streams.data_stream import DataStream
from pillarbox._errors import ProgramError, check_kind, check_text, shorten
from pillarbox._generics import T
from pillarbox._graph.program import Program
from pillarbox._graph.transformations import (
    CollectionSource,
    DataFrameSource,
    OperatorTransformation,
    SinkTransformation,
    SourceTransformation,
    Transformation,
    steps_leading_to,
)
from pillarbox._rows import Row
from pillarbox._runtime.base import Runtime
from pillarbox._runtime.local import LocalJob, LocalRuntime, Savepoint
from pillarbox._time.clock import ProcessingTimeService
from pillarbox._types.conversion import value_converter
from pillarbox._types.readable import check_readable
from pillarbox._types.schema import SchemaLike
from pillarbox._types.type_information import TypeInformation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class StreamExecutionEnvironment(ProgramSettings):
    """Builds programs, and runs them on Spark if they read DataFrames, otherwise in this process.

    Setters return the environment. Methods raise ``ProgramError`` for invalid arguments.

    Example:
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> env.from_collection(["to", "be"]).map(str.upper).execute_and_collect()
        ['TO', 'BE']
    """

    def __init__(self, spark: SparkSession | None = None) -> None:
        super().__init__()
        self._spark = spark
        self._steps: list[Transformation] = []
        self._sinks: list[SinkTransformation] = []
        self._outputs: dict[str, SinkTransformation] = {}
        self._ends: list[SinkTransformation] = []

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            raise missing_in_environment(self, name)

    @staticmethod
    def get_execution_environment(spark: SparkSession | None = None) -> StreamExecutionEnvironment:
        """Return a new environment.

        Args:
            spark: the session to run on (Flink's argument is a configuration), by default the session of the DataFrames
                that the program reads.

        Example:
            >>> StreamExecutionEnvironment.get_execution_environment().from_collection([1]).execute_and_collect()
            [1]
        """
        if spark is not None and not hasattr(spark, "createDataFrame"):
            raise ProgramError(f"get_execution_environment() takes a SparkSession or no argument, not {shorten(spark)}")
        return StreamExecutionEnvironment(spark)

    @property
    def _runtime(self) -> Runtime:
        frames = (step.dataframe for step in self._steps if isinstance(step, DataFrameSource))
        spark = self._spark or next((frame.sparkSession for frame in frames), None)
        if spark is None:
            return LocalRuntime(self._time_zone)
        if self._time_zone is not None:
            raise ProgramError(
                "set_time_zone() is for programs without a Spark session: set spark.sql.session.timeZone on the session"
            )
        from pillarbox._runtime.spark.runtime import SparkRuntime

        return SparkRuntime(spark)

    # -- sources --

    def from_dataframe(self, df: DataFrame, name: str = "dataframe") -> DataStream[Row]:
        """Read a DataFrame. Functions receive its rows as lightweight named tuples.

        Args:
            df: a streaming or batch DataFrame, with unique column names and types that Python can read.
            name: the source's name in plans, metrics, errors and savepoints (:meth:`from_savepoint`).

        Example:
            >>> env = StreamExecutionEnvironment.get_execution_environment(spark)
            >>> rows = env.from_dataframe(spark.sql("SELECT 'ann' AS card, 5 AS amount"))
            >>> rows.map(lambda row: (row.card, row["amount"])).execute_and_collect()
            [('ann', 5)]
        """
        if not hasattr(df, "mapInArrow"):
            raise ProgramError(f"from_dataframe() takes a Spark DataFrame, not {shorten(df)}")
        check_text(name, "from_dataframe(): the source's name")
        check_column_names(df.columns, "from_dataframe()")
        check_readable(df.schema, "from_dataframe()")
        step = DataFrameSource(self._next(), name, [], dataframe=df, columns=tuple(df.columns))
        return DataStream(self, self._add(step))

    @overload
    def from_collection(self, collection: Iterable[T], type_info: None = None) -> DataStream[T]: ...
    @overload
    def from_collection(self, collection: Iterable[Any], type_info: TypeInformation[T]) -> DataStream[T]: ...
    def from_collection(
        self, collection: Iterable[Any], type_info: TypeInformation[Any] | None = None
    ) -> DataStream[Any]:
        """Read a Python collection in iteration order.

        Args:
            collection: any finite iterable except a string.
            type_info: a type from ``Types``. Elements are converted to this type, as in PyFlink: a ROW becomes a named
                row, and a FLOAT is rounded to 32 bits.

        Raises:
            TypeMismatchError: an element does not fit the type.

        Example:
            >>> env.from_collection(range(3)).execute_and_collect()
            [0, 1, 2]
            >>> payment = Types.ROW_NAMED(["card", "amount"], [Types.STRING(), Types.LONG()])
            >>> env.from_collection([("ann", 5)], payment).map(lambda row: row.amount).execute_and_collect()
            [5]
        """
        if not isinstance(collection, Iterable) or isinstance(collection, (str, bytes)):
            raise ProgramError(f"from_collection() takes a list or another iterable, not {shorten(collection)}")
        elements = list(collection)
        if type_info is not None:
            convert = value_converter(type_info, "from_collection(): element")
            elements = [convert(element, position) for position, element in enumerate(elements)]
        step = CollectionSource(self._next(), "collection", [], type_info, collection=elements)
        return DataStream(self, self._add(step))

    def get_execution_graph(self) -> Program:
        """Return the program's plan. ``str(plan)`` is text, and ``plan.to_mermaid()`` a diagram.

        Example:
            >>> _ = env.from_collection([1]).map(str).print()
            >>> print(env.get_execution_graph())
            Program 'program': parallelism 1, max parallelism 2
            Level 0 (sources)
              [0] collection -> map: str -> print
        """
        sinks = [*self._sinks, *self._outputs.values()]
        if self._sinks:
            sinks += self._branches(_is_bounded)
        if not sinks:
            upstream_steps = {upstream for step in self._steps for upstream in step.inputs}
            sinks = [
                SinkTransformation(self._next() + i, "sink", [step], output=f"stream {i}")
                for i, step in enumerate(s for s in self._steps if s not in upstream_steps)
            ]
        return self._compile("program", sinks)

    def execute(self, job_name: str = "pillarbox") -> None:
        """Run the program's sinks, such as ``print()``, until its bounded sources end.

        As in Flink, a branch that ends in an operator, such as ``stream.map(write)``, runs, too. Later calls run only
        new sinks and branches.

        Raises:
            ProgramError: the program has neither a sink nor such a branch.
            OperatorError: a function raised.

        Example:
            >>> _ = env.from_collection(["to", "be"]).print()
            >>> env.execute("words")
            to
            be
        """
        branches = self._branches(_is_bounded)
        program = self._compile(job_name, [*self._sinks, *branches])
        self._sinks = []
        self._ends += branches
        for _ in self._runtime.collect(program):
            pass

    def local_job(
        self,
        *,
        clock: ProcessingTimeService | None = None,
        savepoint: Savepoint | None = None,
        **outputs: DataStream[Any],
    ) -> LocalJob:
        """Return a job that computes ``outputs`` in this process, epoch by epoch.

        Args:
            clock: the processing-time clock, by default the system clock.
            savepoint: the initial state, from :meth:`LocalJob.savepoint`. Overrides :meth:`from_savepoint`.
            outputs: streams by output name. Each epoch returns their records.

        Example:
            >>> with env.local_job(words=env.from_collection(["to", "be"])) as job:
            ...     job.run()
            {'words': ['to', 'be']}
        """
        for stream in outputs.values():
            check_kind(stream, DataStream, "local_job(): an output", "a stream")
        sinks = [stream._sink(name, "collect") for name, stream in outputs.items()]
        return LocalJob(self._compile("local job", sinks), clock=clock, savepoint=savepoint)

    def for_each_batch(
        self,
        function: Callable[[dict[str, DataFrame], int], None],
        outputs: Mapping[str, DataStream[Any] | tuple[DataStream[Any], SchemaLike | None]],
    ) -> DataStreamWriter:
        """Return a writer that starts one streaming query with several outputs.

        Args:
            function: called in the driver for each micro-batch, with the outputs' DataFrames by name and the batch id.
                For exactly-once results, its writes must replace the writes of an earlier call with the same batch id.
                Outputs are cached during the call. Branches without a sink run, too, as in :meth:`execute`.
            outputs: maps each output name to a stream, or to (stream, columns as in :meth:`DataStream.to_dataframe`).

        Example:
            >>> env = StreamExecutionEnvironment.get_execution_environment(spark)
            >>> rows = env.from_dataframe(spark.readStream.format("rate").load())
            >>> def write(outputs, batch_id):
            ...     outputs["values"].write.mode("append").parquet("values")
            >>> values = rows.map(lambda row: row.value)
            >>> type(env.for_each_batch(write, {"values": (values, "value LONG")})).__name__
            'DataStreamWriter'
        """
        if not callable(function):
            raise ProgramError(f"for_each_batch() takes a function f(outputs, batch_id), not {shorten(function)}")
        check_kind(outputs, Mapping, "for_each_batch(): outputs=", "a dict from names to (stream, columns)")
        if not outputs:
            raise ProgramError("for_each_batch() takes at least one output")
        schemas, sinks = {}, []
        for name, value in outputs.items():
            check_text(name, "for_each_batch(): the name of an output")
            output = (value, None) if isinstance(value, DataStream) else value
            if not isinstance(output, tuple) or len(output) != 2 or not isinstance(output[0], DataStream):
                raise ProgramError(
                    f"for_each_batch(): output {name!r} must be a stream or (stream, columns), not {shorten(value)}"
                )
            stream, columns = output
            sink, schemas[name] = stream._columns_sink(name, columns, f"for_each_batch(): output {name!r}")
            sinks.append(sink)
        sources = set(steps_leading_to(sinks))
        branches = self._branches(sources.__contains__)
        program = self._compile("for_each_batch", [*sinks, *branches])
        self._ends += branches
        return self._runtime.for_each_batch(program, schemas, function)

    def _branches(self, takes: Callable[[SourceTransformation], bool]) -> list[SinkTransformation]:
        steps_with_ends = set(steps_leading_to(self._ends))
        operators = [
            step
            for step in self._steps
            if isinstance(step, OperatorTransformation) and step not in steps_with_ends and step.strategy is None
        ]
        followed = {step for operator in operators for step in steps_leading_to(operator.inputs)}
        sinks: list[SinkTransformation] = []
        for step in operators:
            sources = [source for source in steps_leading_to([step]) if isinstance(source, SourceTransformation)]
            if step not in followed and all(map(takes, sources)):
                uid = f"discard-{step.effective_uid}"
                sinks.append(SinkTransformation(self._next() + len(sinks), "discard", [step], uid=uid))
        return sinks

    def _collect(self, sink: SinkTransformation) -> Generator[list[Any], None, None]:
        return self._runtime.collect(self._compile("collect", [sink]), sink.limit)

    def _next(self) -> int:
        return len(self._steps) + 1

    def _add(self, step: Transformation) -> Transformation:
        self._steps.append(step)
        return step


def _is_bounded(source: SourceTransformation) -> bool:
    return not (isinstance(source, DataFrameSource) and source.dataframe.isStreaming)
