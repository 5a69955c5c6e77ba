"""When requests have been under way for too long (A5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pillarbox._operators.async_io.api.request import Event, Request, RequestState
from pillarbox._time.clock import ProcessingTimeService, ScheduledTimer
from pillarbox.mailbox import MailboxExecutor


class Deadlines:
    """One timer, for the earliest deadline. Only the mailbox thread may touch it.

    A request's deadline is its timeout after it was asked first: one that waits for its turn has none yet. How long ago
    that was is measured by the clock that nobody sets; the wall clock tells it where another process asked.

    Args:
        timeout: milliseconds; None: requests have no deadline.
        clock: processing time.
        executor: runs ``expire`` for requests that are overdue already.
        expire: called when a request may be overdue.
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
        """Make sure that requests which begin from now on are given up in time."""
        if self._timer is None and self._timeout is not None:
            self._set(self._timeout)

    def cancel(self) -> None:
        """Watch nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def is_past(self, started: int) -> bool:
        """Return whether a request that was asked first at ``started`` (relative time) is overdue."""
        return self._timeout is not None and started + self._timeout <= self._clock.relative_time_millis()

    def to_wall_clock(self, started: int) -> int:
        """Return a moment of this process as epoch milliseconds, for a snapshot."""
        return self._clock.current_processing_time() - (self._clock.relative_time_millis() - started)

    def from_wall_clock(self, started: int) -> int:
        """Return a moment of a snapshot as one of this process; one that is still to come, by this clock, is now."""
        ago = max(0, self._clock.current_processing_time() - started)
        return self._clock.relative_time_millis() - ago

    def overdue(self, elements: Iterable[Request | Event]) -> list[Request]:
        """Return the requests that are overdue, and watch the others."""
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
        """Look for overdue requests in a mail of its own, and watch the others."""
        if self._timeout is not None:
            self._executor.execute(self._expire, "look for overdue requests")

    def _set(self, wait: int) -> None:
        self._timer = self._clock.register_timer(self._clock.current_processing_time() + wait, self._fire)

    def _fire(self, timestamp: int) -> None:
        self._timer = None
        self._expire()
