"""Tumbling windows that fold their elements and fire at their end: what most programs have, done with less asking.

All keys have the same windows, so a window is one thing: what it folds lies together, by key, and it has one timer,
which goes through its keys. In a checkpoint, state and timers are those of :class:`WindowOperator`, so a program may
change over to other windows' options and back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from pillarbox._elements import Records
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.functions.basic import TimeDomain
from pillarbox._operators.windowing.api.windows import TimeWindow
from pillarbox._operators.windowing.base_operator import WindowProgram
from pillarbox._operators.windowing.shared_operator import Begun, SharedWindowOperator
from pillarbox._time.timestamps import MAX_WATERMARK, MIN_TIMESTAMP


class TumblingWindowOperator(SharedWindowOperator):
    """Folds each record into the one window that it belongs to."""

    namespaced = True

    def __init__(self, context: OperatorContext, keying: Keying, program: WindowProgram) -> None:
        super().__init__(context, keying, program)
        self._state = self.backend.get_state(program.contents.descriptor, namespaced=True)

    def restore_state(self, state: Any) -> None:
        """Register the timers of the windows that there are; one that is over by now has fired, and goes.

        The subtasks before a savepoint may have reached different watermarks, of which the least holds: so a window
        that has not ended may have fired for some of its keys. Their rows have only the timer of its cleanup.
        """
        for namespace in self._state.namespaces():
            window = TimeWindow(*namespace)
            if self._is_over(window):
                self._state.drop_window(namespace)
            else:
                self._set_timers(window)
                if self._lateness and window.max_timestamp() > self._timers.current_watermark:
                    self._state.quieten(namespace, window.max_timestamp())

    # -- records --

    def _ahead(self, times: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the windows of times, and which of them have not fired: all that hold what comes next, or later."""
        line, size, passed = self._windows.line, self._windows.size, self._passed
        starts = line.starts(times, size)
        line.plus(int(starts.max()), size, size)  # days have ends as far as there are years
        if passed == MIN_TIMESTAMP:
            return starts, np.ones(len(starts), np.bool_)
        return starts, starts >= line.start(min(passed + 1, MAX_WATERMARK), size)

    def _place_at(self, start: int) -> Any:
        """Return what all keys have in the window that starts then."""
        size = self._windows.size
        namespace = (start, self._windows.line.plus(start, size, size))
        window = self._state.get_window(namespace)
        if window is None:
            window = self._state.open_window(namespace)
            self._set_timers(TimeWindow(*namespace))
        return window

    def _begun_by(self, records: Records) -> Begun:
        return None if self.keying.keeps_keys(records) else self._check_owner

    def _check_owner(self, key: Any, window: Any) -> None:
        self.backend.check_owner(key)

    def _set_timers(self, window: TimeWindow) -> None:
        """Register the timers of a window: when it fires, unless it has, and when it is over."""
        if not self._is_event_time:
            self._timers.register_processing_time_timer(tuple(window), window.max_timestamp())
            return
        register, end, over = self._timers.event_timers.register, window.max_timestamp(), self._cleanup_time(window)
        if end > self._timers.current_watermark:
            register(end, tuple(window))
        if over != end and over != MAX_WATERMARK:
            register(over, tuple(window))

    def _add(self, value: Any, timestamp: int | None) -> None:
        """Add an element of the current key: where its window has fired, it does so again, for the key."""
        (window,) = self._assigner.assign_windows(value, timestamp, self._assigner_context)
        if self._is_over(window):
            self._drop_if_late(value, timestamp)
            return
        key, places = self.backend.key, (self._place_at(window.start),)
        self._state.wake((key,), places)
        self._state.fold((value,), (key,), places, self._check_owner)
        if window.max_timestamp() <= self._passed:
            self._fire(window.start, window.end, self._state.folded(tuple(window), key))

    # -- firing --

    def _on_timer(self, timestamp: int, namespace: Any, clock: TimeDomain) -> None:
        """Fire the window of all keys, or remove it, or both."""
        window = TimeWindow(*namespace)
        if timestamp == window.max_timestamp():
            self._fire_all(window, self._state.items(namespace, timestamp))
        if timestamp != self._cleanup_time(window):
            self._state.thaw_all(namespace)
            return
        if self._clears:
            for _ in self._state.items(namespace):
                self._tell_of_end(window)
        self._state.drop_window(namespace)

    def _fire_all(self, window: TimeWindow, folded: Iterable[tuple[Any, Any]]) -> None:
        """Call the window function for keys, with what is folded of each."""
        timestamp, result, call = window.max_timestamp(), self._fold.result, self._call
        collect = self._collector.collect
        for _, accumulator in folded:
            value = result(accumulator)
            if value is not None:
                results = call(window, timestamp, (value,))
                if results is not None:
                    collect(results, timestamp)
