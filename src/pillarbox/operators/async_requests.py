"""Requests under way: a bounded number at a time, on an event loop beside the mailbox thread.

The mailbox thread submits requests and takes completed ones; all between happens in the loop's thread (A8). A fixed
number of workers, which are asyncio tasks, take requests from the head of a queue: so the next request starts in the
very step in which one before it ends, and no request costs a task of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

from aiolimiter import AsyncLimiter

from pillarbox.operators.async_queue import Request
from pillarbox.operators.async_retry import AsyncRetryStrategy
from pillarbox.operators.event_loop import GRACE, EventLoopThread

__all__ = ["AsyncRequests", "as_coroutine_function", "is_coroutine_function"]

# Completed requests wait for others so long (seconds) before the mailbox thread is woken up for them, while there is
# more to ask about than so many: waking it up costs more than a request, and takes the interpreter from the loop.
_PATIENCE = 0.002
_PLENTY = 16

# A rate limit lets requests through that would be due within this time (seconds): a loop cannot wake up for each.
_BURST = 0.05


def is_coroutine_function(function: Any) -> bool:
    """Tell whether calling ``function`` gives a coroutine: an ``async def``, also as a method or behind ``partial``."""
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def as_coroutine_function(function: Callable[[Any], Any], pool: ThreadPoolExecutor) -> Callable[[Any], Awaitable[Any]]:
    """Give a plain function as one to be awaited: it runs in ``pool``. What it gives may be awaitable in turn."""

    async def call(value: Any) -> Any:
        result = await asyncio.get_running_loop().run_in_executor(pool, function, value)
        return await result if inspect.isawaitable(result) else result

    return call


class AsyncRequests:
    """The requests of one operator.

    Args:
        thread: the event loop.
        function: asks about one element, or where ``batched`` about a list of them.
        capacity: the most requests under way.
        retry: when to ask again.
        rate_limit: the most attempts begun per second, or None.
        clock: gives processing time (epoch ms); called in the loop's thread.
        notify: called in the loop's thread when completed requests are to be taken; not again until they were.
    """

    def __init__(
        self,
        thread: EventLoopThread,
        function: Callable[[Any], Awaitable[Any]],
        *,
        batched: bool,
        capacity: int,
        retry: AsyncRetryStrategy | None,
        rate_limit: float | None,
        clock: Callable[[], int],
        notify: Callable[[], None],
    ) -> None:
        self._thread = thread
        self._loop = thread.loop
        self._function = function
        self._batched = batched
        self._capacity = capacity
        self._retry = retry
        self._limiter: AsyncLimiter | None = None
        if rate_limit is not None:
            burst = max(1.0, rate_limit * _BURST)
            self._limiter = AsyncLimiter(burst, burst / rate_limit)
        self._clock = clock
        self._notify = notify
        # Appended to by the mailbox thread, taken from by the workers.
        self._waiting: deque[Request] = deque()
        # The other way round.
        self._completed: deque[Request] = deque()
        # Set by the loop's thread before it notifies, reset by the mailbox thread before it takes.
        self._notified = False
        # Written by the loop's thread only.
        self._later: asyncio.TimerHandle | None = None
        self._workers: set[asyncio.Task[None]] = set()
        self._active = 0
        self._most_active = 0
        self._closing = False

    # -- the mailbox thread's side --

    def submit(self, request: Request) -> None:
        """Queue a request; :meth:`start` sees to it that it is begun."""
        self._waiting.append(request)

    def start(self) -> None:
        """Have what is queued begun, as far as there is room."""
        # Workers that are active take it by themselves. One that is about to stop has said so before it looks at the
        # queue for the last time: so it sees what was queued before this line, or this line sees that it stops.
        if self._waiting and self._active < self._capacity:
            self._loop.call_soon_threadsafe(self._start_workers)

    def take_completed(self) -> list[Request]:
        """Give the requests that were completed."""
        self._notified = False
        completed = self._completed
        taken = []
        while completed:
            taken.append(completed.popleft())
        return taken

    def take_most_active(self) -> int:
        """Give the most requests that were under way at a time since this was asked last."""
        most, self._most_active = max(self._most_active, self._active), self._active
        return most

    def cancel(self, request: Request) -> None:
        """Give up a request: its worker goes on with another."""
        self._loop.call_soon_threadsafe(self._cancel, request)

    def close(self) -> None:
        """Give up all requests, and wait until they have heeded it, for some seconds.

        Raises:
            concurrent.futures.TimeoutError: the loop's thread did not even come to hear of it.
        """
        self._closing = True
        self._waiting.clear()
        self._thread.call(self._end_workers, timeout=2 * GRACE)

    # -- the loop's side --

    def _start_workers(self) -> None:
        for _ in range(min(len(self._waiting), self._capacity - self._active)):
            self._active += 1
            worker = self._loop.create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        self._most_active = max(self._most_active, self._active)

    async def _work(self) -> None:
        worker = asyncio.current_task()
        waiting, completed = self._waiting, self._completed
        function, clock, batched = self._function, self._clock, self._batched
        simple = self._retry is None and self._limiter is None
        plenty = max(_PLENTY, self._capacity // 2)
        while True:
            try:
                request = waiting.popleft()
            except IndexError:
                self._active -= 1
                if not waiting or self._active >= self._capacity:
                    return
                self._active += 1
                continue
            request.running = worker
            try:
                if simple:
                    request.attempts = 1
                    request.started = clock()
                    began = perf_counter()
                    request.result = await function(request.values if batched else request.values[0])
                    request.seconds = perf_counter() - began
                else:
                    await self._ask(request)
            except asyncio.CancelledError as error:
                if self._closing:
                    raise
                if sys.version_info >= (3, 11):
                    assert worker is not None
                    worker.uncancel()
                request.error = error
            except Exception as error:
                request.error = error
            request.running = None
            completed.append(request)
            if not self._notified:
                if len(waiting) <= plenty:
                    self._notified = True
                    # After all that is ready in this step of the loop: one mail for all of it.
                    self._loop.call_soon(self._notify)
                elif self._later is None:
                    self._later = self._loop.call_later(_PATIENCE, self._notify_of_all)

    def _notify_of_all(self) -> None:
        self._later = None
        if self._completed and not self._notified:
            self._notified = True
            self._notify()

    async def _ask(self, request: Request) -> None:
        """Ask, and ask again, at no more than the limited rate; set result or raise."""
        argument = request.values if self._batched else request.values[0]
        began = 0.0
        while True:
            if self._limiter is not None:
                await self._limiter.acquire()
            if request.started is None:
                request.started = self._clock()
                began = perf_counter()
            request.attempts += 1
            try:
                result = await self._function(argument)
            except Exception as error:
                if not self._again(request, error=error):
                    raise
            else:
                if not self._again(request, result=result):
                    request.seconds = perf_counter() - began
                    request.result = result
                    return
            assert self._retry is not None
            await asyncio.sleep(self._retry.get_backoff_time_millis(request.attempts) / 1000)

    def _again(self, request: Request, *, result: Any = None, error: Exception | None = None) -> bool:
        if self._retry is None or not self._retry.can_retry(request.attempts):
            return False
        predicate = self._retry.get_retry_predicate()
        if error is not None:
            of_errors = predicate.exception_predicate()
            return of_errors is not None and of_errors(error)
        of_results = predicate.result_predicate()
        return of_results is not None and of_results(result)

    def _cancel(self, request: Request) -> None:
        if request.running is not None:
            request.running.cancel()
        elif request.started is None and request in self._waiting:
            self._waiting.remove(request)

    async def _end_workers(self) -> None:
        for worker in self._workers:
            worker.cancel()
        if self._workers:
            await asyncio.wait(self._workers, timeout=GRACE)
