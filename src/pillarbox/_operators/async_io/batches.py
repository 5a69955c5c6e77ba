"""Collects records into batches, each sent as one request."""

from __future__ import annotations

from collections.abc import Callable

from pillarbox._operators.async_io.api.request import Request
from pillarbox._time.clock import ProcessingTimeService, ScheduledTimer


class Batches:
    """The batch that is being filled. Mailbox thread only.

    Args:
        timeout: how long an incomplete batch waits for more records (ms), or None to wait for a flush.
        put: called with each new batch when its first record arrives, which sets the batch's position in the queue.
        is_due: called when an incomplete batch has timed out.
    """

    def __init__(
        self,
        size: int,
        timeout: int | None,
        clock: ProcessingTimeService,
        *,
        put: Callable[[Request], None],
        send: Callable[[Request], None],
        is_due: Callable[[], None],
    ) -> None:
        self.size = size
        self._timeout = timeout
        self._clock = clock
        self._put = put
        self._send = send
        self._is_due = is_due
        self._forming: Request | None = None
        self._timestamps: list[int | None] = []
        self._timer: ScheduledTimer | None = None

    def add(self, value: object, timestamp: int | None) -> None:
        if self._forming is None:
            self._timestamps = []
            self._forming = Request([], self._timestamps)
            self._put(self._forming)
            self._set_timer()
        self._forming.values.append(value)
        self._timestamps.append(timestamp)
        if len(self._timestamps) == self.size:
            self.flush()

    def flush(self) -> None:
        batch = self._forming
        if batch is not None:
            self.clear()
            self._send(batch)

    def clear(self) -> None:
        self._forming = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        if self._timeout is not None:
            due = self._clock.current_processing_time() + self._timeout
            self._timer = self._clock.register_timer(due, self._time_is_up)

    def _time_is_up(self, timestamp: int) -> None:
        self._timer = None
        self._is_due()
