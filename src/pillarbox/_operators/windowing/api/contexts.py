"""Contexts of triggers, assigners and window functions. All windows use one object per kind."""

from __future__ import annotations

import copy
from typing import Any

from pillarbox._errors import ProgramError, shorten
from pillarbox._operators.frame.collector import Collector
from pillarbox._operators.functions.contexts import RuntimeContext
from pillarbox._operators.functions.metric_group import MetricGroup, UserMetricGroup
from pillarbox._operators.functions.output_tag import OutputTag
from pillarbox._operators.windowing.api.assigner import WindowAssigner
from pillarbox._operators.windowing.api.evictors import Evictor
from pillarbox._operators.windowing.api.functions import ProcessAllWindowFunction, ProcessWindowFunction
from pillarbox._operators.windowing.api.triggers import Trigger
from pillarbox._operators.windowing.api.window_context import KeyedStateStore
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.state_descriptor import StateDescriptor
from pillarbox._time.internal_timer_service import InternalTimerService


def _scoped(descriptor: StateDescriptor, scope: str) -> StateDescriptor:
    scoped = copy.copy(descriptor)
    scoped.name = f"{scope}/{descriptor.name}"
    scoped.former_names = tuple(f"{scope}/{name}" for name in descriptor.former_names)
    return scoped


class _States(KeyedStateStore):
    """States of triggers and window functions, declared on first use."""

    def __init__(self, backend: KeyedStateBackend, scope: str, *, namespaced: bool) -> None:
        self._backend = backend
        self._scope = scope
        self._namespaced = namespaced
        self._states: dict[tuple[str, str], Any] = {}

    def get_state(self, descriptor: Any, /) -> Any:
        if not isinstance(descriptor, StateDescriptor):
            raise ProgramError(f"pass a state descriptor, such as ValueStateDescriptor('n'), not {shorten(descriptor)}")
        state = self._states.get((descriptor.name, descriptor.kind))
        if state is None:
            scoped = _scoped(descriptor, self._scope)
            state = self._backend.get_state(scoped, namespaced=self._namespaced, late=True)
            self._states[descriptor.name, descriptor.kind] = state
        return state

    get_list_state = get_map_state = get_reducing_state = get_aggregating_state = get_state


class TriggerContext(Trigger.OnMergeContext):
    """A trigger's context."""

    def __init__(self, backend: KeyedStateBackend, timers: InternalTimerService, metrics: UserMetricGroup) -> None:
        self._states = _States(backend, "trigger", namespaced=True)
        self._metrics = metrics
        self._timers = timers
        self.namespace: Any = ()
        self.merged: list[Any] = []

    def get_current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def get_current_watermark(self) -> int:
        return self._timers.current_watermark

    def register_event_time_timer(self, time: int) -> None:
        self._timers.register_event_time_timer(self.namespace, time)

    def register_processing_time_timer(self, time: int) -> None:
        self._timers.register_processing_time_timer(self.namespace, time)

    def delete_event_time_timer(self, time: int) -> None:
        self._timers.delete_event_time_timer(self.namespace, time)

    def delete_processing_time_timer(self, time: int) -> None:
        self._timers.delete_processing_time_timer(self.namespace, time)

    def get_metric_group(self) -> MetricGroup:
        return MetricGroup(self._metrics)

    def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
        return self._states.get_state(state_descriptor)

    def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
        state = self._states.get_state(state_descriptor)
        merge = getattr(state, "merge_namespaces", None)
        if merge is None:
            raise ProgramError(
                f"a trigger cannot merge the {state_descriptor.kind} state {state_descriptor.name!r}: only list,"
                " reducing and aggregating states can be merged"
            )
        merge(self.namespace, [tuple(part) for part in self.merged if tuple(part) != self.namespace])


class AssignerContext(WindowAssigner.WindowAssignerContext):
    """An assigner's context."""

    def __init__(self, timers: InternalTimerService, runtime_context: RuntimeContext) -> None:
        self._timers = timers
        self._runtime_context = runtime_context

    def get_current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def get_runtime_context(self) -> RuntimeContext:
        return self._runtime_context


class FiringContext(ProcessWindowFunction.Context[Any], ProcessAllWindowFunction.Context[Any], Evictor.EvictorContext):
    """A context for window functions and evictors."""

    def __init__(
        self, backend: KeyedStateBackend, timers: InternalTimerService, collector: Collector, merging: bool
    ) -> None:
        self._backend = backend
        self._timers = timers
        self._collector = collector
        self._window_state = None if merging else _States(backend, "window", namespaced=True)
        self._global_state = _States(backend, "global", namespaced=False)
        self._window: Any = None
        self._timestamp = 0

    def enter(self, window: Any, timestamp: int) -> None:
        self._window = window
        self._timestamp = timestamp

    def leave(self) -> None:
        self._window = None

    def window(self) -> Any:
        return self._window

    def current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def current_watermark(self) -> int:
        return self._timers.current_watermark

    get_current_processing_time = current_processing_time
    get_current_watermark = current_watermark

    def window_state(self) -> KeyedStateStore:
        if self._window_state is None:
            raise ProgramError(
                "window_state() is not available for merging windows: use global_state(), or store the value in"
                " the elements"
            )
        if self._window is None:
            raise ProgramError("window_state() is only available while a window fires")
        self._backend.set_current_namespace(tuple(self._window))
        return self._window_state

    def global_state(self) -> KeyedStateStore:
        return self._global_state

    def output(self, tag: OutputTag[Any], value: Any, /) -> None:
        self._collector.collect_side(tag, value, self._timestamp)
