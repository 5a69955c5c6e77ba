"""Streams that are divided into windows, as a user transforms them. Names and meaning are PyFlink's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from pillarbox._datastream.checks.code_search import mentions
from pillarbox._datastream.checks.given_functions import check_function, check_parameters, check_type
from pillarbox._datastream.checks.given_windows import (
    check_fires,
    check_merging,
    check_window_function,
    default_trigger,
    event_time_of,
)
from pillarbox._datastream.checks.missing import missing
from pillarbox._datastream.checks.schemas import check_field, declared_type
from pillarbox._datastream.streams.data_stream import DataStream
from pillarbox._datastream.windows.columnar_windows import aggregate_columns, check_options
from pillarbox._datastream.windows.field_folds import FieldFolds
from pillarbox._errors import ProgramError, shorten
from pillarbox._generics import T1, Generic, KeyOut, U, WindowOut
from pillarbox._graph import Transformation
from pillarbox._operators.columnar.aggregates import ColumnAggregate
from pillarbox._operators.frame.operator import OperatorContext, OperatorFactory, StreamOperator
from pillarbox._operators.functions.basic import OutputTag, ReduceFunction, SideOutput, check_plain
from pillarbox._operators.keyed.field_aggregation import FieldAggregation, Method
from pillarbox._operators.stateless.typed_results import OfOneType
from pillarbox._operators.windowing.api.assigner import MergingWindowAssigner, WindowAssigner
from pillarbox._operators.windowing.api.count_windows import CountWindowAssigner, GlobalWindows
from pillarbox._operators.windowing.api.evictors import Evictor
from pillarbox._operators.windowing.api.functions import (
    ProcessWindowFunction,
    WindowFunction,
)
from pillarbox._operators.windowing.api.triggers import Trigger, asked_trigger
from pillarbox._operators.windowing.base_operator import BaseWindowOperator, WindowProgram
from pillarbox._operators.windowing.contents import AllElements, Fold, Folded, aggregating, reducing
from pillarbox._operators.windowing.guarded_operator import GuardedWindowOperator
from pillarbox._operators.windowing.operator import WindowOperator
from pillarbox._operators.windowing.pane_operator import PaneWindowOperator
from pillarbox._operators.windowing.session_operator import SessionWindowOperator
from pillarbox._operators.windowing.tumbling_operator import TumblingWindowOperator
from pillarbox._rows import Row
from pillarbox._state import AggregateFunction
from pillarbox._time.duration import DurationLike, to_millis
from pillarbox._types import SchemaLike, TypeInformation

__all__ = ["Windowed", "WindowedStream"]


class Windowed(Generic[T1, WindowOut]):
    """The common part of both kinds of windowed streams."""

    # The window functions that the stream takes, by the method that takes them.
    _applied: type
    _processed: type
    # Whether the stream has keys of its own.
    _of_keys = True
    # The streams that have a share in the windows, besides the first.
    _more_inputs: Sequence[Transformation] = ()

    def __init__(self, stream: Any, assigner: WindowAssigner) -> None:
        self._stream = stream
        self._assigner = assigner
        self._trigger = self._default_trigger = default_trigger(assigner, stream._env)
        self._evictor: Evictor | None = None
        self._lateness = 0
        self._late_tag: OutputTag[Any] | None = None
        self._error_tag: OutputTag[Any] | None = None

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            raise missing(self, name)

    def _set_trigger(self, trigger: Trigger) -> None:
        if not isinstance(trigger, Trigger):
            raise ProgramError(f"trigger() takes a Trigger, such as CountTrigger.of(10), not {shorten(trigger)}")
        check_parameters(trigger, Trigger, "trigger()")
        check_merging(self._assigner, trigger)
        self._trigger = trigger

    def _set_lateness(self, lateness: DurationLike) -> None:
        millis = to_millis(lateness, "allowed_lateness()")
        if not self._assigner.is_event_time():
            raise ProgramError(
                f"allowed_lateness() is for windows of event time: nothing is late for {self._assigner!r},"
                " whose windows do not end by event time"
            )
        self._lateness = millis

    def _set_late_tag(self, tag: OutputTag[Any]) -> None:
        if not isinstance(tag, OutputTag):
            raise ProgramError(f"side_output_late_data() takes an OutputTag, not {shorten(tag)}")
        self._late_tag = tag

    def _set_error_tag(self, tag: OutputTag[Any]) -> None:
        if not isinstance(tag, OutputTag):
            raise ProgramError(f"side_output_errors() takes an OutputTag, not {shorten(tag)}")
        self._error_tag = tag

    def _set_evictor(self, evictor: Evictor) -> None:
        if not isinstance(evictor, Evictor):
            raise ProgramError(f"evictor() takes an Evictor, such as CountEvictor.of(10), not {shorten(evictor)}")
        check_parameters(evictor, Evictor, "evictor()")
        self._evictor = evictor

    def _reduce(self, func: Any, window_function: Any, output_type: Any) -> DataStream[Any]:
        check_function(func, ReduceFunction, "reduce")
        call = func.reduce if isinstance(func, ReduceFunction) else func
        declared = declared_type(self._stream._step)
        if declared is not None:
            call = OfOneType(call, declared, "window.reduce: a result")
        if window_function is None and output_type is None:
            output_type = declared
        return self._fold("reduce", func, reducing(call), window_function, output_type)

    def _fold_field(self, method: Method, field: int | str) -> DataStream[T1]:
        function = FieldAggregation(method, field)
        check_field(self._stream._step, field, method)
        output_type = declared_type(self._stream._step)
        return self._fold(method, None, reducing(function.reduce, function.name), None, output_type)

    def _aggregate(
        self, func: Any, window_function: Any, accumulator_type: Any, output_type: Any, aggregates: dict[str, Any]
    ) -> DataStream[Any]:
        if func is None and aggregates:
            return self._aggregate_columns({**_given(window_function, accumulator_type, output_type), **aggregates})
        if "on_error" in aggregates:
            raise ProgramError("aggregate() has no on_error: say window(...).side_output_errors(tag) before it")
        if aggregates:
            raise ProgramError(
                "aggregate() takes either an AggregateFunction, or aggregates of columns by name, such as"
                " total=sum_('amount')"
            )
        if not isinstance(func, AggregateFunction):
            hint = f"an instance: {func.__name__}()" if isinstance(func, type) else "an AggregateFunction"
            raise ProgramError(f"aggregate() got {shorten(func)}: pass {hint}")
        check_parameters(func, AggregateFunction, "aggregate()")
        merges = isinstance(self._assigner, MergingWindowAssigner) and self._evictor is None  # which keeps elements
        if merges and type(func).merge is AggregateFunction.merge:
            raise ProgramError(
                f"{self._assigner!r} makes windows that merge, and {type(func).__name__} cannot merge accumulators:"
                " define merge()"
            )
        check_type("aggregate(): accumulator_type", accumulator_type)
        fold = aggregating(func, accumulator_type)
        return self._fold("aggregate", func, fold, window_function, output_type)

    def _aggregate_columns(self, aggregates: dict[str, Any]) -> DataStream[Any]:
        check_options(self._assigner, self._trigger, self._evictor, self._late_tag, self._error_tag)
        return aggregate_columns(self._stream, self._assigner, self._lateness, aggregates, by_key=self._of_keys)

    def _fold(self, method: str, func: Any, fold: Fold, window_function: Any, output_type: Any) -> DataStream[Any]:
        if window_function is not None:
            kinds = (self._applied, self._processed)
            asked_by = f"{method}(window_function=...)"
            check_window_function(window_function, kinds, self._applied, asked_by, type(self).__name__)
        contents = Folded(fold) if self._evictor is None else AllElements(fold, self._evictor)
        return self._run(method, func, contents, window_function, output_type, (func, window_function))

    def _whole(self, method: str, wanted: type, func: Any, output_type: Any) -> DataStream[Any]:
        check_window_function(func, (wanted,), wanted, f"{method}()", type(self).__name__)
        return self._run(method, func, AllElements(evictor=self._evictor), func, output_type, (func,))

    def _run(
        self, method: str, func: Any, contents: Any, function: Any, output_type: Any, opened: tuple[Any, ...]
    ) -> DataStream[Any]:
        check_merging(self._assigner, self._trigger)
        check_fires(self._assigner, has_trigger=self._trigger is not self._default_trigger)
        for called in ("apply", "process", "clear"):
            if function is not None and hasattr(function, called):
                check_plain(function, called, asked_by=f"{method}()", many=True)
        program = WindowProgram(
            self._assigner,
            self._trigger,
            contents,
            function,
            tuple(each for each in opened if each is not None),
            self._lateness,
            self._late_tag,
        )
        make = self._make(program)
        if self._error_tag is not None:
            make = partial(GuardedWindowOperator, make=make, tag=self._error_tag, has_key=self._of_keys)
        return self._stream._apply(  # type: ignore[no-any-return]
            f"window.{method}",
            func,
            OperatorFactory(
                make, keyed=True, state_depends_on=program.depends_on, sides_are_fixed=bool(self._more_inputs)
            ),
            output_type,
            uses_processing_time=self._uses_processing_time(),
            event_time=event_time_of(self._assigner, self._trigger),
            more_inputs=self._more_inputs,
        )

    def _make(self, program: WindowProgram) -> Callable[[OperatorContext], StreamOperator]:
        """Return what makes the operator."""
        operator = _operator_for(program) if self._error_tag is None else WindowOperator
        return partial(operator, keying=self._stream._keying, program=program)

    def _uses_processing_time(self) -> bool:
        assigner, trigger = self._assigner, asked_trigger(self._trigger)
        if not assigner.is_event_time() and not isinstance(assigner, (GlobalWindows, CountWindowAssigner)):
            return True
        declared = trigger.uses_processing_time
        return mentions(trigger, "register_processing_time_timer") if declared is None else declared


def _operator_for(program: WindowProgram) -> type[BaseWindowOperator]:
    """Return the operator that does a program's windows with the least work."""
    if TumblingWindowOperator.does(program):
        return TumblingWindowOperator
    if SessionWindowOperator.does(program):
        return SessionWindowOperator
    # A window that is made of panes has nothing of its own, so also no state of the window function's.
    if PaneWindowOperator.does(program) and not mentions(program.function, "window_state"):
        return PaneWindowOperator
    return WindowOperator


class WindowedStream(Windowed[T1, WindowOut], FieldFolds[T1], Generic[T1, KeyOut, WindowOut]):
    """A keyed stream of records of type ``T1``, divided into windows.

    Made by ``KeyedStream.window`` and ``count_window``. Records are added to their windows as they come; a window's
    trigger says when its function is called, by default at the window's end.
    """

    _applied = WindowFunction
    _processed = ProcessWindowFunction

    def trigger(self, trigger: Trigger) -> WindowedStream[T1, KeyOut, WindowOut]:
        """Set when the function of a window is called, in place of the assigner's default.

        Args:
            trigger: one of pillarbox's triggers, or the program's own.

        Raises:
            ProgramError: it is no ``Trigger``; windows merge, and it cannot.

        Example:
            >>> numbers = env.from_collection(range(5)).key_by(lambda n: "all")
            >>> windows = numbers.window(GlobalWindows.create()).trigger(PurgingTrigger.of(CountTrigger.of(2)))
            >>> windows.reduce(lambda a, b: a + b).execute_and_collect()
            [1, 5]
        """
        self._set_trigger(trigger)
        return self

    def allowed_lateness(self, lateness: DurationLike) -> WindowedStream[T1, KeyOut, WindowOut]:
        """Keep windows for a while after their end: each record that comes then fires them once more.

        Args:
            lateness: how long event time may be past the end of a window; as an int, milliseconds. 0 by default.

        Raises:
            ProgramError: it is no duration, or the windows are not of event time.

        Example:
            >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda event: event[1])
            >>> events = env.from_collection([("a", 1_000), ("a", 2_000)]).assign_timestamps_and_watermarks(at)
            >>> windows = events.key_by(lambda event: event[0]).window(TumblingEventTimeWindows.of("1 minute"))
            >>> windows.allowed_lateness("5 seconds").reduce(max).execute_and_collect()
            [('a', 2000)]
        """
        self._set_lateness(lateness)
        return self

    def side_output_late_data(self, output_tag: OutputTag[Any]) -> WindowedStream[T1, KeyOut, WindowOut]:
        """Emit records that come too late for all of their windows to a side output; else they are dropped and counted.

        Args:
            output_tag: the side output: ``get_side_output(output_tag)`` of the resulting stream.

        Raises:
            ProgramError: ``output_tag`` is not an ``OutputTag``.

        Example:
            >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda event: event[1])
            >>> events = env.from_collection([("a", 1_000)]).assign_timestamps_and_watermarks(at)
            >>> windows = events.key_by(lambda event: event[0]).window(TumblingEventTimeWindows.of("1 minute"))
            >>> latest = windows.side_output_late_data(OutputTag("late")).reduce(max)
            >>> latest.get_side_output(OutputTag("late")).execute_and_collect()
            []
        """
        self._set_late_tag(output_tag)
        return self

    def side_output_errors(self, tag: OutputTag[Any]) -> WindowedStream[T1, KeyOut, WindowOut]:
        """Emit a dead letter where a function raises, and go on: ``on_error`` of other operators.

        The letter of a function that folds elements, or assigns windows, has the record, which is then in no window.
        That of a window function has what the window keeps, all of its elements or an accumulator in a tuple; the
        window goes on as if nothing had been emitted. These windows keep their state as general ones do, whatever the
        assigner.

        Args:
            tag: the side output for :class:`DeadLetter` records: ``get_side_output(tag)`` of the resulting stream.

        Raises:
            ProgramError: ``tag`` is not an ``OutputTag``.

        Example:
            >>> BAD = OutputTag[DeadLetter]("bad")
            >>> numbers = env.from_collection([1, "two", 3, 4]).key_by(lambda n: "all").count_window(2)
            >>> sums = numbers.side_output_errors(BAD).reduce(lambda a, b: a + b)
            >>> sums.get_side_output(BAD).map(lambda letter: letter.value).execute_and_collect()
            ['two']
        """
        self._set_error_tag(tag)
        return self

    def evictor(self, evictor: Evictor) -> WindowedStream[T1, KeyOut, WindowOut]:
        """Take elements out of a window before or after its function is called.

        The window then keeps all of its elements with their timestamps, also where ``reduce`` or ``aggregate`` folds
        them: an element costs its size, and each firing folds all of them anew.

        Args:
            evictor: one of pillarbox's evictors, or the program's own.

        Raises:
            ProgramError: it is no ``Evictor``.

        Example:
            >>> numbers = env.from_collection(range(6)).key_by(lambda n: "all").window(GlobalWindows.create())
            >>> last_two = numbers.trigger(CountTrigger.of(3)).evictor(CountEvictor.of(2))
            >>> last_two.reduce(lambda a, b: a + b).execute_and_collect()
            [3, 9]
        """
        self._set_evictor(evictor)
        return self

    def reduce(
        self,
        reduce_function: Callable[[T1, T1], T1] | ReduceFunction[T1],
        window_function: WindowFunction[T1, Any, KeyOut, WindowOut]
        | ProcessWindowFunction[T1, Any, KeyOut, WindowOut]
        | None = None,
        output_type: SchemaLike | None = None,
    ) -> DataStream[Any]:
        """Fold the records of each window as they come: a window keeps one record.

        Where windows overlap or merge, results so far are folded as well, so it must not matter how calls are grouped:
        ``f(f(a, b), c)`` is ``f(a, f(b, c))``.

        Args:
            reduce_function: ``f(result_so_far, record)``, or a ``ReduceFunction``.
            window_function: gets the one result, with key and window; by default the result is emitted.
            output_type: the columns of the results, for ``to_dataframe()``; results are converted to one of ``Types``.
                By default, without a window function, the type that the records are declared to have, if it is one.

        Raises:
            ProgramError: a function is of another kind.

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
        """Aggregate the records of each window as they come: with a function, or by named aggregates of columns.

        A function adds each record to an accumulator, of which a window keeps one. If it has ``merge``, a record is
        added once also where windows overlap, and accumulators are merged when a window fires.

        Aggregates of columns, such as ``total=sum_("amount")``, are computed by Arrow, for whole runs of rows: before
        the shuffle, and behind it, where a window keeps columns. The results are rows of the key columns,
        ``window_start``, ``window_end``, and the aggregates. The key has to be named columns, and the columns known:
        those of a DataFrame, or those that the function before declares. They are fastest on rows that no Python
        function has touched. They take windows of event time without trigger, evictor or side output for late rows;
        with ``allowed_lateness``, late rows of a run fire the windows of their keys once.

        Args:
            aggregate_function: makes accumulators, adds records, and returns results.
            window_function: gets the one result, with key and window; by default the result is emitted.
            accumulator_type: the type of accumulators: one of ``Types``, or a class. If the type of the key is declared
                as well, the state is plain data (docs/security.md), and an accumulator of another type is refused.
            output_type: the columns of the results, for ``to_dataframe()``; results are converted to one of ``Types``.
            aggregates: aggregates of columns, by the names of their results.

        Raises:
            ProgramError: a function is of another kind; windows merge, and ``aggregate_function`` has no ``merge``; a
                column is not there, or of a type that its aggregate does not take; windows are of another kind.

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
            >>> numbers = env.from_collection([1, 2, 3, 6]).key_by(lambda n: "all").count_window(2)
            >>> numbers.aggregate(Mean()).execute_and_collect()
            [1.5, 4.5]
            >>> payment = Types.ROW_NAMED(["card", "at", "amount"], [Types.STRING(), Types.LONG(), Types.LONG()])
            >>> payments = env.from_collection([("ann", 1_000, 5), ("bob", 2_000, 7), ("ann", 3_000, 1)], payment)
            >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
            >>> windows = payments.assign_timestamps_and_watermarks(at).key_by("card")
            >>> windows = windows.window(TumblingEventTimeWindows.of("1 minute"))
            >>> [(row.card, row.n, row.total) for row in windows.aggregate(
            ...     n=count_(), total=sum_("amount")).execute_and_collect()]
            [('ann', 2, 6), ('bob', 1, 7)]
        """
        return self._aggregate(aggregate_function, window_function, accumulator_type, output_type, aggregates)

    def apply(
        self, window_function: WindowFunction[T1, U, KeyOut, WindowOut], output_type: SchemaLike | None = None
    ) -> DataStream[U]:
        """Call a function with all records of each window.

        Args:
            window_function: gets key, window and records.
            output_type: the columns of the results, for ``to_dataframe()``; results are converted to one of ``Types``.

        Raises:
            ProgramError: ``window_function`` is no ``WindowFunction``.

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
        """Call a function with all records of each window, with state, clocks and side outputs at hand.

        Args:
            process_window_function: gets key, context and records.
            output_type: the columns of the results, for ``to_dataframe()``; results are converted to one of ``Types``.

        Raises:
            ProgramError: ``process_window_function`` is no ``ProcessWindowFunction``.

        Example:
            >>> class Span(ProcessWindowFunction):
            ...     def process(self, key, context, elements):
            ...         yield key, context.window().start, len(elements)
            >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda event: event[1])
            >>> events = env.from_collection([("a", 1_000), ("a", 61_000), ("a", 62_000)])
            >>> keyed = events.assign_timestamps_and_watermarks(at).key_by(lambda event: event[0])
            >>> keyed.window(TumblingEventTimeWindows.of("1 minute")).process(Span()).execute_and_collect()
            [('a', 0, 1), ('a', 60000, 2)]
        """
        return self._whole("process", ProcessWindowFunction, process_window_function, output_type)


def _given(window_function: Any, accumulator_type: Any, output_type: Any) -> dict[str, Any]:
    """Return what is given for parameters of the other form, which may as well be names of results."""
    given = {"window_function": window_function, "accumulator_type": accumulator_type, "output_type": output_type}
    return {name: value for name, value in given.items() if value is not None}
