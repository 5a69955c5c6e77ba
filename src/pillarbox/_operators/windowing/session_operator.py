"""Session windows that fold elements and fire at their end.

A key's sessions never overlap or touch. They are stored in one ordered tuple of ``(start, end, accumulator)``, because
with many keys, memory access is the slowest step. When the last session's end moves, its timer stays, and sets the next
timer when it fires.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice, repeat
from operator import itemgetter
from typing import Any

from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._operators.frame.function_operator import FunctionPass
from pillarbox._operators.frame.gathering import GatheringOperator
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.functions.contexts import TimeDomain
from pillarbox._operators.windowing.api.session_windows import EventTimeSessionWindows
from pillarbox._operators.windowing.api.windows import TimeWindow
from pillarbox._operators.windowing.by_key import ByKeyBuffer, RecordsByKey
from pillarbox._operators.windowing.folding_operator import FoldingWindowOperator, are_far
from pillarbox._operators.windowing.window_program import WindowProgram
from pillarbox._state.descriptors import ValueState, ValueStateDescriptor
from pillarbox._time.timestamp_assigner import MAX_WATERMARK, MIN_TIMESTAMP

_START = itemgetter(0)
_END = itemgetter(1)

Session = tuple[int, int, Any]


class SessionWindowOperator(GatheringOperator, FoldingWindowOperator):
    """Folds each record into its session."""

    timers = "session-timers"

    def __init__(self, context: OperatorContext, keying: Keying, program: WindowProgram) -> None:
        super().__init__(context, keying, program)
        assert self._fold.merge is not None
        self._merge = self._fold.merge
        name = f"{self._fold.descriptor.kind}-sessions"
        (accumulator,) = self._fold.descriptor.declared_types
        declared = None if accumulator is None else list[tuple[int, int, accumulator]]  # type: ignore[valid-type]
        self._state: ValueState[tuple[Session, ...]] = self.backend.get_state(ValueStateDescriptor(name, declared))

        assigner = program.assigner
        self._gap: int | None = assigner.gap if isinstance(assigner, EventTimeSessionWindows) else None
        self._buffer = ByKeyBuffer(keying)

    def process_records(self, records: Records) -> None:
        if len(records) and self._gap is not None and self._buffer.takes(records):
            assert isinstance(records, ArrowRecords)
            if self._buffer.add(records):
                self.work_off()
            return
        self.work_off()
        self._fold_each(records)

    def work_off(self) -> None:
        records = self._buffer.take()
        if records is None:
            return
        assert records.stamps is not None and self._gap is not None
        if are_far(records.stamps, self._gap) or int(records.stamps.min()) + self._gap <= self._passed + 1:
            self._fold_each(records)
            return
        for portion in self._buffer.grouped(records):
            self._fold_portion(portion)

    def _fold_portion(self, portion: RecordsByKey) -> None:
        """Fold records that are not late. Read and write each key's state once."""
        values = portion.records.values
        assert portion.records.stamps is not None and self._gap is not None
        times: Iterator[int] = iter(portion.records.stamps.tolist())
        pending = iter(values)
        backend, rows = self.backend, self.backend.rows
        sessions_of = self._state.value
        first, add_to, gap = self._fold.first, self._fold.add, self._gap
        unfired = self._passed + 1
        with FunctionPass(self, values, pending, pending) as elements:
            begin = 0
            for key, stop in zip(portion.keys, portion.ends):
                backend.row = rows[key]
                backend.key = key
                done = [*(sessions_of() or ())]
                timed = taken_up = bool(done) and done[-1][1] > unfired
                start, until, folded = done.pop() if timed else (0, done[-1][1] if done else MIN_TIMESTAMP, None)
                for value, time in zip(islice(elements, stop - begin), times):
                    if time > until:
                        if taken_up:
                            done.append((start, until, folded))
                        start, until, folded, taken_up = time, time + gap, first(value), True
                    elif folded is not None and time >= start:
                        folded = add_to(folded, value)
                        if folded is None:
                            raise self._no_accumulator()
                        if time + gap > until:
                            until = time + gap
                    else:
                        if taken_up:
                            done.append((start, until, folded))
                        self._put(done, unfired, timed=timed)
                        self._add(value, time, time + gap, tuple(done))
                        done = [*(sessions_of() or ())]
                        timed = taken_up = True
                        start, until, folded = done.pop()
                begin = stop
                if taken_up:
                    done.append((start, until, folded))
                self._put(done, unfired, timed=timed)
        self._collector.flush()

    def _fold_each(self, records: Records) -> None:
        values = records.values
        pending = iter(values)
        backend, rows, register = self.backend, self.backend.rows, self._register
        sessions_of, update = self._state.value, self._state.update
        first, add_to = self._fold.first, self._fold.add
        unfired = self._passed + 1  # sessions that end later have not fired
        with FunctionPass(self, values, pending, pending) as elements:
            keys, windows = self.keying.keys_of(records), self._windows_of(records)
            for value, key, (start, end) in zip(elements, keys, windows):
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
                        if end > unfired:
                            update((*sessions, (start, end, first(value))))
                            if until <= unfired:  # otherwise, the previous session's timer is early enough
                                register(end - 1)
                            continue
                    elif begin <= start and until > unfired and accumulator is not None:
                        folded = add_to(accumulator, value)
                        if folded is None:
                            raise self._no_accumulator()
                        last = (begin, end if end > until else until, folded)
                        update((last,) if len(sessions) == 1 else (*sessions[:-1], last))
                        continue
                self._add(value, start, end, sessions)
        self._collector.flush()

    def _put(self, sessions: list[Session], unfired: int, *, timed: bool) -> None:
        self._state.update(tuple(sessions))
        if not timed:
            for _, end, _ in sessions:
                if end > unfired:
                    self._register(end - 1)
                    return

    def _windows_of(self, records: Records) -> Iterator[tuple[int, int]]:
        times, gap = records.timestamps, self._gap
        if gap is not None and times and None not in times and max(times) + gap <= MAX_WATERMARK:  # type: ignore[type-var, operator]
            return zip(times, [time + gap for time in times])  # type: ignore[operator, arg-type]
        assign, context = self._assigner.assign_windows, self._assigner_context
        stamps: Iterable[int | None] = repeat(None) if times is None else times
        return (window for value, time in zip(records.values, stamps) for window in assign(value, time, context))

    def _add(self, value: Any, start: int, end: int, sessions: tuple[Session, ...]) -> None:
        first = bisect_left(sessions, start, key=_END)
        after = bisect_right(sessions, end, key=_START)
        met = sessions[first:after]
        if not met and self._is_over(TimeWindow(start, end)):
            self._drop_if_late(value, start)
            return
        passed = self._passed
        if met:
            # The timer of a session that has not fired is early enough for the merged session.
            has_timer = met[-1][1] - 1 > passed
            accumulator = self._merged([session[2] for session in met])
            folded = self._fold.first(value) if accumulator is None else self._fold.add(accumulator, value)
            if folded is None and accumulator is not None:
                raise self._no_accumulator()
            accumulator = folded
            start, end = min(start, met[0][0]), max(end, met[-1][1])
        else:
            has_timer = first > 0 and sessions[first - 1][1] - 1 > passed
            accumulator = self._fold.first(value)
        self._state.update((*sessions[:first], (start, end, accumulator), *sessions[after:]))
        if end - 1 <= passed:
            self._fire(start, end, accumulator)
        if not has_timer:
            self._schedule(end, passed)

    def _merged(self, accumulators: list[Any]) -> Any:
        first, *others = accumulators
        rest = None
        for other in others:
            if other is not None:
                rest = other if rest is None else self._merge(rest, other)
        return rest if first is None else first if rest is None else self._merge(first, rest)

    def _on_timer(self, timestamp: int, namespace: Any, clock: TimeDomain) -> None:
        sessions = self._state.value()
        if sessions is None:
            return
        end = timestamp + 1
        first = sessions[0]
        if first[1] > end:
            self._register(first[1] - 1)
            return
        if first[1] == end and len(sessions) == 1 and not self._lateness and not self._clears:
            self._fire(*first)
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
        if self._clears:
            for start, end, _ in sessions[:over]:
                self._clear_function(TimeWindow(start, end))
        rest = sessions[over:]
        if rest:
            self._state.update(rest)
        else:
            self._state.clear()
        return rest

    def _schedule(self, end: int, passed: int) -> None:
        time = end - 1 if end - 1 > passed else self._end_of_lateness(end)
        if time is not None:
            self._register(time)
