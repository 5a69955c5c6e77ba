"""What functions are told about the record, pair or timer at hand: one object for all of them.

The operator sets what changes from one to the next. A kind of function sees these parts under the names of its own
``Context``, which the classes here, or those of the operators, implement.
"""

from __future__ import annotations

from typing import Any

from pillarbox._errors import ProgramError
from pillarbox._operators.frame.collector import Collector
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.functions.basic import KeyedProcessFunction, OutputTag, ProcessFunction, TimeDomain
from pillarbox._operators.functions.contexts import TimerService
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._time.timestamps import MIN_TIMESTAMP


class Clocks(TimerService):
    """The clocks of a stream without key: timers are refused."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        self.watermark = MIN_TIMESTAMP

    def current_processing_time(self) -> int:
        """Return the wall clock's time."""
        return self._context.processing_time_service.current_processing_time()

    def current_watermark(self) -> int:
        """Return the operator's event time."""
        return self.watermark

    def _refuse(self, timestamp: int) -> None:
        raise ProgramError(
            f"operator {self._context.name!r} sets a timer, but its stream has no key: put key_by(...) directly"
            " before process(...) and give it a KeyedProcessFunction"
        )

    register_event_time_timer = _refuse
    delete_event_time_timer = _refuse
    register_processing_time_timer = _refuse
    delete_processing_time_timer = _refuse


class EmittingContext:
    """The part of all contexts: an event time, and side outputs.

    Attributes:
        current: the event time of what is at hand.
        domain: the clock that a timer follows; what a timer of processing time emits has no timestamp.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self.current: Any = None
        self.domain = TimeDomain.EVENT_TIME

    def timestamp(self) -> Any:
        """Return the event time of the record or pair at hand, or the time of the timer."""
        return self.current

    def output(self, tag: OutputTag, value: Any) -> None:
        """Emit a value to a side output."""
        emitted = self.current if self.domain is TimeDomain.EVENT_TIME else None
        self._collector.collect_side(tag, value, emitted)


class TimedContext(EmittingContext, ProcessFunction.Context):
    """The context of a stream without key, whose clocks can be read.

    Args:
        timers: the clocks, and the timers of the current key where there is one.
    """

    def __init__(self, collector: Collector, timers: TimerService) -> None:
        super().__init__(collector)
        self._timers = timers

    def timer_service(self) -> TimerService:
        """Return the clocks and timers."""
        return self._timers


class KeyedTimedContext(TimedContext, KeyedProcessFunction.OnTimerContext):
    """The context of a keyed stream."""

    def __init__(self, collector: Collector, timers: TimerService, backend: KeyedStateBackend) -> None:
        super().__init__(collector, timers)
        self._backend = backend

    def get_current_key(self) -> Any:
        """Return the key of the record or timer at hand."""
        return self._backend.key

    def time_domain(self) -> TimeDomain:
        """Return the clock that the timer followed."""
        return self.domain
