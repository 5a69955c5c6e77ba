"""Request counts of an async operator."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from pillarbox._operators.async_io.api.request import Request
from pillarbox._operators.budgets.gate import RATE_LIMITED

_SAMPLES = 4096


class Counters:
    """An epoch's request counts, for the task's metrics. Mailbox thread only."""

    def __init__(self) -> None:
        self.completed = 0
        self.failed = 0
        self.timed_out = 0
        self.cache_hits = 0
        self._attempts = 0
        self._retried = 0
        self._seconds: deque[float] = deque(maxlen=_SAMPLES)

    def taken(self, requests: Sequence[Request]) -> None:
        for request in requests:
            attempts = request.attempts
            self._attempts += attempts
            if attempts > 1:
                self._retried += attempts - 1
            if request.error is None:
                self._seconds.append(request.seconds)

    def report(self, *, drops: bool, in_flight: int, in_flight_max: int, rate_limited: float | None) -> dict[str, int]:
        """Return the counts by metric name. ``rate_limited`` is in seconds, or None if there is no rate limit."""
        p50, p95, p99 = np.percentile(self._seconds, (50, 95, 99)) * 1e6 if self._seconds else (0, 0, 0)
        return {
            "requests": self._attempts,
            "completed": self.completed,
            "failed": self.failed,
            "timed_out": self.timed_out,
            "retried": self._retried,
            "dropped": self.failed if drops else 0,
            "cache_hits": self.cache_hits,
            "in_flight": in_flight,
            "in_flight_max": in_flight_max,
            "latency_p50_us": int(p50),
            "latency_p95_us": int(p95),
            "latency_p99_us": int(p99),
            **({} if rate_limited is None else {RATE_LIMITED: round(rate_limited * 1000)}),
        }
