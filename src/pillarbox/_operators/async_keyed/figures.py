"""Counters of async keyed operators."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Any

from pillarbox._errors import shorten

# Maximum characters of a key in a report.
_KEY = 60


class Figures:
    """Counts the elements (records and timers) of an epoch. Mailbox thread only.

    Attributes:
        running: the number of unfinished elements that have awaited something.
        longest_key: the largest number of elements that waited for one key.
        blocked_ms: the duration of the longest step that blocked the task.
    """

    __slots__ = ("_hot_key", "blocked_ms", "in_flight_max", "longest_key", "running", "timed_out")

    def __init__(self) -> None:
        self.running = 0
        self.longest_key = 0
        self._hot_key: Any = None
        self.begin_epoch(())

    def begin_epoch(self, lines: Iterable[tuple[Any, int]]) -> None:
        """Begin an epoch. ``lines`` are (key, number of carried-over elements that wait for it) pairs."""
        self.in_flight_max = self.running
        self._hot_key, self.longest_key = max(lines, key=itemgetter(1), default=(None, 0))
        self.timed_out = self.blocked_ms = 0

    def add_running(self) -> None:
        self.running += 1
        if self.running > self.in_flight_max:
            self.in_flight_max = self.running

    def add_line(self, key: Any, length: int) -> None:
        self._hot_key, self.longest_key = key, length

    def add_slow_step(self, seconds: float) -> None:
        self.blocked_ms = max(self.blocked_ms, round(1000 * seconds))

    @property
    def hot_key(self) -> str | None:
        return shorten(self._hot_key, _KEY) if self.longest_key else None

    def counters(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("in_flight_max", "longest_key", "timed_out", "blocked_ms")}
