"""Workers that run a bounded number of requests on an event loop.

The mailbox thread submits requests and collects results; everything else runs in the loop's thread. Workers are asyncio
tasks that take requests from a queue, to avoid a task per request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from decimal import getcontext
from time import perf_counter
from typing import Any, Protocol

from pillarbox._errors import OperatorError, shorten
from pillarbox._operators.async_io.api.request import Request
from pillarbox._operators.async_io.api.retry import AsyncRetryStrategy, backoff_seconds, is_retried
from pillarbox._operators.async_io.loop.event_loop import GRACE, EventLoopThread, cancelled, uncancel
from pillarbox._operators.async_io.loop.turns import Turns
from pillarbox._operators.dead_letters.dead_letter import concerns_record

# If more than _PLENTY requests are queued, completed requests wait this long (seconds) for others before they wake the
# mailbox thread, which costs more than a request.
_PATIENCE = 0.002
_PLENTY = 16

# Seconds for a cancelled coroutine to end before another worker gets its slot.
_HEED = 1.0

# Seconds until the operator gives up if all slots are stuck.
_PARALYSED = 30.0

# Seconds for the loop's thread to answer when closing, in addition to its own waits.
_HEARS = 5.0


def most_stuck(capacity: int) -> int:
    return max(capacity, 32)


class _SlotOwner(Protocol):
    """A subtask whose workers occupy call slots."""

    @property
    def slots_held(self) -> int: ...

    def start_workers(self) -> None: ...


class WorkerSlots:
    """Limits the running requests of an operator's subtasks in a process. Loop thread only.

    Subtasks queue for free slots. A subtask without slots gets one immediately, even beyond the limit, because another
    subtask's hanging calls must not block its epoch.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken = 0
        self.line: dict[_SlotOwner, None] = {}

    def has_room(self, owner: _SlotOwner) -> bool:
        return self._taken < self.most or not owner.slots_held

    def take(self, owner: _SlotOwner) -> bool:
        if not self.has_room(owner):
            if owner.slots_held < self.most:
                self.line[owner] = None
            return False
        self._taken += 1
        return True

    def release(self) -> None:
        self._taken -= 1
        while self.line and self._taken < self.most:
            first = next(iter(self.line))
            del self.line[first]
            first.start_workers()

    def are_wanted(self, owner: _SlotOwner) -> bool:
        return next(iter(self.line), owner) is not owner

    def leave(self, owner: _SlotOwner) -> None:
        self.line.pop(owner, None)

    def close(self) -> None: ...


class RequestWorkers:
    """The workers of one operator.

    Args:
        function: sends a request for one element or, with ``batched``, for a list of elements.
        turns: delays attempts to meet rate limits and budgets, or None if there are no limits.
        clock: returns monotonic time (ms).
        notify: called in the loop's thread when requests have completed, and again only after :meth:`take_completed`.
        copied: copies a result before the user's function can change it.
        cancellable: whether calls can be cancelled, unlike calls of plain functions.
    """

    def __init__(
        self,
        operator: str,
        thread: EventLoopThread,
        function: Callable[[Any], Awaitable[Any]],
        *,
        batched: bool,
        call_slots: WorkerSlots,
        retry: AsyncRetryStrategy | None,
        turns: Turns | None,
        clock: Callable[[], int],
        notify: Callable[[], None],
        copied: Callable[[Any], Any],
        cancellable: bool = True,
    ) -> None:
        self._operator = operator
        self._thread = thread
        self._loop = thread.loop
        self._function = function
        self._batched = batched
        self._call_slots = call_slots
        self._retry = retry
        self._turns = turns
        self._clock = clock
        self._notify = notify
        self._copied = copied
        self._cancellable = cancellable
        self._plenty = max(_PLENTY, call_slots.most // 2)
        # Appended by the mailbox thread, taken by the workers; vice versa for completed requests.
        self._waiting: deque[Request] = deque()
        self._completed: deque[Request] = deque()
        # Set by the loop's thread before it notifies. Reset by the mailbox thread before it takes requests.
        self._notified = False
        self._closing = False
        # Whether all slots were returned at the end. Only the loop's thread writes this and the following attributes.
        self._has_left = False
        self._active: set[asyncio.Task[None]] = set()
        # Workers that ignored their cancellation. Stuck workers have lost their slots. Paralysed workers keep them,
        # because too many are stuck.
        self._stuck: dict[asyncio.Task[None], Request] = {}
        self._paralysed: dict[asyncio.Task[None], Request] = {}
        self._giving_up: asyncio.TimerHandle | None = None
        self._most_active = 0
        self._later: asyncio.TimerHandle | None = None
        self._failure: OperatorError | None = None
        # Each worker runs in a copy of this context, and is replaced if a request changes the copy, so that context
        # variables do not leak.
        self._context = copy_context()
        # Creates the context's decimal settings now rather than at their first use.
        self._context.run(getcontext)

    # -- mailbox thread --

    def submit(self, request: Request) -> None:
        self._waiting.append(request)

    def start(self) -> None:
        # Active workers take requests by themselves. A worker leaves `_active` before its last look at the queue, so it
        # sees the queued requests, or this line sees that it stops.
        if self._waiting and len(self._active) < self._call_slots.most:
            self._loop.call_soon_threadsafe(self.start_workers)

    def take_completed(self) -> list[Request]:
        """Return the completed requests. Raises ``OperatorError`` if all calls are stuck."""
        if self._failure is not None:
            raise self._failure
        self._notified = False
        completed = self._completed
        requests = []
        while completed:
            requests.append(completed.popleft())
        return requests

    def take_most_active(self) -> int:
        active = len(self._active)
        most, self._most_active = max(self._most_active, active), active
        return most

    def cancel(self, request: Request) -> None:
        self._loop.call_soon_threadsafe(self._cancel, request)

    def close(self) -> None:
        self._closing = True
        self._waiting.clear()
        self._thread.call(self._end_workers, timeout=GRACE + _HEARS)

    # -- loop thread --

    def start_workers(self) -> None:
        for _ in range(min(len(self._waiting), self._call_slots.most - len(self._active))):
            if self._closing or not self._call_slots.take(self):
                break
            worker = self._context.run(self._loop.create_task, self._work())
            self._active.add(worker)
        self._most_active = max(self._most_active, len(self._active))

    async def _work(self) -> None:
        worker = asyncio.current_task()
        assert worker is not None
        waiting, active, stuck = self._waiting, self._active, self._stuck
        completed, plenty, call_slots = self._completed, self._plenty, self._call_slots
        line = call_slots.line
        function, clock, batched, copied = self._function, self._clock, self._batched, self._copied
        simple = self._retry is None and self._turns is None
        clean = copy_context()
        try:
            while True:
                try:
                    request = waiting.popleft()
                except IndexError:
                    active.discard(worker)
                    if not waiting:
                        return
                    active.add(worker)
                    continue
                request.running = worker
                try:
                    if simple:
                        request.attempts = 1
                        if request.started is None:
                            request.started = clock()
                        began = perf_counter()
                        request.result = copied(await function(request.values if batched else request.values[0]))
                        request.seconds = perf_counter() - began
                    else:
                        await self._ask(request)
                except BaseException as error:
                    # Even a SystemExit must not end the worker. The mailbox thread fails the task.
                    if self._closing:
                        return
                    request.error = error
                request.running = None
                if request.given_up:
                    uncancel(worker)
                completed.append(request)
                if not self._notified:
                    self._announce(len(waiting) <= plenty)
                if stuck and worker in stuck:
                    return
                if line and call_slots.are_wanted(self):
                    return
                if differs(clean):
                    return
        finally:
            self._leave(worker)

    def _leave(self, worker: asyncio.Task[None]) -> None:
        self._active.discard(worker)
        if self._stuck.pop(worker, None) is None:
            self._release_slot()
        elif self._paralysed:
            other, request = self._paralysed.popitem()
            self._replace(other, request)
        self._paralysed.pop(worker, None)
        self.start_workers()

    @property
    def slots_held(self) -> int:
        return len(self._active)

    def _release_slot(self) -> None:
        if not self._has_left:
            self._call_slots.release()

    async def _ask(self, request: Request) -> None:
        argument = request.values if self._batched else request.values[0]
        began = None
        while True:
            slots = () if self._turns is None else await self._turns.take(argument)
            if began is None:
                began = perf_counter()
            request.attempts += 1
            if request.started is None:
                request.started = self._clock()
            failure: Exception | None = None
            try:
                request.result = await self._function(argument)
            except BaseException as error:
                if self._turns is not None:
                    self._turns.failed(slots, error)
                if not concerns_record(error) or not self._again(request, error):
                    raise
                failure = error
            else:
                if self._turns is not None:
                    self._turns.succeeded(slots, request.result)
                if not self._again(request, None):
                    request.result = self._copied(request.result)
                    request.seconds = perf_counter() - began
                    return
            assert self._retry is not None
            await asyncio.sleep(backoff_seconds(self._retry, request.attempts, failure))

    def _again(self, request: Request, error: Exception | None) -> bool:
        return not request.given_up and is_retried(self._retry, request.attempts, request.result, error)

    def _announce(self, at_once: bool) -> None:
        if at_once:
            self._notified = True
            # Runs after all callbacks that are ready now, to send one mail for all of them.
            self._loop.call_soon(self._notify)
        elif self._later is None:
            self._later = self._loop.call_later(_PATIENCE, self._notify_of_all)

    def _notify_of_all(self) -> None:
        self._later = None
        if self._completed and not self._notified:
            self._notified = True
            self._notify()

    def _cancel(self, request: Request) -> None:
        worker = request.running
        if worker is None:
            if request in self._waiting:
                self._waiting.remove(request)
            return
        request.given_up = True
        worker.cancel()
        if self._cancellable:
            self._loop.call_later(_HEED, self._replace, worker, request)
        else:
            self._replace(worker, request)

    def _replace(self, worker: asyncio.Task[None], request: Request) -> None:
        if request.running is not worker or self._closing:
            return
        if len(self._stuck) < most_stuck(self._call_slots.most):
            self._active.discard(worker)
            self._stuck[worker] = request
            self._release_slot()
            self.start_workers()
            return
        self._paralysed[worker] = request
        if self._is_paralysed():
            if self._giving_up is not None:
                self._giving_up.cancel()
            self._giving_up = self._loop.call_later(_PARALYSED, self._give_up)

    def _is_paralysed(self) -> bool:
        return len(self._paralysed) == self.slots_held and not self._call_slots.has_room(self)

    def _give_up(self) -> None:
        if self._closing or not self._is_paralysed():
            return
        values = [shorten(request.values[0]) for request in (*self._stuck.values(), *self._paralysed.values())]
        kind = "ignore their cancellation" if self._cancellable else "do not return"
        self._failure = OperatorError(
            f"operator {self._operator!r}: {len(values)} calls of its function {kind} after their timeout, so no other"
            f" call can start; some of their records are {', '.join(values[:5])}: "
            + ("let the function raise CancelledError" if self._cancellable else "give its client a shorter timeout")
        )
        self._notify()

    async def _end_workers(self) -> None:
        await cancelled({*self._active, *self._stuck})
        self._has_left = True
        self._call_slots.leave(self)
        for _ in range(self.slots_held):
            self._call_slots.release()


def differs(clean: Context) -> bool:
    try:
        return copy_context() != clean
    except Exception:
        return True
