"""A service on the simulation's clock: a request is answered once the clock has passed its time, never before.

Requests wait in the event loops of their operators. The simulation moves the clock when no task runs, and waits until
the loops have come to rest: so which requests are done in an epoch depends on the clock alone.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

from pillarbox import Function, RuntimeContext

NEVER = 10**12


class _Book:
    """What is under way; ``lock`` guards it, as every operator has an event loop in a thread of its own."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.begin(0)

    def begin(self, now: int) -> None:
        self.now = now
        self.loops: list[asyncio.AbstractEventLoop] = []
        self.waiting: list[tuple[int, int, asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self.count = 0
        self.failures: Counter[Any] = Counter()


_book = _Book()


def begin(now: int) -> None:
    """Start with nothing under way."""
    with _book.lock:
        _book.begin(now)


def settle(now: int) -> None:
    """Answer what is due at ``now``, and let the loops come to rest."""
    with _book.lock:
        loops = list(_book.loops)
    _rest(loops)
    with _book.lock:
        _book.now = now
        due = sorted((entry for entry in _book.waiting if entry[0] <= now), key=lambda entry: entry[:2])
        _book.waiting = [entry for entry in _book.waiting if entry[0] > now]
    for _, _, loop, future in due:
        _post(loop, future)
    if due:
        _rest(loops)


def _post(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    def answer() -> None:
        if not future.done():
            future.set_result(None)

    try:
        loop.call_soon_threadsafe(answer)
    except RuntimeError:
        pass  # closed meanwhile: nobody waits for the answer


async def _turns() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


def _rest(loops: list[asyncio.AbstractEventLoop]) -> None:
    for loop in loops:
        if not loop.is_closed():
            asyncio.run_coroutine_threadsafe(_turns(), loop).result(30)


class Client(Function):
    """Asks the service; ``takes`` says for how many milliseconds."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.loop = asyncio.get_running_loop()
        with _book.lock:
            _book.loops.append(self.loop)

    def close(self) -> None:
        with _book.lock:
            _book.loops.remove(self.loop)
            _book.waiting = [entry for entry in _book.waiting if entry[2] is not self.loop]

    async def ask(self, takes: int) -> None:
        """Wait for as long as a request takes on the simulation's clock; for none at 0."""
        if not takes:
            await asyncio.sleep(0)
            return
        future = self.loop.create_future()
        with _book.lock:
            _book.count += 1
            _book.waiting.append((_book.now + takes, _book.count, self.loop, future))
        await future

    def fails(self, value: Any, times: int) -> bool:
        """Tell whether the service fails: it does so for the first requests about a value."""
        with _book.lock:
            _book.failures[value] += 1
            return _book.failures[value] <= times
