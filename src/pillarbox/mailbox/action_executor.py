# SPDX-License-Identifier: Apache-2.0
"""How the actions of a task are run: directly, or while holding a lock."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar, TypeVar, final

__all__ = ["StreamTaskActionExecutor", "SynchronizedStreamTaskActionExecutor"]

T = TypeVar("T")


class StreamTaskActionExecutor(ABC):
    """Wraps the execution of every mail of a task.

    Most tasks use :attr:`IMMEDIATE`, because the mailbox thread is the only one that touches
    operators. A source that still emits from a thread of its own needs mutual exclusion with the
    mails instead: both sides then go through one :class:`SynchronizedStreamTaskActionExecutor`.

    Any thread may call it; what the command may touch is the caller's business.

    Flink: ``StreamTaskActionExecutor``.
    """

    __slots__ = ()

    #: Runs commands as they are, with no lock and no state. Shared by everybody.
    IMMEDIATE: ClassVar[StreamTaskActionExecutor]

    @abstractmethod
    def run(self, command: Callable[[], object]) -> None:
        """Run ``command`` and drop what it returns. What it raises goes to the caller."""

    @abstractmethod
    def call(self, command: Callable[[], T]) -> T:
        """Run ``command`` and return its result. What it raises goes to the caller."""

    @staticmethod
    def synchronized(
        lock: AbstractContextManager[Any] | None = None,
    ) -> SynchronizedStreamTaskActionExecutor:
        """An executor that holds ``lock`` (default: a new reentrant one) while a command runs.

        Flink: ``StreamTaskActionExecutor.synchronizedExecutor``.
        """
        return SynchronizedStreamTaskActionExecutor(lock)


@final
class _ImmediateStreamTaskActionExecutor(StreamTaskActionExecutor):
    __slots__ = ()

    def run(self, command: Callable[[], object]) -> None:
        command()

    def call(self, command: Callable[[], T]) -> T:
        return command()

    def __repr__(self) -> str:
        return "StreamTaskActionExecutor.IMMEDIATE"


@final
class SynchronizedStreamTaskActionExecutor(StreamTaskActionExecutor):
    """Runs every command while it holds :attr:`lock`.

    The default lock is reentrant, as Java's monitors are: a mail that yields to another mail holds
    the lock twice. A lock of one's own should be reentrant for the same reason.

    Flink: ``StreamTaskActionExecutor.SynchronizedStreamTaskActionExecutor``.
    """

    __slots__ = ("lock",)

    def __init__(self, lock: AbstractContextManager[Any] | None = None) -> None:
        self.lock: AbstractContextManager[Any] = threading.RLock() if lock is None else lock

    def run(self, command: Callable[[], object]) -> None:
        with self.lock:
            command()

    def call(self, command: Callable[[], T]) -> T:
        with self.lock:
            return command()


StreamTaskActionExecutor.IMMEDIATE = _ImmediateStreamTaskActionExecutor()
