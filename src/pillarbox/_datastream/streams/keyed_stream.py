"""Keyed streams, as in PyFlink."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pillarbox._datastream.checks.code_search import event_time_use, uses_processing_time
from pillarbox._datastream.checks.given_functions import check_function
from pillarbox._datastream.checks.schemas import check_field, declared_type
from pillarbox._datastream.streams.data_stream import DataStream
from pillarbox._errors import ProgramError
from pillarbox._generics import T1, T2, Generic, KeyOut, U
from pillarbox._graph.transformations import EventTimeUse, KeyByTransformation, OperatorTransformation, Transformation
from pillarbox._operators.async_io.api.options import OnBarrier
from pillarbox._operators.async_keyed.factory import ONE_INPUT, keyed_process, refuse_keywords
from pillarbox._operators.budgets.budget import Budget
from pillarbox._operators.dead_letters.dead_letter import OnError
from pillarbox._operators.dead_letters.guarded import guarded
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorFactory
from pillarbox._operators.functions.basic import (
    KeyedProcessFunction,
    ProcessFunction,
    ReduceFunction,
    Results,
)
from pillarbox._operators.keyed.deduplicate import DeduplicateOperator
from pillarbox._operators.keyed.field_aggregation import FieldAggregation, Method
from pillarbox._operators.keyed.in_event_time_order import InEventTimeOrderOperator
from pillarbox._operators.keyed.reduce import ReduceOperator
from pillarbox._operators.windowing.api.assigner import WindowAssigner
from pillarbox._operators.windowing.api.count_windows import count_windows
from pillarbox._operators.windowing.api.windows import CountWindow
from pillarbox._time.duration import DurationLike, positive_millis
from pillarbox._types.schema import SchemaLike

if TYPE_CHECKING:
    from pillarbox._datastream.connected.joined_streams import IntervalJoin
    from pillarbox._datastream.environment.environment import StreamExecutionEnvironment
    from pillarbox._datastream.windows.windowed_stream import WindowedStream


class KeyedStream(DataStream[T1], Generic[KeyOut, T1]):
    """A stream of records of type ``T1``, partitioned by key. Its operators have keyed state and timers."""

    _keying: Keying

    def __init__(self, env: StreamExecutionEnvironment, step: KeyByTransformation, keying: Keying) -> None:
        super().__init__(env, step)
        self._keying = keying

    def process(
        self,
        func: KeyedProcessFunction[KeyOut, T1, U]
        | ProcessFunction[T1, U]
        | Callable[[T1, KeyedProcessFunction.Context[KeyOut]], Results[U]],
        output_type: SchemaLike | None = None,
        *,
        processing_time: bool | None = None,
        on_error: OnError = "fail",
        capacity: int | None = None,
        timeout: DurationLike | None = None,
        ordered: bool | None = None,
        on_barrier: OnBarrier | None = None,
        budgets: Sequence[Budget] | None = None,
        journal: str | None = None,
    ) -> DataStream[U]:
        """Map each record to any number of results, with keyed state and timers.

        Methods of ``func`` may be ``async def``, for example to await requests to a service. Records of one key are
        then processed in sequence, and different keys concurrently.

        Args:
            func: a ``KeyedProcessFunction``, a function ``f(value, ctx)`` (which cannot have timers), or a
                ``ProcessFunction`` (which cannot have state or timers).
            processing_time: whether ``func`` sets processing-time timers. If so, Spark runs epochs even without new
                data; if not, a streaming query fails when such a timer is set. The default is
                :attr:`Function.uses_processing_time` or, if that is None, the result of a search of the function's
                code.
            on_error: as in :class:`DataStream`. Before a dead letter is emitted, changes by ``func`` to state and
                timers are undone.
            capacity: the maximum number of records and timers in progress in a partition; 100 by default. This option
                and the options below require ``async def``.
            timeout: the maximum time of a record or timer from its start (an int is milliseconds). Afterwards, it fails
                with ``TimeoutError``. No limit by default.
            ordered: whether results are in the records' order. By default, they are emitted on completion, but in order
                for each key, and never overtake a watermark.
            on_barrier: with ``"drain"`` (default), each epoch waits until its records are finished. With ``"carry"``,
                unfinished records are stored in the checkpoint and continue in the next epoch; after a failure, they
                start again with the state before these records.
            budgets: the budgets that ``ctx.call(..., budget=...)`` may use.
            journal: a folder that all workers can write to, such as ``"s3://bucket/prefix"``. Answers to ``ctx.call``
                are written there before they are used. If the epoch fails, its next attempt reads them instead of
                calling the service again.

        Example:
            >>> class Count(KeyedProcessFunction[str, str, tuple[str, int]]):
            ...     def open(self, runtime_context):
            ...         self.count = runtime_context.get_state(ValueStateDescriptor("count", int, default=0))
            ...
            ...     def process_element(self, word, ctx):
            ...         self.count.update(self.count.value() + 1)
            ...         yield word, self.count.value()
            >>> env.from_collection(["to", "be", "to"]).key_by(str).process(Count()).execute_and_collect()
            [('to', 1), ('be', 1), ('to', 2)]
        """
        options: Any = {"capacity": capacity, "timeout": timeout, "ordered": ordered, "on_barrier": on_barrier}
        options |= {"budgets": budgets, "journal": journal}
        keywords: Any = {name: value for name, value in options.items() if value is not None}
        if isinstance(func, ProcessFunction):
            refuse_keywords(keywords, func, "process()")
            return super().process(func, output_type, on_error=on_error)
        check_function(func, KeyedProcessFunction, "process", "process_element", many=True, may_await=True)
        return self._apply(
            "process",
            func,
            keyed_process(ONE_INPUT, func, on_error, keywords, "process()", keying=self._keying),
            output_type,
            uses_processing_time=uses_processing_time(func) if processing_time is None else processing_time,
            event_time=event_time_use(func),
        )

    def reduce(
        self,
        func: Callable[[T1, T1], T1] | ReduceFunction[T1],
        output_type: SchemaLike | None = None,
        *,
        on_error: OnError = "fail",
    ) -> DataStream[T1]:
        """Reduce the records of each key, emitting the new result after every record.

        Args:
            func: ``f(result_so_far, record)``, or a ``ReduceFunction``. A key's first record is emitted unchanged.
            output_type: by default, the records' declared type, if it is from ``Types``.

        Example:
            >>> amounts = env.from_collection([3, 4, 10, 20]).key_by(lambda amount: amount < 10)
            >>> amounts.reduce(lambda total, amount: total + amount).execute_and_collect()
            [3, 7, 10, 30]
        """
        check_function(func, ReduceFunction, "reduce")
        declared = declared_type(self._step)
        make = partial(ReduceOperator, function=func, keying=self._keying, declared=declared)
        factory = guarded(OperatorFactory(make, keyed=True), on_error, "reduce()")
        return self._apply("reduce", func, factory, declared if output_type is None else output_type)

    def sum(self, position_to_sum: int | str = 0, *, on_error: OnError = "fail") -> DataStream[T1]:
        """Sum a field of each key's records, emitting the new sum after every record.

        The result is the key's first record with the sum in the field, as in Flink.

        Args:
            position_to_sum: the field's position (in tuples and rows) or name (in rows, dicts and objects). A number is
                its own field 0.
            on_error: for records whose field is missing or cannot be added.

        Example:
            >>> env.from_collection([("a", 3), ("b", 5)]).key_by(bool).sum(1).execute_and_collect()
            [('a', 3), ('a', 8)]
        """
        return self._fold_field("sum", position_to_sum, on_error)

    def min(self, position_to_min: int | str = 0, *, on_error: OnError = "fail") -> DataStream[T1]:
        """Compute the minimum of a field of each key's records, emitting the minimum so far after every record.

        Specify the field as in :meth:`sum`. The result is the key's first record, with the field set to the minimum, as
        in Flink. :meth:`min_by` emits the record that has the minimum. NaN is greater than all numbers.

        Args:
            on_error: for records whose field is missing or cannot be compared.

        Example:
            >>> trips = env.from_collection([("a", 3, "x"), ("a", 2, "y")]).key_by(lambda trip: trip[0])
            >>> trips.min(1).execute_and_collect()
            [('a', 3, 'x'), ('a', 2, 'x')]
        """
        return self._fold_field("min", position_to_min, on_error)

    def max(self, position_to_max: int | str = 0, *, on_error: OnError = "fail") -> DataStream[T1]:
        """Compute the maximum of a field of each key's records, as in :meth:`min`.

        Example:
            >>> env.from_collection([3, 8, 5]).key_by(bool).max().execute_and_collect()
            [3, 8, 8]
        """
        return self._fold_field("max", position_to_max, on_error)

    def min_by(self, position_to_min_by: int | str = 0, *, on_error: OnError = "fail") -> DataStream[T1]:
        """After every record, emit the record with the smallest value of a field among the key's records so far.

        If several records have this value, the earliest is emitted. Arguments are as in :meth:`min`.

        Example:
            >>> trips = env.from_collection([("a", 3, "x"), ("a", 2, "y")]).key_by(lambda trip: trip[0])
            >>> trips.min_by(1).execute_and_collect()
            [('a', 3, 'x'), ('a', 2, 'y')]
        """
        return self._fold_field("min_by", position_to_min_by, on_error)

    def max_by(self, position_to_max_by: int | str = 0, *, on_error: OnError = "fail") -> DataStream[T1]:
        """After every record, emit the record with the key's largest value of a field so far, as in :meth:`min_by`.

        Example:
            >>> words = env.from_collection([{"word": "to", "n": 2}, {"word": "be", "n": 1}]).key_by(bool)
            >>> words.max_by("n").execute_and_collect()
            [{'word': 'to', 'n': 2}, {'word': 'to', 'n': 2}]
        """
        return self._fold_field("max_by", position_to_max_by, on_error)

    def _fold_field(self, method: Method, field: int | str, on_error: OnError) -> DataStream[T1]:
        function = FieldAggregation(method, field)
        check_field(self._step, field, method)
        make = partial(ReduceOperator, function=function, keying=self._keying)
        factory = OperatorFactory(make, keyed=True, state_depends_on={"fold": function.name})
        return self._apply(method, None, guarded(factory, on_error, f"{method}()"))

    def deduplicate(self, within: DurationLike) -> DataStream[T1]:
        """Emit only the first record of each key.

        A key is forgotten when event time is more than ``within`` (an int is milliseconds) past the timestamp of its
        first record. The key's next record is then emitted. Rows of a DataFrame are processed as columns, without
        Python objects.

        Example:
            >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(int)
            >>> events = env.from_collection([0, 1_000, 2_000]).assign_timestamps_and_watermarks(at)
            >>> events.key_by(bool).deduplicate("1 hour").execute_and_collect()
            [0, 1000]
        """
        millis = positive_millis(within, "deduplicate(): within=")
        make = partial(DeduplicateOperator, keying=self._keying, within=millis)
        factory = OperatorFactory(make, keyed=True, keeps_records=True, keeps_columns=True)
        return self._apply("deduplicate", None, factory, event_time=EventTimeUse.TIMESTAMPS)

    def in_event_time_order(self) -> DataStream[T1]:
        """Sort the records of each key by their timestamps.

        A record waits in state until the watermark reaches its timestamp. Late records are dropped and counted
        (``late_records_dropped``). Records with equal timestamps stay in order of arrival. A following ``key_by`` with
        the same key preserves the order.

        Example:
            >>> at = WatermarkStrategy.for_bounded_out_of_orderness("1 minute").with_timestamp_assigner(int)
            >>> events = env.from_collection([2_000, 1_000]).assign_timestamps_and_watermarks(at)
            >>> events.key_by(bool).in_event_time_order().execute_and_collect()
            [1000, 2000]
        """
        make = partial(InEventTimeOrderOperator, keying=self._keying)
        factory = OperatorFactory(make, keyed=True, keeps_records=True)
        return self._apply("in_event_time_order", None, factory, event_time=EventTimeUse.TIMESTAMPS)

    def interval_join(self, other: KeyedStream[Any, T2]) -> IntervalJoin[T1, T2]:
        """Join records of two keyed streams that have equal keys and close event times.

        Example:
            >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(int)
            >>> clicks = env.from_collection([5_000]).assign_timestamps_and_watermarks(at).key_by(bool)
            >>> views = env.from_collection([3_000, 9_000]).assign_timestamps_and_watermarks(at).key_by(bool)
            >>> near = clicks.interval_join(views).between("-1 minute", 0)
            >>> near.process(lambda click, view, ctx: [(view, click)]).execute_and_collect()
            [(3000, 5000)]
        """
        from pillarbox._datastream.connected.connected_streams import check_key_types
        from pillarbox._datastream.connected.joined_streams import IntervalJoin

        self._check_other(other, "interval_join")
        if not isinstance(other, KeyedStream):
            raise ProgramError(
                "interval_join() takes a keyed stream: call key_by(...) on the other stream, too. Without keys,"
                " use join()"
            )
        check_key_types(self, other, "interval_join()")
        return IntervalJoin(self, other)

    def window(self, window_assigner: WindowAssigner) -> WindowedStream[T1, KeyOut, Any]:
        """Assign records to windows, such as ``TumblingEventTimeWindows.of("1 minute")``.

        Example:
            >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(int)
            >>> events = env.from_collection([1, 3, 63]).assign_timestamps_and_watermarks(at).key_by(bool)
            >>> events.window(TumblingEventTimeWindows.of(60)).reduce(max).execute_and_collect()
            [3, 63]
        """
        from pillarbox._datastream.windows.windowed_stream import WindowedStream

        return WindowedStream(self, window_assigner)

    def count_window(self, size: int, slide: int = 0) -> WindowedStream[T1, KeyOut, CountWindow]:
        """Divide each key's records into windows of ``size`` records. Only full windows fire.

        Args:
            slide: as in :meth:`DataStream.count_window_all`.

        Example:
            >>> words = env.from_collection(["to", "be", "or", "not"]).key_by(len)
            >>> words.count_window(2).reduce(max).execute_and_collect()
            ['to']
        """
        return self.window(count_windows(size, slide))

    def _plain_step(self) -> Transformation:
        return self._step.inputs[0]

    @property
    def _has_sides(self) -> bool:
        before = self._plain_step()
        return isinstance(before, OperatorTransformation) and before.kind == "keys"

    def _step_with_sides(self) -> Transformation:
        return self._plain_step() if self._has_sides else self._step
