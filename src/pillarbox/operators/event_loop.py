"""An asyncio event loop in a thread of its own, beside the mailbox thread."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

__all__ = ["GRACE", "EventLoopThread"]

# How long the thread may take to end (seconds): coroutines that do not heed their cancellation must not hold up a task.
GRACE = 5.0


class EventLoopThread:
    """Runs coroutines for the mailbox thread. uvloop's loop where it is installed, else asyncio's.

    Attributes:
        loop: the loop; other threads may only use its ``call_soon_threadsafe``.
    """

    def __init__(self, name: str) -> None:
        self.loop = _new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=GRACE))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()

    def call(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
        """Call a function in the loop's thread, wait for it, and for the coroutine if it gives one.

        Raises:
            concurrent.futures.TimeoutError: it took longer than ``timeout`` seconds.
        """

        async def run() -> Any:
            result = function(*args)
            return await result if inspect.isawaitable(result) else result

        outcome: Future[Any] = asyncio.run_coroutine_threadsafe(run(), self.loop)
        return outcome.result(timeout)

    def close(self) -> None:
        """Cancel what runs, and end the thread."""
        if self._thread.is_alive():
            try:
                self.loop.call_soon_threadsafe(self.loop.stop)
            except RuntimeError:
                return  # the loop has just been closed
            self._thread.join(2 * GRACE)


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
