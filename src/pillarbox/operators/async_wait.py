"""Asks a service about records, many at a time, and emits what it answers (A1 to A10).

The mailbox does the work: completions arrive as mails, many in one; a full queue yields to the mailbox, so that
completions, timers and checkpoints go on; timeouts are processing-time timers; results leave in the mailbox thread.
Source of the behaviour: Flink's ``AsyncWaitOperator``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence, Set, Sized
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from itertools import repeat
from typing import Any

import numpy as np
from cachetools import LRUCache, TTLCache

from pillarbox.elements import Records, Watermark, WatermarkStatus
from pillarbox.errors import OperatorError, PillarboxError, ProgramError, describe, shorten
from pillarbox.mailbox import RejectedExecutionError
from pillarbox.operators.async_function import AsyncCache, AsyncFailure, AsyncFunction, CombiningFunction
from pillarbox.operators.async_queue import NO_KEY, Event, OrderedQueue, Request, StreamElementQueue, UnorderedQueue
from pillarbox.operators.async_requests import AsyncRequests, as_coroutine_function, is_coroutine_function
from pillarbox.operators.async_retry import AsyncRetryStrategy
from pillarbox.operators.event_loop import EventLoopThread
from pillarbox.operators.functions import Function, OutputTag, RuntimeContext
from pillarbox.operators.keys import Keying
from pillarbox.operators.operator import StreamOperator, settled, with_context
from pillarbox.state import StateDescriptor
from pillarbox.time import ScheduledTimer
from pillarbox.time.duration import to_millis

__all__ = ["AsyncWaitOperator"]

# Latency percentiles are those of so many requests, the last ones of an epoch.
_SAMPLES = 4096


class AsyncWaitOperator(StreamOperator):
    """Runs an :class:`AsyncFunction`, or a function that gives one result for each record.

    Args:
        function: an :class:`AsyncFunction`; or a callable, ``async def`` or plain (then it runs in a thread pool).
            It may be a :class:`Function` with ``open`` and ``close``, which run in the event loop's thread.
        timeout: milliseconds from a request's first attempt until it is given up; None: never.
        capacity: the most requests under way. As many again may wait for their turn, or for those before them.
        ordered: whether results leave in the order of the records.
        retry: when to ask again; None: never.
        batch_size: give the function a list of up to so many records; None: single ones.
        batch_timeout: milliseconds after which a smaller batch goes; None: when the epoch, or event time, goes on.
        rate_limit: attempts per second in this task; None: as many as there are.
        job_rate_limit: attempts per second in all tasks of the operator together.
        slots: the number of tasks that run at a time where the parallelism is Spark's: before the first shuffle.
        cache: which results to keep.
        on_failure: what to do with a record whose request failed for good: ``"fail"`` the task, ``"drop"`` it, or send
            an :class:`AsyncFailure` to the side output of a tag.
        on_barrier: ``"drain"``: the epoch waits for its requests; ``"carry"``: they go into the state, and on.
    """

    wakes_up = True

    def __init__(
        self,
        name: str,
        function: Any,
        uid: str = "",
        *,
        timeout: int | None,
        capacity: int = 100,
        ordered: bool = True,
        retry: AsyncRetryStrategy | None = None,
        batch_size: int | None = None,
        batch_timeout: int | None = None,
        rate_limit: float | None = None,
        job_rate_limit: float | None = None,
        slots: int = 1,
        cache: AsyncCache | None = None,
        on_failure: str | OutputTag = "fail",
        on_barrier: str = "drain",
    ) -> None:
        super().__init__(name, uid)
        self.function = function
        self._timeout = timeout
        self._capacity = capacity
        self._ordered = ordered
        self._retry = retry
        self._batch_size = batch_size
        self._batch_timeout = batch_timeout
        self._rate_limit = rate_limit
        self._job_rate_limit = job_rate_limit
        self._slots = slots
        self._cache = cache
        self._on_failure = on_failure
        self._carries = on_barrier == "carry"
        self.stateful = self._carries
        self._thread: EventLoopThread | None = None
        self._opened = False

    # -- life --

    def open(self) -> None:
        """Start the event loop, and open the user's function in it."""
        self._queue: StreamElementQueue = OrderedQueue() if self._ordered else UnorderedQueue()
        # How many requests the queue takes: those under way, and as many more so that none of them waits for a record.
        self._bound = 2 * self._capacity
        self._forming: Request | None = None
        self._batch_timer: ScheduledTimer | None = None
        self._timeout_timer: ScheduledTimer | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._combine = self.function.combine if isinstance(self.function, CombiningFunction) else None
        self._begin_counting()
        self._open_cache()
        self._thread = EventLoopThread(f"pillarbox-async {self.name}")
        function = self.function
        if isinstance(function, AsyncFunction):
            call: Callable[[Any], Any] = function.async_invoke
        else:
            call = function
        if not is_coroutine_function(call):
            self._pool = ThreadPoolExecutor(self._capacity, thread_name_prefix=f"pillarbox-pool {self.name}")
            call = as_coroutine_function(call, self._pool)
        self._requests = AsyncRequests(
            self._thread,
            call,
            batched=self._batch_size is not None,
            capacity=self._capacity,
            retry=self._retry,
            rate_limit=self._own_rate(),
            clock=self.context.processing_time_service.current_processing_time,
            notify=self._notify,
        )
        if isinstance(function, Function):
            with_context(self, "open()", self._thread.call, function.open, _AsyncRuntimeContext(self.context))
        self._opened = True

    def _own_rate(self) -> float | None:
        """Give this task's share of the limits."""
        limits = [] if self._rate_limit is None else [self._rate_limit]
        if self._job_rate_limit is not None:
            limits.append(self._job_rate_limit / (self.context.parallelism or self._slots))
        return min(limits, default=None)

    def _open_cache(self) -> None:
        self._results: MutableMapping[Any, list[Any]] | None = None
        # The request at work for a key; others for it follow.
        self._leaders: dict[Any, Request] = {}
        cache = self._cache
        if cache is None:
            return
        self._key = None if cache.key is None else Keying(cache.key, self.name)
        if cache.ttl is None:
            self._results = LRUCache(cache.max_size)
        else:
            clock = self.context.processing_time_service.current_processing_time
            self._results = TTLCache(cache.max_size, to_millis(cache.ttl), timer=clock)

    def close(self) -> None:
        """Give up what is under way, close the user's function, and end the event loop."""
        if self._thread is None:
            return
        try:
            try:
                self._requests.close()
            except FutureTimeoutError:
                raise OperatorError(
                    f"operator {self.name!r}: a coroutine blocks its event loop; await an asyncio client, instead of a"
                    " call that waits (time.sleep, requests.get), or give a plain function, which runs in a thread pool"
                ) from None
            if self._opened and isinstance(self.function, Function):
                with_context(self, "close()", self._thread.call, self.function.close)
        finally:
            self._thread.close()
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)

    # -- what goes in --

    def process_records(self, records: Records) -> None:
        """Ask about a run, as fast as there is room."""
        values = records.values
        stamps = records.timestamps
        keys = self._keys_of(records)
        start, count = 0, len(values)
        while start < count:
            room = self._bound - len(self._queue)
            if room <= 0:
                self._await_room()
                continue
            size = room * (self._batch_size or 1)
            stop = min(count, start + size)
            part = values[start:stop]
            part_stamps = None if stamps is None else stamps[start:stop]
            if keys is not None:
                self._admit_by_key(part, part_stamps, keys[start:stop])
            elif self._batch_size is not None:
                self._admit_batched(part, part_stamps)
            else:
                self._admit(part, part_stamps)
            self._requests.start()
            start = stop
        self._set_timeout_timer()
        self._emit()

    def _keys_of(self, records: Records) -> list[Any] | None:
        if self._results is None:
            return None
        return records.values if self._key is None else self._key.keys_of(records)

    def _admit(self, values: list[Any], stamps: Sequence[int | None] | None) -> None:
        put, submit = self._queue.put, self._requests.submit
        for value, stamp in zip(values, stamps if stamps is not None else repeat(None)):
            request = Request([value], None if stamp is None else [stamp])
            put(request)
            submit(request)

    def _admit_batched(self, values: list[Any], stamps: Sequence[int | None] | None) -> None:
        assert self._batch_size is not None
        for value, stamp in zip(values, stamps if stamps is not None else repeat(None)):
            self._add_to_batch(value, stamp)

    def _add_to_batch(self, value: Any, stamp: int | None) -> None:
        """Have a record asked about together with others."""
        request = self._forming
        if request is None:
            request = self._forming = Request([], [])
            self._queue.put(request)
            if self._batch_timeout is not None and self._batch_timer is None:
                clock = self.context.processing_time_service
                self._batch_timer = clock.register_timer(
                    clock.current_processing_time() + self._batch_timeout, self._batch_is_due
                )
        request.values.append(value)
        request.timestamps.append(stamp)  # type: ignore[union-attr]
        if len(request.values) == self._batch_size:
            self._send_batch()

    def _batch_is_due(self, timestamp: int) -> None:
        self._batch_timer = None
        self._send_batch()
        self._requests.start()

    def _send_batch(self) -> None:
        request, self._forming = self._forming, None
        if request is not None:
            if self._batch_timer is not None:
                self._batch_timer.cancel()
                self._batch_timer = None
            self._requests.submit(request)

    def _admit_by_key(self, values: list[Any], stamps: Sequence[int | None] | None, keys: list[Any]) -> None:
        """Ask only about keys whose result is not at hand, and not on its way."""
        assert self._results is not None
        for value, stamp, key in zip(values, stamps if stamps is not None else repeat(None), keys):
            try:
                known = self._results.get(key)
            except TypeError as error:
                raise OperatorError(
                    f"operator {self.name!r}: the record {shorten(value)} has the cache key {shorten(key)}, which"
                    " cannot be hashed: give AsyncCache a key"
                ) from error
            leader = self._leaders.get(key)
            if known is None and leader is None:
                request = Request([value], None if stamp is None else [stamp])
                request.key = key
                self._leaders[key] = request
                self._queue.put(request)
                self._requests.submit(request)
                continue
            self._cache_hits += 1
            request = Request([value], None if stamp is None else [stamp])
            self._queue.put(request)
            if known is not None:
                self._settle(request, [settled(output) for output in known])
            else:
                assert leader is not None
                if leader.followers is None:
                    leader.followers = []
                leader.followers.append(request)

    def process_watermark(self, timestamp: int) -> None:
        """Put a watermark in its place between the results."""
        self._put_event(Watermark(timestamp))

    def process_status(self, idle: bool) -> None:
        """Put a change between idle and active in its place between the results."""
        self._put_event(WatermarkStatus(idle))

    def _put_event(self, event: Event) -> None:
        self._flush_batch()
        if self._queue.is_empty():
            self._emit_event(event)
        else:
            self._queue.put_event(event)

    def _emit_event(self, event: Event) -> None:
        if isinstance(event, Watermark):
            super().process_watermark(event.timestamp)
        else:
            super().process_status(event.idle)

    def _flush_batch(self) -> None:
        self._send_batch()
        self._requests.start()

    # -- what comes back --

    def _notify(self) -> None:
        """Tell the mailbox thread that there is something to take. Runs in the loop's thread."""
        try:
            self.context.mailbox_executor.execute(self._take_completed, "completed requests of %s", self.name)
        except RejectedExecutionError:
            pass  # the task is at its end

    def _take_completed(self) -> None:
        for request in self._requests.take_completed():
            self._attempts += request.attempts
            self._retried += max(0, request.attempts - 1)
            if request.outputs is not None:
                continue  # given up before
            if request.error is not None:
                self._fail(request, request.error)
            else:
                self._seconds.append(request.seconds)
                self._settle(request, self._outputs_of(request))
        self._emit()

    def _outputs_of(self, request: Request) -> list[Any]:
        result = request.result
        request.result = None
        if self._batch_size is not None:
            # An array or a column will do as well as a list.
            countable = isinstance(result, Sized) and not isinstance(result, (str, bytes, Mapping, Set))
            if not countable or len(result) != len(request.values):
                what = f"{len(result)} results" if countable else shorten(result)
                raise OperatorError(
                    f"operator {self.name!r}: the function gave {what} for a batch of {len(request.values)} records,"
                    f" the first of them {shorten(request.values[0])}: it has to give a list with one result for each"
                )
            return list(result)
        if not isinstance(self.function, AsyncFunction):
            return [result]
        if isinstance(result, list):
            return result
        if isinstance(result, tuple):
            return list(result)
        raise OperatorError(
            f"operator {self.name!r}: async_invoke() gave {shorten(result)} for the record"
            f" {shorten(request.values[0])}: it has to give a list of what to emit, such as [{shorten(result, 20)}]"
        )

    def _settle(self, request: Request, outputs: list[Any], failure: BaseException | None = None) -> None:
        """Note what leaves in the place of a request."""
        request.outputs = outputs
        if self._combine is not None:
            # One result for each record, or none where it failed.
            request.outputs = [self._combine(value, output) for value, output in zip(request.values, outputs)]
        request.failure = failure
        if failure is None:
            self._completed += len(request.values)
        else:
            self._failed += len(request.values)
        self._queue.complete(request)
        if request.key is not NO_KEY:
            self._lead(request, outputs)

    def _lead(self, request: Request, outputs: list[Any]) -> None:
        """Hand the outcome of a request to those that waited for it, and keep it if it is a result."""
        assert self._results is not None
        del self._leaders[request.key]
        if request.failure is None:
            self._results[request.key] = outputs
        for follower in request.followers or ():
            follower.attempts = request.attempts
            self._settle(follower, [settled(output) for output in outputs], request.failure)

    def _fail(self, request: Request, error: BaseException) -> None:
        """Deal with a request that failed for good (A6)."""
        if self._on_failure == "fail":
            of_several = "" if len(request.values) == 1 else f" (the first of a batch of {len(request.values)})"
            attempts = f" after {request.attempts} attempts" if request.attempts > 1 else ""
            raise OperatorError(
                f"operator {self.name!r} failed at the record {shorten(request.values[0])}{of_several}{attempts}:"
                f" {describe(error)}"
            ) from error
        self._settle(request, [], error)

    # -- what goes out --

    def _emit(self) -> None:
        """Hand on what may leave, as runs."""
        values: list[Any] = []
        stamps: list[int | None] = []
        stamped = False

        def flush() -> None:
            nonlocal values, stamps, stamped
            if values:
                run, values = values, []
                run_stamps, stamps = stamps, []
                run_is_stamped, stamped = stamped, False
                self.output.process_records(Records(run, run_stamps if run_is_stamped else None))

        for element in self._queue.take_ready():
            if type(element) is not Request:
                flush()
                self._emit_event(element)  # type: ignore[arg-type]
                continue
            outputs = element.outputs
            assert outputs is not None
            values += outputs
            if element.timestamps is None:
                stamps += [None] * len(outputs)
            else:
                stamped = True
                stamps += (
                    element.timestamps if len(outputs) == len(element.timestamps) else element.timestamps * len(outputs)
                )
            if element.failure is not None and isinstance(self._on_failure, OutputTag):
                self._emit_failure(element, element.failure)
        flush()

    def _emit_failure(self, request: Request, error: BaseException) -> None:
        assert isinstance(self._on_failure, OutputTag)
        tag_id = self._on_failure.tag_id
        if tag_id in self.side_outputs:
            failures = [AsyncFailure.of(value, error, request.attempts) for value in request.values]
            self.side_outputs[tag_id].process_records(Records(failures, request.timestamps))

    # -- waiting --

    def _await_room(self) -> None:
        """Let the mailbox work until a request leaves (A4)."""
        self._emit()
        if len(self._queue) >= self._bound:
            self._set_timeout_timer()
            self.context.mailbox_executor.yield_()

    def _drain(self) -> None:
        """Let the mailbox work until all requests have left (A10)."""
        self._flush_batch()
        self._emit()
        while not self._queue.is_empty():
            self._set_timeout_timer()
            self.context.mailbox_executor.yield_()

    def finish(self) -> None:
        """Wait for everything under way: bounded input has ended."""
        self._drain()

    # -- timeouts (A5) --

    def _set_timeout_timer(self) -> None:
        if self._timeout is not None and self._timeout_timer is None and len(self._queue):
            clock = self.context.processing_time_service
            self._timeout_timer = clock.register_timer(clock.current_processing_time() + self._timeout, self._time_out)

    def _time_out(self, timestamp: int) -> None:
        """Give up what has been under way for too long; look again when the next may be due."""
        assert self._timeout is not None
        self._timeout_timer = None
        # What is completed already has not timed out, also if its mail is behind this one.
        self._take_completed()
        clock = self.context.processing_time_service
        now = clock.current_processing_time()
        overdue = []
        earliest: int | None = None
        for element in self._queue.elements():
            if isinstance(element, Request) and element.outputs is None:
                started = now if element.started is None else element.started
                if started + self._timeout <= now:
                    overdue.append(element)
                elif earliest is None or started < earliest:
                    earliest = started
        if earliest is not None:
            self._timeout_timer = clock.register_timer(earliest + self._timeout, self._time_out)
        for request in overdue:
            self._give_up(request)
        self._emit()

    def _give_up(self, request: Request) -> None:
        self._requests.cancel(request)
        followers, request.followers = request.followers or (), None
        if request.key is not NO_KEY:
            # What comes of it holds for each record alone: nothing to keep.
            del self._leaders[request.key]
            request.key = NO_KEY
        for late in (request, *followers):
            self._timed_out += len(late.values)
            late.attempts = request.attempts
            try:
                outputs = self._outputs_in_place_of(late.values[0])
            except PillarboxError:
                raise
            except Exception as error:
                self._fail(late, error)
            else:
                self._settle(late, outputs)

    def _outputs_in_place_of(self, value: Any) -> list[Any]:
        if not isinstance(self.function, AsyncFunction):
            raise TimeoutError(f"no answer within {self._timeout} ms")
        outputs = self.function.timeout(value)
        if not isinstance(outputs, list):
            raise OperatorError(
                f"operator {self.name!r}: timeout() gave {shorten(outputs)} for the record {shorten(value)}: it has to"
                " give a list of what to emit"
            )
        return outputs

    # -- checkpoints (A7) --

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Wait for the epoch's requests, or let them be carried on."""
        if self._carries:
            self._flush_batch()
            self._take_completed()
        else:
            self._drain()
        self._count()

    def snapshot_state(self, checkpoint_id: int) -> Any:
        """Give what has not left yet, in order: the records, not their results."""
        if not self._carries or self._queue.is_empty():
            return None
        return [
            ("request", element.values, element.timestamps) if isinstance(element, Request) else ("event", element)
            for element in self._queue.elements()
        ]

    def restore_state(self, state: Any) -> None:
        """Ask again about what had not left; what is under way here belongs to an epoch that is not this task's."""
        for element in self._queue.elements():
            if isinstance(element, Request) and element.outputs is None:
                element.outputs = []
                self._requests.cancel(element)
        self._leaders.clear()
        self._forming = None
        self._queue = OrderedQueue() if self._ordered else UnorderedQueue()
        for what, *content in state or ():
            if what == "event":
                self._put_event(content[0])
            else:
                request = Request(*content)
                self._queue.put(request)
                self._requests.submit(request)
        self._requests.start()
        self._set_timeout_timer()

    @property
    def next_wake_up(self) -> int | None:
        """When there is something to do even without input: at once, while requests are carried on."""
        if self._queue.is_empty():
            return None
        return self.context.processing_time_service.current_processing_time()

    # -- counting --

    def _begin_counting(self) -> None:
        self._attempts = 0
        self._retried = 0
        self._completed = 0
        self._failed = 0
        self._timed_out = 0
        self._cache_hits = 0
        self._seconds: deque[float] = deque(maxlen=_SAMPLES)

    def _count(self) -> None:
        """Give the epoch's figures to the task's metrics."""
        counters = self.context.counters
        counters.update(
            requests=self._attempts,
            completed=self._completed,
            failed=self._failed,
            timed_out=self._timed_out,
            retried=self._retried,
            dropped=self._failed if self._on_failure == "drop" else 0,
            cache_hits=self._cache_hits,
            in_flight=len(self._queue),
            in_flight_max=self._requests.take_most_active(),
        )
        p50, p95, p99 = np.percentile(self._seconds, (50, 95, 99)) * 1e6 if self._seconds else (0, 0, 0)
        counters.update(latency_p50_us=int(p50), latency_p95_us=int(p95), latency_p99_us=int(p99))
        self._begin_counting()


class _AsyncRuntimeContext(RuntimeContext):
    """What a function beside the mailbox thread may know of the task."""

    def _keyed(self, descriptor: StateDescriptor) -> Any:
        raise ProgramError(
            f"operator {self._context.name!r} asks for the keyed state {descriptor.name!r}, but it runs beside the"
            " mailbox thread, which state belongs to: use process(...) before or after it"
        )


def check_options(
    operator: str,
    *,
    capacity: int,
    ordered: bool,
    batch_size: int | None = None,
    batch_timeout: Any = None,
    rate_limit: float | None = None,
    job_rate_limit: float | None = None,
    cache: AsyncCache | None = None,
    on_failure: str | OutputTag = "fail",
    on_barrier: str = "drain",
) -> None:
    """Refuse what cannot work while the program is being built.

    Raises:
        ProgramError: an option is of no use.
    """

    def refuse(what: str, wanted: str, value: Any) -> None:
        raise ProgramError(f"{operator}(): {what} is {wanted}, not {shorten(value)}")

    def is_count(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 1

    if not isinstance(ordered, bool):
        refuse("ordered", "True or False", ordered)
    if not is_count(capacity):
        refuse("capacity", "a whole number of at least 1", capacity)
    if batch_size is not None and not is_count(batch_size):
        refuse("batch_size", "a whole number of at least 1", batch_size)
    if batch_timeout is not None and batch_size is None:
        refuse("batch_timeout", "for the batch form, which needs a batch_size", batch_timeout)
    for what, rate in (("rate_limit", rate_limit), ("job_rate_limit", job_rate_limit)):
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, (int, float)) or not rate > 0):
            refuse(what, "requests per second, a number above 0", rate)
    if cache is not None and not isinstance(cache, AsyncCache):
        refuse("cache", "an AsyncCache", cache)
    if cache is not None and batch_size is not None:
        refuse("cache", "for single requests: the batch form asks about all of a batch", cache)
    if on_failure not in ("fail", "drop") and not isinstance(on_failure, OutputTag):
        refuse("on_failure", '"fail", "drop" or an OutputTag', on_failure)
    if on_barrier not in ("drain", "carry"):
        refuse("on_barrier", '"drain" or "carry"', on_barrier)
