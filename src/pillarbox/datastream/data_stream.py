"""Streams, as a user transforms them. Names and meaning are PyFlink's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pillarbox.datastream.code_search import uses_processing_time
from pillarbox.datastream.columns import check_column_names, check_key_columns, check_timestamp_column, key_types
from pillarbox.datastream.connected_streams import ConnectedStreams
from pillarbox.errors import ProgramError, shorten
from pillarbox.graph import (
    KeyByTransformation,
    OperatorTransformation,
    PartitionTransformation,
    SideOutputTransformation,
    SinkTransformation,
    Transformation,
    UnionTransformation,
)
from pillarbox.operators.async_io.cache import AsyncCache
from pillarbox.operators.async_io.function import AsyncFunction
from pillarbox.operators.async_io.host import is_generator_function
from pillarbox.operators.async_io.operator import AsyncWaitOperator
from pillarbox.operators.async_io.options import AsyncOptions, OnBarrier, OnFailure
from pillarbox.operators.async_io.retry import AsyncRetryStrategy
from pillarbox.operators.deduplicate import DeduplicateOperator
from pillarbox.operators.filter import FilterOperator
from pillarbox.operators.flat_map import FlatMapOperator
from pillarbox.operators.functions import (
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ReduceFunction,
    check_plain,
)
from pillarbox.operators.keyed_process import KeyedProcessOperator
from pillarbox.operators.keys import Keying
from pillarbox.operators.map import MapOperator
from pillarbox.operators.operator import StreamOperator
from pillarbox.operators.process import ProcessOperator
from pillarbox.operators.reduce import ReduceOperator
from pillarbox.operators.sinks import ColumnsOperator, PrintOperator
from pillarbox.operators.timestamps_and_watermarks import TimestampsAndWatermarksOperator
from pillarbox.task.partitioner import KeyGroupPartitioner, RebalancePartitioner
from pillarbox.time import WatermarkStrategy
from pillarbox.time.duration import DurationLike, positive_millis
from pillarbox.types import RowEncoder, TypeInformation, resolve_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from pillarbox.datastream.environment import StreamExecutionEnvironment

__all__ = ["CollectedResults", "DataStream", "DataStreamSink", "KeyedStream"]


class CollectedResults(list[Any]):
    """The records that a program gave; a context manager, as PyFlink's iterator is."""

    def close(self) -> None:
        """Nothing is held open."""

    def __enter__(self) -> CollectedResults:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class DataStreamSink:
    """The end of a stream within the program."""

    def __init__(self, step: SinkTransformation) -> None:
        self._step = step

    def name(self, name: str) -> DataStreamSink:
        """Name the sink, for people."""
        self._step.name = name
        return self

    def uid(self, uid: str) -> DataStreamSink:
        """Set what the sink's state is stored under."""
        self._step.uid = uid
        return self


class DataStream:
    """A stream of records."""

    _keying: Keying | None = None

    def __init__(self, env: StreamExecutionEnvironment, step: Transformation) -> None:
        self._env = env
        self._step = step

    # -- what the operator before is called --

    def name(self, name: str) -> DataStream:
        """Name the operator that makes this stream, for people."""
        self._step.name = name
        return self

    def uid(self, uid: str) -> DataStream:
        """Set what the operator's state is stored under: unique in the program, and kept when the program changes."""
        if not isinstance(self._step, OperatorTransformation):
            raise ProgramError(f"uid({uid!r}) belongs to an operator; {self._step.name!r} is none")
        if not isinstance(uid, str) or not uid:
            raise ProgramError(f"a uid is a non-empty string, not {shorten(uid)}")
        self._step.uid = uid
        return self

    # -- transformations --

    def map(self, func: Callable[[Any], Any] | MapFunction, output_type: Any = None) -> DataStream:
        """One record in, one out."""
        _check(func, MapFunction, "map")
        return self._apply_function("map", MapOperator, func, output_type)

    def flat_map(self, func: Callable[[Any], Any] | FlatMapFunction, output_type: Any = None) -> DataStream:
        """One record in, any number out."""
        _check(func, FlatMapFunction, "flat_map", many=True)
        return self._apply_function("flat_map", FlatMapOperator, func, output_type)

    def filter(self, func: Callable[[Any], bool] | FilterFunction) -> DataStream:
        """Keep the records for which ``func`` gives True; anything but a bool is refused."""
        _check(func, FilterFunction, "filter")
        return self._apply_function("filter", FilterOperator, func)

    def _apply_function(
        self,
        kind: str,
        operator: type[MapOperator | FlatMapOperator | FilterOperator],
        func: Any,
        output_type: Any = None,
    ) -> DataStream:
        # Only what is opened can have state; other functions need no key, and no look for it.
        keying = self._keying if isinstance(func, Function) else None
        return self._apply(
            kind, func, lambda name, uid: operator(name, func, uid, keying), output_type, keyed=keying is not None
        )

    def map_async(
        self,
        func: Callable[[Any], Any],
        output_type: Any = None,
        *,
        capacity: int = 100,
        timeout: DurationLike | None = "5 seconds",
        ordered: bool = True,
        retry: AsyncRetryStrategy | int | None = None,
        batch_size: int | None = None,
        batch_timeout: DurationLike | None = None,
        rate_limit: float | None = None,
        job_rate_limit: float | None = None,
        cache: AsyncCache | None = None,
        on_failure: OnFailure = "fail",
        on_barrier: OnBarrier = "drain",
    ) -> DataStream:
        """One record in, one out, by asking a service: many requests are under way at a time.

        Args:
            func: ``async def f(record)``; or a plain function, which runs in a thread pool; or an object with such a
                ``__call__``, which may derive from :class:`Function`: its ``open`` and ``close`` (``async def`` or
                plain) run in the event loop's thread, once for as long as the task lives in its worker, and may take
                ten minutes and half a minute. Whatever it raises is a failure of its record. Requests have context
                variables of their own, but share asyncio tasks: ``asyncio.current_task()`` does not tell them apart.
            output_type: what the results are.
            capacity: the most requests under way in a subtask.
            timeout: how long a request may take, retries included; None: for ever.
            ordered: whether results leave in the order of the records; else as they come, but none across a watermark.
            retry: when to ask again, or how often: then after 100 ms, 200 ms, ... whatever was raised.
            batch_size: ``func`` gets a list of up to this many records, and returns a list with one result for each.
            batch_timeout: how long a smaller batch waits for more; by default until the epoch or event time goes on.
            rate_limit: the most requests per second of a subtask.
            job_rate_limit: the most requests per second of all subtasks together: each gets its share.
            cache: which results to keep, and by which key.
            on_failure: what to do with a record whose last attempt failed: ``"fail"``, ``"drop"`` (the task's metrics
                count it), or the tag of a side output, which gets an :class:`AsyncFailure`.
            on_barrier: where an epoch ends: ``"drain"`` waits for its requests; ``"carry"`` takes those under way into
                the next (behind a ``key_by`` only): they are part of the state, and each worker that the subtask is
                given to asks about them once. Their timeout counts from when they were asked about first.

        Raises:
            ProgramError: an option is invalid.
        """
        if isinstance(func, AsyncFunction):
            raise ProgramError(
                f"map_async() got {type(func).__name__}, an AsyncFunction: give it to AsyncDataStream.ordered_wait() or"
                " unordered_wait(); map_async() takes a function that gives one result"
            )
        if not callable(func) or isinstance(func, type):
            raise ProgramError(f"map_async() got {shorten(func)}: give it a function, such as an async def")
        if is_generator_function(func):
            raise ProgramError(
                f"map_async() got {shorten(func)}, which yields: give it a function that returns one result; for any"
                " number there is AsyncDataStream with an AsyncFunction"
            )
        options = AsyncOptions(
            "map_async",
            capacity=capacity,
            timeout=timeout,
            ordered=ordered,
            retry=retry,
            batch_size=batch_size,
            batch_timeout=batch_timeout,
            rate_limit=rate_limit,
            job_rate_limit=job_rate_limit,
            cache=cache,
            on_failure=on_failure,
            on_barrier=on_barrier,
        )
        return self._apply_async(func, options, output_type)

    def _apply_async(self, func: Any, options: AsyncOptions, output_type: Any = None) -> DataStream:
        slots = 1 if options.job_rate_limit is None else self._env._task_slots()
        return self._apply(
            options.method,
            func,
            lambda name, uid: AsyncWaitOperator(name, func, options, uid, slots=slots),
            output_type,
        )

    def process(self, func: ProcessFunction, output_type: Any = None) -> DataStream:
        """One record in, any number out, with side outputs."""
        if isinstance(func, KeyedProcessFunction):
            raise ProgramError(
                f"process() got {type(func).__name__}, a KeyedProcessFunction, on a stream without key: its state and"
                " timers belong to a key; put key_by(...) before it"
            )
        _check(func, ProcessFunction, "process", "process_element", many=True)
        return self._apply("process", func, lambda name, uid: ProcessOperator(name, func, uid), output_type)

    def assign_timestamps_and_watermarks(self, strategy: WatermarkStrategy) -> DataStream:
        """Assign event time to records, and emit watermarks."""
        if not isinstance(strategy, WatermarkStrategy):
            raise ProgramError(f"assign_timestamps_and_watermarks() takes a WatermarkStrategy, not {shorten(strategy)}")
        check_timestamp_column(self._step, strategy.timestamp_column)
        return self._apply(
            "timestamps",
            None,
            lambda name, uid: TimestampsAndWatermarksOperator(name, strategy, uid),
            idle_timeout=strategy.idle_timeout,
        )

    def union(self, *streams: DataStream) -> DataStream:
        """Return this stream and others as one."""
        if not streams:
            raise ProgramError("union() takes at least one other stream")
        for stream in streams:
            if not isinstance(stream, DataStream):
                raise ProgramError(f"union() takes streams, not {shorten(stream)}")
            if stream._env is not self._env:
                raise ProgramError("union() takes streams of the same StreamExecutionEnvironment")
        inputs = [self._plain_step(), *(stream._plain_step() for stream in streams)]
        types = [step.output_type for step in inputs]
        step = UnionTransformation(
            self._env._next(), "union", inputs, types[0] if types.count(types[0]) == len(types) else None
        )
        return DataStream(self._env, self._env._add(step))

    def connect(self, other: DataStream) -> ConnectedStreams:
        """Let one operator handle the records of this stream and of another one, with state that both share.

        Key both, before or behind: ``a.key_by("x").connect(b.key_by("y"))``, or ``a.connect(b).key_by("x", "y")``.
        """
        if not isinstance(other, DataStream):
            raise ProgramError(f"connect() takes a stream, not {shorten(other)}")
        if other._env is not self._env:
            raise ProgramError("connect() takes a stream of the same StreamExecutionEnvironment")
        return ConnectedStreams(self, other)

    def rebalance(self) -> DataStream:
        """Spread the stream evenly over the subtasks of the operators that come next, whatever is in its records.

        They run with the program's parallelism, behind a shuffle: for what takes long, where the source has few
        partitions, or partitions of different sizes. The order of records is kept from each subtask to each.

        A failed task that Spark runs again has to deal out its records as it did before: so their order within a
        partition of the source must be the same each time it is read, as it is in files and in Kafka. Behind a
        shuffle or join of Spark's own it need not be; there, ``key_by`` is the safe way to spread.
        """
        step = PartitionTransformation(
            self._env._next(), "rebalance", [self._plain_step()], partitioner=RebalancePartitioner()
        )
        return DataStream(self._env, self._env._add(step))

    def key_by(
        self,
        key_selector: Callable[[Any], Any] | KeySelector | str | Sequence[str],
        *more: Any,
        key_type: TypeInformation | None = None,
    ) -> KeyedStream:
        """Spread the stream by key: a function, or names of columns.

        Args:
            more: names of more columns; a type in the second place is the ``key_type``, as in PyFlink.
            key_type: what the keys are, one of ``Types``: they are converted to it, and refused if they do not fit.
        """
        if key_type is None and len(more) == 1 and isinstance(more[0], TypeInformation):
            key_type, more = more[0], ()
        key: Any = (key_selector, *more) if more else key_selector
        keying = Keying(key, f"key_by after {self._step.name}", key_type)
        check_key_columns(self._step, keying.columns)
        types = key_types(self._plain_step(), keying.columns, key_type)
        keyed = KeyByTransformation(
            self._env._next(),
            "key_by",
            [self._plain_step()],
            partitioner=KeyGroupPartitioner(keying),
            key_types=types,
        )
        self._env._add(keyed)
        return KeyedStream(self._env, keyed, keying)

    def get_side_output(self, tag: OutputTag) -> DataStream:
        """Return the stream of a side output of the operator before."""
        if not isinstance(tag, OutputTag):
            raise ProgramError(f"get_side_output() takes an OutputTag, not {shorten(tag)}")
        if not isinstance(self._step, OperatorTransformation):
            raise ProgramError(f"{self._step.name!r} has no side outputs: ask the stream that process(...) gave")
        step = SideOutputTransformation(self._env._next(), f"side output {tag.tag_id}", [self._step], tag_id=tag.tag_id)
        return DataStream(self._env, self._env._add(step))

    # -- ends --

    def print(self, sink_identifier: str = "") -> DataStreamSink:
        """Print each record where it is processed; ``env.execute()`` runs it."""
        sink = SinkTransformation(
            self._env._next(),
            "print",
            [self._plain_step()],
            factory=lambda name, uid: PrintOperator(name, sink_identifier, uid, self._env.get_parallelism() > 1),
        )
        self._env._add(sink)
        self._env._sinks.append(sink)
        return DataStreamSink(sink)

    def execute_and_collect(self, job_execution_name: str | None = None, limit: int | None = None) -> CollectedResults:
        """Run the program that leads here on its bounded sources, and give the records."""
        results = self._env._collect(self._plain_step())
        return results if limit is None else CollectedResults(results[:limit])

    def to_dataframe(self, schema: Any = None) -> DataFrame:
        """Return the stream as a DataFrame, streaming if a source is: for any Spark sink, trigger or SQL.

        Args:
            schema: the columns: a DDL string, ``StructType``, ``Types``, dataclass or ``NamedTuple``; by default the
                ``output_type`` of the operator before.
        """
        from pillarbox.runtime.spark.plan import plan_output

        if schema is None and self._step.output_type is None:
            raise ProgramError(
                f"to_dataframe() needs the columns, such as to_dataframe('card STRING, n LONG'): {self._step.name!r}"
                " declares no output_type"
            )
        declared = resolve_schema(self._step.output_type if schema is None else schema)
        spark = self._env._spark_session("to_dataframe()")
        program = self._env._compile("to_dataframe", [self._columns_sink("output", declared)])
        return plan_output(program, spark, declared)

    def _columns_sink(self, output: str, schema: StructType) -> SinkTransformation:
        from pillarbox.runtime.spark.session import time_zone

        check_column_names(schema.names, f"output {output!r}")
        encoder = RowEncoder(schema, self._plain_step().name, time_zone(self._env._session()))
        sink = SinkTransformation(
            self._env._next(),
            output,
            [self._plain_step()],
            factory=lambda name, uid: ColumnsOperator(name, encoder, uid),
            output=output,
        )
        sink.uid = f"columns-{output}"
        self._env._outputs[output] = sink
        return sink

    def _plain_step(self) -> Transformation:
        """The step that makes this stream's records, whatever their spreading."""
        return self._step

    def _apply(
        self,
        kind: str,
        func: Any,
        factory: Callable[[str, str], StreamOperator],
        output_type: Any = None,
        *,
        idle_timeout: int | None = None,
        keyed: bool = False,
        uses_processing_time: bool = False,
        more_inputs: Sequence[Transformation] = (),
    ) -> DataStream:
        step = OperatorTransformation(
            self._env._next(),
            _name_of(kind, func),
            [self._step, *more_inputs],
            output_type,
            kind=kind,
            factory=factory,
            keyed=keyed,
            uses_processing_time=uses_processing_time,
            idle_timeout=idle_timeout,
        )
        return DataStream(self._env, self._env._add(step))


class KeyedStream(DataStream):
    """A stream that is spread by key: operators on it have keyed state and timers."""

    _keying: Keying

    def __init__(self, env: StreamExecutionEnvironment, step: KeyByTransformation, keying: Keying) -> None:
        super().__init__(env, step)
        self._keying = keying

    def process(
        self,
        func: KeyedProcessFunction | ProcessFunction,
        output_type: Any = None,
        *,
        processing_time: bool | None = None,
    ) -> DataStream:
        """One record in, any number out, with keyed state and timers.

        Args:
            processing_time: whether ``func`` sets processing-time timers, so that Spark must run epochs also when
                there is no data; by default it is what the function declares
                (:attr:`Function.uses_processing_time`), or else looked up in its code and in that of the
                helpers that it reaches. A streaming query that is not known to do so fails where one is set.

        Raises:
            ProgramError: ``func`` is no such function; it declares something that is no bool.
        """
        if isinstance(func, ProcessFunction):
            _check(func, ProcessFunction, "process", "process_element", many=True)
            return self._apply("process", func, lambda name, uid: ProcessOperator(name, func, uid), output_type)
        _check(func, KeyedProcessFunction, "process", "process_element", many=True)
        if isinstance(func, KeyedProcessFunction):
            check_plain(func, "on_timer", asked_by="process()", many=True)
        keying = self._keying
        return self._apply(
            "process",
            func,
            lambda name, uid: KeyedProcessOperator(name, func, keying, uid),
            output_type,
            keyed=True,
            uses_processing_time=uses_processing_time(func) if processing_time is None else processing_time,
        )

    def reduce(self, func: Callable[[Any, Any], Any] | ReduceFunction, output_type: Any = None) -> DataStream:
        """Fold the records of a key; the new value is emitted after every record."""
        _check(func, ReduceFunction, "reduce")
        keying = self._keying
        return self._apply(
            "reduce", func, lambda name, uid: ReduceOperator(name, func, keying, uid), output_type, keyed=True
        )

    def deduplicate(self, within: DurationLike) -> DataStream:
        """Drop records whose key has come before.

        The first record of a key to arrive passes. Then its key is remembered until event time has passed its timestamp
        by ``within``; a record that comes later is the first one again. Columnar runs stay columnar.

        Args:
            within: for how long, in event time, a key is remembered.

        Raises:
            ProgramError: ``within`` is no duration of a millisecond or more.
        """
        keying, millis = self._keying, positive_millis(within, "deduplicate(): within")
        return self._apply(
            "deduplicate", None, lambda name, uid: DeduplicateOperator(name, keying, millis, uid), keyed=True
        )

    def _plain_step(self) -> Transformation:
        return self._step.inputs[0]


def _name_of(kind: str, func: Any) -> str:
    """Return an operator's name: the method, and the function's own name where it has one."""
    name = getattr(func, "__name__", type(func).__name__) if func is not None else "<lambda>"
    return kind if name == "<lambda>" else f"{kind}: {name}"


def _check(func: Any, interface: type, method: str, called: str | None = None, *, many: bool = False) -> None:
    # A class of another kind, such as `str`, is a function like any other.
    forgotten = isinstance(func, type) and issubclass(func, Function)
    if not isinstance(func, interface) and (forgotten or not callable(func)):
        hint = f"an instance: {func.__name__}()" if forgotten else f"a function or {interface.__name__}"
        raise ProgramError(f"{method}() got {shorten(func)}: give it {hint}")
    check_plain(func, called or method, asked_by=f"{method}()", many=many)
