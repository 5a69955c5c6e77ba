"""``Stream``, which partitions, combines and outputs streams. ``DataStream`` adds transformations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, cast, overload

from pillarbox._datastream.checks.given_functions import check_function, name_of
from pillarbox._datastream.checks.missing import missing
from pillarbox._datastream.checks.schemas import check_key_columns, encoder_of_output
from pillarbox._datastream.streams.operator_settings import OperatorSettings
from pillarbox._datastream.streams.results import CollectedResults, DataStreamSink
from pillarbox._errors import ProgramError, check_count, check_takes
from pillarbox._generics import T1, T2, Generic, K, U
from pillarbox._graph.transformations import (
    ChainingStrategy,
    EventTimeUse,
    OperatorTransformation,
    PartitionTransformation,
    SinkTransformation,
    Transformation,
    UnionTransformation,
)
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorFactory
from pillarbox._operators.functions.basic import KeySelector, Partitioner
from pillarbox._operators.stateless.limit import LimitOperator
from pillarbox._operators.stateless.sinks import ColumnSinkOperator, PrintOperator
from pillarbox._state.descriptors import MapStateDescriptor
from pillarbox._task.network import partitioner as partitioners
from pillarbox._time.watermark_strategy import WatermarkStrategy
from pillarbox._types.schema import SchemaLike

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType
    from typing_extensions import Self

    from pillarbox._datastream.connected.broadcast_stream import BroadcastConnectedStream, BroadcastStream
    from pillarbox._datastream.connected.connected_streams import ConnectedStreams
    from pillarbox._datastream.connected.joined_streams import CoGroupedStreams, JoinedStreams
    from pillarbox._datastream.environment.environment import StreamExecutionEnvironment
    from pillarbox._datastream.streams.data_stream import DataStream


class Stream(OperatorSettings, Generic[T1]):
    """A stream of records of type ``T1``."""

    def __init__(self, env: StreamExecutionEnvironment, step: Transformation) -> None:
        super().__init__(step)
        self._env = env

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            raise missing(self, name)

    def get_execution_environment(self) -> StreamExecutionEnvironment:
        """Return the program's environment.

        Example:
            >>> env.from_collection([1]).get_execution_environment() is env
            True
        """
        return self._env

    def get_name(self) -> str:
        """Return the name of this stream's operator.

        Example:
            >>> env.from_collection([1]).map(str).name("as text").get_name()
            'as text'
        """
        return self._step.name

    def start_new_chain(self) -> Self:
        """Do not chain this stream's operator to the operators before it. Later operators may be chained to it.

        This adds a shuffle before the operator.

        Example:
            >>> _ = env.from_collection([1]).map(str).map(len).start_new_chain().print()
            >>> [len(level) for level in env.get_execution_graph().levels]
            [1, 1]
        """
        self._operator("start_new_chain()").chaining = ChainingStrategy.HEAD
        return self

    def rebalance(self) -> DataStream[T1]:
        """Spread the records evenly over the next operators' subtasks.

        Use this method before slow operators if the source has few or uneven partitions. Records that one subtask sends
        to another stay in order.

        When Spark repeats a failed task, it must read each source partition in the same order again. Files and Kafka
        guarantee this; Spark's own shuffles and joins do not, so use ``key_by`` after them.

        Example:
            >>> numbers = env.set_parallelism(2).from_collection(range(4)).rebalance()
            >>> sorted(numbers.map(str).execute_and_collect())
            ['0', '1', '2', '3']
        """
        return self._partition("rebalance", partitioners.RebalancePartitioner())

    def rescale(self) -> DataStream[T1]:
        """Send each subtask's records to only some subtasks of the next operators.

        As in Flink, each sender sends to several receivers in turn if there are more receivers than senders, and to one
        receiver otherwise. Each source partition sends to one subtask, so use ``rebalance`` if a source has few
        partitions.

        Example:
            >>> env.set_parallelism(2).from_collection(range(4)).rescale().map(str).execute_and_collect()
            ['0', '1', '2', '3']
        """
        return self._partition("rescale", partitioners.RescalePartitioner())

    def shuffle(self) -> DataStream[T1]:
        """Spread the records at random over the next operators' subtasks.

        A repeated epoch sends each record to the same subtask again, under the condition in :meth:`rebalance`.

        Example:
            >>> sorted(env.set_parallelism(2).from_collection(range(4)).shuffle().map(str).execute_and_collect())
            ['0', '1', '2', '3']
        """
        return self._partition("shuffle", partitioners.ShufflePartitioner())

    def forward(self) -> DataStream[T1]:
        """Keep each record in its subtask (the default), undoing a previous partitioning.

        If the next operator has a different parallelism, the program is refused when it starts.

        Example:
            >>> env.from_collection([1, 2]).forward().map(str).execute_and_collect()
            ['1', '2']
        """
        return self._partition("forward", partitioners.ForwardPartitioner())

    def global_(self) -> DataStream[T1]:
        """Send all records to the first subtask of the next operators.

        Example:
            >>> env.set_parallelism(2).from_collection(range(4)).global_().map(str).execute_and_collect()
            ['0', '1', '2', '3']
        """
        return self._partition("global", partitioners.GlobalPartitioner())

    def partition_custom(
        self,
        partitioner: Callable[[K, int], int] | Partitioner[K],
        key_selector: Callable[[T1], K] | KeySelector[T1, K] | str | Sequence[str],
    ) -> DataStream[T1]:
        """Partition the stream with a function. Unlike ``key_by``, this gives the next operators no keyed state.

        Args:
            partitioner: a ``Partitioner``, or ``f(key, n)``, which returns the index of one of the next operators'
                ``n`` subtasks (always the same for a key).
            key_selector: as in :meth:`DataStream.key_by`.

        Example:
            >>> numbers = env.set_parallelism(2).from_collection(range(4))
            >>> numbers.partition_custom(lambda key, n: key % n, int).map(str).execute_and_collect()
            ['0', '2', '1', '3']
        """
        check_function(partitioner, Partitioner, "partition_custom", "partition")
        keying = Keying(key_selector, f"partition_custom after {self._step.name}")
        check_key_columns(self._plain_step(), keying.columns)
        function: Any = partitioner.partition if isinstance(partitioner, Partitioner) else partitioner
        return self._partition("partition_custom", partitioners.CustomPartitioner(function, keying))

    @overload
    def broadcast(self) -> DataStream[T1]: ...
    @overload
    def broadcast(
        self, descriptor: MapStateDescriptor[Any, Any], /, *more: MapStateDescriptor[Any, Any]
    ) -> BroadcastStream[T1]: ...
    def broadcast(self, *descriptors: MapStateDescriptor[Any, Any]) -> DataStream[T1] | BroadcastStream[T1]:
        """Send each record to all subtasks of the next operators.

        Args:
            descriptors: broadcast states to store the records in. With descriptors, pass the result to ``connect``.

        Example:
            >>> env.set_parallelism(2).from_collection(["to", "be"]).broadcast().map(str.upper).execute_and_collect()
            ['TO', 'BE', 'TO', 'BE']
        """
        for descriptor in descriptors:
            check_takes(descriptor, MapStateDescriptor, "broadcast()", "MapStateDescriptors")
            if descriptor.ttl_config is not None:
                raise ProgramError(
                    f"broadcast(): the state {descriptor.name!r} has a time-to-live, but broadcast state cannot expire,"
                    " because its subtasks would remove entries at different times: drop the time-to-live, and remove"
                    " old entries in process_broadcast_element()"
                )
        names = [descriptor.name for descriptor in descriptors]
        doubled = next((name for name in names if names.count(name) > 1), None)
        if doubled is not None:
            raise ProgramError(f"broadcast(): two states have the name {doubled!r}: rename one")
        stream = self._partition("broadcast", partitioners.BroadcastPartitioner())
        if not descriptors:
            return stream
        from pillarbox._datastream.connected.broadcast_stream import BroadcastStream

        return BroadcastStream(stream, descriptors)

    def union(self, *streams: DataStream[U]) -> DataStream[T1 | U]:
        """Merge this stream with others of the same environment. The order of the records is undefined.

        Example:
            >>> odd, even = env.from_collection([1, 3]), env.from_collection([2, 4])
            >>> sorted(odd.union(even).execute_and_collect())
            [1, 2, 3, 4]
        """
        if not streams:
            raise ProgramError("union() takes at least one other stream")
        for stream in streams:
            self._check_other(stream, "union")
        inputs = [self._plain_step(), *(stream._plain_step() for stream in streams)]
        types = [step.output_type for step in inputs]
        declared = types[0] if types.count(types[0]) == len(types) else None
        return self._after(UnionTransformation(self._env._next(), "union", inputs, declared))

    @overload
    def connect(self, ds: DataStream[T2]) -> ConnectedStreams[T1, T2]: ...
    @overload
    def connect(self, ds: BroadcastStream[T2]) -> BroadcastConnectedStream[T1, T2]: ...
    def connect(
        self, ds: DataStream[T2] | BroadcastStream[T2]
    ) -> ConnectedStreams[T1, T2] | BroadcastConnectedStream[T1, T2]:
        """Connect this stream with another one, so that one operator processes both, with shared state.

        Key both streams or neither, before this call (``a.key_by("x").connect(b.key_by("y"))``) or after it
        (``a.connect(b).key_by("x", "y")``).

        Args:
            ds: a stream of the same environment, or a broadcast stream (``b.broadcast(descriptor)``).

        Example:
            >>> class Tagged(CoMapFunction):
            ...     def map1(self, value):
            ...         return "first", value
            ...
            ...     def map2(self, value):
            ...         return "second", value
            >>> connected = env.from_collection([1]).connect(env.from_collection(["a"]))
            >>> sorted(connected.map(Tagged()).execute_and_collect())
            [('first', 1), ('second', 'a')]
        """
        from pillarbox._datastream.connected.broadcast_stream import BroadcastConnectedStream, BroadcastStream
        from pillarbox._datastream.connected.connected_streams import ConnectedStreams

        if isinstance(ds, BroadcastStream):
            self._check_other(ds._stream, "connect")
            return BroadcastConnectedStream(cast("DataStream[T1]", self), ds)
        self._check_other(ds, "connect")
        return ConnectedStreams(cast("DataStream[T1]", self), ds)

    def join(self, other: DataStream[T2]) -> JoinedStreams[T1, T2]:
        """Join records of two streams that have equal keys and the same window.

        Usage: ``first.join(second).where(key).equal_to(key).window(assigner).apply(function)``. To join records with
        close event times, use ``KeyedStream.interval_join``.

        Example:
            >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(len)
            >>> first = env.from_collection(["to", "be"]).assign_timestamps_and_watermarks(at)
            >>> second = env.from_collection(["go"]).assign_timestamps_and_watermarks(at)
            >>> windows = first.join(second).where(len).equal_to(len).window(TumblingEventTimeWindows.of("1 second"))
            >>> windows.apply(lambda a, b: f"{a} {b}").execute_and_collect()
            ['to go', 'be go']
        """
        from pillarbox._datastream.connected.joined_streams import JoinedStreams

        self._check_other(other, "join")
        return JoinedStreams(cast("DataStream[T1]", self), other)

    def co_group(self, other: DataStream[T2]) -> CoGroupedStreams[T1, T2]:
        """Process together the records of two streams that have equal keys and the same window.

        Usage: ``first.co_group(second).where(key).equal_to(key).window(assigner).apply(function)``. Unlike a join, this
        calls the function even if one stream has no matching record, as needed for outer joins.

        Example:
            >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(len)
            >>> first = env.from_collection(["to", "be"]).assign_timestamps_and_watermarks(at)
            >>> second = env.from_collection(["to"]).assign_timestamps_and_watermarks(at)
            >>> windows = first.co_group(second).where(str).equal_to(str).window(TumblingEventTimeWindows.of(1_000))
            >>> sorted(windows.apply(lambda firsts, seconds: [(firsts, seconds)]).execute_and_collect())
            [(['be'], []), (['to'], ['to'])]
        """
        from pillarbox._datastream.connected.joined_streams import CoGroupedStreams

        self._check_other(other, "co_group")
        return CoGroupedStreams(cast("DataStream[T1]", self), other)

    # -- sinks --

    def print(self, sink_identifier: str = "") -> DataStreamSink:
        """Print each record in its task's process.

        Args:
            sink_identifier: prefix of each line, followed by the subtask's number if there is more than one subtask.

        Example:
            >>> _ = env.from_collection([1, 2]).print("numbers")
            >>> env.execute()
            numbers> 1
            numbers> 2
        """
        sink = self._sink("print", factory=OperatorFactory(partial(PrintOperator, identifier=sink_identifier)))
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
        """Run the program, whose sources must be bounded, and return this stream's records.

        Args:
            job_execution_name: ignored, for compatibility with PyFlink.
            limit: maximum number of records. The program ends at this number. With a limit, the result is a list.
                Otherwise, it is a :class:`CollectedResults`.

        Raises:
            OperatorError: a function raised. If the results are streamed, this may happen while they are read.

        Example:
            >>> env.from_collection([1, 2, 3]).map(str).execute_and_collect(limit=2)
            ['1', '2']
        """
        if limit is None:
            return CollectedResults(self._env._collect(self._sink("collect", output="collect", uid="collect")))
        check_count(limit, "execute_and_collect(): limit=")
        factory = OperatorFactory(partial(LimitOperator, limit=limit))
        sink = self._sink("collect", output="collect", uid="collect", limit=limit, factory=factory)
        with closing(self._env._collect(sink)) as portions:
            return list(islice(chain.from_iterable(portions), limit))

    def to_dataframe(self, schema: SchemaLike | None = None) -> DataFrame:
        """Return the stream as a DataFrame for Spark's sinks, triggers and SQL.

        The DataFrame is streaming if any source is streaming. Records are converted to columns like values of
        ``Types.ROW_NAMED``. For a single column, a record may be the column's value.

        Args:
            schema: the columns: a DDL string, ``StructType``, ``Types``, dataclass or ``NamedTuple``; by default the
                previous operator's ``output_type``.

        Raises:
            TypeMismatchError: a record does not fit the columns. Raised at run time.

        Example:
            >>> env = StreamExecutionEnvironment.get_execution_environment(spark)
            >>> doubled = env.from_dataframe(spark.range(2)).map(lambda row: 2 * row.id)
            >>> sorted(doubled.to_dataframe("doubled LONG").collect())
            [Row(doubled=0), Row(doubled=2)]
        """
        sink, columns = self._columns_sink("output", schema, "to_dataframe()")
        return self._env._runtime.dataframe(self._env._compile("to_dataframe", [sink]), columns)

    def _columns_sink(
        self, output: str, schema: SchemaLike | None, asked_by: str
    ) -> tuple[SinkTransformation, StructType]:
        encoder = encoder_of_output(self, schema, output, asked_by)
        factory = OperatorFactory(partial(ColumnSinkOperator, encoder=encoder))
        sink = self._env._outputs[output] = self._sink(output, "columns", factory=factory)
        return sink, encoder.schema

    def _sink(self, name: str, kind: str | None = None, **attributes: Any) -> SinkTransformation:
        if kind is not None:
            attributes = {"uid": f"{kind}-{name}", "output": name, **attributes}
        sink = SinkTransformation(self._env._next(), name, [self._plain_step()], **attributes)
        self._env._ends.append(sink)
        return sink

    def _check_other(self, other: Any, method: str) -> None:
        from pillarbox._datastream.streams.data_stream import DataStream

        check_takes(other, DataStream, f"{method}()", "a stream")
        if other._env is not self._env:
            raise ProgramError(
                f"{method}() takes a stream from the same StreamExecutionEnvironment, not from another one"
            )

    def _partition(self, name: str, partitioner: partitioners.Partitioner) -> DataStream[T1]:
        step = PartitionTransformation(self._env._next(), name, [self._plain_step()], partitioner=partitioner)
        return self._after(step)

    def _plain_step(self) -> Transformation:
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
        return self._after(step)

    def _after(self, step: Transformation) -> DataStream[Any]:
        from pillarbox._datastream.streams.data_stream import DataStream

        self._env._add(step)
        return DataStream(self._env, step)
