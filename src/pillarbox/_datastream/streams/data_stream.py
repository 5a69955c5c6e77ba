"""Streams and their transformations, as in PyFlink."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from pillarbox._datastream.checks.given_functions import check_function, check_requests, check_strategy
from pillarbox._datastream.checks.schemas import check_key_columns, check_timestamp_column, key_types
from pillarbox._datastream.streams.stream import Stream
from pillarbox._errors import ProgramError, check_takes
from pillarbox._generics import T1, Generic, K, U, V
from pillarbox._graph.transformations import (
    KeyByTransformation,
    OperatorTransformation,
    SideOutputTransformation,
    Transformation,
)
from pillarbox._operators.async_io.api.cache import AsyncCache
from pillarbox._operators.async_io.api.options import AsyncKeywords, AsyncOptions, OnBarrier, OnFailure
from pillarbox._operators.async_io.api.retry import AsyncRetryStrategy
from pillarbox._operators.async_io.operator import AsyncWaitOperator
from pillarbox._operators.budgets.budget import Budget
from pillarbox._operators.dead_letters.dead_letter import OnError, check_on_error
from pillarbox._operators.dead_letters.guarded import guarded
from pillarbox._operators.dead_letters.key_guard import KeyGuardOperator
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorFactory
from pillarbox._operators.functions.basic import (
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ProcessFunction,
    SideOutput,
)
from pillarbox._operators.functions.output_tag import OutputTag
from pillarbox._operators.stateless.filter import FilterOperator
from pillarbox._operators.stateless.flat_map import FlatMapOperator
from pillarbox._operators.stateless.map import MapOperator
from pillarbox._operators.stateless.process import ProcessOperator
from pillarbox._operators.timestamps_and_watermarks import TimestampsAndWatermarksOperator
from pillarbox._operators.windowing.api.assigner import WindowAssigner
from pillarbox._operators.windowing.api.count_windows import count_windows
from pillarbox._operators.windowing.api.windows import CountWindow
from pillarbox._task.network.partitioner import KeyGroupPartitioner
from pillarbox._time.duration import DurationLike
from pillarbox._time.watermark_strategy import WatermarkStrategy
from pillarbox._types.schema import SchemaLike
from pillarbox._types.type_information import TypeInformation

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pillarbox._datastream.streams.keyed_stream import KeyedStream
    from pillarbox._datastream.windows.all_windowed_stream import AllWindowedStream


class DataStream(Stream[T1], Generic[T1]):
    """A stream of records of type ``T1``.

    Methods add a step to the program. Nothing runs until ``execute_and_collect()``, ``env.execute()``, or a query on
    ``to_dataframe()``. Invalid arguments raise ``ProgramError``.

    A function argument is a Python function, or an instance of the interface that the method names. On a keyed stream,
    such an instance can use keyed state. ``output_type`` declares the results' columns; a type from ``Types`` also
    converts the results. If a function raises, the task fails. With ``on_error=OutputTag(...)``, the task instead emits
    a :class:`DeadLetter` to that side output, and continues.
    """

    _keying: Keying | None = None

    def map(
        self,
        func: Callable[[T1], U] | MapFunction[T1, U],
        output_type: SchemaLike | None = None,
        *,
        on_error: OnError = "fail",
    ) -> DataStream[U]:
        """Map each record to one result with a function or a ``MapFunction``.

        Example:
            >>> env.from_collection([1, 2, 3]).map(lambda n: n * n).execute_and_collect()
            [1, 4, 9]
        """
        check_function(func, MapFunction, "map")
        return self._apply_function("map", MapOperator, func, output_type, on_error)

    def flat_map(
        self,
        func: Callable[[T1], Iterable[U] | None] | FlatMapFunction[T1, U],
        output_type: SchemaLike | None = None,
        *,
        on_error: OnError = "fail",
    ) -> DataStream[U]:
        """Map each record to any number of results.

        Args:
            func: a function or ``FlatMapFunction`` that returns or yields the results. None means no results.

        Example:
            >>> env.from_collection(["to be", "or not"]).flat_map(str.split).execute_and_collect()
            ['to', 'be', 'or', 'not']
        """
        check_function(func, FlatMapFunction, "flat_map", many=True)
        return self._apply_function("flat_map", FlatMapOperator, func, output_type, on_error)

    def filter(self, func: Callable[[T1], bool] | FilterFunction[T1], *, on_error: OnError = "fail") -> DataStream[T1]:
        """Keep a record if ``func`` (a function or ``FilterFunction``) returns True for it.

        Raises:
            OperatorError: a result is not a bool. Raised at run time.

        Example:
            >>> env.from_collection([5, 500, 50]).filter(lambda amount: amount > 10).execute_and_collect()
            [500, 50]
        """
        check_function(func, FilterFunction, "filter")
        return self._apply_function("filter", FilterOperator, func, on_error=on_error)

    def _apply_function(
        self,
        kind: str,
        operator: type[MapOperator | FlatMapOperator | FilterOperator],
        func: Any,
        output_type: Any = None,
        on_error: OnError = "fail",
    ) -> DataStream[Any]:
        # Only a ``Function`` can have state; plain functions need no key.
        keying = self._keying if isinstance(func, Function) else None
        make = partial(operator, function=func, keying=keying)
        factory = OperatorFactory(make, keyed=keying is not None, keeps_records=operator is FilterOperator)
        return self._apply(kind, func, guarded(factory, on_error, f"{kind}()", keying=self._keying), output_type)

    @overload
    def map_async(
        self,
        func: Callable[[T1], Awaitable[U]],
        output_type: SchemaLike | None = None,
        *,
        batch_size: None = None,
        **options: Unpack[AsyncKeywords],
    ) -> DataStream[U]: ...
    @overload
    def map_async(
        self,
        func: Callable[[T1], U],
        output_type: SchemaLike | None = None,
        *,
        batch_size: None = None,
        **options: Unpack[AsyncKeywords],
    ) -> DataStream[U]: ...
    @overload
    def map_async(
        self,
        func: Callable[[list[T1]], Awaitable[Sequence[U]]],
        output_type: SchemaLike | None = None,
        *,
        batch_size: int,
        **options: Unpack[AsyncKeywords],
    ) -> DataStream[U]: ...
    @overload
    def map_async(
        self,
        func: Callable[[list[T1]], Sequence[U]],
        output_type: SchemaLike | None = None,
        *,
        batch_size: int,
        **options: Unpack[AsyncKeywords],
    ) -> DataStream[U]: ...
    def map_async(
        self,
        func: Callable[[Any], Any],
        output_type: SchemaLike | None = None,
        *,
        capacity: int = 100,
        timeout: DurationLike | None = "5 seconds",
        ordered: bool = True,
        retry: AsyncRetryStrategy | int | None = None,
        batch_size: int | None = None,
        batch_timeout: DurationLike | None = None,
        rate_limit: float | None = None,
        job_rate_limit: float | None = None,
        budgets: Sequence[Budget] = (),
        cache: AsyncCache | None = None,
        on_failure: OnFailure = "fail",
        on_barrier: OnBarrier = "drain",
        record: bool = False,
    ) -> DataStream[Any]:
        """Map each record to one result of a service, with many concurrent requests.

        Args:
            func: ``async def f(record)``, a plain function (which runs in a thread pool), or a callable object. The
                ``open`` and ``close`` of a :class:`Function` may be ``async def``. They run once per task in the event
                loop's thread. ``open`` may take ten minutes, and ``close`` 30 seconds. Each request has its own context
                variables, but requests share asyncio tasks, so ``asyncio.current_task()`` does not identify a request.
            capacity: maximum number of concurrent requests in a partition.
            timeout: the maximum total time of a request, including retries (an int is milliseconds), or None for no
                limit.
            ordered: whether results keep the records' order. If False, they are emitted when they arrive, but never
                overtake a watermark.
            retry: a strategy, or the number of retries after any exception. Retries wait for 100 ms, 200 ms, 400 ms,
                ... (at most 10 s).
            batch_size: ``func`` receives a list of up to this many records, and returns a list with one result per
                record.
            batch_timeout: how long an incomplete batch waits for more records; by default, until the epoch ends or
                event time advances.
            rate_limit: maximum requests per second in a partition.
            job_rate_limit: maximum requests per second of all subtasks.
            budgets: the budgets that requests are charged to. Operators and queries share budgets of the same name.
            on_failure: how to treat a record whose last attempt failed. ``"fail"`` fails the task; ``"drop"`` drops and
                counts the record; an ``OutputTag`` emits an :class:`AsyncFailure` to that side output; ``fallback(f)``
                emits the result of ``f(record, error)``.
            on_barrier: how to treat unfinished requests at an epoch's end. ``"drain"`` waits for them; ``"carry"``
                (only after a ``key_by``) stores them as state and continues them in the next epoch. If the task is
                recreated, they are repeated.
            record: whether ``"carry"`` also stores answers that wait for earlier records, so that their requests are
                not repeated. Answers must be picklable data.

        Example:
            >>> async def score(card):
            ...     await asyncio.sleep(0.001)  # or a request
            ...     return card, len(card)
            >>> env.from_collection(["ann", "robert"]).map_async(score, timeout="2 seconds").execute_and_collect()
            [('ann', 3), ('robert', 6)]
        """
        check_requests(func)
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
            budgets=budgets,
            cache=cache,
            on_failure=on_failure,
            on_barrier=on_barrier,
            record=record,
        )
        return self._apply_async(func, options, output_type)

    def _apply_async(self, func: Any, options: AsyncOptions, output_type: Any = None) -> DataStream[Any]:
        slots = self._env._runtime.task_slots if options.shared_budgets else 1
        return self._apply(options.method, func, AsyncWaitOperator.factory(func, options, slots=slots), output_type)

    def process(
        self,
        func: ProcessFunction[T1, U] | Callable[[T1, ProcessFunction.Context], Iterable[U | SideOutput] | None],
        output_type: SchemaLike | None = None,
        *,
        on_error: OnError = "fail",
    ) -> DataStream[U]:
        """Map each record to any number of results and side outputs.

        Args:
            func: a ``ProcessFunction``, or a function ``f(value, ctx)`` that returns or yields the results.

        Example:
            >>> def positive(amount, ctx):
            ...     if amount > 0:
            ...         yield amount
            >>> env.from_collection([5, -7, 9]).process(positive).execute_and_collect()
            [5, 9]
        """
        if isinstance(func, KeyedProcessFunction):
            raise ProgramError(
                f"process() got {type(func).__name__}, a KeyedProcessFunction, on a stream without keys, but its"
                " state and timers need a key: call key_by(...) before process()"
            )
        check_function(func, ProcessFunction, "process", "process_element", many=True)
        factory = OperatorFactory(partial(ProcessOperator, function=func))
        return self._apply("process", func, guarded(factory, on_error, "process()", keying=self._keying), output_type)

    def assign_timestamps_and_watermarks(
        self, watermark_strategy: WatermarkStrategy, *, on_error: OnError = "fail"
    ) -> DataStream[T1]:
        """Assign event time to records, and emit watermarks.

        Args:
            on_error: used if the timestamp assigner raises or returns no timestamp.

        Example:
            >>> at = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_timestamp_assigner(int)
            >>> timed = env.from_collection([1_000, 2_000]).assign_timestamps_and_watermarks(at)
            >>> timed.process(lambda event, ctx: [ctx.timestamp()]).execute_and_collect()
            [1000, 2000]
        """
        strategy = watermark_strategy
        check_takes(strategy, WatermarkStrategy, "assign_timestamps_and_watermarks()", "a WatermarkStrategy")
        check_strategy(strategy)
        check_timestamp_column(self._step, strategy.timestamp_column)
        check_on_error(on_error, "assign_timestamps_and_watermarks()")
        tag = on_error if isinstance(on_error, OutputTag) else None
        make = partial(TimestampsAndWatermarksOperator, strategy=strategy, tag=tag)
        factory = OperatorFactory(make, keeps_records=True, keeps_columns=True)
        return self._apply("timestamps", None, factory, strategy=strategy)

    @overload
    def key_by(
        self,
        key_selector: Callable[[T1], K] | KeySelector[T1, K],
        *,
        key_type: None = None,
        on_error: OnError = "fail",
    ) -> KeyedStream[K, T1]: ...
    @overload
    def key_by(
        self,
        key_selector: Callable[[T1], Any] | KeySelector[T1, Any] | str | Sequence[str],
        key_type: TypeInformation[K],
        *,
        on_error: OnError = "fail",
    ) -> KeyedStream[K, T1]: ...
    @overload
    def key_by(
        self,
        key_selector: str | Sequence[str],
        *more: str,
        key_type: TypeInformation[Any] | None = None,
        on_error: OnError = "fail",
    ) -> KeyedStream[Any, T1]: ...
    def key_by(
        self,
        key_selector: Callable[[Any], Any] | KeySelector[Any, Any] | str | Sequence[str],
        *more: Any,
        key_type: TypeInformation[Any] | None = None,
        on_error: OnError = "fail",
    ) -> KeyedStream[Any, T1]:
        """Partition the stream by key: records with the same key share a subtask and keyed state.

        Args:
            key_selector: a function of the record, a ``KeySelector``, or one or more column names. A key is a string, a
                number, bytes, a date or time, a tuple of these, or None. Times with a time zone are compared as
                instants, so all machines need equal time zone data (``tzdata``).
            more: further column names or, as in PyFlink, the ``key_type``.
            key_type: a type from ``Types`` to convert keys to. Keys that do not fit are refused.
            on_error: used if the key function raises or returns no valid key. The key function is called twice for such
                a record. Read the side output from the keyed stream.

        Example:
            >>> payments = env.from_collection([row(card="ann", amount=5), row(card="ann", amount=7)])
            >>> payments.key_by("card").max("amount").execute_and_collect()
            [Row(card='ann', amount=5), Row(card='ann', amount=7)]
        """
        from pillarbox._datastream.streams.keyed_stream import KeyedStream

        if key_type is None and len(more) == 1 and isinstance(more[0], TypeInformation):
            key_type, more = more[0], ()
        key: Any = (key_selector, *more) if more else key_selector
        keying = Keying(key, f"key_by after {self._step.name}", key_type)
        check_key_columns(self._step, keying.columns)
        step = self._plain_step()
        types = key_types(step, keying)
        check_on_error(on_error, "key_by()")
        if isinstance(on_error, OutputTag):
            make = partial(KeyGuardOperator, keying=keying, tag=on_error)
            guard = OperatorFactory(make, keeps_records=True, keeps_columns=True)
            step = DataStream[T1](self._env, step)._apply("keys", None, guard).name(keying.operator)._step
        keyed = KeyByTransformation(
            self._env._next(),
            "key_by",
            [step],
            partitioner=KeyGroupPartitioner(keying),
            key_types=types,
        )
        self._env._add(keyed)
        return KeyedStream(self._env, keyed, keying)

    def window_all(self, window_assigner: WindowAssigner) -> AllWindowedStream[T1, Any]:
        """Assign the records of the whole stream to windows, in a single subtask.

        Example:
            >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(int)
            >>> numbers = env.from_collection([100, 900, 1_200]).assign_timestamps_and_watermarks(at)
            >>> numbers.window_all(TumblingEventTimeWindows.of("1 second")).reduce(max).execute_and_collect()
            [900, 1200]
        """
        from pillarbox._datastream.windows.all_windowed_stream import AllWindowedStream

        return AllWindowedStream(self.key_by(_one_key), window_assigner)

    def count_window_all(self, size: int, slide: int = 0) -> AllWindowedStream[T1, CountWindow]:
        """Divide the whole stream into windows of ``size`` records, in a single subtask. Only full windows fire.

        Args:
            slide: number of records between the starts of consecutive windows. 0 means ``size``.

        Example:
            >>> env.from_collection([1, 2, 3, 4, 5]).count_window_all(3, 1).reduce(max).execute_and_collect()
            [3, 4, 5]
        """
        return self.window_all(count_windows(size, slide))

    def get_side_output(self, output_tag: OutputTag[V]) -> DataStream[V]:
        """Return a side output of this stream's operator.

        Example:
            >>> REFUND = OutputTag[int]("refund")
            >>> def split(amount, ctx):
            ...     yield amount if amount >= 0 else (REFUND, -amount)
            >>> payments = env.from_collection([5, -7, 9]).process(split)
            >>> payments.get_side_output(REFUND).execute_and_collect()
            [7]
        """
        tag = output_tag
        check_takes(tag, OutputTag, "get_side_output()", "an OutputTag")
        source = self._step_with_sides()
        if not isinstance(source, OperatorTransformation):
            raise ProgramError(
                f"{source.name!r} has no side outputs: call get_side_output() on the result of process(...) or"
                " key_by(on_error=...)"
            )
        source.factory = source.factory.with_side_output(tag.tag_id, tag.type_info)
        name = f"side output {tag.tag_id}"
        step = SideOutputTransformation(self._env._next(), name, [source], tag.type_info, tag_id=tag.tag_id)
        return self._after(step)

    def _step_with_sides(self) -> Transformation:
        return self._step


def _one_key(value: object) -> int:
    return 0
