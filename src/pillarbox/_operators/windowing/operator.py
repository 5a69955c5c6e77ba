"""The general window operator. Source: Flink's ``WindowOperator`` and ``EvictingWindowOperator``.

Merged windows' elements are stored under their *state window* (`merging.py`), their trigger state and timers under the
merged window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

from pillarbox._copies import is_fixed
from pillarbox._elements.records import Records
from pillarbox._errors import ProgramError, shorten
from pillarbox._operators.frame.function_operator import FunctionPass, under_keys
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.functions.contexts import TimeDomain
from pillarbox._operators.windowing.api.assigner import MergingWindowAssigner
from pillarbox._operators.windowing.api.contexts import TriggerContext
from pillarbox._operators.windowing.api.triggers import TriggerResult
from pillarbox._operators.windowing.base_operator import BaseWindowOperator
from pillarbox._operators.windowing.contents import FoldedContents
from pillarbox._operators.windowing.merging import MergingWindowSet, merging_windows
from pillarbox._operators.windowing.window_program import WindowProgram
from pillarbox._time.timestamp_assigner import MAX_WATERMARK


class WindowOperator(BaseWindowOperator):
    """Adds records to their windows, and calls the window function when the trigger fires.

    Attributes:
        guard: ``f(call, timestamp, namespace)``, which calls the window function and handles its errors. ``timestamp``
            is the window's largest, and ``namespace`` holds its elements.
    """

    namespaced = True

    guard: Callable[[Callable[[], None], int, Any], None] | None = None

    def __init__(self, context: OperatorContext, keying: Keying, program: WindowProgram) -> None:
        super().__init__(context, keying, program)
        self._trigger = program.trigger
        self._contents = program.contents
        self._state = self.backend.get_state(program.contents.descriptor, namespaced=True)
        self._shares_elements = isinstance(program.contents, FoldedContents) and not context.copier.is_off
        self._merging: MergingWindowSet | None = None
        if isinstance(program.assigner, MergingWindowAssigner):
            windows = self.backend.get_state(merging_windows(program.assigner))
            self._merging = MergingWindowSet(program.assigner, windows)
        self._trigger_context = TriggerContext(self.backend, self._timers, context.metrics)
        timers, by_event_time = self._timers, self._is_event_time
        self._register = timers.register_event_time_timer if by_event_time else timers.register_processing_time_timer
        self._delete = timers.delete_event_time_timer if by_event_time else timers.delete_processing_time_timer

    def process_records(self, records: Records) -> None:
        self.process_run(records, self.keying.keys_of(records))

    def process_run(self, records: Records, keys: Iterable[Any]) -> None:
        values = records.values
        pending = iter(values)
        stamps = iter(records.timestamps) if records.timestamps is not None else repeat(None)
        keyed = under_keys(self.backend, keys, pending)
        with FunctionPass(self, values, pending, keyed) as elements:
            for value, timestamp in zip(elements, stamps):
                windows = self._assign(value, timestamp, self._assigner_context)
                if not self._add(value, timestamp, windows):
                    self._drop_if_late(value, timestamp)
        self._collector.flush()

    def _add(self, value: Any, timestamp: int | None, windows: Any) -> bool:
        """Add an element to its windows, and return False if it is too late for all of them."""
        added, merging, ends = False, self._merging, self._is_event_time
        if self._shares_elements:
            windows = list(windows)
            elements = self._own_values(value, len(windows))
        else:
            elements = repeat(value)
        for assigned, element in zip(windows, elements):
            window = state_window = assigned if merging is None else merging.add(assigned, self._on_merge)
            over = self._cleanup_time(window)
            if ends and over <= self._timers.current_watermark:
                if merging is not None:
                    self._forget(window, merging)
                continue
            added = True
            if merging is not None:
                state_window = merging.state_window(window)
            self.backend.set_current_namespace(tuple(state_window))
            self._contents.add(self._state, element, timestamp)
            self._react(self._trigger.on_element(element, timestamp, window, self._enter(window)), window, state_window)
            if over != MAX_WATERMARK:
                self._register(tuple(window), over)
        return added

    def _own_values(self, value: Any, count: int) -> Iterable[Any]:
        if count < 2 or is_fixed(value):
            return repeat(value)
        return [*(self.context.copier.copied(value) for _ in range(count - 1)), value]

    def _forget(self, window: Any, merging: MergingWindowSet) -> None:
        state_window = merging.state_window(window)
        if self._has_contents(state_window):
            self._end(window, state_window)
        else:
            merging.retire(window)

    def _on_merge(self, window: Any, parts: list[Any], state_window: Any, others: list[Any]) -> None:
        if self._is_over(window):
            if all(self._is_over(part) for part in parts):
                for part, part_state in zip(parts, [state_window, *others]):
                    self._end(part, part_state)
                return
            raise ProgramError(
                f"{self._assigner!r} merged windows into {window}, which event time has already passed: merge_windows()"
                " must return windows that cover the merged windows"
            )
        ctx = self._enter(window)
        ctx.merged = parts
        self._trigger.on_merge(window, ctx)
        for part in parts:
            if part != window:
                self._trigger.clear(part, self._enter(part))
                over = self._cleanup_time(part)
                if over != MAX_WATERMARK:
                    self._delete(tuple(part), over)
        if others:
            self._state.merge_namespaces(tuple(state_window), [tuple(other) for other in others])

    def _react(self, result: TriggerResult, window: Any, state_window: Any) -> None:
        if result is TriggerResult.CONTINUE:
            return
        if not isinstance(result, TriggerResult):
            raise TypeError(f"{self._trigger!r} returned {shorten(result)}: return a TriggerResult")
        if result.is_fire():
            self.backend.set_current_namespace(tuple(state_window))
            if self.guard is None:
                self._fire(window, state_window)
            else:
                self.guard(partial(self._fire, window, state_window), window.max_timestamp(), tuple(state_window))
        if result.is_purge():
            self.backend.set_current_namespace(tuple(state_window))
            self._state.clear()

    def _fire(self, window: Any, state_window: Any) -> None:
        timestamp = window.max_timestamp()

        def call(elements: tuple[Any, ...]) -> None:
            self.backend.set_current_namespace(tuple(window))
            self._emit(window, timestamp, elements)
            self.backend.set_current_namespace(tuple(state_window))

        self._contents.fire(self._state, window, self._window_context, call)

    def contents(self) -> Sequence[Any]:
        return self._contents.elements(self._state)

    def _on_timer(self, timestamp: int, namespace: Any, clock: TimeDomain) -> None:
        window = self._assigner.window_type(*namespace)
        state_window = window if self._merging is None else self._state_window(window, self._merging)
        if state_window is None:
            return
        by_event_time = clock is TimeDomain.EVENT_TIME
        ask = self._trigger.on_event_time if by_event_time else self._trigger.on_processing_time
        self._react(ask(timestamp, window, self._enter(window)), window, state_window)
        if by_event_time != self._is_event_time:
            return
        # Another version of the program may have had another allowed lateness.
        over = self._cleanup_time(window)
        if timestamp == over or (timestamp > over and self._has_contents(state_window)):
            self._end(window, state_window)
        elif window.max_timestamp() <= timestamp < over < MAX_WATERMARK and not self.context.batch:
            self._register(tuple(window), over)

    def _state_window(self, window: Any, merging: MergingWindowSet) -> Any:
        state_window = merging.state_window(window)
        if state_window is None and not merging.is_state_window(window) and self._has_contents(window):
            return window  # stored by another version of the program, whose windows did not merge
        return state_window

    def _has_contents(self, state_window: Any) -> bool:
        self.backend.set_current_namespace(tuple(state_window))
        return any(element is not None for element in self.contents())

    def _end(self, window: Any, state_window: Any) -> None:
        self.backend.set_current_namespace(tuple(state_window))
        self._state.clear()
        self._trigger.clear(window, self._enter(window))
        if self._clears:
            self._clear_function(window)
        if self._merging is not None:
            self._merging.retire(window)

    def _enter(self, window: Any) -> TriggerContext:
        namespace = tuple(window)
        self.backend.set_current_namespace(namespace)
        self._trigger_context.namespace = namespace
        return self._trigger_context
