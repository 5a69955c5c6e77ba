"""Windows over a non-keyed stream, as in PyFlink."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from pillarbox._datastream.streams.data_stream import DataStream
from pillarbox._datastream.windows.windowed import WindowsOfOneStream
from pillarbox._generics import T1, Generic, U, WindowOut
from pillarbox._operators.columnar.aggregates import ColumnAggregate
from pillarbox._operators.functions.basic import ReduceFunction, SideOutput
from pillarbox._operators.windowing.api.functions import AllWindowFunction, ProcessAllWindowFunction
from pillarbox._rows import Row
from pillarbox._state.descriptors import AggregateFunction
from pillarbox._types.schema import SchemaLike
from pillarbox._types.type_information import TypeInformation


class AllWindowedStream(WindowsOfOneStream[T1, WindowOut], Generic[T1, WindowOut]):
    """Windows over a whole stream of type ``T1``, in one subtask."""

    _kinds = AllWindowFunction, ProcessAllWindowFunction
    _of_keys = False

    def reduce(
        self,
        reduce_function: Callable[[T1, T1], T1] | ReduceFunction[T1],
        window_function: AllWindowFunction[T1, Any, WindowOut]
        | ProcessAllWindowFunction[T1, Any, WindowOut]
        | None = None,
        output_type: SchemaLike | None = None,
    ) -> DataStream[Any]:
        """Reduce the records of each window as they arrive, as in :meth:`WindowedStream.reduce`.

        Example:
            >>> env.from_collection([1, 2, 3, 4]).count_window_all(2).reduce(max).execute_and_collect()
            [2, 4]
        """
        return self._reduce(reduce_function, window_function, output_type)

    @overload
    def aggregate(
        self,
        aggregate_function: AggregateFunction[T1, Any, U],
        window_function: AllWindowFunction[U, Any, WindowOut]
        | ProcessAllWindowFunction[U, Any, WindowOut]
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
        """Aggregate the records of each window as they arrive, as in :meth:`WindowedStream.aggregate`.

        Results of column aggregates are rows with ``window_start``, ``window_end`` and the aggregates. Each partition
        is aggregated before the shuffle.

        Example:
            >>> payment = Types.ROW_NAMED(["at", "amount"], [Types.LONG(), Types.LONG()])
            >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
            >>> payments = env.from_collection([(1, 5), (2, 7)], payment).assign_timestamps_and_watermarks(at)
            >>> windows = payments.window_all(TumblingEventTimeWindows.of(60))
            >>> [row.total for row in windows.aggregate(total=sum_("amount")).execute_and_collect()]
            [12]
        """
        return self._aggregate(aggregate_function, window_function, accumulator_type, output_type, aggregates)

    def apply(
        self, window_function: AllWindowFunction[T1, U, WindowOut], output_type: SchemaLike | None = None
    ) -> DataStream[U]:
        """Call a function with all records of each window, as in :meth:`WindowedStream.apply`.

        Example:
            >>> class Join(AllWindowFunction):
            ...     def apply(self, window, inputs):
            ...         yield " ".join(inputs)
            >>> env.from_collection(["to", "be"]).count_window_all(2).apply(Join()).execute_and_collect()
            ['to be']
        """
        return self._whole("apply", AllWindowFunction, window_function, output_type)

    def process(
        self,
        process_window_function: ProcessAllWindowFunction[T1, U, WindowOut],
        output_type: SchemaLike | None = None,
    ) -> DataStream[U | SideOutput]:
        """Call a function with all records of each window, as in :meth:`WindowedStream.process`.

        Example:
            >>> class Number(ProcessAllWindowFunction):
            ...     def process(self, context, elements):
            ...         yield context.window().id, len(elements)
            >>> env.from_collection(["to", "be"]).count_window_all(2).process(Number()).execute_and_collect()
            [(0, 2)]
        """
        return self._whole("process", ProcessAllWindowFunction, process_window_function, output_type)
