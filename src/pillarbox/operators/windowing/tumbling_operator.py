"""Tumbling windows that fold their elements and fire at their end: what most programs have, done with less asking.

State, timers and results are those of :class:`WindowOperator`, so a program may change over to other windows' options
and back, and what is out of the ordinary in a run of records is left to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pillarbox.elements import Records
from pillarbox.operators.function_operator import Pass
from pillarbox.operators.windowing.base_operator import WindowProgram
from pillarbox.operators.windowing.contents import Folded
from pillarbox.operators.windowing.operator import WindowOperator
from pillarbox.operators.windowing.time_windows import TumblingEventTimeWindows
from pillarbox.operators.windowing.triggers import EventTimeTrigger
from pillarbox.operators.windowing.windows import TimeWindow

__all__ = ["TumblingWindowOperator"]

# Further out, the arithmetic of 64 bits might not hold.
_FAR = 2**62


class TumblingWindowOperator(WindowOperator):
    """Folds each record into the one window that it belongs to."""

    _assigner: TumblingEventTimeWindows

    @staticmethod
    def does(program: WindowProgram) -> bool:
        """Tell whether a program's windows are of this kind."""
        assigner = program.assigner
        return (
            type(assigner) is TumblingEventTimeWindows
            and assigner.time_zone is None
            and type(program.trigger) is EventTimeTrigger
            and isinstance(program.contents, Folded)
        )

    def process_records(self, records: Records) -> None:
        """Fold the records of a run into their windows."""
        windows = self._windows_of(records)
        if windows is None:
            super().process_records(records)
            return
        values = records.values
        pending = iter(values)
        select, fold, register = self.backend.select, self._state.fold, self._timers.event_timers.register
        lateness = self._lateness
        with Pass(self, values, pending, pending) as elements:
            for value, key, window in zip(elements, self.keying.keys_of(records), windows):
                select(key, window)
                if fold(value):
                    end = window[1] - 1
                    register(end, window)
                    if lateness:
                        register(end + lateness, window)

    def _windows_of(self, records: Records) -> list[tuple[int, int]] | None:
        """Return the window of each record; None where a record has no timestamp, or one whose window has ended."""
        if records.timestamps is None or not len(records):
            return None
        try:
            times = np.array(records.timestamps, np.int64)
        except (TypeError, ValueError, OverflowError):
            return None
        earliest, latest = int(times.min()), int(times.max())
        size = self._assigner.size
        if earliest < -_FAR or latest > _FAR or size > _FAR:
            return None
        starts = times - (times - self._assigner.offset) % size
        if int(starts.min()) + size - 1 <= self._timers.current_watermark:
            return None
        # One tuple for all records of a window, which their rows keep: that is less memory to go through.
        known = {start: (start, start + size) for start in np.unique(starts).tolist()}
        return list(map(known.__getitem__, starts.tolist()))

    def on_event_time(self, timestamp: int, namespace: Any) -> None:
        """Fire the window, or clean up, or both."""
        end = namespace[1] - 1
        window = TimeWindow(*namespace)
        try:
            if timestamp == end:
                value = self._state.get()
                if value is not None:
                    self._emit(window, end, (value,))
            if timestamp == end + self._lateness:
                if self._clears:
                    self._end(window, window)
                else:
                    self._state.clear()
        except BaseException as error:
            self._timer_failed("event time", timestamp, window, error)
