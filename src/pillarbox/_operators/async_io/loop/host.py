"""Runs a user function next to the mailbox thread, in an event loop or in threads."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any
from weakref import WeakSet

from pillarbox._errors import OperatorError, PillarboxError, ProgramError, describe, place_of_task
from pillarbox._operators.async_io.api.function import AsyncBatchFunction, AsyncFunction
from pillarbox._operators.async_io.api.options import AsyncOptions
from pillarbox._operators.async_io.loop.event_loop import (
    GRACE,
    EventLoopCallError,
    EventLoopThread,
    cancelled,
    context_of,
    hold_for_good,
)
from pillarbox._operators.async_io.loop.threads import DaemonThreads, outcome_of
from pillarbox._operators.async_io.loop.turns import Turns
from pillarbox._operators.async_io.loop.workers import RequestWorkers, WorkerSlots, most_stuck
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.frame.shared_resources import ResourceLease
from pillarbox._operators.functions.basic import Function
from pillarbox._operators.functions.contexts import RuntimeContext
from pillarbox._state.state_descriptor import StateDescriptor

_log = logging.getLogger("pillarbox")

# Seconds that a function's open() and close() may take.
_OPENING = 600.0
_CLOSING = 30.0

_BLOCKING = (
    "await an asyncio client instead of a blocking call (time.sleep, requests.get), or pass a plain function, which"
    " runs in a thread pool"
)


def is_coroutine_function(function: Any) -> bool:
    """Return whether ``function`` is an ``async def``, a ``partial`` of one, or an object whose ``__call__`` is one."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def is_generator_function(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return any(
        inspect.isgeneratorfunction(part) or inspect.isasyncgenfunction(part)
        for part in (function, type(function).__call__)
    )


class AsyncFunctionHost:
    """Owns a function's event loop and threads. The mailbox thread creates and closes it."""

    def __init__(
        self,
        function: Any,
        options: AsyncOptions,
        context: OperatorContext,
        *,
        tasks: int,
        notify: Callable[[], None],
    ) -> None:
        self._name = context.name
        self._context = context
        self._function = function
        self._pool: DaemonThreads | None = None
        self._plain: _PlainCalls | None = None
        self._lease: ResourceLease[_Loop] = context.shared.lease(
            ("async", context.uid), lambda: _Loop(context, options, tasks)
        )
        self.thread: EventLoopThread = self._lease.resource.thread
        self.turns: Turns | None = self._lease.resource.turns
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        context_of_tasks = context_of(self._tasks)
        call: Callable[[Any], Any] = function
        if isinstance(function, AsyncFunction):
            call = function.async_invoke
        elif isinstance(function, AsyncBatchFunction):
            call = function.async_invoke_batch
        if not is_coroutine_function(call):
            most = options.capacity + most_stuck(options.capacity)
            self._pool = DaemonThreads(most, f"pillarbox-pool {self._name}")
            call = self._plain = _PlainCalls(call, self._pool, context.copier.copied)
        try:
            self.workers: RequestWorkers = context_of_tasks.run(
                RequestWorkers,
                self._name,
                self.thread,
                call,
                batched=options.batch_size is not None,
                call_slots=self._lease.resource.call_slots,
                retry=options.retry_strategy,
                turns=self.turns,
                clock=context.processing_time_service.relative_time_millis,
                notify=notify,
                copied=context.copier.copied if self._plain is None else _as_it_is,
                cancellable=self._plain is None,
            )
            if isinstance(function, Function):
                context_of_tasks.run(self._call_user, "open()", _OPENING, function.open, _AsyncRuntimeContext(context))
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        try:
            try:
                if self._plain is not None:
                    self._plain.closing = True
                self.workers.close()
            except FutureTimeoutError:
                self._lease.spoil()
                raise OperatorError(
                    f"operator {self._name!r}: a coroutine is blocking the event loop: {_BLOCKING}"
                ) from None
            if isinstance(self._function, Function):
                self._call_user("close()", _CLOSING, self._function.close)
        finally:
            self._end()

    def _end(self) -> None:
        if not self._lease.is_spoilt:
            try:
                self.thread.call(self._end_tasks, timeout=2 * GRACE)
            except (EventLoopCallError, FutureTimeoutError):
                self._lease.spoil()
        self._lease.release()
        if self._pool is not None:
            self._pool.shutdown()

    def _call_user(self, what: str, seconds: float, function: Callable[..., Any], *args: Any) -> None:
        """Call user code in the loop's thread.

        A KeyboardInterrupt counts as an error of the user code, because Ctrl-C never reaches this thread.
        """
        try:
            self.thread.call(function, *args, timeout=seconds)
            return
        except EventLoopCallError as failed:
            cause: BaseException | None = failed.error
            outcome = f"operator {self._name!r} failed in {what}: {describe(failed.error)}"
        except FutureTimeoutError:
            cause = None
            outcome = f"operator {self._name!r}: {what} did not return within {seconds:g} s"
        error = cause if isinstance(cause, PillarboxError) else OperatorError(outcome)
        error.at(operator=self._name, subtask=self._context.subtask)
        raise error from (None if error is cause else cause)

    async def _end_tasks(self) -> None:
        tasks = list(self._tasks)
        await cancelled(tasks)
        hold_for_good(tasks)


class _Loop:
    """An operator's event loop, call slots and rate limits, shared by its subtasks in a process."""

    def __init__(self, context: OperatorContext, options: AsyncOptions, tasks: int) -> None:
        self._operator = context.name
        self.call_slots: WorkerSlots = WorkerSlots(options.capacity)
        self.turns: Turns | None = None
        if options.takes_turns:
            scope = context.budget_scope
            tasks = scope.tasks(context.parallelism, tasks)
            self.turns = Turns(options.own_budget, options.shared_budgets, scope, context.uid, tasks)
        self.thread: EventLoopThread = EventLoopThread(f"pillarbox-async {context.name}", self._warn)

    def _warn(self, seconds: float) -> None:
        _log.warning(
            "the event loop was blocked for %.1f s, so no request could proceed. If a coroutine blocked it: %s %s",
            seconds,
            _BLOCKING,
            place_of_task(self._operator),
        )

    def close(self) -> None:
        if self.turns is not None:
            with suppress(EventLoopCallError, FutureTimeoutError):
                self.thread.call(self.turns.close, timeout=GRACE)
        self.thread.close()


class _PlainCalls:
    """Calls a plain function in a thread, and awaits an awaitable result.

    Even a cancelled call is awaited until it returns, because threads cannot be cancelled.

    Args:
        copied: copies the result in the function's thread, before other calls can change it.
    """

    def __init__(self, function: Callable[[Any], Any], pool: DaemonThreads, copied: Callable[[Any], Any]) -> None:
        self._function = function
        self._copied = copied
        self._pool = pool
        self._context = copy_context()
        # Set by the mailbox thread to stop awaiting cancelled calls.
        self.closing = False

    async def __call__(self, value: Any) -> Any:
        running = asyncio.get_running_loop().run_in_executor(self._pool, self._outcome, self._context.copy(), value)
        while not running.done():
            try:
                await asyncio.shield(running)
            except asyncio.CancelledError:
                if self.closing:
                    raise
        result, error = running.result()
        if error is not None:
            raise error
        return self._copied(await result) if inspect.isawaitable(result) else result

    def _outcome(self, context: Context, value: Any) -> tuple[Any, BaseException | None]:
        def call() -> Any:
            result = context.run(self._function, value)
            return result if inspect.isawaitable(result) else self._copied(result)

        return outcome_of(call)


def _as_it_is(result: Any) -> Any:
    return result


class _AsyncRuntimeContext(RuntimeContext):
    """A runtime context without keyed state, for threads other than the mailbox thread."""

    def _keyed_state(self, descriptor: StateDescriptor) -> Any:
        raise ProgramError(
            f"operator {self._context.name!r} uses the keyed state {descriptor.name!r}, but its function runs in"
            " another thread, which cannot access state: use the state in a separate process(...)"
        )
