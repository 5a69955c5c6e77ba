"""Sessions that fold their elements and fire at their ends: those of a key are one short list.

A session is ``(start, end, accumulator)``. They are in order, and no two of a key overlap or touch: those that do are
one. Most elements belong to the last session, whose end they move; its timer stays, and finds out when it fires.

They are tuples, as these lie in one piece of memory: with many keys, a look at each further piece takes longest.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from pillarbox.elements import Records
from pillarbox.operators.function_operator import Pass
from pillarbox.operators.keys import Keying
from pillarbox.operators.operator import OperatorContext
from pillarbox.operators.windowing.base_operator import WindowProgram
from pillarbox.operators.windowing.folding_operator import FoldingWindowOperator
from pillarbox.operators.windowing.session_windows import (
    DynamicEventTimeSessionWindows,
    DynamicProcessingTimeSessionWindows,
    EventTimeSessionWindows,
    ProcessingTimeSessionWindows,
)
from pillarbox.operators.windowing.windows import TimeWindow
from pillarbox.state import ValueState, ValueStateDescriptor

__all__ = ["SessionWindowOperator"]

_KINDS = frozenset(
    {
        DynamicEventTimeSessionWindows,
        DynamicProcessingTimeSessionWindows,
        EventTimeSessionWindows,
        ProcessingTimeSessionWindows,
    }
)
_START = itemgetter(0)
_END = itemgetter(1)

Session = tuple[int, int, Any]


class SessionWindowOperator(FoldingWindowOperator):
    """Folds each record into the session that it belongs to."""

    def __init__(self, context: OperatorContext, keying: Keying, program: WindowProgram) -> None:
        super().__init__(context, keying, program, "session-timers", merging=True)
        assert self._fold.merge is not None
        self._merge = self._fold.merge
        # Named by what the accumulators are.
        name = f"{self._fold.descriptor.kind}-sessions"
        (accumulator,) = self._fold.descriptor.declared_types
        declared = None if accumulator is None else list[tuple[int, int, accumulator]]  # type: ignore[valid-type]
        self._state: ValueState[tuple[Session, ...]] = self.backend.get_state(ValueStateDescriptor(name, declared))

    @staticmethod
    def does(program: WindowProgram) -> bool:
        """Tell whether a program's windows are of this kind."""
        return type(program.assigner) in _KINDS and FoldingWindowOperator.folds_at_ends(program)

    # -- records --

    def process_records(self, records: Records) -> None:
        """Fold the records of a run into their sessions."""
        values = records.values
        pending = iter(values)
        backend, rows, register = self.backend, self.backend.rows, self._register
        sessions_of, update = self._state.value, self._state.update
        first, add_to = self._fold.first, self._fold.add
        unfired = self._passed + 1  # the sessions that end later than this have not fired
        with Pass(self, values, pending, pending) as elements:
            keys, windows = self.keying.keys_of(records), self._windows_of(records)
            for value, key, (start, end) in zip(elements, keys, windows):
                # The key becomes the current one.
                backend.row = rows[key]
                backend.key = key
                sessions = sessions_of()
                if sessions is None:
                    if end > unfired:
                        update(((start, end, first(value)),))
                        register(end - 1)
                        continue
                    sessions = ()
                else:
                    begin, until, accumulator = sessions[-1]
                    if start > until:
                        if end > unfired:  # a new one behind the others
                            update((*sessions, (start, end, first(value))))
                            if until <= unfired:  # (else the timer of the one before comes early enough)
                                register(end - 1)
                            continue
                    elif begin <= start and until > unfired and accumulator is not None:
                        folded = add_to(accumulator, value)
                        if folded is None:
                            raise self._folded_none()
                        last = (begin, end if end > until else until, folded)
                        update((last,) if len(sessions) == 1 else (*sessions[:-1], last))
                        continue
                self._add(value, start, end, sessions)
        self._collector.flush()

    def _windows_of(self, records: Records) -> Iterator[tuple[int, int]]:
        """Return for each record the session that it would be by itself."""
        assigner, times = self._assigner, records.timestamps
        if isinstance(assigner, EventTimeSessionWindows) and times is not None and None not in times:
            gap = assigner.gap
            return zip(times, [time + gap for time in times])  # type: ignore[operator, arg-type]
        return self._assigned(records)

    def _assigned(self, records: Records) -> Iterator[tuple[int, int]]:
        times = [None] * len(records) if records.timestamps is None else records.timestamps
        assign, context = self._assigner.assign_windows, self._assigner_context
        for value, time in zip(records.values, times):
            (window,) = assign(value, time, context)
            yield window

    def _add(self, value: Any, start: int, end: int, sessions: tuple[Session, ...]) -> None:
        """Add an element to the sessions that it meets, which become one, or as a new one."""
        first = bisect_left(sessions, start, key=_END)
        behind = bisect_right(sessions, end, key=_START)
        met = sessions[first:behind]
        if not met and self._is_over(TimeWindow(start, end)):
            self._drop_if_late(value, start)
            return
        passed = self._passed
        if met:
            # A timer of one that has not fired comes early enough for what they are together.
            has_timer = met[-1][1] - 1 > passed
            accumulator = self._merged([session[2] for session in met])
            folded = self._fold.first(value) if accumulator is None else self._fold.add(accumulator, value)
            if folded is None and accumulator is not None:
                raise self._folded_none()
            accumulator = folded
            start, end = min(start, met[0][0]), max(end, met[-1][1])
        else:
            has_timer = first > 0 and sessions[first - 1][1] - 1 > passed
            accumulator = self._fold.first(value)
        self._state.update((*sessions[:first], (start, end, accumulator), *sessions[behind:]))
        if end - 1 <= passed:
            self._fire(start, end, accumulator)
        if not has_timer:
            self._schedule(end, passed)

    def _merged(self, accumulators: list[Any]) -> Any:
        """Return one accumulator of those of several sessions: that of the first takes up the others."""
        first, *others = accumulators
        rest = None
        for other in others:
            if other is not None:
                rest = other if rest is None else self._merge(rest, other)
        return rest if first is None else first if rest is None else self._merge(first, rest)

    # -- firing --

    def _on_timer(self, timestamp: int) -> None:
        sessions = self._state.value()
        if sessions is None:
            return
        end = timestamp + 1
        first = sessions[0]
        if first[1] > end:  # it has grown since
            self._register(first[1] - 1)
            return
        if first[1] == end and len(sessions) == 1 and not self._lateness and not self._clears:
            self._fire(*first)  # as mostly
            self._state.clear()
            return
        ending, over = 0, 1
        if self._lateness or first[1] < end:
            ending, over = bisect_left(sessions, end, key=_END), bisect_right(sessions, end - self._lateness, key=_END)
        if ending < len(sessions) and sessions[ending][1] == end:
            self._fire(*sessions[ending])
        if over:
            sessions = self._without(sessions, over)
        if sessions:
            self._schedule(sessions[0][1], timestamp)
            following = bisect_right(sessions, end, key=_END) if self._lateness else 0
            if 0 < following < len(sessions):
                self._register(sessions[following][1] - 1)

    def _without(self, sessions: tuple[Session, ...], over: int) -> tuple[Session, ...]:
        """Remove the first ``over`` sessions, which are over; return the others."""
        if self._clears:
            for start, end, _ in sessions[:over]:
                self._tell_of_end(TimeWindow(start, end))
        rest = sessions[over:]
        if rest:
            self._state.update(rest)
        else:
            self._state.clear()
        return rest

    def _schedule(self, end: int, passed: int) -> None:
        """Register the next timer of a session: for when it fires, or for when it is over."""
        time = end - 1 if end - 1 > passed else self._end_of_lateness(end)
        if time is not None:
            self._register(time)
