"""process, on a stream and a broadcast one: broadcast state that one side fills and the other reads.

Broadcast state is the operator's own: each subtask has a copy, which is written as the state of keys is. Source of the
behaviour: Flink's ``CoBroadcastWithNonKeyedOperator`` and ``CoBroadcastWithKeyedOperator``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pillarbox._elements import Records
from pillarbox._errors import ProgramError, raise_from_user_code, shorten
from pillarbox._operators.frame.collector import Collector
from pillarbox._operators.frame.function_operator import FunctionOperator, keyed_context
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import KeyedContext, OperatorContext, RecordInput
from pillarbox._operators.functions.basic import OutputTag, TimeDomain, TimerService
from pillarbox._operators.functions.broadcast import (
    BroadcastProcessFunction,
    BroadcastState,
    KeyedBroadcastProcessFunction,
    ReadOnlyBroadcastState,
)
from pillarbox._operators.keyed.process import KeyedProcessOperator
from pillarbox._operators.stateless.process import ProcessOperator, process_each
from pillarbox._state import KeyedStateBackend, MapStateDescriptor, StateDescriptor

__all__ = ["BroadcastProcessOperator", "KeyedBroadcastProcessOperator"]


class _BroadcastStates:
    """The broadcast states of an operator, by name: to be read, and to be changed."""

    def __init__(self, operator: str, backend: KeyedStateBackend, descriptors: Sequence[MapStateDescriptor]) -> None:
        self._operator = operator
        self.read_only: dict[str, ReadOnlyBroadcastState] = {
            each.name: ReadOnlyBroadcastState(backend.get_operator_state(each, is_read=True)) for each in descriptors
        }
        self.writable: dict[str, BroadcastState] = {
            each.name: BroadcastState(backend.get_operator_state(each)) for each in descriptors
        }

    def find(self, views: Mapping[str, Any], descriptor: Any) -> Any:
        """Return the view of a state.

        Raises:
            ProgramError: it is none of the broadcast ones.
        """
        found = views.get(descriptor.name) if isinstance(descriptor, StateDescriptor) else None
        if found is None:
            name = repr(descriptor.name) if isinstance(descriptor, StateDescriptor) else shorten(descriptor)
            others = f"; there are {', '.join(map(repr, views))}" if views else ""
            raise ProgramError(
                f"operator {self._operator!r}: there is no broadcast state {name}{others}: give its descriptor to"
                " broadcast(...)"
            )
        return found


class _Side:
    """One of the streams, as its function sees it: one object for all records, in which the operator sets what changes.

    Args:
        views: its broadcast states, by name.
    """

    _instead: str  # where a method is that this side has not

    def __init__(self, operator: _BroadcastOperator, collector: Collector, views: Mapping[str, Any]) -> None:
        self._operator = operator
        self._collector = collector
        self._views = views
        self.current: int | None = None

    def timestamp(self) -> int | None:
        return self.current

    def current_processing_time(self) -> int:
        return self._operator.context.processing_time_service.current_processing_time()

    def current_watermark(self) -> int:
        return self._operator.current_watermark

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> Any:
        return self._operator.states.find(self._views, state_descriptor)

    def output(self, tag: OutputTag, value: Any) -> None:
        self._collector.collect_side(tag, value, self.current)

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if name not in ("get_current_key", "timer_service", "time_domain", "apply_to_keyed_state"):
                raise AttributeError(f"a context of {self._operator.name!r} has no attribute {name!r}", name=name)
            raise ProgramError(f"{name}() is not here: {self._instead}")


class _ReadOnly(_Side, BroadcastProcessFunction.ReadOnlyContext):
    _instead = "the stream has no key; put key_by(...) before connect(), and use a KeyedBroadcastProcessFunction"


class _Writable(_Side, BroadcastProcessFunction.Context):
    _instead = _ReadOnly._instead


class _KeyedReadOnly(_Side, KeyedBroadcastProcessFunction.OnTimerContext):
    _instead = "the states of all keys are changed in process_broadcast_element() only, which runs in every subtask"

    def __init__(
        self,
        operator: KeyedBroadcastProcessOperator,
        collector: Collector,
        views: Mapping[str, Any],
        timers: TimerService,
    ) -> None:
        super().__init__(operator, collector, views)
        self._timers = timers
        self._backend = operator.backend
        self.emitted: int | None = None
        self.domain = TimeDomain.EVENT_TIME

    def output(self, tag: OutputTag, value: Any) -> None:
        self._collector.collect_side(tag, value, self.emitted)

    def get_current_key(self) -> Any:
        return self._backend.key

    def timer_service(self) -> TimerService:
        return self._timers

    def time_domain(self) -> TimeDomain:
        return self.domain


class _KeyedWritable(_Side, KeyedBroadcastProcessFunction.Context):
    _instead = "a record of the broadcast stream has no key; apply_to_keyed_state(...) reaches the state of all keys"

    def __init__(self, operator: KeyedBroadcastProcessOperator, collector: Collector, views: Mapping[str, Any]) -> None:
        super().__init__(operator, collector, views)
        self._backend = operator.backend

    def apply_to_keyed_state(self, descriptor: StateDescriptor, function: Callable[[Any, Any], None]) -> None:
        backend = self._backend
        state = backend.get_state(descriptor)
        context = self._operator.context
        try:
            for key in backend.keys_with(descriptor):
                backend.set_current_key(key)
                try:
                    function(key, state)
                except BaseException as error:
                    what = f"operator {context.name!r} failed in apply_to_keyed_state() at the key {shorten(key)}"
                    raise_from_user_code(error, what, operator=context.name, subtask=context.subtask, key=key)
        finally:
            backend.leave_key()


class _BroadcastOperator(FunctionOperator):
    """The part that handles the broadcast stream.

    Attributes:
        states: its broadcast states.
    """

    states: _BroadcastStates
    _collector: Collector
    _broadcast: _Side

    @property
    @abstractmethod
    def current_watermark(self) -> int:
        """The operator's event time."""

    def process_broadcast(self, records: Records) -> None:
        """Process a run of the broadcast stream."""
        process_each(self, records, self.function.process_broadcast_element, self._broadcast, self._collector)

    @property
    def inputs(self) -> Sequence[RecordInput]:
        """The inputs of the stream and of the broadcast one."""
        return (self, BroadcastInput(self))


class BroadcastInput:
    """The input of the broadcast stream."""

    def __init__(self, operator: _BroadcastOperator) -> None:
        self._operator = operator

    def process_records(self, records: Records) -> None:
        """Process a run of the broadcast stream."""
        self._operator.process_broadcast(records)


class BroadcastProcessOperator(_BroadcastOperator, ProcessOperator):
    """Applies a ``BroadcastProcessFunction``."""

    def __init__(self, context: OperatorContext, function: Any, descriptors: Sequence[MapStateDescriptor]) -> None:
        ProcessOperator.__init__(self, context, function)
        self.states: _BroadcastStates = _BroadcastStates(context.name, keyed_context(context).backend, descriptors)
        self._ctx = _ReadOnly(self, self._collector, self.states.read_only)
        self._broadcast = _Writable(self, self._collector, self.states.writable)

    @property
    def current_watermark(self) -> int:
        """The operator's event time."""
        return self._clocks.current_watermark()


class KeyedBroadcastProcessOperator(_BroadcastOperator, KeyedProcessOperator):
    """Applies a ``KeyedBroadcastProcessFunction``, with the key's state at hand on the one side."""

    def __init__(
        self, context: OperatorContext, function: Any, keying: Keying, descriptors: Sequence[MapStateDescriptor]
    ) -> None:
        KeyedProcessOperator.__init__(self, context, function, keying)
        keyed: KeyedContext = keyed_context(context)
        self.states: _BroadcastStates = _BroadcastStates(context.name, keyed.backend, descriptors)
        self._ctx = _KeyedReadOnly(self, self._collector, self.states.read_only, self.user_timers)
        self._broadcast = _KeyedWritable(self, self._collector, self.states.writable)

    @property
    def current_watermark(self) -> int:
        """The operator's event time."""
        return self.user_timers.current_watermark()

    def process_broadcast(self, records: Records) -> None:
        """Process a run of the broadcast stream: there is no current key."""
        self.backend.leave_key()
        super().process_broadcast(records)
