"""``Windowed``, the base class of the windows of one stream and of two streams.

``sum``, ``min`` and similar methods are from Flink's Java API; PyFlink lacks them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pillarbox._datastream.checks.code_search import mentions
from pillarbox._datastream.checks.given_functions import check_function, check_parameters, check_type
from pillarbox._datastream.checks.given_windows import (
    check_fires,
    check_merging,
    check_trigger,
    check_window_function,
    default_trigger,
    event_time_of,
)
from pillarbox._datastream.checks.missing import missing
from pillarbox._datastream.checks.schemas import check_field, declared_type
from pillarbox._datastream.streams.data_stream import DataStream
from pillarbox._datastream.windows.columnar_windows import aggregate_columns
from pillarbox._errors import ProgramError, shorten
from pillarbox._generics import T1, Generic, WindowOut
from pillarbox._graph.transformations import Transformation
from pillarbox._operators.frame.operator import OperatorContext, OperatorFactory, StreamOperator
from pillarbox._operators.functions.basic import ReduceFunction, check_plain
from pillarbox._operators.functions.output_tag import OutputTag
from pillarbox._operators.keyed.field_aggregation import FieldAggregation, Method
from pillarbox._operators.stateless.typed_results import TypedReduce
from pillarbox._operators.windowing.api.assigner import (
    MergingWindowAssigner,
    TimedAssigner,
    WindowAssigner,
    is_built_in,
)
from pillarbox._operators.windowing.api.count_windows import CountWindowAssigner, GlobalWindows
from pillarbox._operators.windowing.api.evictors import Evictor
from pillarbox._operators.windowing.api.session_windows import SessionWindows
from pillarbox._operators.windowing.api.triggers import (
    EventTimeTrigger,
    ProcessingTimeTrigger,
    Trigger,
    asked_trigger,
)
from pillarbox._operators.windowing.base_operator import BaseWindowOperator
from pillarbox._operators.windowing.contents import ContentsFold, FoldedContents, ListContents, aggregating, reducing
from pillarbox._operators.windowing.guarded_operator import GuardedWindowOperator
from pillarbox._operators.windowing.operator import WindowOperator
from pillarbox._operators.windowing.pane_operator import PaneWindowOperator
from pillarbox._operators.windowing.panes import EvenPanes, panes_of
from pillarbox._operators.windowing.session_operator import SessionWindowOperator
from pillarbox._operators.windowing.tumbling_operator import TumblingWindowOperator
from pillarbox._operators.windowing.window_program import WindowProgram
from pillarbox._state.descriptors import AggregateFunction
from pillarbox._time.duration import DurationLike, to_millis

if TYPE_CHECKING:
    from typing_extensions import Self


class Windowed(Generic[T1, WindowOut]):
    """Windows and their options. Methods raise ``ProgramError`` for invalid arguments.

    For windows of two streams, elements of triggers, evictors and dead letters are (stream, record) pairs, where the
    stream is 0 or 1.
    """

    _of_keys = True
    # Additional streams whose records enter the windows.
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

    def trigger(self, trigger: Trigger) -> Self:
        """Set the windows' trigger, replacing the assigner's default.

        Example:
            >>> windows = env.from_collection(range(5)).window_all(GlobalWindows.create())
            >>> windows.trigger(PurgingTrigger.of(CountTrigger.of(2))).reduce(max).execute_and_collect()
            [1, 3]
        """
        if not isinstance(trigger, Trigger):
            raise ProgramError(f"trigger() takes a Trigger, such as CountTrigger.of(10), not {shorten(trigger)}")
        check_trigger(trigger, "trigger()")
        check_merging(self._assigner, trigger)
        self._trigger = trigger
        return self

    def allowed_lateness(self, lateness: DurationLike) -> Self:
        """Keep windows for a while after their end, so that each late record fires its windows again.

        Args:
            lateness: a duration in event time (an int is milliseconds), 0 by default.

        Example:
            >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(int)
            >>> events = env.from_collection([1, 2]).assign_timestamps_and_watermarks(at)
            >>> windows = events.window_all(TumblingEventTimeWindows.of("1 minute"))
            >>> windows.allowed_lateness("5 seconds").reduce(max).execute_and_collect()
            [2]
        """
        millis = to_millis(lateness, "allowed_lateness()")
        if not self._assigner.is_event_time():
            raise ProgramError(
                f"allowed_lateness() is for event-time windows: elements are never late for {self._assigner!r}"
            )
        self._lateness = millis
        return self

    def side_output_errors(self, tag: OutputTag[Any]) -> Self:
        """If a function raises, emit a dead letter and continue, like ``on_error`` of other operators.

        If a function that aggregates elements or assigns windows raises, the dead letter contains the record, and the
        record is not added to any window. If a window function raises, the dead letter contains the window's contents
        (all elements, or the accumulator in a tuple), and the window emits nothing. Uses the general window operator,
        which is slower.

        Example:
            >>> BAD = OutputTag[DeadLetter]("bad")
            >>> windows = env.from_collection([1, "two", 3]).count_window_all(2).side_output_errors(BAD)
            >>> letters = windows.reduce(lambda a, b: a + b).get_side_output(BAD)
            >>> letters.map(lambda letter: letter.value).execute_and_collect()
            ['two']
        """
        if not isinstance(tag, OutputTag):
            raise ProgramError(f"side_output_errors() takes an OutputTag, not {shorten(tag)}")
        self._error_tag = tag
        return self

    def evictor(self, evictor: Evictor) -> Self:
        """Remove elements from a window before or after its function is called.

        With an evictor, a window stores all elements with their timestamps, and ``reduce`` and ``aggregate`` process
        all of them each time the window fires.

        Example:
            >>> windows = env.from_collection(range(6)).window_all(GlobalWindows.create()).trigger(CountTrigger.of(3))
            >>> windows.evictor(CountEvictor.of(2)).reduce(min).execute_and_collect()
            [1, 4]
        """
        if not isinstance(evictor, Evictor):
            raise ProgramError(f"evictor() takes an Evictor, such as CountEvictor.of(10), not {shorten(evictor)}")
        check_parameters(evictor, Evictor, "evictor()")
        self._evictor = evictor
        return self

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
            tuple(function for function in opened if function is not None),
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
        operator = _operator_for(program) if self._error_tag is None else WindowOperator
        return partial(operator, keying=self._stream._keying, program=program)

    def _uses_processing_time(self) -> bool:
        assigner, trigger = self._assigner, asked_trigger(self._trigger)
        if not assigner.is_event_time() and not isinstance(assigner, (GlobalWindows, CountWindowAssigner)):
            return True
        declared = trigger.uses_processing_time
        return mentions(trigger, "register_processing_time_timer") if declared is None else declared


class WindowsOfOneStream(Windowed[T1, WindowOut], Generic[T1, WindowOut]):
    """The windows of one stream."""

    _kinds: tuple[type, type]

    def side_output_late_data(self, output_tag: OutputTag[Any]) -> Self:
        """Emit to a side output the records that are too late for all windows, instead of dropping and counting them.

        Example:
            >>> at, LATE = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(int), OutputTag("late")
            >>> events = env.from_collection([1_000]).assign_timestamps_and_watermarks(at)
            >>> windows = events.window_all(TumblingEventTimeWindows.of("1 minute")).side_output_late_data(LATE)
            >>> windows.reduce(max).get_side_output(LATE).execute_and_collect()
            []
        """
        if not isinstance(output_tag, OutputTag):
            raise ProgramError(f"side_output_late_data() takes an OutputTag, not {shorten(output_tag)}")
        self._late_tag = output_tag
        return self

    def sum(self, position_to_sum: int | str = 0) -> DataStream[T1]:
        """Sum a field of each window's records. As in Flink, the other fields are from the window's first record.

        Args:
            position_to_sum: as in :meth:`KeyedStream.sum`.

        Example:
            >>> env.from_collection([("a", 3), ("b", 5)]).count_window_all(2).sum(1).execute_and_collect()
            [('a', 8)]
        """
        return self._fold_field("sum", position_to_sum)

    def min(self, position_to_min: int | str = 0) -> DataStream[T1]:
        """Emit each window's first record, with a field set to its minimum in the window (see :meth:`sum`).

        Example:
            >>> env.from_collection([(3, "x"), (2, "y")]).count_window_all(2).min(0).execute_and_collect()
            [(2, 'x')]
        """
        return self._fold_field("min", position_to_min)

    def max(self, position_to_max: int | str = 0) -> DataStream[T1]:
        """Emit each window's first record, with a field set to its maximum in the window (see :meth:`sum`).

        Example:
            >>> env.from_collection([3, 8, 5, 7]).count_window_all(2).max().execute_and_collect()
            [8, 7]
        """
        return self._fold_field("max", position_to_max)

    def min_by(self, position_to_min_by: int | str = 0) -> DataStream[T1]:
        """Emit each window's first record with the smallest value of a field (see :meth:`sum`).

        Example:
            >>> env.from_collection([(3, "x"), (2, "y")]).count_window_all(2).min_by(0).execute_and_collect()
            [(2, 'y')]
        """
        return self._fold_field("min_by", position_to_min_by)

    def max_by(self, position_to_max_by: int | str = 0) -> DataStream[T1]:
        """Emit each window's first record with the largest value of a field (see :meth:`sum`).

        Example:
            >>> words = env.from_collection([{"word": "to", "n": 2}, {"word": "be", "n": 1}])
            >>> words.count_window_all(2).max_by("n").execute_and_collect()
            [{'word': 'to', 'n': 2}]
        """
        return self._fold_field("max_by", position_to_max_by)

    def _reduce(self, func: Any, window_function: Any, output_type: Any) -> DataStream[Any]:
        check_function(func, ReduceFunction, "reduce")
        call = func.reduce if isinstance(func, ReduceFunction) else func
        declared = declared_type(self._stream._step)
        if declared is not None:
            call = TypedReduce(call, declared, "window.reduce: a result")
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
            return aggregate_columns(self, {**_given(window_function, accumulator_type, output_type), **aggregates})
        if "on_error" in aggregates:
            raise ProgramError("aggregate() has no on_error=: call window(...).side_output_errors(tag) before it")
        if aggregates:
            raise ProgramError(
                "aggregate() takes either an AggregateFunction or named column aggregates, such as total=sum_('amount')"
            )
        if not isinstance(func, AggregateFunction):
            hint = f"an instance: {func.__name__}()" if isinstance(func, type) else "an AggregateFunction"
            raise ProgramError(f"aggregate() got {shorten(func)}: pass {hint}")
        check_parameters(func, AggregateFunction, "aggregate()")
        merges = isinstance(self._assigner, MergingWindowAssigner) and self._evictor is None
        if merges and type(func).merge is AggregateFunction.merge:
            raise ProgramError(
                f"{self._assigner!r} merges windows, but {type(func).__name__} cannot merge accumulators: define"
                " merge()"
            )
        check_type("aggregate(): accumulator_type=", accumulator_type)
        fold = aggregating(func, accumulator_type)
        return self._fold("aggregate", func, fold, window_function, output_type)

    def _fold(
        self, method: str, func: Any, fold: ContentsFold, window_function: Any, output_type: Any
    ) -> DataStream[Any]:
        if window_function is not None:
            asked_by = f"{method}(window_function=...)"
            check_window_function(window_function, self._kinds, asked_by, type(self).__name__)
        contents = FoldedContents(fold) if self._evictor is None else ListContents(fold, self._evictor)
        return self._run(method, func, contents, window_function, output_type, (func, window_function))

    def _whole(self, method: str, expected: type, func: Any, output_type: Any) -> DataStream[Any]:
        check_window_function(func, (expected,), f"{method}()", type(self).__name__)
        return self._run(method, func, ListContents(evictor=self._evictor), func, output_type, (func,))


def _operator_for(program: WindowProgram) -> type[BaseWindowOperator]:
    assigner, contents = program.assigner, program.contents
    if not isinstance(assigner, TimedAssigner) or not isinstance(contents, FoldedContents):
        return WindowOperator
    if type(program.trigger) is not (EventTimeTrigger if assigner.is_event_time() else ProcessingTimeTrigger):
        return WindowOperator
    panes = panes_of(assigner)
    if panes is not None and panes.tumbling:
        return TumblingWindowOperator
    if contents.fold.merge is None:
        return WindowOperator
    if isinstance(assigner, SessionWindows) and is_built_in(assigner):
        return SessionWindowOperator
    # Windows made of panes have no state of their own, so their function must not use any.
    if isinstance(panes, EvenPanes) and not program.clears and not mentions(program.function, "window_state"):
        return PaneWindowOperator
    return WindowOperator


def _given(window_function: Any, accumulator_type: Any, output_type: Any) -> dict[str, Any]:
    arguments = {"window_function": window_function, "accumulator_type": accumulator_type, "output_type": output_type}
    return {name: value for name, value in arguments.items() if value is not None}
