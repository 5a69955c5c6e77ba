"""Limits how long a harness waits for an operator. On request, the manual clock advances during the wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast
from weakref import WeakSet

from pillarbox._errors import PillarboxError
from pillarbox._operators.async_io.operator import AsyncWaitOperator
from pillarbox._operators.async_keyed.operator import AsyncKeyedOperator
from pillarbox._operators.frame.operator import StreamOperator
from pillarbox._time.duration import DurationLike, to_millis
from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox.mailbox import MailboxExecutor

_TURNS = 50
# Seconds to wait for real events, such as a thread or a socket, before the clock advances.
_REAL = 0.02
_POLL = 0.001
# Seconds to wait for a write to the journal.
_WRITES = 1.0


class HarnessTimeoutError(PillarboxError, TimeoutError):
    """An operator in a harness waited too long for its requests."""


class Patience:
    """Limits waits to ``limit`` seconds of real time."""

    def __init__(self, clock: ManualProcessingTimeService, limit: float) -> None:
        self._clock = clock
        self._limit = limit
        self._passes_until: int | None = None
        self._keyed: WeakSet[AsyncKeyedOperator] = WeakSet()

    def attach(self, operators: Iterable[StreamOperator]) -> None:
        operators = list(operators)
        for operator in operators:
            if isinstance(operator, AsyncKeyedOperator):
                self._keyed.add(operator)
            inner = operator.context.mailbox_executor
            if not isinstance(inner, _PatientExecutor):
                operator.context.mailbox_executor = cast(
                    "MailboxExecutor", _PatientExecutor(inner, operator, operators, self)
                )

    @contextmanager
    def time_passes(self, duration: DurationLike) -> Iterator[None]:
        """Advance the clock by up to ``duration`` in total while requests are awaited."""
        self._passes_until = self._clock.current_processing_time() + to_millis(duration)
        try:
            yield
            if self._clock.current_processing_time() < self._passes_until:
                self.set_clock(self._passes_until)
        finally:
            self._passes_until = None

    def set_clock(self, timestamp: int) -> None:
        """Set the clock, pausing at earlier event-loop timers, so that answers precede later timeouts."""
        for stop in self.stops_before(timestamp):
            self._clock.set_current_time(stop)
            run_ready(self._keyed)
        self._clock.set_current_time(timestamp)

    def stops_before(self, timestamp: int) -> Iterator[int]:
        """Yield the times of event-loop timers before ``timestamp``. The caller sets the clock to each."""
        while True:
            now = self._clock.current_processing_time()
            alarms = [operator.alarm_at for operator in self._keyed if operator.alarm_at is not None]
            due = min((alarm for alarm in alarms if now < alarm < timestamp), default=None)
            if due is None:
                return
            yield due

    def await_mail(self, executor: MailboxExecutor, name: str, chain: Iterable[StreamOperator]) -> None:
        """Wait for one mail and run it. Within :meth:`time_passes`, the clock advances during the wait."""
        end = time.monotonic() + self._limit
        while not executor.try_yield():
            run_ready(chain)
            is_over = time.monotonic() >= end
            now = self._clock.current_processing_time()
            passes = self._passes_until is not None and now < self._passes_until
            if (
                any(isinstance(operator, AsyncKeyedOperator) and operator.has_ready for operator in chain)
                and not is_over
            ):
                continue
            only_time = any(map(waits_for_time, chain))
            if _comes(executor, within=0 if only_time else _REAL if passes else _POLL):
                return
            if passes and self._let_pass(now):
                continue
            if is_over or (only_time and not passes):
                waited = f"has waited {self._limit:g} s for" if is_over else "waits for"
                raise HarnessTimeoutError(
                    f"operator {name!r} {waited} unfinished requests, but the clock stands"
                    f" still at {now}: to let a timeout fire, call run_epoch(time_passes='5 seconds')"
                )

    def _let_pass(self, now: int) -> bool:
        """Set the clock to the next timer. Return False without timers."""
        assert self._passes_until is not None
        due = next((timer for timer in self._clock.active_timer_timestamps() if timer > now), None)
        if due is not None:
            self._clock.set_current_time(min(due, self._passes_until))
        return due is not None


def _comes(executor: MailboxExecutor, *, within: float) -> bool:
    end = time.monotonic() + within
    while not executor.try_yield():
        if time.monotonic() >= end:
            return False
        time.sleep(_POLL)
    return True


class _PatientExecutor:
    """An operator's mailbox executor. A ``Patience`` limits how long it waits."""

    def __init__(
        self, inner: MailboxExecutor, operator: StreamOperator, chain: list[StreamOperator], patience: Patience
    ) -> None:
        self._inner = inner
        self._operator = operator
        self._chain = chain
        self._patience = patience

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def yield_(self) -> None:
        self._patience.await_mail(self._inner, self._operator.name, self._chain)


def run_ready(chain: Iterable[StreamOperator]) -> None:
    async def turns() -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    for operator in chain:
        if isinstance(operator, AsyncWaitOperator):
            operator.in_flight.host.thread.call(turns)
        elif isinstance(operator, AsyncKeyedOperator) and operator.is_open:
            operator.run_ready()
            end = time.monotonic() + _WRITES
            while operator.is_writing and time.monotonic() < end:
                time.sleep(_POLL)
                operator.run_ready()


def waits_for_time(operator: StreamOperator) -> bool:
    return isinstance(operator, AsyncKeyedOperator) and operator.is_unfinished and operator.waits_for_time
