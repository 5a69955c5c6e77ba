"""Contexts of functions. Each function has one, which the operator updates before each call."""

from __future__ import annotations

from typing import Any

from pillarbox._errors import ProgramError
from pillarbox._operators.frame.collector import Collector
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.functions.basic import KeyedProcessFunction, ProcessFunction
from pillarbox._operators.functions.contexts import TimeDomain, TimerService
from pillarbox._operators.functions.output_tag import OutputTag
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._time.timestamp_assigner import MIN_TIMESTAMP


class ReadOnlyTimerService(TimerService):
    """A timer service for non-keyed streams, which has only clocks. Setting a timer raises."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        self.watermark = MIN_TIMESTAMP

    def current_processing_time(self) -> int:
        return self._context.processing_time_service.current_processing_time()

    def current_watermark(self) -> int:
        return self.watermark

    def _refuse(self, timestamp: int) -> None:
        raise ProgramError(
            f"operator {self._context.name!r} sets a timer on a stream without keys: call key_by(...) directly"
            " before process(...) and pass a KeyedProcessFunction"
        )

    register_event_time_timer = _refuse
    delete_event_time_timer = _refuse
    register_processing_time_timer = _refuse
    delete_processing_time_timer = _refuse


class EmittingContext:
    """Base class of contexts. Has an event time, and emits to side outputs."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self.current: Any = None
        self.domain = TimeDomain.EVENT_TIME

    def timestamp(self) -> Any:
        return self.current

    def output(self, tag: OutputTag, value: Any) -> None:
        emitted = self.current if self.domain is TimeDomain.EVENT_TIME else None
        self.collector.collect_side(tag, value, emitted)


class TimedContext(EmittingContext, ProcessFunction.Context):
    """The context of a function on a non-keyed stream."""

    def __init__(self, collector: Collector, timers: TimerService) -> None:
        super().__init__(collector)
        self._timers = timers

    def timer_service(self) -> TimerService:
        return self._timers


class KeyedTimedContext(TimedContext, KeyedProcessFunction.OnTimerContext):
    """The context of a function on a keyed stream."""

    def __init__(self, collector: Collector, timers: TimerService, backend: KeyedStateBackend) -> None:
        super().__init__(collector, timers)
        self._backend = backend

    def get_current_key(self) -> Any:
        return self._backend.key

    def time_domain(self) -> TimeDomain:
        return self.domain
