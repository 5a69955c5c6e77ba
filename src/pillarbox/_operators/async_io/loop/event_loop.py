"""An asyncio event loop in its own thread, next to the mailbox thread."""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context, ContextVar, copy_context
from typing import Any
from weakref import WeakSet

from pillarbox._operators.async_io.loop.threads import DaemonThreads

# Seconds that cancelled coroutines get to end. They may ignore cancellation.
GRACE = 5.0

# Interval of checks for a blocked loop, and the longest tolerated block (seconds).
_BEAT = 1.0


_tasks_of_owner: ContextVar[WeakSet[asyncio.Task[Any]] | None] = ContextVar("pillarbox_tasks", default=None)


def context_of(tasks: WeakSet[asyncio.Task[Any]]) -> Context:
    context = copy_context()
    context.run(_tasks_of_owner.set, tasks)
    return context


class EventLoopCallError(Exception):
    """The called function raised ``error``, which may be a ``BaseException``."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class EventLoopThread:
    """Runs coroutines for the mailbox thread, on uvloop if installed, otherwise on asyncio's loop.

    Args:
        blocked: called once in the loop's thread, with the duration (s), if a callback has blocked the loop for more
            than a second.

    Attributes:
        loop: the asyncio loop. Other threads may use only its ``call_soon_threadsafe``.
    """

    def __init__(self, name: str, blocked: Callable[[float], None] | None = None) -> None:
        self.loop: asyncio.AbstractEventLoop = _new_event_loop()
        self.loop.set_task_factory(_noted_task)
        self.loop.set_default_executor(DaemonThreads(min(32, (os.cpu_count() or 1) + 4), f"{name} to_thread"))
        self._blocked = blocked
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            if self._blocked is not None:
                self._beat(None)
            while not self._closing:
                self._run_guarded(self.loop.run_forever)
            tasks = asyncio.all_tasks(self.loop)
            self._run_guarded(self._complete, lambda: cancelled(tasks))
            hold_for_good(tasks)
            self._run_guarded(self._complete, lambda: asyncio.wait_for(self.loop.shutdown_asyncgens(), GRACE))
        finally:
            self.loop.close()

    def _complete(self, make: Callable[[], Awaitable[Any]]) -> None:
        async def run() -> None:
            await make()

        self.loop.run_until_complete(run())

    def _run_guarded(self, run: Callable[..., Any], *args: Any) -> None:
        try:
            run(*args)
        except BaseException as error:
            self.loop.call_exception_handler({"message": "raised in an event loop of map_async", "exception": error})

    def _beat(self, due: float | None) -> None:
        now = self.loop.time()
        if due is not None and now - due > _BEAT and self._blocked is not None:
            self._blocked(now - due)
        else:
            self.loop.call_later(_BEAT, self._beat, now + _BEAT)

    def call(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
        """Call a function in the loop's thread, await its result if necessary, and return the result.

        Raises:
            EventLoopCallError: the function raised.
            concurrent.futures.TimeoutError: the call took longer than ``timeout`` (s).
        """

        async def run() -> tuple[Any, BaseException | None]:
            try:
                result = function(*args)
                return (await result if inspect.isawaitable(result) else result), None
            except BaseException as error:  # a SystemExit would end the loop
                return None, error

        outcome = asyncio.run_coroutine_threadsafe(run(), self.loop)
        try:
            result, error = outcome.result(timeout)
        except BaseException:
            outcome.cancel()
            raise
        if error is not None:
            raise EventLoopCallError(error) from error
        return result

    def close(self) -> None:
        self._closing = True
        if self._thread.is_alive():
            try:
                self.loop.call_soon_threadsafe(self.loop.stop)
            except RuntimeError:
                return
            self._thread.join(2 * GRACE)


def _noted_task(loop: asyncio.AbstractEventLoop, run: Any, **options: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(run, loop=loop, **options)
    context: Context | None = options.get("context")
    tasks = _tasks_of_owner.get() if context is None else context.get(_tasks_of_owner)
    if tasks is not None:
        tasks.add(task)
    return task


def uncancel(task: asyncio.Task[None]) -> None:
    """Let a task continue after a cancellation."""
    if sys.version_info >= (3, 11):
        while task.cancelling():
            task.uncancel()


async def cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    pending = [task for task in tasks if not task.done()]
    for task in pending:
        task.cancel()
    if pending:
        await asyncio.wait(pending, timeout=GRACE)


def hold_for_good(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Keep tasks that ignore cancellation until the process ends.

    Garbage collection would raise an exception in a task's coroutine. A coroutine that catches it and awaits again
    would loop forever.
    """
    for task in tasks:
        if not task.done():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
