"""The common part of streams: a step of the program with its name and uid, its ends, and operators behind it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, overload

from pillarbox._datastream.checks.given_functions import name_of
from pillarbox._datastream.checks.missing import missing
from pillarbox._datastream.checks.operator_settings import set_chaining, set_parallelism
from pillarbox._datastream.checks.schemas import check_column_names
from pillarbox._datastream.streams.results import CollectedResults, DataStreamSink
from pillarbox._errors import ProgramError, check_text, shorten
from pillarbox._generics import T1, Generic
from pillarbox._graph import (
    ChainingStrategy,
    EventTimeUse,
    KeyByTransformation,
    OperatorTransformation,
    SinkTransformation,
    Transformation,
)
from pillarbox._operators.frame.operator import OperatorFactory
from pillarbox._operators.stateless.sinks import ColumnsOperator, PrintOperator
from pillarbox._time import WatermarkStrategy
from pillarbox._types import RowEncoder, SchemaLike, resolve_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType
    from typing_extensions import Self

    from pillarbox._datastream.environment.environment import StreamExecutionEnvironment
    from pillarbox._datastream.streams.data_stream import DataStream

__all__ = ["Stream"]


class Stream(Generic[T1]):
    """A step of the program whose records are of type ``T1``; :class:`DataStream` has its transformations.

    Args:
        env: the environment of the program.
        step: the step that makes the records.
    """

    def __init__(self, env: StreamExecutionEnvironment, step: Transformation) -> None:
        self._env = env
        self._step = step

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            raise missing(self, name)

    def get_execution_environment(self) -> StreamExecutionEnvironment:
        """Return the environment of the program.

        Example:
            >>> env.from_collection([1]).get_execution_environment() is env
            True
        """
        return self._env

    # -- name and uid of the operator before --

    def get_name(self) -> str:
        """Return the name of the operator that makes this stream.

        Example:
            >>> env.from_collection([1]).map(str).name("as text").get_name()
            'as text'
        """
        return self._step.name

    def name(self, name: str) -> Self:
        """Name the operator that makes this stream, for people: in plans, metrics and errors.

        Raises:
            ProgramError: it is not a non-empty string; the stream is keyed, and no operator makes it.

        Example:
            >>> _ = env.from_collection([1]).map(str).name("as text").print()
            >>> "as text" in str(env.get_execution_graph())
            True
        """
        if isinstance(self._step, KeyByTransformation):
            raise ProgramError(f"name({name!r}) belongs to an operator, and key_by() is none: call it before or behind")
        check_text(name, "a name")
        self._step.name = name
        return self

    def uid(self, uid: str) -> Self:
        """Set the uid that the operator's state is stored under.

        Without one it is derived from the operator's place in the program. A uid lets the program change around it.

        Args:
            uid: unique in the program, and kept when the program changes.

        Raises:
            ProgramError: it is not a non-empty string, or no operator makes this stream.

        Example:
            >>> totals = env.from_collection([3, 4]).key_by(lambda n: "all").reduce(lambda a, b: a + b).uid("totals")
            >>> totals.execute_and_collect()
            [3, 7]
        """
        if not isinstance(self._step, OperatorTransformation):
            raise ProgramError(f"uid({uid!r}) belongs to an operator; {self._step.name!r} is none")
        check_text(uid, "a uid")
        self._step.uid = uid
        return self

    # -- parallelism and chaining of the operator before --

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the number of subtasks of the operator that makes this stream.

        Where it is not that of the operator before, and the stream between them is not partitioned, that is rebalanced;
        and so it is behind this operator, whose successors are the program's again. (Sinks stay with the operator
        before them.) Between a source and the first shuffle operators run in the partitions of the source,
        unless they have a parallelism of their own. A checkpoint keeps the number.

        Args:
            parallelism: the number, from 1 to the max parallelism (``env.set_max_parallelism``).

        Raises:
            ProgramError: it is not a whole number from 1, or no operator makes this stream; (when the program is run)
                it is above the max parallelism.

        Example:
            >>> _ = env.set_parallelism(4)
            >>> totals = env.from_collection([3, 4]).key_by(lambda n: n).sum()
            >>> sorted(totals.map(lambda n: n).set_parallelism(1).execute_and_collect())
            [3, 4]
        """
        set_parallelism(self._step, parallelism)
        return self

    def disable_chaining(self) -> Self:
        """Let the operator that makes this stream run in tasks of its own, apart from those before and behind it.

        That costs a level of the Spark plan on each side: its records are sent through a shuffle, each to the subtask
        with the same index. It separates their busy times in the metrics, for one.

        Raises:
            ProgramError: no operator makes this stream.

        Example:
            >>> _ = env.from_collection([1]).map(str).map(len).disable_chaining().print()
            >>> print(env.get_execution_graph())
            Program 'program': parallelism 1, max parallelism 2
            Level 0 (sources)
              [0] collection -> map: str
                    --forward--> [1]
            Level 1
              [1] map: len  uid=map-3
                    --forward--> [2]
            Level 2
              [2] print  uid=sink-4
        """
        set_chaining(self._step, ChainingStrategy.NEVER, "disable_chaining")
        return self

    def start_new_chain(self) -> Self:
        """Let the operator that makes this stream begin new tasks, in which those behind it run, too.

        That costs a level of the Spark plan, as :meth:`disable_chaining` does.

        Raises:
            ProgramError: no operator makes this stream.

        Example:
            >>> _ = env.from_collection([1]).map(str).map(len).start_new_chain().print()
            >>> [len(level) for level in env.get_execution_graph().levels]
            [1, 1]
        """
        set_chaining(self._step, ChainingStrategy.HEAD, "start_new_chain")
        return self

    # -- ends --

    def print(self, sink_identifier: str = "") -> DataStreamSink:
        """Print each record where it is processed; ``env.execute()`` runs it.

        Args:
            sink_identifier: printed before each record; so is the number of the subtask where there are several.

        Example:
            >>> _ = env.from_collection([1, 2]).print("numbers")
            >>> env.execute()
            numbers> 1
            numbers> 2
        """
        sink = SinkTransformation(
            self._env._next(),
            "print",
            [self._plain_step()],
            factory=OperatorFactory(partial(PrintOperator, identifier=sink_identifier)),
        )
        self._env._add(sink)
        self._env._sinks.append(sink)
        return DataStreamSink(sink)

    @overload
    def execute_and_collect(
        self, job_execution_name: str | None = None, limit: None = None
    ) -> CollectedResults[T1]: ...
    @overload
    def execute_and_collect(self, job_execution_name: str | None = None, *, limit: int) -> list[T1]: ...
    @overload
    def execute_and_collect(self, job_execution_name: str | None, limit: int) -> list[T1]: ...
    def execute_and_collect(
        self, job_execution_name: str | None = None, limit: int | None = None
    ) -> CollectedResults[T1] | list[T1]:
        """Run the program that leads to this stream on its bounded sources, and return the records.

        Args:
            job_execution_name: accepted as in PyFlink, and not used.
            limit: the maximum number of records to return, as a list: the program ends when they are there, and its
                functions are closed. Without a limit the program runs while the results are read: see
                :class:`CollectedResults`.

        Raises:
            ProgramError: ``limit`` is no whole number from 1.
            OperatorError: a function raised; of large results, also while they are read.

        Example:
            >>> env.from_collection([1, 2, 3]).map(str).execute_and_collect(limit=2)
            ['1', '2']
            >>> env.from_collection([1, 2, 3]).map(str).execute_and_collect()
            ['1', '2', '3']
        """
        if limit is None:
            return CollectedResults(self._env._collect(self._plain_step(), None))
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise ProgramError(f"execute_and_collect(): limit is a whole number from 1, not {shorten(limit)}")
        with closing(self._env._collect(self._plain_step(), limit)) as portions:
            return list(islice(chain.from_iterable(portions), limit))

    def to_dataframe(self, schema: SchemaLike | None = None) -> DataFrame:
        """Return the stream as a DataFrame, streaming if a source is: for any Spark sink, trigger or SQL.

        Args:
            schema: the columns: a DDL string, ``StructType``, ``Types``, dataclass or ``NamedTuple``; by default the
                ``output_type`` of the operator before.

        Raises:
            ProgramError: the columns are not declared, or there is no Spark session.
            TypeMismatchError: (while it runs) a record does not fit the columns.

        Example:
            >>> env = StreamExecutionEnvironment.get_execution_environment(spark)
            >>> doubled = env.from_dataframe(spark.range(3)).map(lambda row: 2 * row.id)
            >>> sorted(doubled.to_dataframe("doubled LONG").collect())
            [Row(doubled=0), Row(doubled=2), Row(doubled=4)]
        """
        declared = self._declared_columns(schema, "to_dataframe()")
        program = self._env._compile("to_dataframe", [self._columns_sink("output", declared)])
        return self._env._runtime.dataframe(program, declared)

    def _declared_columns(self, schema: SchemaLike | None, asked_by: str) -> StructType:
        """Return the columns of an output: those that are given, or those that the step before declares."""
        if schema is None and self._step.output_type is None:
            raise ProgramError(
                f"{asked_by} needs the columns, such as 'card STRING, n LONG': {self._step.name!r} declares no"
                " output_type"
            )
        try:
            return resolve_schema(self._step.output_type if schema is None else schema)
        except ProgramError as error:
            raise ProgramError(f"{asked_by}: {error}") from None

    def _columns_sink(self, output: str, schema: StructType) -> SinkTransformation:
        check_column_names(schema.names, f"output {output!r}")
        encoder = RowEncoder(schema, self._plain_step().name, self._env._runtime.time_zone)
        sink = SinkTransformation(
            self._env._next(),
            output,
            [self._plain_step()],
            factory=OperatorFactory(partial(ColumnsOperator, encoder=encoder)),
            output=output,
        )
        sink.uid = f"columns-{output}"
        self._env._outputs[output] = sink
        return sink

    def _plain_step(self) -> Transformation:
        """Return the step that makes this stream's records, however they are partitioned."""
        return self._step

    def _apply(
        self,
        kind: str,
        func: Any,
        factory: OperatorFactory,
        output_type: Any = None,
        *,
        strategy: WatermarkStrategy | None = None,
        uses_processing_time: bool = False,
        event_time: EventTimeUse = EventTimeUse.NONE,
        more_inputs: Sequence[Transformation] = (),
    ) -> DataStream[Any]:
        step = OperatorTransformation(
            self._env._next(),
            name_of(kind, func),
            [self._step, *more_inputs],
            output_type,
            kind=kind,
            factory=factory.with_result_type(None, output_type),
            uses_processing_time=uses_processing_time,
            strategy=strategy,
            event_time=event_time,
        )
        from pillarbox._datastream.streams.data_stream import DataStream

        return DataStream(self._env, self._env._add(step))
