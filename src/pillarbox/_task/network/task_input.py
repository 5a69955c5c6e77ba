"""Readers of a task's input.

An :class:`IteratorInputReader` reads in the mailbox thread. A :class:`ThreadedInputReader` reads in another thread, for
tasks that have work to do while the iterator blocks.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from typing import Any, Generic, TypeVar

from pillarbox.mailbox import MailboxExecutor, PeriodTimer

T = TypeVar("T")


class DataInputStatus(Enum):
    """Status of an input (Flink's ``DataInputStatus``)."""

    MORE_AVAILABLE = auto()
    NOTHING_AVAILABLE = auto()
    END_OF_DATA = auto()
    END_OF_INPUT = auto()


class _Exhausted(Enum):
    EXHAUSTED = auto()


EXHAUSTED = _Exhausted.EXHAUSTED


class InputReader(ABC, Generic[T]):
    """Returns the items of an epoch one by one. Mailbox thread only."""

    @abstractmethod
    def poll(self) -> T | _Exhausted | None:
        """Return the next item, None if it has not arrived yet, or ``EXHAUSTED``."""

    def when_available(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` in any thread, as soon as :meth:`poll` would not return None."""
        callback()

    def close(self) -> None: ...


class IteratorInputReader(InputReader[T]):
    """Reads from an iterator. Reading may block the mailbox thread; ``waiting`` measures for how long."""

    def __init__(self, items: Iterable[T], waiting: PeriodTimer | None = None) -> None:
        self._items = iter(items)
        self._waiting = waiting

    def poll(self) -> T | _Exhausted | None:
        waiting = self._waiting
        if waiting is None:
            return next(self._items, EXHAUSTED)
        waiting.mark_start()
        item = next(self._items, EXHAUSTED)
        waiting.mark_end()
        return item


class ThreadedInputReader(InputReader[T]):
    """Reads from an iterator in another thread, up to ``bound`` items ahead.

    The thread sends a mail for its start, new input, the end of the input, and errors.
    """

    def __init__(
        self, items: Iterable[T], executor: MailboxExecutor, fail: Callable[[BaseException], None], bound: int = 8
    ) -> None:
        self._items: Iterator[T] = iter(items)
        self._executor = executor
        self._fail = fail
        self._bound = bound
        # Guards everything below.
        self._changed = threading.Condition()
        self._queue: deque[T] = deque()
        self._ended = False
        self._closed = False
        self._callback: Callable[[], None] | None = None
        self.started: bool = False
        self._thread = threading.Thread(target=self._read, name="pillarbox-input", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            self._executor.execute(self._has_started, "input thread started")
            for item in self._items:
                with self._changed:
                    while len(self._queue) >= self._bound and not self._closed:
                        self._changed.wait()
                    if self._closed:
                        return
                    self._queue.append(item)
                    callback, self._callback = self._callback, None
                if callback is not None:
                    callback()
            self._executor.execute(self._has_ended, "input thread ended")
        except BaseException as error:
            if not self._closed:
                self._fail(error)

    def _has_started(self) -> None:
        self.started = True

    def _has_ended(self) -> None:
        with self._changed:
            self._ended = True
            callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def poll(self) -> T | _Exhausted | None:
        with self._changed:
            if self._queue:
                item = self._queue.popleft()
                self._changed.notify()
                return item
            if self._ended:
                return EXHAUSTED
            return None

    def when_available(self, callback: Callable[[], None]) -> None:
        with self._changed:
            if not self._queue and not self._ended:
                self._callback = callback
                return
        callback()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()


AnyReader = InputReader[Any]
