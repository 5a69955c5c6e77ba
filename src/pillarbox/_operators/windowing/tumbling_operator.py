"""Tumbling windows that fold elements and fire at their end.

A window has one timer for all keys. Checkpoints contain the same state and timers as a :class:`WindowOperator`'s, so a
program may switch to options that need that operator, and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pillarbox._elements.records import Records
from pillarbox._operators.frame.collector import USUAL_RESULTS, check_results
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.functions.contexts import TimeDomain
from pillarbox._operators.windowing.api.windows import TimeWindow
from pillarbox._operators.windowing.shared_operator import OnNewKey, SharedWindowOperator
from pillarbox._operators.windowing.window_program import WindowProgram
from pillarbox._time.timestamp_assigner import MAX_WATERMARK, MIN_TIMESTAMP


class TumblingWindowOperator(SharedWindowOperator):
    """Folds each record into its window."""

    namespaced = True

    def __init__(self, context: OperatorContext, keying: Keying, program: WindowProgram) -> None:
        super().__init__(context, keying, program)
        self._state = self.backend.get_state(program.contents.descriptor, namespaced=True)

    def restore_state(self, state: Any) -> None:
        """Set a timer for each live window, and drop windows whose lifetime has ended.

        After restoring a savepoint, the event time is the minimum of the old subtasks' watermarks. An open window may
        therefore have fired for some keys, whose rows have only a timer that removes them.
        """
        for namespace in self._state.namespaces():
            window = TimeWindow(*namespace)
            if self._is_over(window):
                self._state.drop_window(namespace)
            else:
                self._set_timers(window)
                if self._lateness and window.max_timestamp() > self._timers.current_watermark:
                    self._state.quieten(namespace, window.max_timestamp())

    def _ahead(self, times: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        line, size, passed = self._windows.line, self._windows.size, self._passed
        starts = line.starts(times, size)
        line.plus(int(starts.max()), size, size)  # raises for an end after the last year
        if passed == MIN_TIMESTAMP:
            return starts, np.ones(len(starts), np.bool_)
        return starts, starts >= line.start(min(passed + 1, MAX_WATERMARK), size)

    def _pane_at(self, start: int) -> Any:
        size = self._windows.size
        namespace = (start, self._windows.line.plus(start, size, size))
        window = self._state.get_window(namespace)
        if window is None:
            window = self._state.open_window(namespace)
            self._set_timers(TimeWindow(*namespace))
        return window

    def _on_new_key(self, records: Records) -> OnNewKey:
        return None if self.keying.keeps_keys(records) else self._check_owner

    def _check_owner(self, key: Any, window: Any) -> None:
        self.backend.check_owner(key)

    def _set_timers(self, window: TimeWindow) -> None:
        if not self._is_event_time:
            self._timers.register_processing_time_timer(tuple(window), window.max_timestamp())
            return
        register, end, over = self._timers.event_timers.register, window.max_timestamp(), self._cleanup_time(window)
        if end > self._timers.current_watermark:
            register(end, tuple(window))
        if over != end and over != MAX_WATERMARK:
            register(over, tuple(window))

    def _add(self, value: Any, timestamp: int | None) -> None:
        (window,) = self._assigner.assign_windows(value, timestamp, self._assigner_context)
        if self._is_over(window):
            self._drop_if_late(value, timestamp)
            return
        key, panes = self.backend.key, (self._pane_at(window.start),)
        self._state.wake((key,), panes)
        self._state.fold((value,), (key,), panes, self._check_owner)
        if window.max_timestamp() <= self._passed:
            self._fire(window.start, window.end, self._state.folded(tuple(window), key))

    def _on_timer(self, timestamp: int, namespace: Any, clock: TimeDomain) -> None:
        window = TimeWindow(*namespace)
        if timestamp == window.max_timestamp():
            folded = self._state.items(namespace, timestamp)
            self._collector.collect(self._results(window, folded), window.max_timestamp())
        if timestamp != self._cleanup_time(window):
            self._state.thaw_all(namespace)
            return
        if self._clears:
            for _ in self._state.items(namespace):
                self._clear_function(window)
        self._state.drop_window(namespace)

    def _results(self, window: TimeWindow, folded: Iterable[tuple[Any, Any]]) -> Iterator[Any]:
        timestamp, result, call = window.max_timestamp(), self._fold.result, self._call
        for _, accumulator in folded:
            value = result(accumulator)
            if value is not None:
                results = call(window, timestamp, (value,))
                if results is not None:
                    if type(results) not in USUAL_RESULTS:
                        check_results(results)
                    yield from results
