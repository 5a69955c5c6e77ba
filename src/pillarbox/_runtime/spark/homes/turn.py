"""The right to run functions in a home. State partitions that share a home have it in turn.

So functions run one at a time in a process, as in a Python worker of Spark's. A thread gives the right away while it
waits: for its relay, or for mail.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turn:
    """The right. Any thread may call its methods.

    Attributes:
        in_line: the threads that wait for it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None
        self.in_line: set[int] = set()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have the right meanwhile."""
        self._take(threading.get_ident())
        try:
            yield
        finally:
            self._give_away()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Give it away meanwhile, if the calling thread has it."""
        me = threading.get_ident()
        if self._owner != me:
            yield
            return
        self._give_away()
        try:
            yield
        finally:
            self._take(me)

    def _take(self, me: int) -> None:
        if not self._lock.acquire(blocking=False):
            self.in_line.add(me)
            try:
                self._lock.acquire()
            finally:
                self.in_line.discard(me)
        self._owner = me

    def _give_away(self) -> None:
        self._owner = None
        self._lock.release()
