"""An asyncio event loop that runs in the mailbox thread whenever the thread would otherwise wait.

All tasks of the thread share the loop, so all make progress while one waits.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import monotonic
from typing import Any, NoReturn

from pillarbox._errors import ProgramError
from pillarbox._operators.async_io.loop.event_loop import GRACE, cancelled, hold_for_good
from pillarbox._operators.async_io.loop.threads import DaemonThreads
from pillarbox._operators.async_keyed.steps import AsyncChildSteps
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.frame.shared_resources import EVENT_LOOP, ResourceLease
from pillarbox._state.heap.backend import OneThread
from pillarbox._time.clock import ProcessingTimeService

# Maximum wait (seconds), because Python does not handle a signal that arrived just before a thread blocked.
_LONGEST_WAIT = 1.0


class _Selector(selectors.DefaultSelector):
    """A selector that releases the task's lock while it waits, so that other threads can run."""

    def __init__(self, resting: Callable[[], AbstractContextManager[object]]) -> None:
        super().__init__()
        self._resting = resting

    def select(self, timeout: float | None = None) -> Any:
        if timeout is not None and timeout <= 0:
            return super().select(0)
        with self._resting():
            return super().select(_LONGEST_WAIT if timeout is None else min(timeout, _LONGEST_WAIT))


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock: Callable[[], float], selector: _Selector) -> None:
        self.time: Callable[[], float] = clock
        super().__init__(selector)

    def read_sockets(self) -> None:
        """Check sockets first in the next turn: connections may have closed while the loop was paused."""
        loop: Any = self
        ready = list(loop._ready)
        loop._ready.clear()
        loop._process_events(loop._selector.select(0))
        loop._ready.extend(ready)

    def use_real_time(self) -> None:
        """Switch to the system's clock to close functions, because a manual clock no longer advances."""
        self.time = monotonic

    def next_due(self) -> float | None:
        scheduled = self._scheduled  # type: ignore[attr-defined]
        return scheduled[0].when() if scheduled else None

    def has_ready(self) -> bool:
        return bool(self._ready)  # type: ignore[attr-defined]

    def add_signal_handler(self, *_: Any) -> NoReturn:  # type: ignore[override]
        raise ProgramError("a function cannot install signal handlers, because signals end the task's process")


class KeyedLoop:
    """The event loop of one thread's tasks. Other threads may call only :meth:`wake`.

    Args:
        clock: a manual clock, or None for the system's clock.
        resting: returns a context manager for waits, which may release a lock.

    Attributes:
        current: the element whose step runs, or None.
        raised_by_child: the SystemExit or KeyboardInterrupt of an element's asyncio task, which asyncio raises again
            from the loop.
    """

    def __init__(
        self, clock: ProcessingTimeService, resting: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> None:
        seconds = monotonic if clock.manual is None else lambda: clock.relative_time_millis() / 1000
        self.loop: _Loop = _Loop(seconds, _Selector(resting))
        self.loop.set_task_factory(self._new_task)
        self._threads: list[DaemonThreads] = []
        self.loop.set_default_executor(self.new_threads(min(32, (os.cpu_count() or 1) + 4), "to_thread"))
        # The keyed states that the loop's thread may use.
        self._rows: list[OneThread] = []
        self.current: Any = None
        self.raised_by_child: BaseException | None = None
        self._is_running = False
        self._is_paused = False
        self._thread: int | None = None

    def new_threads(self, count: int, purpose: str) -> DaemonThreads:
        threads = DaemonThreads(count, purpose)
        self._threads.append(threads)
        return threads

    def end_threads(self, threads: DaemonThreads) -> None:
        self._threads.remove(threads)
        threads.shutdown()

    def serve(self, rows: OneThread) -> None:
        self._rows.append(rows)
        self._thread = None

    def leave(self, rows: OneThread) -> None:
        self._rows.remove(rows)

    def _new_task(self, loop: Any, run: Any, **options: Any) -> asyncio.Task[Any]:
        element = self.current
        if element is not None:
            run = AsyncChildSteps(element.runner, element, run)
        return asyncio.Task(run, loop=loop, **options)

    def turn(self) -> None:
        if not self._is_running:
            self.loop.stop()
            self.wait()

    def wait(self) -> None:
        if not self._is_running:
            try:
                with self._running():
                    self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                if error is not self.raised_by_child:
                    raise

    def wait_for_files(self, numbers: Iterable[int]) -> None:
        """Run the loop until a file descriptor is readable or :meth:`wake` is called."""
        loop = self.loop
        watched = list(numbers)
        for number in watched:
            loop.add_reader(number, loop.stop)
        try:
            self.wait()
        finally:
            for number in watched:
                loop.remove_reader(number)

    def pause(self) -> None:
        self._is_paused = True

    @contextmanager
    def _running(self) -> Iterator[None]:
        if self._is_paused:
            self._is_paused = False
            self.loop.read_sockets()
        self._is_running = True
        thread = threading.get_ident()
        if thread != self._thread:
            self._thread = thread
            for rows in self._rows:
                rows.thread = thread
        try:
            with _no_outer_loop():
                yield
        finally:
            self._is_running = False

    def wake(self) -> None:
        """Make the current or next :meth:`wait` return. Thread-safe."""
        if self._is_running and threading.get_ident() == self._thread:
            self.loop.stop()
            return
        try:
            self.loop.call_soon_threadsafe(self.loop.stop)
        except RuntimeError:
            pass  # the loop is closed

    def waits_for_time(self) -> bool:
        """Return whether only a timer can wake the loop, not a socket or a thread."""
        loop: Any = self.loop
        is_idle = not loop.has_ready() and len(loop._selector.get_map()) == 1
        is_idle = is_idle and not any(threads.is_busy for threads in self._threads)
        return is_idle and loop.next_due() is not None

    def complete(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        with self._running():
            return self.loop.run_until_complete(coroutine)

    def close(self) -> None:
        loop = self.loop
        if loop.is_closed():
            return
        loop.use_real_time()
        tasks = asyncio.all_tasks(loop)
        try:
            self.complete(cancelled(tasks))
            hold_for_good(tasks)
            self.complete(asyncio.wait_for(loop.shutdown_asyncgens(), GRACE))
        finally:
            loop.close()
            for threads in self._threads:
                threads.shutdown()


def lease_loop(context: OperatorContext) -> ResourceLease[KeyedLoop]:
    shared = context.shared
    return shared.of_thread.lease(EVENT_LOOP, lambda: KeyedLoop(context.processing_time_service, shared.resting))


@contextmanager
def _no_outer_loop() -> Iterator[None]:
    """Hide this thread's running event loop, such as a notebook's, because asyncio allows only one."""
    outer = asyncio._get_running_loop()
    if outer is None:
        yield
        return
    swap: Any = getattr(asyncio.tasks, "_swap_current_task", None)  # from Python 3.12
    task = None if swap is None else swap(outer, None)
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(outer)
        if swap is not None:
            swap(outer, task)


class NextLoopTurn:
    """An awaitable that returns in the loop's next turn."""

    def __await__(self) -> Any:
        yield
