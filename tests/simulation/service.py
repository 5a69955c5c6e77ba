"""A service on the simulation's clock. It answers a request after the clock has passed the request's time.

The simulation advances the clock when no task runs, and then runs the event loops until they are idle. So only the
clock determines which requests complete in an epoch.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pillarbox import Function, RuntimeContext

NEVER = 10**12


class _Book:
    def __init__(self, now: int) -> None:
        self.now = now
        self.waiting: list[tuple[int, int, asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self.count = 0
        self.failures: Counter[Any] = Counter()


_book = _Book(0)


def begin(now: int) -> None:
    global _book
    _book = _Book(now)


def answer(now: int) -> bool:
    _book.now = now
    due = sorted((entry for entry in _book.waiting if entry[0] <= now), key=lambda entry: entry[:2])
    _book.waiting = [entry for entry in _book.waiting if entry[0] > now]
    for _, _, _, future in due:
        if not future.done():
            future.set_result(None)
    return bool(due)


def times_of_answers() -> Iterator[int]:
    return (due for due, *_ in _book.waiting if due < NEVER)


class Client(Function):
    """Calls the service. ``takes`` is a call's duration in milliseconds."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.loop = asyncio.get_running_loop()

    def close(self) -> None:
        _book.waiting = [entry for entry in _book.waiting if entry[2] is not self.loop]

    async def ask(self, takes: int) -> None:
        if not takes:
            await asyncio.sleep(0)
            return
        future = self.loop.create_future()
        _book.count += 1
        _book.waiting.append((_book.now + takes, _book.count, self.loop, future))
        await future

    def fails(self, value: Any, times: int) -> bool:
        _book.failures[value] += 1
        return _book.failures[value] <= times
