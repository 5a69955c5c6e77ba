"""The operator of ``process`` with ``async def`` on a keyed stream, with keyed state, timers and any awaitable.

The event loop runs in the mailbox thread, briefly after each batch of records, and whenever the thread would otherwise
wait for mail.
"""

from __future__ import annotations

import inspect
from asyncio import wait_for
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from math import ceil
from operator import length_hint
from threading import get_ident
from typing import Any

from pillarbox._elements.elements import Watermark, WatermarkStatus
from pillarbox._elements.records import Records
from pillarbox._errors import ProgramError
from pillarbox._operators.async_io.api.request import Event, RequestState
from pillarbox._operators.async_io.queue import OrderedQueue, UnorderedQueue
from pillarbox._operators.async_keyed.carried import CarriedElements, entry_of, restored_from
from pillarbox._operators.async_keyed.element import LETTER, AsyncElement, DueTimersElement, extend_visit
from pillarbox._operators.async_keyed.options import AsyncKeyedOptions
from pillarbox._operators.async_keyed.runner import ElementRunner
from pillarbox._operators.dead_letters.dead_letter import DeadLetters
from pillarbox._operators.frame.collector import RUN_LIMIT
from pillarbox._operators.frame.keyed_operator import KeyedOperator
from pillarbox._operators.frame.keyed_run import KeyedRun
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext, StreamOperator
from pillarbox._operators.frame.user_code import with_context
from pillarbox._operators.functions.basic import Function
from pillarbox._operators.functions.checkpointed import CheckpointedFunction, no_undo
from pillarbox._operators.functions.contexts import RuntimeContext, TimeDomain
from pillarbox._operators.functions.output_tag import OutputTag
from pillarbox._state.heap.undo import Undo
from pillarbox._time.clock import ScheduledTimer
from pillarbox._time.timestamp_assigner import MAX_WATERMARK, MIN_TIMESTAMP
from pillarbox.mailbox import RejectedExecutionError

# Maximum duration of a function's close() (seconds).
_CLOSING = 30.0
# Maximum wait for carried elements in an epoch without records (seconds).
_LINGERS = 0.1
# Rounding error of times in seconds (ms).
_ROUNDING = 1e-3
# Maximum turns of the loop at the end of an epoch.
TURNS = 50


class AsyncKeyedOperator(KeyedOperator):
    """Applies ``process_element`` and ``on_timer``, which may be ``async def``.

    Raises:
        ProgramError: the function has operator state, whose changes cannot be undone.
    """

    def __init__(self, context: OperatorContext, function: Any, keying: Keying, options: AsyncKeyedOptions) -> None:
        assert context.keyed is not None
        if options.journal is not None and context.batch:
            raise ProgramError(f"{options.method}: batch mode never repeats an epoch, so drop journal=")
        if options.undoes and isinstance(function, CheckpointedFunction):
            raise ProgramError(no_undo(context.name))
        self._undo: Undo | None = context.keyed.backend.allow_undo() if options.undoes else None
        self._rows = context.keyed.backend.refuse_threads()
        super().__init__(context, function, "process_element", keying)
        self.options = options
        timers = self.time_services.get_internal_timer_service("user-timers", self)
        timers.processing_timers = _ProcessingTimers(timers.processing_timers, self)
        self._timers = timers
        self._queue: OrderedQueue[AsyncElement] | UnorderedQueue[AsyncElement]
        self._queue = OrderedQueue() if options.ordered else UnorderedQueue()
        self._carried = None if self._undo is None else CarriedElements(self.backend, self._undo)
        tag = options.on_error
        self._letters = DeadLetters(context, tag, context.side_outputs) if isinstance(tag, OutputTag) else None
        self._is_announced = False
        self._had_input = False
        self._opened: ElementRunner | None = None
        # A manual clock's timer for the loop, its time (Unix time in ms), and the time of the loop's own timer.
        self._alarm: tuple[ScheduledTimer, int, float] | None = None
        self._last_key: Any = None

    @property
    def runner(self) -> ElementRunner:
        assert self._opened is not None, f"operator {self.name!r} is not open"
        return self._opened

    def open(self) -> None:
        calls = self._calls()
        runner = self._opened = ElementRunner(
            self.context,
            self.options,
            self.backend,
            self._rows,
            undo=self._undo,
            timers=self._timers,
            calls=calls,
            on_timer=self.function.on_timer if self._has_timers else _no_timer,
            letters=self._letters,
            queue=self._queue,
            announce=self._announce,
        )
        self.context.mailbox_executor.wait_in(runner.loop)
        if isinstance(self.function, Function):
            context = RuntimeContext(self.context, self.keyed, self.own_states)
            with_context(self.context, "open()", self._complete, self.function.open, context)

    def use_state_here(self) -> None:
        """Allow the calling thread (the mailbox thread) to use the state outside of the event loop."""
        self._rows.thread = get_ident()

    def _calls(self) -> list[Callable[..., Any]]:
        return [self.call]

    @property
    def _has_timers(self) -> bool:
        return isinstance(self.function, Function)

    def _complete(self, method: Callable[..., Any], *args: Any, seconds: float | None = None) -> None:
        outcome = method(*args)
        if inspect.iscoroutine(outcome):
            self.runner.loop.complete(outcome if seconds is None else wait_for(outcome, seconds))

    def close(self) -> None:
        if self._opened is None:
            return
        runner = self.runner
        try:
            self.context.mailbox_executor.wait_in(None)
            if self._alarm is not None:
                self._alarm[0].cancel()
                self._alarm = None
            runner.loop.loop.use_real_time()
            runner.loop.complete(runner.cancel())
            self.backend.leave_key()
            if isinstance(self.function, Function):
                with_context(self.context, "close()", self._close_function)
        finally:
            self._opened = None
            runner.close()

    def _close_function(self) -> None:
        self._complete(self.function.close, seconds=_CLOSING)

    def process_records(self, records: Records) -> None:
        self.process_run(records, self.keying, 0)

    def process_run(self, records: Records, keying: Keying, call: int) -> None:
        self._process(records.values, keying.keys_of(records), records.timestamps, call)

    def _process(self, values: Sequence[Any], keys: Iterable[Any], timestamps: Any, call: int) -> None:
        self._had_input = True
        runner, watermark = self.runner, self._timers.current_watermark
        pending, left = iter(values), len(values) + 1
        run = zip(pending, keys, repeat(None) if timestamps is None else timestamps)
        # Workers take records as long as any worker makes progress without waiting.
        while 0 < length_hint(pending) < left:
            left = length_hint(pending)
            runner.run = runner.elements_of(run, call, watermark)
            self._turn()
        runner.run = None
        for value, key, stamp in run:
            self._await_room()
            runner.admit(AsyncElement(runner, call, key, value, stamp, watermark))
        self._turn()

    def _await_room(self) -> None:
        if self.runner.room <= 0:
            self._turn()
        while self.runner.room <= 0:
            self._wait()

    def _wait(self) -> None:
        self._set_alarm()
        self.context.mailbox_executor.yield_()

    def _turn(self) -> None:
        self.runner.turn()
        self.emit()
        self._set_alarm()

    def run_ready(self) -> None:
        """Run ready steps for a bounded number of loop turns. A later mail emits the finished elements."""
        loop = self.runner.loop
        for _ in range(TURNS):
            self.runner.start_workers()
            loop.turn()
            if not loop.loop.has_ready():
                break
        self._set_alarm()

    def drain(self) -> None:
        self._turn()
        while not self._queue.is_empty():
            self._wait()

    def process_watermark(self, timestamp: int) -> None:
        self._timers.current_watermark = timestamp
        if timestamp == MAX_WATERMARK:
            self.runner.count_last_timer = self._timers.count_last_timers()
        keys = self._timers.event_timers.claim(timestamp)  # type: ignore[attr-defined]
        self._visit(keys, timestamp, TimeDomain.EVENT_TIME)
        self._put_event(Watermark(timestamp))

    def process_status(self, idle: bool) -> None:
        self._put_event(WatermarkStatus(idle))

    def _put_event(self, event: Event) -> None:
        self._turn()
        if self._queue.is_empty():
            self._emit_event(event)
        else:
            self._queue.put_event(event)
            self.emit()

    def visit_processing_time(self, keys: Mapping[Any, int]) -> None:
        """Fire the due processing-time timers of ``keys``, even if the clock has since been set back."""
        self._visit(keys, self._timers.current_processing_time(), TimeDomain.PROCESSING_TIME)

    def _visit(self, keys: Mapping[Any, int], limit: int, domain: TimeDomain) -> None:
        """Fire due timers of ``keys``, and of keys with unfinished elements, which may set due timers.

        Args:
            keys: maps each key to its latest due timer.
        """
        self.backend.leave_key()
        if self._has_timers:
            runner, watermark = self.runner, self._timers.current_watermark
            for key in dict.fromkeys((*keys, *runner.lines)):
                due = max(limit, keys.get(key, limit))
                if not extend_visit(runner.lines.get(key) or (), watermark, due, domain):
                    runner.admit(DueTimersElement(runner, key, watermark, due, domain))

    def flush(self) -> None:
        self._turn()

    def _set_alarm(self) -> None:
        clock, loop = self.context.processing_time_service.manual, self.runner.loop.loop
        if clock is None:
            return
        due = loop.next_due()
        if self._alarm is not None:
            timer, _, time = self._alarm
            if time == due and not timer.done():
                return
            timer.cancel()
            self._alarm = None
        if due is not None:
            at = clock.current_processing_time() + max(0, ceil((due - loop.time()) * 1000 - _ROUNDING))
            self._alarm = clock.register_timer(at, self._post_turn), at, due

    @property
    def alarm_at(self) -> int | None:
        """The due time of the event loop's next timer (Unix time in ms), or None. Always None with a manual clock."""
        return None if self._alarm is None else self._alarm[1]

    def _post_turn(self, timestamp: int) -> None:
        self._post(self._turn, "run the event loop of %s")

    def _post(self, action: Callable[[], None], description: str) -> None:
        try:
            self.context.mailbox_executor.execute(action, description, self.name)
        except RejectedExecutionError:
            pass  # the task is ending

    def process_key_by_key(self, run: KeyedRun) -> None:
        """Run keys concurrently in batch mode. Each key ends after its last record."""
        records = Records(run.records.values, run.records.timestamps)
        for key, start, end, ended in run.stretches():
            if start < end:
                self._last_key = key
                part = records.slice(start, end)
                for value, stamp in zip(part.values, part.timestamps or repeat(None)):
                    self._await_room()
                    self.runner.admit(AsyncElement(self.runner, run.input_index, key, value, stamp, MIN_TIMESTAMP))
            if ended:
                ends = MAX_WATERMARK, MAX_WATERMARK, TimeDomain.EVENT_TIME
                self.runner.admit(DueTimersElement(self.runner, self._last_key, *ends, ends_key=True))
        self._turn()

    def _announce(self) -> None:
        if not self._is_announced:
            self._is_announced = True
            self._post(self.emit, "ended elements of %s")

    def emit(self) -> None:
        self._is_announced = False
        if self.runner.failure is not None:
            raise self.runner.failure
        collector, sides, letters = self._collector, self.side_outputs, self._letters
        for element in self._queue.take_ready():
            if not isinstance(element, AsyncElement):
                collector.flush()
                self._emit_event(element)
                continue
            for tag, value, stamp in element.outputs or ():
                if tag is None:
                    collector.values.append(value)
                    collector.timestamps.append(stamp)
                elif tag == LETTER:
                    if letters is not None:
                        letters.emit(*value)
                elif tag in sides:  # carried results may have tags that the program no longer reads
                    sides[tag].process_records(Records([value], None if stamp is None else [stamp]))
            if len(collector.values) >= RUN_LIMIT:
                collector.flush()
        collector.flush()

    def _emit_event(self, event: Event) -> None:
        if isinstance(event, Watermark):
            StreamOperator.process_watermark(self, event.timestamp)
        else:
            StreamOperator.process_status(self, event.idle)

    def end_input(self) -> None:
        self.drain()

    def finish(self) -> None:
        self.drain()

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Wait for the epoch's elements, or carry them over, as in ``InFlight.prepare_snapshot``."""
        if self.options.carries and self.context.shared.stay:
            self.run_ready()  # answers may have arrived since the last epoch
            self.emit()
            if not self._had_input:
                self._linger()
        else:
            self.drain()
            while self._timers.processing_timers.has_overdue():  # set by the last elements
                self._timers.fire_overdue_processing_time_timers()
                self.drain()
        self._had_input = False
        runner = self.runner
        self.hot_key = runner.figures.hot_key
        counters = {**runner.figures.counters(), **runner.caller.take_counts()}
        self.context.counters.update(in_flight=len(self._queue), **counters)
        runner.figures.begin_epoch((key, len(line)) for key, line in runner.lines.items() if line)

    def _linger(self) -> None:
        """In an epoch without records, wait briefly for an element to finish. This is cheaper than another epoch."""
        count = len(self._queue)
        if not count or self.context.processing_time_service.manual is not None:
            return
        loop = self.runner.loop.loop
        end = loop.time() + _LINGERS
        timer = loop.call_at(end, self._announce)
        while len(self._queue) == count and loop.time() < end:
            self._wait()
        timer.cancel()

    def snapshot_state(self, checkpoint_id: int) -> Any:
        """Return the queued elements, or None. A task that stays in its process continues them."""
        self.runner.loop.pause()
        epoch, elements = self.context.epoch, list(self._queue.elements())
        arrivals = [
            element.arrived_in(epoch)
            for element in elements
            if isinstance(element, AsyncElement) and not element.is_over
        ]
        calls = self.runner.caller.snapshot(self.runner.lines, min(arrivals, default=None))
        if self._queue.is_empty():
            return None
        assert self._carried is not None
        entries: list[tuple[Any, ...]] = [] if calls is None else [("calls", *calls)]
        for element in elements:
            if isinstance(element, AsyncElement):
                self._carried.rewind(element)
            entries.append(entry_of(element))
        return entries

    def resume_after_snapshot(self) -> None:
        if self._carried is not None:
            self._carried.repeat()

    def restore_state(self, state: Any) -> None:
        for entry in state or ():
            if entry[0] == "calls":
                self.runner.caller.restore(*entry[1:])
                continue
            element = restored_from(entry, self.runner)
            if not isinstance(element, AsyncElement):
                self._queue.put_event(element)
            elif element.state is RequestState.SETTLED:
                self._queue.put_settled(element)
            else:
                self.runner.admit(element)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        super().notify_checkpoint_complete(checkpoint_id)
        self.runner.caller.commit(checkpoint_id)

    @property
    def is_open(self) -> bool:
        return self._opened is not None

    @property
    def is_writing(self) -> bool:
        return self.runner.caller.is_writing

    @property
    def has_ready(self) -> bool:
        return self.runner.loop.loop.has_ready()

    @property
    def waits_for_time(self) -> bool:
        return self.runner.loop.waits_for_time()

    @property
    def is_unfinished(self) -> bool:
        return self.is_open and not self._queue.is_empty()


class _ProcessingTimers:
    """Processing-time timers. A due timer becomes an element in the operator's queue."""

    def __init__(self, timers: Any, operator: AsyncKeyedOperator) -> None:
        self._timers = timers
        self._operator = operator

    def __len__(self) -> int:
        return len(self._timers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._timers, name)

    def fire(self, limit: int, trigger: object) -> None:
        self._operator.visit_processing_time(self._timers.claim(limit))

    def fire_overdue(self, trigger: object) -> None:
        self._operator.visit_processing_time(self._timers.claim_overdue())


def _no_timer(timestamp: int, context: Any) -> None: ...
