"""Windows over a keyed stream, as in PyFlink."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from pillarbox._datastream.streams.data_stream import DataStream
from pillarbox._datastream.windows.windowed import WindowsOfOneStream
from pillarbox._generics import T1, Generic, KeyOut, U, WindowOut
from pillarbox._operators.columnar.aggregates import ColumnAggregate
from pillarbox._operators.functions.basic import ReduceFunction, SideOutput
from pillarbox._operators.windowing.api.functions import ProcessWindowFunction, WindowFunction
from pillarbox._rows import Row
from pillarbox._state.descriptors import AggregateFunction
from pillarbox._types.schema import SchemaLike
from pillarbox._types.type_information import TypeInformation


class WindowedStream(WindowsOfOneStream[T1, WindowOut], Generic[T1, KeyOut, WindowOut]):
    """Windows over a keyed stream of type ``T1``.

    Records are added to their windows on arrival. The trigger decides when a window's function is called, by default at
    the window's end. ``output_type`` is as in :class:`DataStream`.
    """

    _kinds = WindowFunction, ProcessWindowFunction

    def reduce(
        self,
        reduce_function: Callable[[T1, T1], T1] | ReduceFunction[T1],
        window_function: WindowFunction[T1, Any, KeyOut, WindowOut]
        | ProcessWindowFunction[T1, Any, KeyOut, WindowOut]
        | None = None,
        output_type: SchemaLike | None = None,
    ) -> DataStream[Any]:
        """Reduce the records of each window as they arrive, so that a window stores one record.

        For windows that overlap or merge, the function also combines partial results, so it must be associative.

        Args:
            reduce_function: ``f(result_so_far, record)``, or a ``ReduceFunction``.
            window_function: called with the key, the window and the result. By default, the result is emitted.
            output_type: defaults to the records' declared type if there is no window function.

        Example:
            >>> words = env.from_collection(["to", "be", "to", "go"]).key_by(len).count_window(2)
            >>> words.reduce(lambda a, b: a + b).execute_and_collect()
            ['tobe', 'togo']
        """
        return self._reduce(reduce_function, window_function, output_type)

    @overload
    def aggregate(
        self,
        aggregate_function: AggregateFunction[T1, Any, U],
        window_function: WindowFunction[U, Any, KeyOut, WindowOut]
        | ProcessWindowFunction[U, Any, KeyOut, WindowOut]
        | None = None,
        accumulator_type: TypeInformation[Any] | type | None = None,
        output_type: SchemaLike | None = None,
    ) -> DataStream[Any]: ...
    @overload
    def aggregate(self, **aggregates: ColumnAggregate) -> DataStream[Row]: ...
    def aggregate(
        self,
        aggregate_function: Any = None,
        window_function: Any = None,
        accumulator_type: Any = None,
        output_type: Any = None,
        **aggregates: Any,
    ) -> DataStream[Any]:
        """Aggregate the records of each window as they arrive, with a function or with named aggregates of columns.

        A function adds each record to the window's accumulator. If the function has a ``merge`` method (required for
        merging windows), a record of several overlapping windows is added only once, and accumulators are merged when a
        window fires.

        Arrow computes column aggregates, such as ``total=sum_("amount")``, before and after the shuffle. The results
        are rows with the key columns, ``window_start``, ``window_end`` and the aggregates. The stream must be keyed by
        named columns, and its columns must be known from a DataFrame or a declared ``output_type``. Column aggregates
        are fastest for rows that no Python function has read. They require event-time windows without a trigger,
        evictor or side output for late rows. With ``allowed_lateness``, late rows that are processed together fire
        their keys' windows once.

        Args:
            window_function: as in :meth:`reduce`.
            accumulator_type: the accumulator type, from ``Types`` or a class. Other accumulators are refused. If the
                key type is also declared, the state is plain data (docs/security.md).

        Example:
            >>> class Mean(AggregateFunction):
            ...     def create_accumulator(self):
            ...         return 0, 0
            ...
            ...     def add(self, value, accumulator):
            ...         return accumulator[0] + value, accumulator[1] + 1
            ...
            ...     def get_result(self, accumulator):
            ...         return accumulator[0] / accumulator[1]
            >>> env.from_collection([1, 2, 3, 6]).key_by(bool).count_window(2).aggregate(Mean()).execute_and_collect()
            [1.5, 4.5]
            >>> payment = Types.ROW_NAMED(["card", "at", "amount"], [Types.STRING(), Types.LONG(), Types.LONG()])
            >>> payments = env.from_collection([("ann", 1, 5), ("bob", 2, 7), ("ann", 3, 1)], payment)
            >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
            >>> keyed = payments.assign_timestamps_and_watermarks(at).key_by("card")
            >>> totals = keyed.window(TumblingEventTimeWindows.of(60)).aggregate(total=sum_("amount"))
            >>> [(row.card, row.total) for row in totals.execute_and_collect()]
            [('ann', 6), ('bob', 7)]
        """
        return self._aggregate(aggregate_function, window_function, accumulator_type, output_type, aggregates)

    def apply(
        self, window_function: WindowFunction[T1, U, KeyOut, WindowOut], output_type: SchemaLike | None = None
    ) -> DataStream[U]:
        """Call a ``WindowFunction`` with all records of each window.

        Example:
            >>> class Join(WindowFunction):
            ...     def apply(self, key, window, inputs):
            ...         yield f"{key}: {' '.join(inputs)}"
            >>> words = env.from_collection(["to", "be", "or", "not"]).key_by(len).count_window(3)
            >>> words.apply(Join()).execute_and_collect()
            ['2: to be or']
        """
        return self._whole("apply", WindowFunction, window_function, output_type)

    def process(
        self,
        process_window_function: ProcessWindowFunction[T1, U, KeyOut, WindowOut],
        output_type: SchemaLike | None = None,
    ) -> DataStream[U | SideOutput]:
        """Call a ``ProcessWindowFunction`` with all records of each window.

        The function can use state, clocks and side outputs.

        Example:
            >>> class Span(ProcessWindowFunction):
            ...     def process(self, key, context, elements):
            ...         yield context.window().start, len(elements)
            >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(int)
            >>> events = env.from_collection([1_000, 61_000, 62_000]).assign_timestamps_and_watermarks(at)
            >>> windows = events.key_by(bool).window(TumblingEventTimeWindows.of("1 minute"))
            >>> windows.process(Span()).execute_and_collect()
            [(0, 1), (60000, 2)]
        """
        return self._whole("process", ProcessWindowFunction, process_window_function, output_type)
