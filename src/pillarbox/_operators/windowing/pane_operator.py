"""Overlapping (sliding or cumulating) windows of panes (slices of time), to fold each element only once.

A checkpoint has one row per key and pane, and timers per key. When a window fires, two stacks merge its panes
(`two_stacks.py`). The stacks are a cache, rebuilt after a restart and partly when a pane changes.
"""

from __future__ import annotations

import copy
from bisect import bisect_left, insort
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pillarbox._elements.records import Records
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.functions.contexts import TimeDomain
from pillarbox._operators.windowing.panes import EvenPanes, panes_of
from pillarbox._operators.windowing.shared_operator import OnNewKey, SharedWindowOperator
from pillarbox._operators.windowing.two_stacks import TwoStacks
from pillarbox._operators.windowing.window_program import WindowProgram
from pillarbox._time.timestamp_assigner import MAX_WATERMARK, MIN_TIMESTAMP


class _KeyPanes:
    __slots__ = ("stacks", "starts", "timer")

    def __init__(self, starts: list[int]) -> None:
        self.starts = starts
        self.stacks: TwoStacks | None = None
        self.timer: int | None = None


class _PaneTime(NamedTuple):
    time: int
    window: tuple[int, int] | None
    next_start: int
    next_end: int
    over: int


class PaneWindowOperator(SharedWindowOperator):
    """Folds each record into one pane, and merges panes when a window fires."""

    timers = "pane-timers"

    def __init__(self, context: OperatorContext, keying: Keying, program: WindowProgram) -> None:
        super().__init__(context, keying, program)
        panes = panes_of(program.assigner)
        assert isinstance(panes, EvenPanes) and self._fold.merge is not None
        self._panes = panes
        self._merge = self._fold.merge
        # Named after the pane layout, so that a checkpoint with another layout is refused.
        descriptor = copy.copy(self._fold.descriptor)
        descriptor.name = panes.name
        self._state = self.backend.get_state(descriptor, namespaced=True)
        self._by_key: dict[Any, _KeyPanes] = {}
        self._clock_was = MIN_TIMESTAMP
        self._pane_time: _PaneTime | None = None

    def end_key(self) -> None:
        super().end_key()
        self._by_key.clear()

    def _ahead(self, times: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        if self._is_event_time:
            self._clock_was = self._timers.current_watermark
        else:
            now = int(times[0])
            if now <= self._clock_was:
                self._by_key.clear()  # merged panes may change, because the clock was set back
            self._clock_was = now - 1
        ahead = times > self._clock_was
        outside = self._panes.outside(times)
        return self._panes.starts(times), ahead if outside is None else ahead & ~outside

    def _pane_at(self, start: int) -> Any:
        pane = self._state.get_window(start)
        return self._state.open_window(start) if pane is None else pane

    def _on_new_key(self, records: Records) -> OnNewKey:
        return self._schedule_key

    def _schedule_key(self, key: Any, pane: Any) -> None:
        self.backend.set_current_key(key)
        self._schedule(self._with(pane.namespace), self._at(self._clock_was))

    def _add(self, value: Any, timestamp: int | None) -> None:
        if not self._is_event_time:
            return  # in processing time, an element is never late, so it is between windows
        windows = [
            window
            for window in self._assigner.assign_windows(value, timestamp, self._assigner_context)
            if not self._is_over(window)
        ]
        if not windows:
            self._drop_if_late(value, timestamp)
            return
        assert timestamp is not None
        pane = self._panes.start(timestamp)
        self._state.fold((value,), (self.backend.key,), (self._pane_at(pane),), None)
        panes = self._with(pane)
        if panes.stacks is not None:
            panes.stacks.changed(pane)
        passed = self._passed
        stacks = TwoStacks(self._merge, self._read)
        due = {
            window: stacks.window(window.start, window.end, panes.starts)
            for window in sorted(windows)
            if window.end - 1 <= passed
        }
        for window in windows:
            if window in due:
                self._fire(window.start, window.end, due[window])
        self._schedule(panes, self._at(passed))
        last = max(windows).end - 1
        if last > MAX_WATERMARK:
            self._register(last)

    def _with(self, pane: int) -> _KeyPanes:
        panes = self._panes_of_key()
        starts = panes.starts
        if not starts or starts[-1] < pane:
            starts.append(pane)
        elif starts[bisect_left(starts, pane)] != pane:
            insort(starts, pane)
        return panes

    def _panes_of_key(self) -> _KeyPanes:
        key = self.backend.key
        panes = self._by_key.get(key)
        if panes is None:
            # Other namespaces belong to the window function.
            starts = sorted(start for start in self.backend.get_namespaces() if type(start) is int)
            panes = self._by_key[key] = _KeyPanes(starts)
        return panes

    def _read(self, pane: int) -> Any:
        return self._state.folded(pane, self.backend.key)

    def _on_timer(self, timestamp: int, namespace: Any, clock: TimeDomain) -> None:
        self._clock_was = max(self._clock_was, timestamp)
        panes = self._panes_of_key()
        panes.timer = None
        around = self._at(timestamp)
        if around.window is not None:
            if panes.stacks is None:
                panes.stacks = TwoStacks(self._merge, self._read)
            start, end = around.window
            self._fire(start, end, panes.stacks.window(start, end, panes.starts))
        starts = panes.starts
        if starts and starts[0] < around.over:
            self._remove(starts, around.over)
        if starts:
            self._schedule(panes, around)
        else:
            del self._by_key[self.backend.key]

    def _remove(self, starts: list[int], over: int) -> None:
        count = bisect_left(starts, over)
        for start in starts[:count]:
            self._state.remove(start, self.backend.key)
        del starts[:count]

    def _schedule(self, panes: _KeyPanes, around: _PaneTime) -> None:
        starts = panes.starts
        position = 0 if starts[0] >= around.next_start else bisect_left(starts, around.next_start)
        time = MAX_WATERMARK + 1
        if position < len(starts):
            first = starts[position]
            time = (around.next_end if first < around.next_end else self._panes.end_after(first)) - 1
        if self._lateness:
            over = self._end_of_lateness(self._panes.last_end(starts[0]))
            if over is not None and over < time:
                time = over
        if time <= MAX_WATERMARK and (panes.timer is None or time < panes.timer):
            self._register(time)
            panes.timer = time

    def _at(self, time: int) -> _PaneTime:
        around = self._pane_time
        if around is None or around.time != time:
            panes = self._panes
            end = panes.end_after(time)
            next_end = panes.end_after(time + 1)
            around = self._pane_time = _PaneTime(
                time,
                (panes.window_start(end), end) if end == time + 1 else None,
                panes.window_start(next_end),
                next_end,
                panes.window_start(panes.end_after(time + 1 - self._lateness)),
            )
        return around
