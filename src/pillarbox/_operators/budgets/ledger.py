"""Accounts of budgets' requests and costs."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pillarbox._operators.budgets.account import LATE, Account, AccountRefusal, AccountReport, AccountRetry
from pillarbox._operators.budgets.budget import BudgetLimits
from pillarbox._time.clock import ProcessingTimeService
from pillarbox._time.system_clock import system_clock_ms

#: A time at most this far ahead (seconds) counts as now, because times are inexact sums of fractions.
NEARLY = 1e-6


class LedgerSlot(NamedTuple):
    """A time slot for the start of a request.

    Attributes:
        begin: the slot's start on the event loop's clock (seconds).
        probes: whether the request is a probe of an open circuit breaker.
        at: the slot's start on the ledger's clock (seconds).
        period: when the ceiling's period began (Unix time in ms), or -1 without a ceiling.
    """

    begin: float
    end: float
    estimate: float
    probes: bool
    at: float
    period: int = -1


class LedgerConnection(ABC):
    """An event loop's access to a ledger. Loop thread only."""

    #: Returns the time on the slots' clock (seconds).
    now: Callable[[], float]

    @abstractmethod
    async def book(self, limits: BudgetLimits, estimates: Sequence[float]) -> list[LedgerSlot] | AccountRefusal:
        """Wait until a slot is free, and book slots for some or all of the requests, from the first."""

    @abstractmethod
    def report(self, limits: BudgetLimits, report: AccountReport) -> None: ...

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Sleep, as measured by the slots' clock."""

    def on_void(self, limits: BudgetLimits, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the budget's booked but unused slots become void."""

    def close(self) -> None: ...


class Ledger(ABC):
    """Holds the accounts of all budgets."""

    @abstractmethod
    def open(self) -> LedgerConnection: ...


class LocalLedger(Ledger, LedgerConnection):
    """A ledger whose accounts are in this process. Thread-safe."""

    def __init__(self, clock: ProcessingTimeService | None = None) -> None:
        self._clock = clock
        self._accounts: dict[BudgetLimits, Account] = {}
        self._lock = threading.Lock()
        self.now = time.monotonic if clock is None else lambda: clock.relative_time_millis() / 1000

    def open(self) -> LedgerConnection:
        return self

    def account(self, limits: BudgetLimits) -> Account:
        account = self._accounts.get(limits)
        if account is None:
            account = self._accounts[limits] = Account(limits, self.now())
        return account

    async def book(self, limits: BudgetLimits, estimates: Sequence[float]) -> list[LedgerSlot] | AccountRefusal:
        while True:
            with self._lock:
                wall = system_clock_ms() if self._clock is None else self._clock.current_processing_time()
                booking = self.account(limits).book(estimates, self.now(), wall)
            if isinstance(booking, AccountRefusal):
                return booking
            if not isinstance(booking, AccountRetry):
                return [
                    LedgerSlot(at, at + LATE, estimate, booking.probes, at, booking.period)
                    for at, estimate in zip(booking.times, estimates)
                ]
            await self.sleep(booking.at - self.now())

    def report(self, limits: BudgetLimits, report: AccountReport) -> None:
        with self._lock:
            self.account(limits).settle(report, self.now())

    async def sleep(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        # An async keyed function's loop follows the manual clock, so its harness can stop at this time.
        if self._clock is None or loop.time() == self.now():
            await asyncio.sleep(seconds)
            return
        woken = loop.create_future()

        def done() -> None:
            if not woken.done():
                woken.set_result(None)

        def wake(timestamp: int) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(done)

        until = self._clock.current_processing_time() + math.ceil(1000 * seconds - 1000 * NEARLY)
        timer = self._clock.register_timer(until, wake)
        try:
            await woken
        finally:
            timer.cancel()


@dataclass(frozen=True)
class LedgerScope:
    """The scope of a task's budgets: one task, or all tasks of the query (with a shared ledger).

    Attributes:
        ledger: the ledger that all tasks of the query share, or None if they divide the limits equally.
        partitions: the maximum number of concurrent tasks of an operator chain after the shuffle.
    """

    ledger: Ledger | None = None
    partitions: int = 1
    clock: ProcessingTimeService | None = field(default=None, compare=False)

    def tasks(self, parallelism: int, slots: int) -> int:
        return min(parallelism, self.partitions) if parallelism else slots
