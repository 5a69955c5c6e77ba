"""``process`` on a stream connected to a broadcast stream.

Source: Flink's ``CoBroadcastWithNonKeyedOperator`` and ``CoBroadcastWithKeyedOperator``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pillarbox._elements.records import Records
from pillarbox._errors import ProgramError, raise_from_user_code, shorten
from pillarbox._operators.frame.collector import Collector
from pillarbox._operators.frame.contexts import EmittingContext, KeyedTimedContext
from pillarbox._operators.frame.function_operator import FunctionOperator, keyed_context
from pillarbox._operators.frame.inputs import OperatorInput
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext, RecordInput
from pillarbox._operators.functions.basic import check_plain
from pillarbox._operators.functions.broadcast import (
    BroadcastProcessFunction,
    BroadcastState,
    KeyedBroadcastProcessFunction,
    ReadOnlyBroadcastState,
)
from pillarbox._operators.functions.contexts import TimerService
from pillarbox._operators.keyed.process import KeyedProcessOperator
from pillarbox._operators.stateless.process import ProcessOperator, process_each
from pillarbox._state.descriptors import MapStateDescriptor
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.state_descriptor import StateDescriptor


class _Side(EmittingContext):
    """The context for one stream's records. Holds the broadcast states by name."""

    _instead: str
    _view: type[ReadOnlyBroadcastState[Any, Any]] = ReadOnlyBroadcastState

    def __init__(
        self,
        context: OperatorContext,
        collector: Collector,
        timers: TimerService,
        descriptors: Sequence[MapStateDescriptor],
    ) -> None:
        EmittingContext.__init__(self, collector)
        self._operator = context
        self._timers = timers
        self._backend: KeyedStateBackend = keyed_context(context).backend
        is_read = self._view is ReadOnlyBroadcastState
        self._views = {
            descriptor.name: self._view(self._backend.get_operator_state(descriptor, is_read=is_read))
            for descriptor in descriptors
        }

    def current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def current_watermark(self) -> int:
        return self._timers.current_watermark()

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> Any:
        is_descriptor = isinstance(state_descriptor, StateDescriptor)
        state = self._views.get(state_descriptor.name) if is_descriptor else None
        if state is None:
            name = repr(state_descriptor.name) if is_descriptor else f"for {shorten(state_descriptor)}"
            others = f" (there are {', '.join(map(repr, self._views))})" if self._views else ""
            raise ProgramError(
                f"operator {self._operator.name!r}: there is no broadcast state {name}{others}: pass its descriptor"
                " to broadcast(...)"
            )
        return state

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if name not in ("get_current_key", "timer_service", "time_domain", "apply_to_keyed_state"):
                raise AttributeError(f"a context of {self._operator.name!r} has no attribute {name!r}", name=name)
            raise ProgramError(f"{name}() is not available here: {self._instead}")


class _ReadOnly(_Side, BroadcastProcessFunction.ReadOnlyContext):
    _instead = "the stream has no key: put key_by(...) before connect(), and use a KeyedBroadcastProcessFunction"


class _Writable(_Side, BroadcastProcessFunction.Context):
    _instead = _ReadOnly._instead
    _view = BroadcastState


class KeyedReadOnly(_Side, KeyedTimedContext, KeyedBroadcastProcessFunction.OnTimerContext):
    """The context for the keyed stream's records and timers."""

    _instead = "use it in process_broadcast_element(), which runs in every subtask"


class KeyedBroadcastContext(_Side, KeyedBroadcastProcessFunction.Context):
    """The context for broadcast records."""

    _instead = "a record of the broadcast stream has no key: use apply_to_keyed_state(...) for the state of all keys"
    _view = BroadcastState

    def apply_to_keyed_state(self, descriptor: StateDescriptor, function: Callable[[Any, Any], None]) -> None:
        check_plain(function, "function", asked_by="apply_to_keyed_state()")
        backend = self._backend
        state = backend.get_state(descriptor)
        context = self._operator
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
    _broadcast: _Side

    def process_broadcast(self, records: Records) -> None:
        process_each(self, records, self.function.process_broadcast_element, self._broadcast)

    @property
    def inputs(self) -> Sequence[RecordInput]:
        return (self, OperatorInput(self.process_broadcast))


class BroadcastProcessOperator(_BroadcastOperator, ProcessOperator):
    """Applies a ``BroadcastProcessFunction``."""

    def __init__(self, context: OperatorContext, function: Any, descriptors: Sequence[MapStateDescriptor]) -> None:
        ProcessOperator.__init__(self, context, function)
        self._ctx = _ReadOnly(context, self._collector, self._clocks, descriptors)
        self._broadcast = _Writable(context, self._collector, self._clocks, descriptors)


class KeyedBroadcastProcessOperator(_BroadcastOperator, KeyedProcessOperator):
    """Applies a ``KeyedBroadcastProcessFunction``."""

    def __init__(
        self, context: OperatorContext, function: Any, keying: Keying, descriptors: Sequence[MapStateDescriptor]
    ) -> None:
        KeyedProcessOperator.__init__(self, context, function, keying)
        self._ctx = KeyedReadOnly(context, self._collector, self.user_timers, descriptors)
        self._broadcast = KeyedBroadcastContext(context, self._collector, self.user_timers, descriptors)

    def process_broadcast(self, records: Records) -> None:
        self.backend.leave_key()
        super().process_broadcast(records)
