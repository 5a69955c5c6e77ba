"""Joins of two streams, as in Flink's Java API. PyFlink has no joins.

Invalid arguments raise ``ProgramError``. ``output_type`` and ``on_error`` are as in :class:`DataStream`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pillarbox._datastream.checks.given_functions import check_function, name_of
from pillarbox._datastream.connected.columnar_joins import join_columns, sides_of_rows
from pillarbox._datastream.connected.connected_streams import check_key_types
from pillarbox._datastream.streams.data_stream import DataStream
from pillarbox._datastream.streams.keyed_stream import KeyedStream
from pillarbox._datastream.windows.windowed import Windowed
from pillarbox._errors import ProgramError, check_takes, shorten
from pillarbox._generics import T1, T2, Generic, U, V
from pillarbox._graph.transformations import EventTimeUse
from pillarbox._operators.columnar.joins.process_join import ColumnarProcessJoinOperator
from pillarbox._operators.dead_letters.dead_letter import OnError, check_on_error
from pillarbox._operators.dead_letters.guarded import guarded
from pillarbox._operators.frame.operator import OperatorContext, OperatorFactory, StreamOperator
from pillarbox._operators.functions.basic import KeySelector, SideOutput
from pillarbox._operators.functions.joins import CoGroupFunction, FlatJoinFunction, JoinFunction, ProcessJoinFunction
from pillarbox._operators.functions.output_tag import OutputTag
from pillarbox._operators.joins.co_group import CoGroupFlatPairs, CoGroupPairs, CoGroups, CoGroupWindowOperator
from pillarbox._operators.joins.interval_join import Interval, IntervalJoinOperator
from pillarbox._operators.windowing.api.assigner import WindowAssigner
from pillarbox._operators.windowing.api.functions import WindowFunction
from pillarbox._operators.windowing.contents import ListContents
from pillarbox._operators.windowing.window_program import WindowProgram
from pillarbox._time.duration import DurationLike, to_millis
from pillarbox._types.schema import SchemaLike

if TYPE_CHECKING:
    from typing_extensions import Self


class _Pair(Generic[T1, T2]):
    """Two streams, and the keys that match their records."""

    _method: str

    def __init__(self, first: DataStream[T1], second: DataStream[T2]) -> None:
        self._first = first
        self._second = second

    def where(
        self,
        key_selector: Callable[[T1], Any] | KeySelector[T1, Any] | str | Sequence[str],
        *,
        on_error: OnError = "fail",
    ) -> Self:
        """Set the first stream's key, as in :meth:`DataStream.key_by`. :meth:`get_side_output` returns dead letters."""
        check_on_error(on_error, "where()")
        changed = copy.copy(self)
        changed._first = self._first.key_by(key_selector, on_error=on_error)
        return changed

    def equal_to(
        self,
        key_selector: Callable[[T2], Any] | KeySelector[T2, Any] | str | Sequence[str],
        *,
        on_error: OnError = "fail",
    ) -> Self:
        """Set the second stream's key, as in :meth:`where`. Records with equal keys are joined."""
        check_on_error(on_error, "equal_to()")
        changed = copy.copy(self)
        changed._second = self._second.key_by(key_selector, on_error=on_error)
        return changed

    def get_side_output(self, tag: OutputTag[V]) -> DataStream[V]:
        """Return dead letters: records of either stream whose key could not be computed.

        ``tag`` is the ``on_error`` of :meth:`where`, of :meth:`equal_to`, or of both.

        Example:
            >>> BAD = OutputTag[DeadLetter]("bad")
            >>> first, second = env.from_collection(["1", "2"]), env.from_collection(["2", "x"])
            >>> pairs = first.join(second).where(int, on_error=BAD).equal_to(int, on_error=BAD)
            >>> pairs.get_side_output(BAD).map(lambda letter: letter.value).execute_and_collect()
            ['x']
        """
        guarded_ones = [
            stream for stream in (self._first, self._second) if isinstance(stream, KeyedStream) and stream._has_sides
        ]
        if not guarded_ones:
            raise ProgramError(
                f"{self._method}() has side outputs only after where(key, on_error=tag) or equal_to(key,"
                " on_error=tag). Side outputs of the results belong to the stream that apply(...) returns"
            )
        first, *more = (stream.get_side_output(tag) for stream in guarded_ones)
        return first.union(*more) if more else first

    def _keyed(self) -> tuple[KeyedStream[Any, T1], KeyedStream[Any, T2]]:
        first, second = self._first, self._second
        if not isinstance(first, KeyedStream) or not isinstance(second, KeyedStream):
            missing = "where(...)" if not isinstance(first, KeyedStream) else "equal_to(...)"
            raise ProgramError(
                f"{self._method}(): {missing} is missing, so records cannot be matched: call"
                f" one.{self._method}(two).where(key).equal_to(key).window(...)"
            )
        check_key_types(first, second, f"{self._method}()")
        return first, second


class JoinedStreams(_Pair[T1, T2], Generic[T1, T2]):
    """Two streams, of types ``T1`` and ``T2``, whose records are joined by key and window."""

    _method = "join"

    def window(self, assigner: WindowAssigner) -> JoinedWindows[T1, T2]:
        """Assign records of both streams to windows, such as ``TumblingEventTimeWindows.of("1 minute")``."""
        return JoinedWindows(*self._keyed(), assigner)


class CoGroupedStreams(_Pair[T1, T2], Generic[T1, T2]):
    """Two streams, of types ``T1`` and ``T2``, whose records are grouped by key and window."""

    _method = "co_group"

    def window(self, assigner: WindowAssigner) -> CoGroupedWindows[T1, T2]:
        """Assign records of both streams to windows, such as ``TumblingEventTimeWindows.of("1 minute")``."""
        return CoGroupedWindows(*self._keyed(), assigner)


class _PairedWindows(Windowed[Any, Any], Generic[T1, T2]):
    _method: str

    def __init__(self, first: KeyedStream[Any, T1], second: KeyedStream[Any, T2], assigner: WindowAssigner) -> None:
        super().__init__(first, assigner)
        self._keyings = (first._keying, second._keying)
        self._more_inputs = [second._step]

    def _make(self, program: WindowProgram) -> Callable[[OperatorContext], StreamOperator]:
        return partial(CoGroupWindowOperator, keyings=self._keyings, program=program)

    def _apply_to_all(self, func: Any, function: WindowFunction, output_type: Any) -> DataStream[Any]:
        contents = ListContents(evictor=self._evictor)
        results = self._run("apply", func, contents, function, output_type, (func,))
        return results.name(name_of(self._method, func))


class JoinedWindows(_PairedWindows[T1, T2], Generic[T1, T2]):
    """The windows of two joined streams."""

    _method = "join"

    def apply(
        self,
        func: Callable[[T1, T2], U] | JoinFunction[T1, T2, U] | FlatJoinFunction[T1, T2, U],
        output_type: SchemaLike | None = None,
    ) -> DataStream[U]:
        """When a window ends, call a function with each pair of records in the window that have the same key.

        ``f(first, second)`` or a ``JoinFunction`` returns one result; a ``FlatJoinFunction`` returns any number.

        Example:
            >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(int)
            >>> first = env.from_collection([1, 61]).assign_timestamps_and_watermarks(at)
            >>> second = env.from_collection([2]).assign_timestamps_and_watermarks(at)
            >>> windows = first.join(second).where(bool).equal_to(bool).window(TumblingEventTimeWindows.of(60))
            >>> windows.apply(lambda a, b: (a, b)).execute_and_collect()
            [(1, 2)]
        """
        flat = isinstance(func, FlatJoinFunction)
        check_function(func, FlatJoinFunction if flat else JoinFunction, "apply", "join", many=flat)
        call: Any = func.join if isinstance(func, (JoinFunction, FlatJoinFunction)) else func
        return self._apply_to_all(func, (CoGroupFlatPairs if flat else CoGroupPairs)(call), output_type)


class CoGroupedWindows(_PairedWindows[T1, T2], Generic[T1, T2]):
    """The windows of two grouped streams."""

    _method = "co_group"

    def apply(
        self,
        func: Callable[[Sequence[T1], Sequence[T2]], Iterable[U] | None] | CoGroupFunction[T1, T2, U],
        output_type: SchemaLike | None = None,
    ) -> DataStream[U]:
        """When a window ends, call a function for each key with the window's records of both streams.

        ``f(firsts, seconds)`` or a ``CoGroupFunction`` returns or yields the results. Either argument may be empty.

        Example:
            >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(int)
            >>> first = env.from_collection([1, 61]).assign_timestamps_and_watermarks(at)
            >>> second = env.from_collection([2]).assign_timestamps_and_watermarks(at)
            >>> windows = first.co_group(second).where(bool).equal_to(bool).window(TumblingEventTimeWindows.of(60))
            >>> windows.apply(lambda firsts, seconds: [(firsts, seconds)]).execute_and_collect()
            [([1], [2]), ([61], [])]
        """
        check_function(func, CoGroupFunction, "apply", "co_group", many=True)
        call: Any = func.co_group if isinstance(func, CoGroupFunction) else func
        return self._apply_to_all(func, CoGroups(call), output_type)


class IntervalJoin(Generic[T1, T2]):
    """Two keyed streams, of types ``T1`` and ``T2``, whose records are joined by equal keys and close event times."""

    def __init__(self, left: KeyedStream[Any, T1], right: KeyedStream[Any, T2]) -> None:
        self._streams = (left, right)
        self._bounds: tuple[int, int] | None = None
        self._exclusive = (0, 0)
        self._late_tags: tuple[OutputTag[Any] | None, OutputTag[Any] | None] = (None, None)

    def between(self, lower: DurationLike, upper: DurationLike) -> IntervalJoin[T1, T2]:
        """Set how far two joined records may be apart in event time: ``left + lower <= right <= left + upper``.

        Args:
            lower: a duration such as ``"-5 seconds"``; an int is milliseconds.
            upper: at least ``lower``.
        """
        bounds = tuple(
            to_millis(bound, f"between(): {name}", allow_negative=True)
            for name, bound in (("lower", lower), ("upper", upper))
        )
        if bounds[0] > bounds[1]:
            raise ProgramError(
                f"between(): the lower bound, {shorten(lower)}, is above the upper bound, {shorten(upper)}: swap them"
            )
        return self._changed(_bounds=bounds)

    def lower_bound_exclusive(self) -> IntervalJoin[T1, T2]:
        """Exclude pairs at exactly the lower bound."""
        return self._changed(_exclusive=(1, self._exclusive[1]))

    def upper_bound_exclusive(self) -> IntervalJoin[T1, T2]:
        """Exclude pairs at exactly the upper bound."""
        return self._changed(_exclusive=(self._exclusive[0], 1))

    def side_output_left_late_data(self, tag: OutputTag[Any]) -> IntervalJoin[T1, T2]:
        """Emit the left stream's late records to a side output, instead of dropping and counting them."""
        check_takes(tag, OutputTag, "side_output_left_late_data()", "an OutputTag")
        return self._changed(_late_tags=(tag, self._late_tags[1]))

    def side_output_right_late_data(self, tag: OutputTag[Any]) -> IntervalJoin[T1, T2]:
        """Emit the right stream's late records to a side output, instead of dropping and counting them."""
        check_takes(tag, OutputTag, "side_output_right_late_data()", "an OutputTag")
        return self._changed(_late_tags=(self._late_tags[0], tag))

    def _changed(self, **attributes: Any) -> IntervalJoin[T1, T2]:
        changed = copy.copy(self)
        vars(changed).update(attributes)
        return changed

    def process(
        self,
        func: ProcessJoinFunction[T1, T2, U]
        | Callable[[T1, T2, ProcessJoinFunction.Context], Iterable[U | SideOutput] | None],
        output_type: SchemaLike | None = None,
        *,
        on_error: OnError = "fail",
    ) -> DataStream[U]:
        """Call a function with each pair of matching records when the later record arrives.

        If both streams are DataFrame rows keyed by columns, and ``on_error`` is not set, Arrow finds pairs when event
        time advances or the micro-batch ends, and rows without a partner never become Python objects.

        A record is stored until event time (the minimum of both streams' event times) has passed the record's last
        possible partner. A record that arrives after event time has passed its timestamp is late: it is dropped and
        counted (``late_records_dropped``), or emitted to a side output.

        Args:
            func: a ``ProcessJoinFunction``, or a function ``f(left, right, ctx)`` that returns or yields the results.
            on_error: as in :meth:`DataStream.process`. If the function raises for a pair, the pair's later record is
                dropped, and one dead letter replaces all pairs of this record.

        Example:
            >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(int)
            >>> sent = env.from_collection([1_000, 9_000]).assign_timestamps_and_watermarks(at).key_by(bool)
            >>> answered = env.from_collection([3_500]).assign_timestamps_and_watermarks(at).key_by(bool)
            >>> pairs = sent.interval_join(answered).between("0 seconds", "5 seconds")
            >>> pairs.process(lambda left, right, ctx: [(left, right)]).execute_and_collect()
            [(1000, 3500)]
        """
        check_function(func, ProcessJoinFunction, "process", "process_element", many=True)
        left, right = self._streams
        interval = self._interval("process")
        sides = sides_of_rows(left, right, self._late_tags)
        make: Callable[[OperatorContext], StreamOperator]
        if sides is None or on_error != "fail":
            keyings = (left._keying, right._keying)
            make = partial(
                IntervalJoinOperator, function=func, keyings=keyings, interval=interval, late_tags=self._late_tags
            )
        else:
            make = partial(
                ColumnarProcessJoinOperator, keying=left._keying, sides=sides, interval=interval, function=func
            )
        # A record is stored after its pairs are processed, so the join itself has nothing to undo.
        factory = OperatorFactory(make, keyed=True, sides_are_fixed=True)
        factory = guarded(factory, on_error, "interval_join().process()", unchanged=IntervalJoinOperator.own_states)
        return left._apply(
            "interval_join", func, factory, output_type, event_time=EventTimeUse.TIMESTAMPS, more_inputs=[right._step]
        )

    def columns(
        self, how: Literal["inner", "left"] = "inner", *, suffixes: tuple[str, str] | None = None
    ) -> DataStream[Any]:
        """Join both streams' columns (left first) with Arrow, without converting rows to Python objects.

        The columns must be known from a DataFrame or a declared ``output_type``, and both streams must be keyed by
        named columns of the same types. As in Spark, a null key matches nothing, and NaN equals NaN. For late rows, see
        :meth:`process`. A pair gets the later of its two event times; a row without a partner gets the event time of
        its last possible partner.

        Args:
            how: ``"inner"`` emits pairs. ``"left"`` also emits left rows without a partner, with nulls in the right
                columns, once event time has passed their last possible partner.
            suffixes: (left, right) suffixes for column names that both sides have, such as ``("", "_right")``. By
                default, such columns are refused. Key columns with the same name occur once.

        Example:
            >>> event = Types.ROW_NAMED(["id", "at"], [Types.STRING(), Types.LONG()])
            >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
            >>> sent = env.from_collection([("a", 1_000), ("a", 9_000)], event).assign_timestamps_and_watermarks(at)
            >>> answered = env.from_collection([("a", 3_500)], event).assign_timestamps_and_watermarks(at)
            >>> pairs = sent.key_by("id").interval_join(answered.key_by("id")).between("0 seconds", "5 seconds")
            >>> rows = pairs.columns("left", suffixes=("", "_answered")).execute_and_collect()
            >>> sorted(tuple(row) for row in rows)
            [('a', 1000, 3500), ('a', 9000, None)]
        """
        return join_columns(*self._streams, self._interval("columns"), how, suffixes, self._late_tags)

    def _interval(self, method: str) -> Interval:
        if self._bounds is None:
            raise ProgramError(
                f"interval_join() has no bounds: call interval_join(other).between(lower, upper).{method}(...)"
            )
        interval = Interval(self._bounds[0] + self._exclusive[0], self._bounds[1] - self._exclusive[1])
        if interval.lower > interval.upper:
            raise ProgramError(
                f"interval_join(): between({self._bounds[0]}, {self._bounds[1]}) with exclusive bounds excludes all"
                " pairs: widen the interval"
            )
        return interval
