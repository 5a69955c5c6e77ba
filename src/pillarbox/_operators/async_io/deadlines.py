"""Timeouts of requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pillarbox._operators.async_io.api.request import Event, Request, RequestState
from pillarbox._time.clock import ProcessingTimeService, ScheduledTimer
from pillarbox.mailbox import MailboxExecutor


class Deadlines:
    """A timer for the earliest deadline of an operator's requests. Mailbox thread only.

    A timeout begins with the request's first attempt. It is measured with the monotonic clock, because the wall clock
    may be changed. If another process made the first attempt, the wall clock is used.

    Args:
        timeout: milliseconds, or None for no deadlines.
        executor: runs ``expire`` for restored requests that are already overdue.
    """

    def __init__(
        self, timeout: int | None, clock: ProcessingTimeService, executor: MailboxExecutor, expire: Callable[[], None]
    ) -> None:
        self._timeout = timeout
        self._clock = clock
        self._executor = executor
        self._expire = expire
        self._timer: ScheduledTimer | None = None

    def watch(self) -> None:
        if self._timer is None and self._timeout is not None:
            self._set(self._timeout)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def is_past(self, started: int) -> bool:
        return self._timeout is not None and started + self._timeout <= self._clock.relative_time_millis()

    def to_wall_clock(self, started: int) -> int:
        return self._clock.current_processing_time() - (self._clock.relative_time_millis() - started)

    def from_wall_clock(self, started: int) -> int:
        ago = max(0, self._clock.current_processing_time() - started)
        return self._clock.relative_time_millis() - ago

    def overdue(self, elements: Iterable[Request | Event]) -> list[Request]:
        if self._timeout is None:
            return []
        now = self._clock.relative_time_millis()
        overdue = []
        earliest: int | None = None
        for element in elements:
            if isinstance(element, Request) and element.state is RequestState.PENDING:
                started = now if element.started is None else element.started
                if started + self._timeout <= now:
                    overdue.append(element)
                elif earliest is None or started < earliest:
                    earliest = started
        self.cancel()
        if earliest is not None:
            self._set(earliest + self._timeout - now)
        return overdue

    def look(self) -> None:
        if self._timeout is not None:
            self._executor.execute(self._expire, "look for overdue requests")

    def _set(self, wait: int) -> None:
        self._timer = self._clock.register_timer(self._clock.current_processing_time() + wait, self._fire)

    def _fire(self, timestamp: int) -> None:
        self._timer = None
        self._expire()
