"""Measures a task's records and times in an epoch."""

from __future__ import annotations

import time
from typing import Any


class Stopwatch:
    """Measures the total of several periods. Mailbox thread only."""

    __slots__ = ("_started", "total")

    def __init__(self) -> None:
        self._started: float | None = None
        self.total: float = 0.0

    def mark_start(self) -> None:
        if self._started is None:
            self._started = time.perf_counter()

    def mark_end(self) -> None:
        if self._started is not None:
            self.total += time.perf_counter() - self._started
            self._started = None

    @property
    def is_running(self) -> bool:
        return self._started is not None

    @property
    def milliseconds(self) -> int:
        return round(self.total * 1000)


class TaskMetrics:
    """A task's counters and times in an epoch."""

    def __init__(self) -> None:
        self.records_in: int = 0
        self.broadcast_in: int = 0
        self.buffers_in: int = 0
        self.back_pressured: Stopwatch = Stopwatch()
        self.idle: Stopwatch = Stopwatch()
        self.state: Stopwatch = Stopwatch()
        self.alignment: Stopwatch = Stopwatch()
        self.epoch: Stopwatch = Stopwatch()
        self.epoch.mark_start()
        self.started: int = time.time_ns() // 1_000_000
        self.run: int = 0

    def count_run(self, records: int) -> None:
        self.records_in += records
        self.run = records

    def times(self) -> dict[str, Any]:
        self.epoch.mark_end()
        waiting = self.back_pressured.total + self.idle.total + self.state.total
        return {
            "busy_ms": max(0, round((self.epoch.total - waiting) * 1000)),
            "idle_ms": self.idle.milliseconds,
            "back_pressured_ms": self.back_pressured.milliseconds,
            "state_ms": self.state.milliseconds,
            "alignment_ms": self.alignment.milliseconds,
        }
