"""Elements, which async keyed functions process: records and visits (firings of a key's due timers).

An element is the context of its function call, because calls run concurrently.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from threading import get_ident
from typing import TYPE_CHECKING, Any

from pillarbox._copies import FIXED
from pillarbox._errors import ProgramError, shorten, shorten_record
from pillarbox._operators.async_io.api.request import RequestState
from pillarbox._operators.calls.records import ElementCallRecords
from pillarbox._operators.calls.service_call import ServiceCallOptions
from pillarbox._operators.frame.collector import USUAL_RESULTS, check_results, check_tag, not_a_pair
from pillarbox._operators.functions.basic import KeyedProcessFunction
from pillarbox._operators.functions.contexts import TimeDomain, TimerService
from pillarbox._operators.functions.output_tag import OutputTag
from pillarbox._state.heap.undo import ElementNotes
from pillarbox._state.slots import Row

if TYPE_CHECKING:
    from pillarbox._operators.async_io.queue import QueueSegment
    from pillarbox._operators.async_keyed.runner import ElementRunner
    from pillarbox._operators.async_keyed.steps import WorkerSteps

Output = tuple[str | None, Any, int | None]
"""Tag of the side output or None, value, timestamp."""

# Maximum number of visits at the end of a key's queue.
_MOST_VISITS = 16

LETTER = ""
"""The tag of dead letters among the outputs, which no side output has. Values are (letter or None, error's class)."""


class AsyncElement(KeyedProcessFunction.OnTimerContext[Any], TimerService):
    """A record, and the context of the function that processes it.

    Args:
        number: the index of the record's input.

    Attributes:
        current: the timestamp of the record or of the current timer.
        emitted: the timestamp of the results.
        watermark: the watermark when the record arrived.
        state: SETTLED once the outputs are complete, because the element has finished, or was cut off after it ignored
            its cancellation.
        is_queued: whether the element is in the operator's queue, so that its key is busy. An element whose key is free
            is queued only when it first awaits; most never do.
        steps: the worker that runs the element, or None until the element has awaited something.
        overdue: the error of the element's timeout, or None until the timeout has passed.
        original: a copy of the value, made before the function could change it.
        notes: the log used to undo the element's state changes, or None if the operator never undoes changes.
        arrival: the epoch when the element arrived, or None for the current epoch.
        outputs: outputs of completed function calls (a visit makes one call per timer), or None.
        results: outputs of the running function call, or None.
    """

    domain = TimeDomain.EVENT_TIME
    state = RequestState.PENDING
    segment: QueueSegment | None = None
    is_queued = False
    ends_key = False
    overdue: TimeoutError | None = None
    was_carried = False
    steps: WorkerSteps | None = None
    original: Any = None
    notes: ElementNotes | None = None
    arrival: int | None = None
    calls: ElementCallRecords | None = None
    outputs: list[Output] | None = None
    results: list[Output] | None = None

    def __init__(
        self, runner: ElementRunner, number: int, key: Any, value: Any, timestamp: int | None, watermark: int
    ) -> None:
        self.runner = runner
        self.number = number
        self.key = key
        self.value = value
        self.current: Any = timestamp
        self.emitted = timestamp
        self.watermark = watermark

    def __str__(self) -> str:
        return f"the record {shorten_record(self.value)} of key {shorten(self.key)}"

    @property
    def is_over(self) -> bool:
        return self.state is RequestState.SETTLED

    def _check(self) -> None:
        runner = self.runner
        if runner.loop.current is not self or get_ident() != runner.rows.thread:
            raise ProgramError(
                f"operator {runner.name!r}: the context of {self} is used in another thread, in a callback, for"
                " another record, or in an asyncio task that the function has not awaited: use it only in the call"
                " that received it"
            )

    def timestamp(self) -> Any:
        return self.current

    def get_current_key(self) -> Any:
        return self.key

    def time_domain(self) -> TimeDomain:
        return self.domain

    def timer_service(self) -> TimerService:
        return self

    def output(self, tag: OutputTag[Any], value: Any) -> None:
        self._check()
        self._add_side(tag, value)

    def get_broadcast_state(self, state_descriptor: Any) -> Any:
        self._check()
        if self.runner.get_broadcast_state is None:
            raise ProgramError(f"operator {self.runner.name!r}: no stream is broadcast, so there is no broadcast state")
        return self.runner.get_broadcast_state(state_descriptor)

    def current_processing_time(self) -> int:
        return self.runner.clock.current_processing_time()

    def current_watermark(self) -> int:
        return self.watermark

    def call(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Awaitable[Any]:
        self._check()
        return self.runner.caller.call(self, function, args, ServiceCallOptions.of(options))

    @property
    def content(self) -> tuple[Any, ...]:
        return self.number, self.value if self.original is None else self.original

    def register_event_time_timer(self, timestamp: int) -> None:
        self._register(self.runner.timers.register_event_time_timer, timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._check()
        self.runner.timers.delete_event_time_timer(None, timestamp)

    def register_processing_time_timer(self, timestamp: int) -> None:
        self._register(self.runner.timers.register_processing_time_timer, timestamp)

    def _register(self, register: Callable[[Any, int], None], timestamp: int) -> None:
        self._check()
        if self.ends_key:
            self.runner.dropped_timers.report(self.key, timestamp)
        else:
            register(None, timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self._check()
        self.runner.timers.delete_processing_time_timer(None, timestamp)

    def arrived_in(self, epoch: int) -> int:
        if self.arrival is None:
            self.arrival = epoch
        return self.arrival

    def collect(self, results: Iterable[Any]) -> None:
        if type(results) not in USUAL_RESULTS:
            check_results(results)
        emitted = self.emitted
        outputs = self.results
        if outputs is None:
            outputs = self.results = []
        for result in results:
            kind = type(result)
            if kind is tuple:
                for field in result:
                    if type(field) not in FIXED:
                        self._collect_unfixed(result)
                        break
                else:
                    outputs.append((None, result, emitted))
            elif kind in FIXED:
                outputs.append((None, result, emitted))
            else:
                self._collect_unfixed(result)

    def _collect_unfixed(self, result: Any) -> None:
        if type(result) is OutputTag or (type(result) is tuple and type(result[0]) is OutputTag and len(result) != 2):
            raise TypeError(not_a_pair(result))
        if type(result) is tuple and type(result[0]) is OutputTag:
            self._add_side(*result)
        else:
            self._add((None, self.runner.copier.emitted(result), self.emitted))

    def _add_side(self, tag: OutputTag[Any], value: Any) -> None:
        runner = self.runner
        check_tag(runner.name, tag)
        if tag.tag_id in runner.side_outputs:
            self._add((tag.tag_id, runner.copier.copied(value), self.emitted))

    def _add(self, output: Output) -> None:
        if self.results is None:
            self.results = []
        self.results.append(output)

    def keep_results(self) -> None:
        if self.outputs is None:
            self.outputs = self.results
        elif self.results is not None:
            self.outputs += self.results
        self.results = None


class DueTimersElement(AsyncElement):
    """The firing of a key's due timers. Once the key is free, calls ``on_timer`` for each timer that still exists.

    Args:
        limit: timers up to this timestamp (inclusive) are due.

    Attributes:
        fired: arguments of ``put_back_timer``, which restores the running timer for a snapshot.
        ends_key: whether, in batch mode, the visit fires the key's remaining timers and drops its state.
    """

    fired: tuple[Any, Row, int] | None = None

    def __init__(
        self,
        runner: ElementRunner,
        key: Any,
        watermark: int,
        limit: int,
        domain: TimeDomain,
        *,
        ends_key: bool = False,
    ) -> None:
        super().__init__(runner, 0, key, None, None, watermark)
        self.limit = limit
        self.domain = domain
        self.ends_key = ends_key

    @property
    def content(self) -> tuple[Any, ...]:
        return self.domain.value, self.current

    def __str__(self) -> str:
        return f"the {self.domain.value} timer at {self.current} of key {shorten(self.key)}"


def extend_visit(line: Sequence[AsyncElement], watermark: int, limit: int, domain: TimeDomain) -> bool:
    """Make the last visit in a key's queue fire later timers, too. Return False if fewer than ``limit`` visits wait.

    Without this, the queue behind an element that takes hours would grow in each epoch.
    """
    visits = [visit for visit in islice(reversed(line), _MOST_VISITS) if type(visit) is DueTimersElement]
    if len(visits) == _MOST_VISITS:
        for visit in visits[:2]:
            if visit.domain is domain:
                visit.watermark, visit.limit = watermark, max(visit.limit, limit)
                return True
    return False
