"""Windows of a keyed stream. Source of the behaviour: Flink's ``WindowOperator`` and ``EvictingWindowOperator`` (T8).

A window's elements, the state of its trigger and its timers are state of (key, window). Windows that merge keep their
elements under the window that was first; trigger state and timers are under the window as it is now.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NoReturn

from pillarbox.elements import Records
from pillarbox.errors import ProgramError, raise_from_user_code, shorten
from pillarbox.operators.collector import Collector
from pillarbox.operators.function_operator import Pass, under_keys
from pillarbox.operators.functions import Function, OutputTag, RuntimeContext
from pillarbox.operators.keyed import KeyedOperator
from pillarbox.operators.keys import Keying
from pillarbox.operators.operator import OperatorContext
from pillarbox.operators.user_code import with_context
from pillarbox.operators.windowing.assigner import MergingWindowAssigner, WindowAssigner
from pillarbox.operators.windowing.contents import Contents
from pillarbox.operators.windowing.evictors import Evictor
from pillarbox.operators.windowing.functions import (
    AllWindowFunction,
    KeyedStateStore,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowFunction,
)
from pillarbox.operators.windowing.merging import MergingWindowSet
from pillarbox.operators.windowing.triggers import Trigger, TriggerResult
from pillarbox.state import KeyedStateBackend, MapStateDescriptor, StateDescriptor
from pillarbox.time.internal_timer_service import InternalTimerService
from pillarbox.time.timestamps import MAX_WATERMARK

__all__ = ["LATE_RECORDS_DROPPED", "WindowOperator", "WindowProgram"]

LATE_RECORDS_DROPPED = "late_records_dropped"
"""The counter of the epoch's records that came too late for all of their windows, and went nowhere."""


@dataclass(frozen=True)
class WindowProgram:
    """The parts of a window operator.

    Attributes:
        assigner: which windows an element belongs to.
        trigger: when their function is called.
        contents: what they keep of their elements.
        function: the user's window function; None: the contents are the result.
        opened: functions that are opened and closed with the operator.
        lateness: how long a window stays behind its end, in milliseconds of event time.
        late_tag: the side output for what comes too late; None: it is dropped, and counted.
    """

    assigner: WindowAssigner
    trigger: Trigger
    contents: Contents
    function: Any = None
    opened: tuple[Any, ...] = field(default=())
    lateness: int = 0
    late_tag: OutputTag[Any] | None = None


class WindowOperator(KeyedOperator):
    """Adds each record to its windows, and calls the window function when their trigger says so."""

    def __init__(self, context: OperatorContext, keying: Keying, program: WindowProgram) -> None:
        super().__init__(context, program.function, "", keying)
        self._program = program
        self._assigner = program.assigner
        self._trigger = program.trigger
        self._contents = program.contents
        self._is_event_time = program.assigner.is_event_time()
        self._timers = self.time_services.get_internal_timer_service("window-timers", self, namespaced=True)
        self._state = self.backend.get_state(program.contents.descriptor, namespaced=True)
        self._collector = Collector(context)
        self._merging: MergingWindowSet | None = None
        if isinstance(program.assigner, MergingWindowAssigner):
            windows = self.backend.get_state(MapStateDescriptor("merging-windows"))
            self._merging = MergingWindowSet(program.assigner, windows)
        self._trigger_context = _TriggerContext(self.backend, self._timers, self._state)
        self._assigner_context = _AssignerContext(self._timers, RuntimeContext(context, self.keyed))
        self._window_context = _WindowContext(self.backend, self._timers, self._collector, self._merging is not None)
        self._call = _caller(program.function, self._window_context, self.backend)
        self._dropped = 0

    def open(self) -> None:
        """Open the user's functions, and let the assigner declare what it counts."""
        for function in self._program.opened:
            if isinstance(function, Function):
                with_context(self.context, "open()", function.open, RuntimeContext(self.context, self.keyed))
        self._assigner.open(self._assigner_context)

    def close(self) -> None:
        """Close the user's functions."""
        for function in self._program.opened:
            if isinstance(function, Function):
                with_context(self.context, "close()", function.close)

    def snapshot_state(self, checkpoint_id: int) -> None:
        """Note in the metrics how many records of the epoch were dropped; keyed state is all that there is."""
        self.context.counters[LATE_RECORDS_DROPPED] = self._dropped
        self._dropped = 0

    # -- records --

    def process_records(self, records: Records) -> None:
        """Add each record of a run to its windows."""
        values = records.values
        pending = iter(values)
        stamps = iter(records.timestamps) if records.timestamps is not None else repeat(None)
        taken = under_keys(self.backend, self.keying.keys_of(records), pending)
        add = self._add if self._merging is None else self._add_merging
        with Pass(self, values, pending, taken) as elements:
            for value, timestamp in zip(elements, stamps):
                windows = self._assigner.assign_windows(value, timestamp, self._assigner_context)
                if not add(value, timestamp, windows) and self._is_late(timestamp):
                    self._drop(value, timestamp)
        self._collector.flush()

    def _add(self, value: Any, timestamp: int | None, windows: Any) -> bool:
        """Add an element to its windows; return whether any was not late."""
        taken = False
        for window in windows:
            if self._is_over(window):
                continue
            taken = True
            self.backend.set_current_namespace(tuple(window))
            self._contents.add(self._state, value, timestamp)
            self._react(self._trigger.on_element(value, timestamp, window, self._enter(window)), window, window)
            self._register_cleanup(window)
        return taken

    def _add_merging(self, value: Any, timestamp: int | None, windows: Any) -> bool:
        """Add an element to windows that may merge; return whether any was not late."""
        assert self._merging is not None
        taken = False
        for assigned in windows:
            window = self._merging.add(assigned, self._on_merge)
            if self._is_over(window):
                self._merging.retire(window)
                continue
            taken = True
            place = self._merging.state_window(window)
            self.backend.set_current_namespace(tuple(place))
            self._contents.add(self._state, value, timestamp)
            self._react(self._trigger.on_element(value, timestamp, window, self._enter(window)), window, place)
            self._register_cleanup(window)
        return taken

    def _on_merge(self, window: Any, parts: list[Any], place: Any, others: list[Any]) -> None:
        """Make one of windows that met: trigger, timers, elements."""
        if self._is_over(window):
            raise ProgramError(
                f"{self._assigner!r} merged windows into {window}, which is over already: event time has passed its"
                " end; merge_windows() has to return windows that cover what they replace"
            )
        ctx = self._enter(window)
        ctx.merged = parts
        self._trigger.on_merge(window, ctx)
        for part in parts:
            if part != window:
                self._trigger.clear(part, self._enter(part))
                self._delete_cleanup(part)
        if others:
            self._state.merge_namespaces(tuple(place), [tuple(other) for other in others])

    def _drop(self, value: Any, timestamp: int | None) -> None:
        tag = self._program.late_tag
        if tag is None:
            self._dropped += 1
        else:
            self._collector.collect_side(tag, value, timestamp)

    # -- firing --

    def _react(self, result: TriggerResult, window: Any, place: Any) -> None:
        """Do what the trigger says of a window, whose elements lie under ``place``."""
        if result is TriggerResult.CONTINUE:
            return
        if not isinstance(result, TriggerResult):
            raise TypeError(f"{self._trigger!r} returned {shorten(result)}: a trigger returns a TriggerResult")
        if result.is_fire():
            self.backend.set_current_namespace(tuple(place))
            self._contents.fire(self._state, window, self._window_context, self._emitter(window, place))
        if result.is_purge():
            self.backend.set_current_namespace(tuple(place))
            self._state.clear()

    def _emitter(self, window: Any, place: Any) -> Callable[[tuple[Any, ...]], None]:
        """Return what calls the window function, with the window's own state at hand, and takes its results."""
        timestamp = window.max_timestamp()
        here = self._window_context

        def emit(elements: tuple[Any, ...]) -> None:
            here.enter(window, timestamp)
            self.backend.set_current_namespace(tuple(window))
            results = self._call(elements)
            if results is not None:
                self._collector.collect(results, timestamp)
            self.backend.set_current_namespace(tuple(place))

        return emit

    def on_event_time(self, timestamp: int, namespace: Any) -> None:
        """Ask the trigger, and clean up where that is due."""
        self._on_timer(timestamp, namespace, self._trigger.on_event_time, self._is_event_time, "event time")

    def on_processing_time(self, timestamp: int, namespace: Any) -> None:
        """Ask the trigger, and clean up where that is due."""
        self._on_timer(
            timestamp, namespace, self._trigger.on_processing_time, not self._is_event_time, "processing time"
        )
        self._collector.flush()

    def _on_timer(self, timestamp: int, namespace: Any, ask: Any, ends_windows: bool, clock: str) -> None:
        window = self._assigner.window_type(*namespace)
        try:
            place = window if self._merging is None else self._merging.state_window(window)
            if place is None:
                return  # it was merged into another one, or is over
            self._react(ask(timestamp, window, self._enter(window)), window, place)
            if ends_windows and timestamp == self._cleanup_time(window):
                self._end(window, place)
        except BaseException as error:
            self._timer_failed(clock, timestamp, window, error)

    def _end(self, window: Any, place: Any) -> None:
        """Remove all that is kept of a window that is over."""
        self.backend.set_current_namespace(tuple(place))
        self._state.clear()
        self._trigger.clear(window, self._enter(window))
        function = self._program.function
        if isinstance(function, (ProcessWindowFunction, ProcessAllWindowFunction)):
            self._window_context.enter(window, window.max_timestamp())
            function.clear(self._window_context)
        if self._merging is not None:
            self._merging.retire(window)

    def _enter(self, window: Any) -> _TriggerContext:
        namespace = tuple(window)
        self.backend.set_current_namespace(namespace)
        self._trigger_context.namespace = namespace
        return self._trigger_context

    def _timer_failed(self, clock: str, timestamp: int, window: Any, error: BaseException) -> NoReturn:
        key = self.backend.key
        raise_from_user_code(
            error,
            f"operator {self.name!r} failed in the {clock} timer at {timestamp} of {window} of key {shorten(key)}",
            operator=self.name,
            subtask=self.context.subtask,
            key=key,
        )

    def flush(self) -> None:
        """Hand on what timers have emitted."""
        self._collector.flush()

    # -- ends of windows --

    def _cleanup_time(self, window: Any) -> int:
        end: int = window.max_timestamp()
        return min(end + self._program.lateness, MAX_WATERMARK) if self._is_event_time else end

    def _is_over(self, window: Any) -> bool:
        return self._is_event_time and self._cleanup_time(window) <= self._timers.current_watermark

    def _is_late(self, timestamp: int | None) -> bool:
        return (
            self._is_event_time
            and timestamp is not None
            and timestamp + self._program.lateness <= self._timers.current_watermark
        )

    def _register_cleanup(self, window: Any) -> None:
        time = self._cleanup_time(window)
        if time == MAX_WATERMARK:
            return  # it never ends
        if self._is_event_time:
            self._timers.register_event_time_timer(tuple(window), time)
        else:
            self._timers.register_processing_time_timer(tuple(window), time)

    def _delete_cleanup(self, window: Any) -> None:
        time = self._cleanup_time(window)
        if time == MAX_WATERMARK:
            return
        if self._is_event_time:
            self._timers.delete_event_time_timer(tuple(window), time)
        else:
            self._timers.delete_processing_time_timer(tuple(window), time)


def _caller(function: Any, context: _WindowContext, backend: KeyedStateBackend) -> Callable[[tuple[Any, ...]], Any]:
    """Return what a window's elements are given to."""
    if function is None:
        return lambda elements: elements
    if isinstance(function, WindowFunction):
        return lambda elements: function.apply(backend.key, context.window(), elements)
    if isinstance(function, AllWindowFunction):
        return lambda elements: function.apply(context.window(), elements)
    if isinstance(function, ProcessWindowFunction):
        return lambda elements: function.process(backend.key, context, elements)
    return lambda elements: function.process(context, elements)


def _scoped(descriptor: StateDescriptor, scope: str) -> StateDescriptor:
    """Return a descriptor whose name clashes with no other's."""
    if not isinstance(descriptor, StateDescriptor):
        raise ProgramError(f"a state is asked for by its descriptor, not by {shorten(descriptor)}")
    scoped = copy.copy(descriptor)
    scoped.name = f"{scope}/{descriptor.name}"
    return scoped


class _States:
    """States that are asked for at any time: of triggers, and of window functions."""

    def __init__(self, backend: KeyedStateBackend, scope: str, *, namespaced: bool) -> None:
        self._backend = backend
        self._scope = scope
        self._namespaced = namespaced
        self._known: dict[tuple[str, str], Any] = {}

    def get(self, descriptor: StateDescriptor) -> Any:
        state = self._known.get((descriptor.name, descriptor.kind))
        if state is None:
            scoped = _scoped(descriptor, self._scope)
            state = self._backend.get_state(scoped, namespaced=self._namespaced, late=True)
            self._known[descriptor.name, descriptor.kind] = state
        return state


class _TriggerContext(Trigger.OnMergeContext):
    """One object for all windows: the operator sets what changes."""

    def __init__(self, backend: KeyedStateBackend, timers: InternalTimerService, state: Any) -> None:
        self._states = _States(backend, "trigger", namespaced=True)
        self._timers = timers
        self.namespace: Any = ()
        self.merged: list[Any] = []

    def get_current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def get_current_watermark(self) -> int:
        return self._timers.current_watermark

    def register_event_time_timer(self, time: int, /) -> None:
        self._timers.register_event_time_timer(self.namespace, time)

    def register_processing_time_timer(self, time: int, /) -> None:
        self._timers.register_processing_time_timer(self.namespace, time)

    def delete_event_time_timer(self, time: int, /) -> None:
        self._timers.delete_event_time_timer(self.namespace, time)

    def delete_processing_time_timer(self, time: int, /) -> None:
        self._timers.delete_processing_time_timer(self.namespace, time)

    def get_partitioned_state(self, descriptor: StateDescriptor, /) -> Any:
        return self._states.get(descriptor)

    def merge_partitioned_state(self, descriptor: StateDescriptor, /) -> None:
        state = self._states.get(descriptor)
        merge = getattr(state, "merge_namespaces", None)
        if merge is None:
            raise ProgramError(
                f"a trigger merges the {descriptor.kind} state {descriptor.name!r}: only list, reducing and aggregating"
                " states can be merged"
            )
        merge(self.namespace, [tuple(part) for part in self.merged if tuple(part) != self.namespace])


class _AssignerContext(WindowAssigner.WindowAssignerContext):
    def __init__(self, timers: InternalTimerService, runtime_context: RuntimeContext) -> None:
        self._timers = timers
        self._runtime_context = runtime_context

    def get_current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def get_runtime_context(self) -> RuntimeContext:
        return self._runtime_context


class _Store(KeyedStateStore):
    """States of a window function."""

    def __init__(self, states: _States) -> None:
        get = states.get
        self.get_state = get  # type: ignore[method-assign]
        self.get_list_state = get  # type: ignore[method-assign]
        self.get_map_state = get  # type: ignore[method-assign]
        self.get_reducing_state = get  # type: ignore[method-assign]
        self.get_aggregating_state = get  # type: ignore[method-assign]

    def get_state(self, descriptor: Any, /) -> Any:
        raise AssertionError("set in __init__")

    get_list_state = get_map_state = get_reducing_state = get_aggregating_state = get_state


class _WindowContext(ProcessWindowFunction.Context[Any], ProcessAllWindowFunction.Context[Any], Evictor.EvictorContext):
    """One object for all windows: the operator sets what changes."""

    def __init__(
        self, backend: KeyedStateBackend, timers: InternalTimerService, collector: Collector, merging: bool
    ) -> None:
        self._timers = timers
        self._collector = collector
        self._window_state = None if merging else _Store(_States(backend, "window", namespaced=True))
        self._global_state = _Store(_States(backend, "global", namespaced=False))
        self._window: Any = None
        self._timestamp = 0

    def enter(self, window: Any, timestamp: int) -> None:
        """Make a window the one at hand."""
        self._window = window
        self._timestamp = timestamp

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
                "window_state() is asked for, but the windows may merge, so nothing belongs to one of them: use"
                " global_state(), or keep it in the elements"
            )
        return self._window_state

    def global_state(self) -> KeyedStateStore:
        return self._global_state

    def output(self, tag: OutputTag[Any], value: Any, /) -> None:
        self._collector.collect_side(tag, value, self._timestamp)
