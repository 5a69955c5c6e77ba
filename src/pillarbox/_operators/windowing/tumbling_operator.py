"""Tumbling windows that fold their elements and fire at their end: what most programs have, done with less asking.

All keys have the same windows, so a window is one thing: what it folds lies together, by key, and it has one timer,
which goes through its keys. In a checkpoint, state and timers are those of :class:`WindowOperator`, so a program may
change over to other windows' options and back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import compress, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from pillarbox._elements import ArrowRecords, Records
from pillarbox._errors import ProgramError
from pillarbox._operators.frame.function_operator import Pass
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.windowing.api.time_windows import TumblingEventTimeWindows, TumblingProcessingTimeWindows
from pillarbox._operators.windowing.api.triggers import EventTimeTrigger, ProcessingTimeTrigger
from pillarbox._operators.windowing.api.windows import TimeWindow
from pillarbox._operators.windowing.base_operator import BaseWindowOperator, WindowProgram, are_far, places
from pillarbox._operators.windowing.contents import Fold, Folded
from pillarbox._state import FoldedWindows
from pillarbox._time.timestamps import MAX_WATERMARK

__all__ = ["TumblingWindowOperator"]


_KINDS = (
    (TumblingEventTimeWindows, EventTimeTrigger),
    (TumblingProcessingTimeWindows, ProcessingTimeTrigger),
)
_Check = Callable[[Any, Any], None] | None


class TumblingWindowOperator(BaseWindowOperator):
    """Folds each record into the one window that it belongs to."""

    _assigner: TumblingEventTimeWindows | TumblingProcessingTimeWindows

    def __init__(self, context: OperatorContext, keying: Keying, program: WindowProgram) -> None:
        super().__init__(context, keying, program, "window-timers", namespaced=True, shared=True)
        assert isinstance(program.contents, Folded)
        self._fold: Fold = program.contents.fold
        self._state: FoldedWindows = self.backend.get_state(program.contents.descriptor, namespaced=True)

    @staticmethod
    def does(program: WindowProgram) -> bool:
        """Tell whether a program's windows are of this kind."""
        assigner = program.assigner
        return (type(assigner), type(program.trigger)) in _KINDS and isinstance(program.contents, Folded)

    def restore_state(self, state: Any) -> None:
        """Register the timers of the windows that there are; one that is over by now has fired, and goes.

        The subtasks before a savepoint may have come to different watermarks, of which the least holds: so a window
        that has not ended may have fired for some of its keys. Their rows have only the timer of its cleanup.
        """
        for namespace in self._state.namespaces():
            window = TimeWindow(*namespace)
            if self._is_over(window):
                self._state.end(namespace)
            else:
                self._set_timers(window)
                if self._lateness and window.max_timestamp() > self._timers.current_watermark:
                    self._state.quieten(namespace, window.max_timestamp())

    # -- records --

    def process_records(self, records: Records) -> None:
        """Fold the records of a run into their windows."""
        if not len(records):
            return
        values, keys = records.values, self.keying.keys_of(records)
        check = None if self.keying.keeps_keys(records) else self._check_owner
        bounds = self._bounds_of(records)
        if bounds is None:
            self._add_each(values, keys, records.timestamps, check)
        else:
            starts, ends = bounds
            ahead = ends - 1 > self._timers.current_watermark
            if not self._is_event_time or ahead.all():
                self._fold_run(values, keys, starts, check)
            else:
                # Windows that have fired are others than those of the rest, so it does not matter which come first.
                chosen, others = ahead.tolist(), (~ahead).tolist()
                self._fold_run(list(compress(values, chosen)), list(compress(keys, chosen)), starts[ahead], check)
                times = list(compress(records.timestamps or (), others))
                self._add_each(list(compress(values, others)), list(compress(keys, others)), times, check)
        self._collector.flush()

    def _check_owner(self, key: Any, window: Any) -> None:
        self.backend.check_owner(key)

    def _bounds_of(self, records: Records) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
        """Return the start and the end of each record's window; None: a timestamp is missing, or too far out."""
        if not self._is_event_time:
            times = np.full(len(records), self._timers.current_processing_time())
        elif isinstance(records, ArrowRecords) and records.stamps is not None:
            times = records.stamps
        elif records.timestamps is None:
            return None
        else:
            try:
                times = np.array(records.timestamps, np.int64)
            except (TypeError, ValueError, OverflowError):
                return None
        size = self._assigner.size
        if are_far(times, size):
            return None
        try:
            starts = self._assigner.line.starts(times, size)
            return starts, self._assigner.line.ends(starts, size)
        except (ProgramError, ValueError, OverflowError):  # no year from 1 to 9999: the record is to be named
            return None

    def _fold_run(
        self, values: Sequence[Any], keys: Iterable[Any], starts: npt.NDArray[np.int64], check: _Check
    ) -> None:
        """Fold elements into windows that have not fired."""
        if not len(starts):
            return
        windows = places(starts, self._window_at)
        pending = iter(values)
        if self._state.quiet:
            keys = list(keys)
            windows = [window for window, _ in zip(windows, keys)]
            self._state.wake(keys, windows)
        with Pass(self, values, pending, pending) as elements:
            self._state.fold(elements, keys, windows, check)

    def _window_at(self, start: int) -> Any:
        """Return what all keys have in the window that starts then."""
        size = self._assigner.size
        namespace = (start, self._assigner.line.plus(start, size, size))
        window = self._state.find(namespace)
        if window is None:
            window = self._state.begin(namespace)
            self._set_timers(TimeWindow(*namespace))
        return window

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

    def _add_each(
        self, values: Sequence[Any], keys: Iterable[Any], timestamps: Sequence[int | None] | None, check: _Check
    ) -> None:
        """Add elements one by one: where their window has fired, it does so again, for the key."""
        pending = iter(values)
        times: Iterable[int | None] = repeat(None) if timestamps is None else timestamps
        with Pass(self, values, pending, pending) as elements:
            for value, key, timestamp in zip(elements, keys, times):
                self.backend.set_current_key(key)
                for window in self._assigner.assign_windows(value, timestamp, self._assigner_context):
                    if self._is_over(window):
                        self._drop_if_late(value, timestamp)
                        continue
                    kept = self._window_at(window.start)
                    self._state.wake((key,), (kept,))
                    self._state.fold((value,), (key,), (kept,), check)
                    if self._is_event_time and window.max_timestamp() <= self._timers.current_watermark:
                        self._fire(window, [(key, self._state.folded(tuple(window), key))])

    # -- firing --

    def on_event_time(self, timestamp: int, namespace: Any) -> None:
        """Fire the window of all keys, or remove it, or both."""
        self._on_timer("event time", timestamp, namespace)

    def on_processing_time(self, timestamp: int, namespace: Any) -> None:
        """Fire the window of all keys, and remove it."""
        self._on_timer("processing time", timestamp, namespace)

    def _on_timer(self, clock: str, timestamp: int, namespace: Any) -> None:
        window = TimeWindow(*namespace)
        fires, over = timestamp == window.max_timestamp(), timestamp == self._cleanup_time(window)
        try:
            if fires:
                self._fire(window, self._state.each(namespace, timestamp))
            if not over:
                self._state.rewrite(namespace)
                return
            if self._clears:
                for _ in self._state.each(namespace):
                    self._tell_of_end(window)
            self._state.end(namespace)
        except BaseException as error:
            self._timer_failed(clock, timestamp, window, error)

    def _fire(self, window: TimeWindow, folded: Iterable[tuple[Any, Any]]) -> None:
        """Call the window function for keys, with what is folded of each."""
        timestamp, result, call = window.max_timestamp(), self._fold.result, self._call
        collect = self._collector.collect
        for _, accumulator in folded:
            value = result(accumulator)
            if value is not None:
                results = call(window, timestamp, (value,))
                if results is not None:
                    collect(results, timestamp)
