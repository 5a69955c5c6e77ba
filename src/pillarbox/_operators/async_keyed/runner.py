"""Runs elements (records and timers) in the event loop, one at a time per key.

Everything runs in the mailbox thread. A step of an element's coroutine neither emits records nor runs mails. A mail
emits the results of finished elements.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import copy_context
from decimal import getcontext
from functools import partial
from itertools import islice
from time import perf_counter
from types import AsyncGeneratorType, CoroutineType
from typing import Any

from pillarbox._errors import failed, raise_from_user_code
from pillarbox._operators.async_io.api.request import RequestState
from pillarbox._operators.async_io.loop.event_loop import cancelled, uncancel
from pillarbox._operators.async_io.loop.threads import DaemonThreads
from pillarbox._operators.async_io.loop.workers import WorkerSlots, differs, most_stuck
from pillarbox._operators.async_io.queue import OrderedQueue, UnorderedQueue
from pillarbox._operators.async_keyed.element import LETTER, AsyncElement, DueTimersElement
from pillarbox._operators.async_keyed.figures import Figures
from pillarbox._operators.async_keyed.loop import KeyedLoop, NextLoopTurn, lease_loop
from pillarbox._operators.async_keyed.options import AsyncKeyedOptions
from pillarbox._operators.async_keyed.steps import SLOW_STEP, WorkerSteps, report_slow_step
from pillarbox._operators.async_keyed.timeouts import Timeouts
from pillarbox._operators.calls.caller import Caller
from pillarbox._operators.calls.journal import Journal
from pillarbox._operators.calls.replayed import ReplayedJournal
from pillarbox._operators.dead_letters.dead_letter import DeadLetters, concerns_request
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.functions.contexts import TimeDomain
from pillarbox._state.heap.backend import KeyedStateBackend, OneThread
from pillarbox._state.heap.undo import ElementNotes, Undo
from pillarbox._time.batch_timer_service import BatchDroppedTimers
from pillarbox._time.internal_timer_service import InternalTimerService
from pillarbox._time.timestamp_assigner import MAX_WATERMARK

_SETTLED = RequestState.SETTLED
# If more than _PLENTY elements are ready, ended elements wait this long (seconds) for others, because a mail is
# expensive.
_PATIENCE = 0.002
_PLENTY = 16
# Seconds that a worker may take before the loop checks sockets and timers again.
_TURN = 0.01


class ElementRunner:
    """Runs an operator's elements.

    Args:
        calls: the function's method for each input.
        queue: the elements whose results have not been emitted.
        announce: called when there are finished elements to emit.

    Attributes:
        ready: elements waiting only for a call slot.
        lines: maps each busy key to the elements that wait for it, or to None.
        run: elements of the current batch, which the workers take, or None.
        get_broadcast_state: returns a read-only broadcast state. None if there is no broadcast stream.
        is_turning: whether :meth:`turn` is running. Its caller then emits finished elements.
        cut_off: workers whose elements ignored a cancellation. They still run, but without a key or call slot.
        is_paused: whether elements wait, because broadcast state is changing.
        dropped_timers: reports timers that are dropped, because they were set at the end of their key in batch mode.
        count_last_timer: called for each timer that fires after the end of the data, to limit their number.
    """

    def __init__(
        self,
        context: OperatorContext,
        options: AsyncKeyedOptions,
        backend: KeyedStateBackend,
        rows: OneThread,
        *,
        undo: Undo | None,
        timers: InternalTimerService,
        calls: list[Callable[..., Any]],
        on_timer: Callable[..., Any],
        letters: DeadLetters | None,
        queue: OrderedQueue[AsyncElement] | UnorderedQueue[AsyncElement],
        announce: Callable[[], None],
    ) -> None:
        self.name = context.name
        self.clock = context.processing_time_service
        self.copier = context.copier
        self.side_outputs = context.side_outputs
        self.rows = rows
        self.timers = timers
        self.context = context
        self._options = options
        self._backend = backend
        self.get_broadcast_state: Callable[[Any], Any] | None = None
        self._undo = undo
        self._calls = calls
        self._on_timer = on_timer
        self._letters = letters
        self._queue = queue
        self._most = options.most_elements
        self._visits = 0
        self._announce = announce
        self._loop = lease_loop(context)
        self.loop: KeyedLoop = self._loop.resource
        self.loop.serve(rows)
        # With a manual clock, steps take no time.
        self.stopwatch: Callable[[], float] = self.loop.loop.time if self.clock.manual else perf_counter
        self._patience = 0.0 if self.clock.manual else _PATIENCE
        self._call_slots = context.shared.lease(("async keyed", context.uid), lambda: WorkerSlots(options.capacity))
        self._plenty = max(_PLENTY, options.capacity // 2)
        self.ready: deque[AsyncElement] = deque()
        self.run: Iterator[AsyncElement] | None = None
        self.lines: dict[Any, deque[AsyncElement] | None] = {}
        self._workers: set[WorkerSteps] = set()
        # Number of workers before their first step, and number to start next, which doubles while elements wait.
        self._starting = 0
        self._burst = 1
        self.cut_off: set[WorkerSteps] = set()
        self.is_paused = False
        self._later: asyncio.TimerHandle | None = None
        seconds_each = options.timeout_seconds
        self._timeouts = None if seconds_each is None else Timeouts(self, seconds_each, most_stuck(options.capacity))
        self.closing = False
        self.failure: BaseException | None = None
        self.is_turning = False
        journal: Journal | None = None
        # Threads of hung calls are lost, as many as there may be stuck elements.
        most = options.capacity + most_stuck(options.capacity)
        self._threads: list[DaemonThreads] = [self.loop.new_threads(most, f"{self.name} calls")]
        if options.journal is not None:
            self._threads.append(self.loop.new_threads(2, f"{self.name} journal"))
            arguments = context, self.loop.loop, self._threads[-1]
            if options.replayed is None:
                journal = Journal(options.journal, *arguments)
            else:
                journal = ReplayedJournal(options.replayed.entries or {}, *arguments)
        self.caller: Caller = Caller(
            context,
            keeps_records=options.keeps_records,
            journal=journal,
            budgets=options.budgets,
            threads=self._threads[0],
            replayed=options.replayed,
        )
        self.dropped_timers = BatchDroppedTimers(self.name)
        self.count_last_timer: Callable[[int], None] = timers.count_last_timers()
        self.figures = Figures()
        # Each worker runs in a copy of this context. Creates its decimal settings before their first use.
        self._base = copy_context()
        self._base.run(getcontext)

    @property
    def room(self) -> int:
        """The number of records that may still arrive. Timers need no room."""
        return self._most - len(self._queue) + self._visits

    def admit(self, element: AsyncElement) -> None:
        element.is_queued = True
        self._visits += type(element) is DueTimersElement
        self._queue.put(element)
        lines, key = self.lines, element.key
        if key not in lines:
            lines[key] = None
            self.ready.append(element)
        elif (line := lines[key]) is None:
            lines[key] = deque([element])
        else:
            line.append(element)
            if len(line) > self.figures.longest_key:
                self.figures.add_line(key, len(line))

    def elements_of(
        self, records: Iterator[tuple[Any, Any, int | None]], call: int, watermark: int
    ) -> Iterator[AsyncElement]:
        """Yield the elements of records, as long as there is room. Admits elements of busy keys."""
        lines = self.lines
        for value, key, timestamp in islice(records, max(0, self.room)):
            element = AsyncElement(self, call, key, value, timestamp, watermark)
            if key in lines:
                self.admit(element)
            else:
                yield element

    def first_wait(self, element: AsyncElement, steps: WorkerSteps) -> None:
        element.steps = steps
        self.figures.add_running()
        if not element.is_queued:
            element.is_queued = True
            self._queue.put(element)
            self.lines[element.key] = None
        if self._timeouts is not None:
            self._timeouts.watch(element)

    def continue_visit(self, visit: DueTimersElement) -> None:
        """Let another visit fire the timers that are left of one that is cut off, before the key's later elements."""
        rest = DueTimersElement(self, visit.key, visit.watermark, visit.limit, visit.domain, ends_key=visit.ends_key)
        rest.is_queued = True
        self._visits += 1
        self._queue.put_after(rest, visit)
        line = self.lines[visit.key]
        if line is None:
            self.lines[visit.key] = deque([rest])
        else:
            line.appendleft(rest)

    def end(self, element: AsyncElement) -> None:
        element.state = _SETTLED
        if element.steps is not None:
            self.figures.running -= 1
            if self._timeouts is not None:
                self._timeouts.forget(element)
        element.steps = element.notes = None
        self._visits -= type(element) is DueTimersElement
        self._queue.complete(element)
        lines, key = self.lines, element.key
        line = lines[key]
        if line is None:
            del lines[key]
        else:
            self.ready.append(line.popleft())
            if not line:
                lines[key] = None
        if not self.is_turning:
            self._announce_soon()

    def _announce_soon(self) -> None:
        if len(self.ready) <= self._plenty or not self._patience:
            self._announce()
        elif self._later is None:
            self._later = self.loop.loop.call_later(self._patience, self._announce_later)

    def _announce_later(self) -> None:
        self._later = None
        self._announce()

    def turn(self) -> None:
        self.start_workers()
        self.is_turning = True
        try:
            self.loop.turn()
        finally:
            self.is_turning = False

    def enter(self, element: AsyncElement) -> None:
        backend, key = self._backend, element.key
        backend.row = backend.rows[key]
        backend.key = key
        self.loop.current = element
        if self._undo is not None:
            assert element.notes is not None
            self._undo.enter(element.notes)

    def leave(self) -> None:
        backend = self._backend
        backend.row = backend.nowhere
        backend.key = None
        self.loop.current = None
        if self._undo is not None:
            self._undo.leave()

    def start_workers(self) -> None:
        """Start workers for ready elements, up to twice as many as in the previous call."""
        count = self._burst
        if self.run is None:
            count = min(count, len(self.ready) - self._starting)
        if count <= 0 or self.closing or self.is_paused:
            return
        loop, call_slots = self.loop.loop, self._call_slots.resource
        for _ in range(count):
            if not call_slots.take(self):
                break
            self._starting += 1
            steps = WorkerSteps(self)
            self._workers.add(steps)
            steps.task = self._base.copy().run(partial(asyncio.Task, steps, loop=loop))
        self._burst = min(2 * self._burst, self._options.capacity)

    @property
    def slots_held(self) -> int:
        return len(self._workers)

    async def work(self, steps: WorkerSteps) -> None:
        self._starting -= 1
        ready, stopwatch, clean = self.ready, self.stopwatch, copy_context()
        calls, line, undo = self._calls, self._call_slots.resource.line, self._undo
        copied, backend, rows, owned = self.copier.copied, self._backend, self._backend.rows, self.loop
        put_settled = self._queue.put_settled
        copies = undo is not None or self._options.journal is not None
        try:
            while self.failure is None and not self.closing:
                if ready:
                    element = ready.popleft()
                elif self.run is not None and (following := next(self.run, None)) is not None:
                    element = following
                else:
                    self.run = None
                    return
                steps.element = element
                if undo is not None:
                    element.notes = ElementNotes()
                    undo.enter(element.notes)
                # (enter(), inlined)
                key = element.key
                backend.row = rows[key]
                backend.key = key
                owned.current = element
                visit = element if type(element) is DueTimersElement else None
                call = calls[element.number] if visit is None else self._next_timer(visit)
                while call is not None:
                    try:
                        if copies and visit is None:
                            element.original = copied(element.value)
                        outcome = call(element.value if visit is None else visit.current, element)
                        if type(outcome) is AsyncGeneratorType:
                            steps.coroutine = outcome
                            try:
                                async for result in outcome:
                                    element.collect((result,))
                            except BaseException:
                                await outcome.aclose()
                                raise
                        else:
                            if type(outcome) is CoroutineType:
                                steps.coroutine = outcome
                                outcome = await outcome
                            if outcome is not None:
                                element.collect(outcome)
                        if element.state is not _SETTLED:
                            element.keep_results()
                            if undo is not None:
                                self._keep(element)
                    except BaseException as error:
                        if self.closing:
                            return
                        self.raised(element, error)
                    call = None if visit is None else self._next_timer(visit)
                if steps.is_cut_off:
                    return
                if element.overdue is not None:
                    uncancel(steps.task)
                # The next element replaces the current key, and WorkerSteps leaves the last key.
                now = stopwatch()
                if now - steps.began > SLOW_STEP:
                    report_slow_step(steps, now)
                steps.began = now
                steps.element = None
                if element.is_queued:
                    self.end(element)
                else:  # (the same for an element that never waited)
                    element.state = _SETTLED
                    element.notes = None
                    put_settled(element)
                    if not self.is_turning:
                        self._announce_soon()
                if (line and self._call_slots.resource.are_wanted(self)) or differs(clean):
                    return  # the next element needs a clean context
                if now - steps.turn_began > _TURN:
                    await NextLoopTurn()
        finally:
            self.release_slot(steps)
            self.cut_off.discard(steps)
            if not steps.has_waited:
                self._burst = 1
            if not self.closing:
                self.start_workers()

    def release_slot(self, steps: WorkerSteps) -> None:
        if steps in self._workers:
            self._workers.discard(steps)
            self._call_slots.resource.release()

    def _next_timer(self, visit: DueTimersElement) -> Callable[..., Any] | None:
        """Take a visit's next due timer that still exists. Return the function to call, or None."""
        if visit.is_over:
            return None  # it was cut off
        if visit.fired is not None:
            visit.fired = visit.calls = None
        is_event_time = visit.domain is TimeDomain.EVENT_TIME
        timers: Any = self.timers.event_timers if is_event_time else self.timers.processing_timers
        row = self._backend.rows[visit.key]
        timestamp = None if self.failure is not None else timers.take_due(row, visit.limit)
        if timestamp is not None:
            if visit.steps is not None and self._timeouts is not None:
                self._timeouts.renew(visit)
            visit.fired = timers, row, timestamp
            visit.current = timestamp
            visit.emitted = timestamp if is_event_time else None
            return self._fire_last if visit.limit == MAX_WATERMARK and not visit.ends_key else self._on_timer
        if visit.ends_key and is_event_time:
            visit.domain = TimeDomain.PROCESSING_TIME
            return self._next_timer(visit)
        if visit.ends_key:
            self._backend.drop_key(visit.key)
            self.caller.numbers.pop(visit.key, None)
        return None

    def _fire_last(self, timestamp: int, visit: DueTimersElement) -> Any:
        self.count_last_timer(timestamp)
        return self._on_timer(timestamp, visit)

    def _keep(self, element: AsyncElement) -> None:
        """Keep a call's changes of state."""
        assert element.notes is not None
        if element.was_carried:
            # Changes of earlier epochs were rewound for their snapshots.
            for row in element.notes.rows():
                if row[0] >= 0:
                    self._backend.touch_row(row)
        if type(element) is DueTimersElement:
            self._renew_notes(element)

    def _renew_notes(self, element: AsyncElement) -> None:
        assert self._undo is not None
        element.notes = ElementNotes()
        if self.loop.current is element:
            self._undo.enter(element.notes)

    def raised(self, element: AsyncElement, error: BaseException) -> None:
        """Emit a dead letter for an element's exception, or fail the task."""
        if element.is_over:
            return  # the element was cut off
        if element.overdue is not None and (error is element.overdue or isinstance(error, asyncio.CancelledError)):
            error = element.overdue
            self.figures.timed_out += 1
        if self._letters is not None and concerns_request(error):
            self._write_letter(element, error)
        else:
            self.fail(element, error)

    def _write_letter(self, element: AsyncElement, error: BaseException) -> None:
        assert self._letters is not None and self._undo is not None and element.notes is not None
        self._undo.undo(element.notes)
        self._renew_notes(element)
        timer = element.domain if type(element) is DueTimersElement else None
        value = element.value if element.original is None else element.original
        letter = self._letters.letter(error, value, element.key, element.current, timer)
        element.results = [(LETTER, (letter, type(error).__name__), None)]
        element.keep_results()

    def fail(self, element: AsyncElement, error: BaseException) -> None:
        if self.failure is not None:
            return
        details: dict[str, Any] = {"operator": self.name, "subtask": self.context.subtask, "key": element.key}
        if type(element) is not DueTimersElement:
            details["record"] = element.value
        try:
            raise_from_user_code(error, f"operator {self.name!r} {failed(error)} at {element}", **details)
        except BaseException as failure:
            self.failure = failure
        self._announce()

    async def cancel(self) -> None:
        """Cancel the running elements and wait a few seconds for them to finish. Their keys stay busy until then."""
        self.closing = True
        await cancelled([steps.task for steps in (*self._workers, *self.cut_off)])
        for steps in list(self._workers):
            self.release_slot(steps)

    def close(self) -> None:
        """Release the shared loop. The last task to release it cancels the remaining asyncio tasks and closes it."""
        try:
            self.loop.complete(self.caller.close())
            self.loop.leave(self.rows)
            for threads in self._threads:
                self.loop.end_threads(threads)
            self._loop.release()
        finally:
            self._call_slots.resource.leave(self)
            self._call_slots.release()
