"""Base class of all window operators."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NoReturn

from pillarbox._errors import failed, raise_from_user_code, shorten
from pillarbox._operators.frame.collector import Collector
from pillarbox._operators.frame.keyed_operator import KeyedOperator
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.frame.user_code import with_context
from pillarbox._operators.functions.basic import Function
from pillarbox._operators.functions.contexts import RuntimeContext, TimeDomain
from pillarbox._operators.windowing.api.assigner import (
    MergingWindowAssigner,
    assign_function,
)
from pillarbox._operators.windowing.api.contexts import AssignerContext, FiringContext
from pillarbox._operators.windowing.api.count_windows import GlobalWindows
from pillarbox._operators.windowing.api.functions import (
    AllWindowFunction,
    ProcessWindowFunction,
    WindowFunction,
)
from pillarbox._operators.windowing.window_program import WindowProgram
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._time.internal_timer_service import VOID_NAMESPACE
from pillarbox._time.timestamp_assigner import MAX_WATERMARK


class BaseWindowOperator(KeyedOperator):
    """Calls window functions, and handles late elements, results and errors.

    Attributes:
        namespaced: whether timers are scoped to a pair of key and window rather than to a key.
        shared: whether all keys share windows and their timers.
    """

    timers: str = "window-timers"
    namespaced: bool = False
    shared: bool = False
    drops_late = True

    def __init__(self, context: OperatorContext, keying: Keying, program: WindowProgram) -> None:
        super().__init__(context, program.function, "", keying)
        if self.shared:
            self.backend.share_namespaces()
        self._program = program
        self._assigner = program.assigner
        self._assign = assign_function(program.assigner)
        self._lateness = program.lateness
        self._is_event_time = program.assigner.is_event_time()
        self._timers = self.time_services.get_internal_timer_service(
            self.timers,
            self,
            namespaced=self.namespaced,
            by_user=self.namespaced,
            may_run_on=isinstance(program.assigner, GlobalWindows),
        )
        self._collector: Collector = Collector(context)
        self._assigner_context = AssignerContext(self._timers, RuntimeContext(context, self.keyed))
        merging = isinstance(program.assigner, MergingWindowAssigner)
        self._window_context = FiringContext(self.backend, self._timers, self._collector, merging)
        self._call = _caller(program.function, self._window_context, self.backend)
        self._clears = program.clears

    def open(self) -> None:
        for function in self._program.opened:
            if isinstance(function, Function):
                with_context(self.context, "open()", function.open, RuntimeContext(self.context, self.keyed))
        self._assigner.open(self._assigner_context)

    def close(self) -> None:
        self.backend.leave_key()
        self._window_context.leave()
        for function in self._program.opened:
            if isinstance(function, Function):
                with_context(self.context, "close()", function.close)

    def on_event_time(self, timestamp: int, namespace: Any) -> None:
        try:
            self._on_timer(timestamp, namespace, TimeDomain.EVENT_TIME)
        except BaseException as error:
            self._timer_failed(timestamp, namespace, TimeDomain.EVENT_TIME, error)

    def on_processing_time(self, timestamp: int, namespace: Any) -> None:
        try:
            self._on_timer(timestamp, namespace, TimeDomain.PROCESSING_TIME)
        except BaseException as error:
            self._timer_failed(timestamp, namespace, TimeDomain.PROCESSING_TIME, error)

    @abstractmethod
    def _on_timer(self, timestamp: int, namespace: Any, clock: TimeDomain) -> None: ...

    def _cleanup_time(self, window: Any) -> int:
        end: int = window.max_timestamp()
        return min(end + self._lateness, MAX_WATERMARK) if self._is_event_time else end

    def _is_over(self, window: Any) -> bool:
        return self._is_event_time and self._cleanup_time(window) <= self._timers.current_watermark

    def _drop_if_late(self, value: Any, timestamp: int | None) -> None:
        """Handle an element without a window. It is late unless its time is between two windows."""
        if not self._is_event_time or timestamp is None or timestamp + self._lateness > self._timers.current_watermark:
            return
        self.take_late(value, timestamp, self._program.late_tag)

    def _emit(self, window: Any, timestamp: int, elements: tuple[Any, ...]) -> None:
        results = self._call(window, timestamp, elements)
        if results is not None:
            self._collector.collect(results, timestamp)

    def _clear_function(self, window: Any) -> None:
        self._window_context.enter(window, window.max_timestamp())
        self._program.function.clear(self._window_context)

    def _timer_failed(self, timestamp: int, namespace: Any, clock: TimeDomain, error: BaseException) -> NoReturn:
        key = self.backend.key
        what = "the windows" if namespace is VOID_NAMESPACE else self._assigner.window_type(*namespace)
        timer = f"the {clock.value} timer at {timestamp} of {what} of key {shorten(key)}"
        raise_from_user_code(
            error,
            f"operator {self.name!r} {failed(error)} in {timer}",
            operator=self.name,
            subtask=self.context.subtask,
            key=key,
        )


def _caller(
    function: Any, context: FiringContext, backend: KeyedStateBackend
) -> Callable[[Any, int, tuple[Any, ...]], Any]:
    if function is None:
        return lambda window, timestamp, elements: elements
    if isinstance(function, WindowFunction):
        return lambda window, timestamp, elements: function.apply(backend.key, window, elements)
    if isinstance(function, AllWindowFunction):
        return lambda window, timestamp, elements: function.apply(window, elements)
    keyed = isinstance(function, ProcessWindowFunction)

    def call(window: Any, timestamp: int, elements: tuple[Any, ...]) -> Any:
        context.enter(window, timestamp)
        return function.process(*(backend.key,) if keyed else (), context, elements)

    return call
