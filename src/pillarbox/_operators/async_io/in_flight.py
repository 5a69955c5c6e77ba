"""``InFlight``: the requests of an open async operator. Mailbox thread only, except for ``_notify``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, NoReturn

from pillarbox._elements.elements import Watermark, WatermarkStatus
from pillarbox._elements.records import Records
from pillarbox._errors import (
    OperatorError,
    PillarboxError,
    ProgramError,
    describe,
    shorten_record,
)
from pillarbox._operators.async_io.api.cache import ResultCache
from pillarbox._operators.async_io.api.fallback import AsyncFallback
from pillarbox._operators.async_io.api.function import AsyncCombiningFunction, AsyncFailure
from pillarbox._operators.async_io.api.options import AsyncOptions
from pillarbox._operators.async_io.api.request import NO_KEY, Event, Request, RequestState
from pillarbox._operators.async_io.batches import Batches
from pillarbox._operators.async_io.counters import Counters
from pillarbox._operators.async_io.deadlines import Deadlines
from pillarbox._operators.async_io.loop.host import AsyncFunctionHost
from pillarbox._operators.async_io.queue import OrderedQueue, UnorderedQueue
from pillarbox._operators.async_io.results import AsyncResults
from pillarbox._operators.dead_letters.dead_letter import concerns_request
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.functions.output_tag import OutputTag
from pillarbox.mailbox import RejectedExecutionError

_PENDING = RequestState.PENDING
_SETTLED = RequestState.SETTLED


class InFlight:
    """An async operator's requests, from the input records to the emission of the results."""

    def __init__(
        self,
        context: OperatorContext,
        function: Any,
        options: AsyncOptions,
        *,
        tasks: int,
        emit_event: Callable[[Event], None],
    ) -> None:
        self._context = context
        self._name = context.name
        self._combining = function if isinstance(function, AsyncCombiningFunction) else None
        self._options = options
        self._emit_event = emit_event
        clock = context.processing_time_service
        self._queue: OrderedQueue[Request] | UnorderedQueue[Request] = (
            OrderedQueue() if options.ordered else UnorderedQueue()
        )
        self._most = 2 * options.capacity
        self._batches: Batches | None = None
        if options.batch_size is not None:
            self._batches = Batches(
                options.batch_size,
                options.batch_timeout_millis,
                clock,
                put=self._queue.put,
                send=self._submit,
                is_due=self.flush_batch,
            )
        self._cache: ResultCache | None = None
        if options.cache is not None:
            self._cache = ResultCache(options.cache, context)
        self._deadlines = Deadlines(options.timeout_millis, clock, context.mailbox_executor, self._expire)
        self._counters = Counters()
        self._results = AsyncResults(context, function, options)
        # Restored requests that timed out before this process could send them. Their timeout begins again, and the
        # epoch waits for them, because they might never end if processes die repeatedly.
        self._last_chances: set[Request] = set()
        try:
            self.host: AsyncFunctionHost = AsyncFunctionHost(
                function, options, context, tasks=tasks, notify=self._notify
            )
        except BaseException:
            self._release()
            raise
        self._workers = self.host.workers
        self._turns = self.host.turns

    def close(self) -> None:
        self._deadlines.cancel()
        if self._batches is not None:
            self._batches.clear()
        try:
            self.host.close()
        finally:
            self._release()

    def _release(self) -> None:
        if self._cache is not None:
            self._cache.close()

    def __len__(self) -> int:
        return len(self._queue)

    def is_empty(self) -> bool:
        return self._queue.is_empty()

    def process_records(self, records: Records) -> None:
        values, stamps = records.values, records.timestamps
        keys = None if self._cache is None else self._cache.keys_of(records)
        size = self._options.batch_size or 1
        start, total = 0, len(values)
        while start < total:
            room = self._most - len(self._queue)
            if room <= 0:
                self._await_room()
                continue
            stop = min(total, start + room * size)
            part = values[start:stop]
            part_stamps: Iterable[int | None] = repeat(None) if stamps is None else stamps[start:stop]
            if keys is not None:
                self._admit_by_key(part, part_stamps, keys[start:stop])
            elif self._batches is not None:
                for value, stamp in zip(part, part_stamps):
                    self._batches.add(value, stamp)
            else:
                self._admit(part, part_stamps)
            self._workers.start()
            start = stop
        self._deadlines.watch()
        self.emit()

    def _admit(self, values: Sequence[Any], stamps: Iterable[int | None]) -> None:
        put, submit = self._queue.put, self._workers.submit
        for value, stamp in zip(values, stamps):
            request = Request([value], None if stamp is None else [stamp])
            put(request)
            submit(request)

    def _admit_by_key(self, values: Sequence[Any], stamps: Iterable[int | None], keys: Sequence[Any]) -> None:
        for value, stamp, key in zip(values, stamps, keys):
            request = Request([value], None if stamp is None else [stamp])
            self._queue.put(request)
            self._look_up(request, key)

    def _look_up(self, request: Request, key: Any) -> None:
        assert self._cache is not None
        cached = self._cache.results_of(key, request.values[0])
        if cached is not None:
            self._counters.cache_hits += 1
            self._settle(request, cached)
        elif self._cache.join(request, key):
            self._submit(request)
        else:
            self._counters.cache_hits += 1

    def _submit(self, request: Request) -> None:
        self._workers.submit(request)

    def put_event(self, event: Event) -> None:
        self.flush_batch()
        if self._queue.is_empty():
            self._emit_event(event)
        else:
            self._queue.put_event(event)

    def flush_batch(self) -> None:
        if self._batches is not None:
            self._batches.flush()
        self._workers.start()

    def _notify(self) -> None:
        try:
            self._context.mailbox_executor.execute(self.take_completed, "completed requests of %s", self._name)
        except RejectedExecutionError:
            pass

    def take_completed(self) -> None:
        self._take_completed()
        self.emit()

    def _take_completed(self) -> None:
        completed = self._workers.take_completed()
        self._counters.taken(completed)
        for request in completed:
            if request.state is not _PENDING:
                continue
            if request.error is not None:
                for settled in self._with_followers(request):
                    self._fail(settled, request.error)
            elif request.key is NO_KEY:
                self._settle(request, self._results.of(request))
            else:
                assert self._cache is not None
                results = self._results.of(request)
                for settled in self._with_followers(request, results):
                    self._settle(settled, self._cache.copies(results))

    def _with_followers(self, request: Request, results: Sequence[Any] | None = None) -> Iterator[Request]:
        followers: Sequence[tuple[Request, int]] = ()
        if request.key is not NO_KEY:
            assert self._cache is not None
            followers = self._cache.conclude(request, results)
        yield request
        for follower, _ in followers:
            follower.attempts = request.attempts
            yield follower

    def _fail(self, request: Request, error: BaseException) -> None:
        if isinstance(error, ProgramError):
            raise error
        on_failure = self._options.on_failure
        if not concerns_request(error):
            self._raise(request, error)
        elif self._combining is not None and self._combining.takes_failures:
            failures = [self._combining.combine_failure(value, error, request.attempts) for value in request.values]
            self._conclude(request, failures, error)
        elif on_failure == "fail":
            self._raise(request, error)
        elif isinstance(on_failure, AsyncFallback):
            self._conclude(request, self._results.of_fallback(request, on_failure, error), error)
        else:
            self._conclude(request, (), error)

    def _raise(self, request: Request, error: BaseException) -> NoReturn:
        of_several = "" if len(request.values) == 1 else f" (the first of a batch of {len(request.values)})"
        attempts = f" after {request.attempts} attempts" if request.attempts > 1 else ""
        record = request.values[0]
        failure = OperatorError(
            f"operator {self._name!r} failed at the record {shorten_record(record)}{of_several}{attempts}:"
            f" {describe(error)}"
        )
        failure.at(operator=self._name, subtask=self._context.subtask, record=record)
        raise failure from error

    def _settle(self, request: Request, results: Sequence[Any]) -> None:
        if self._combining is not None:
            results = [self._combining.combine(value, result) for value, result in zip(request.values, results)]
        self._conclude(request, results, None)

    def _conclude(self, request: Request, outputs: Sequence[Any], failure: BaseException | None) -> None:
        request.state = _SETTLED
        request.outputs = outputs
        if failure is None:
            self._counters.completed += len(request.values)
        else:
            request.failure = failure
            self._counters.failed += len(request.values)
        if self._last_chances:
            self._last_chances.discard(request)
        self._queue.complete(request)

    def emit(self) -> None:
        values: list[Any] = []
        stamps: list[int | None] | None = None

        def flush() -> None:
            nonlocal values, stamps
            if values:
                records = Records(values, stamps)
                values, stamps = [], None
                self._context.output.process_records(records)

        for element in self._queue.take_ready():
            if type(element) is not Request:
                flush()
                self._emit_event(element)  # type: ignore[arg-type]
                continue
            if element.timestamps is not None and stamps is None:
                stamps = [None] * len(values)
            values += element.outputs
            if stamps is not None:
                stamps += element.output_timestamps()
            if element.failure is not None:
                self._emit_failure(element, element.failure)
        flush()
        if self._queue.is_empty():
            self._deadlines.cancel()

    def _emit_failure(self, request: Request, error: BaseException) -> None:
        tag = self._options.on_failure
        if isinstance(tag, OutputTag) and tag.tag_id in self._context.side_outputs:
            failures = [AsyncFailure.of(value, error, request.attempts) for value in request.values]
            self._context.side_outputs[tag.tag_id].process_records(Records(failures, request.timestamps))

    def _await_room(self) -> None:
        self.emit()
        if len(self._queue) >= self._most:
            self._wait()

    def drain(self) -> None:
        self.flush_batch()
        self.emit()
        while not self._queue.is_empty():
            self._wait()

    def _wait(self) -> None:
        self._deadlines.watch()
        self._context.mailbox_executor.yield_()

    # -- timeouts --

    def _expire(self) -> None:
        # A completed request has not timed out, even if its mail is still queued.
        self._take_completed()
        for request in self._deadlines.overdue(self._queue.elements()):
            if request.attempts:
                self._give_up(request)
            else:
                # The request was sent by another process, and is still queued here.
                request.started = self._context.processing_time_service.relative_time_millis()
                self._last_chances.add(request)
        self.emit()

    def _give_up(self, request: Request) -> None:
        self._workers.cancel(request)
        overdue = [request] if request.key is NO_KEY else self._overdue_with(request)
        for late in overdue:
            self._counters.timed_out += len(late.values)
            try:
                results = self._results.of_timeout(late)
            except (PillarboxError, KeyboardInterrupt):
                raise
            except BaseException as error:
                self._fail(late, error)
            else:
                self._settle(late, results)

    def _overdue_with(self, leader: Request) -> list[Request]:
        """Return the leader and its overdue followers. The first other follower becomes the leader."""
        assert self._cache is not None and leader.started is not None
        key, overdue = leader.key, [leader]
        for follower, arrived in self._cache.conclude(leader, None):
            started = max(arrived, leader.started)
            if self._deadlines.is_past(started):
                follower.attempts = leader.attempts
                overdue.append(follower)
            elif self._cache.join(follower, key, started):
                follower.started = started
                self._submit(follower)
                self._workers.start()
                self._deadlines.look()
        return overdue

    # -- checkpoints --

    def prepare_snapshot(self) -> None:
        """Wait for the epoch's requests or, with ``on_barrier="carry"``, carry them over.

        Wait even with ``"carry"`` if each epoch may run in another process, where requests might be repeated forever.
        """
        if self._options.carries and self._context.shared.stay:
            self.flush_batch()
            self.take_completed()
            while self._last_chances:
                self._wait()
        else:
            self.drain()
        self._count()

    def snapshot(self) -> list[tuple[Any, ...]]:
        """Return the queued records in order, with the times of their first attempts and any recorded answers."""
        state: list[tuple[Any, ...]] = []
        for element in self._queue.elements():
            if isinstance(element, Watermark):
                state.append(("watermark", element.timestamp))
                continue
            if not isinstance(element, Request):
                state.append(("idle", element.idle))
                continue
            if self._options.record and element.state is _SETTLED and element.failure is None:
                state.append(("answer", element.values, element.timestamps, list(element.outputs)))
                continue
            started = None if element.started is None else self._deadlines.to_wall_clock(element.started)
            state.append(("request", element.values, element.timestamps, started))
        return state

    def restore(self, state: Sequence[tuple[Any, ...]]) -> None:
        for what, *content in state:
            if what == "watermark":
                self.put_event(Watermark(content[0]))
            elif what == "idle":
                self.put_event(WatermarkStatus(content[0]))
            elif what == "answer":
                request = Request(content[0], content[1])
                request.state, request.outputs = _SETTLED, content[2]
                self._queue.put_settled(request)
            else:
                self._take_back(content[0], content[1], content[-1])
        self._workers.start()
        if not self._queue.is_empty():
            self._deadlines.look()

    def _take_back(self, values: list[Any], stamps: list[int | None] | None, started: int | None) -> None:
        if started is not None:
            started = self._deadlines.from_wall_clock(started)
        size = self._options.batch_size or 1
        for start in range(0, len(values), size):
            request = Request(values[start : start + size], None if stamps is None else stamps[start : start + size])
            if started is not None and self._deadlines.is_past(started):
                self._last_chances.add(request)
            else:
                request.started = started
            self._queue.put(request)
            if self._cache is None:
                self._submit(request)
            else:
                (key,) = self._cache.keys_of(Records(request.values))
                self._look_up(request, key)

    def _count(self) -> None:
        figures = self._counters.report(
            drops=self._options.on_failure == "drop",
            in_flight=len(self._queue),
            in_flight_max=self._workers.take_most_active(),
            rate_limited=None if self._turns is None else self._turns.take_waited(),
        )
        if self._turns is not None:
            figures.update(self._turns.take_counts())
        self._context.counters.update(figures)
        self._counters = Counters()
