"""The slots that an event loop has booked from one budget."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any

from pillarbox._errors import BudgetExceededError, CircuitOpenError, ProgramError, shorten
from pillarbox._operators.budgets.account import AccountRefusal, AccountReport
from pillarbox._operators.budgets.budget import Budget, BudgetLimits
from pillarbox._operators.budgets.ledger import NEARLY, LedgerConnection, LedgerSlot

#: A counter's name: for how many milliseconds the next request waited.
RATE_LIMITED = "rate_limited_ms"

#: Counters of a budget, which are attributes of its gates.
BUDGET_COUNTERS = ("granted", "spent", "refused", "stops", "probes", "lost")

# Maximum number of slots in a booking.
_MOST = 500


class BudgetGate:
    """Admits requests when their slots in a budget begin. Loop thread only.

    Attributes:
        stops: pauses that the service requested.
        probes: requests that probed an open circuit breaker.
        lost: slots that expired unused.
    """

    def __init__(self, budget: Budget, limits: BudgetLimits, end: LedgerConnection) -> None:
        self.budget = budget
        self._limits = limits
        self._end = end
        self._slots: deque[LedgerSlot] = deque()
        self._booking: asyncio.Task[None] | None = None
        # Set when a booking is answered with slots or with `_outcome`.
        self._answered = asyncio.Event()
        self._outcome: AccountRefusal | Exception | None = None
        self.granted = self.refused = self.stops = self.probes = self.lost = 0
        self.spent = 0.0
        end.on_void(limits, self._void)

    def estimate_of(self, argument: Any) -> float:
        """Return a request's estimate (units). Raises ``ProgramError`` if it is above the ceiling."""
        estimate, ceiling = self.budget.estimate_of(argument), self._limits.ceiling
        if ceiling is not None and estimate > ceiling:
            raise ProgramError(
                f"Budget {self.budget.name!r}: estimate= returned {estimate:g} units for {shorten(argument)}, which is"
                f" above the ceiling of {ceiling:g}, so the request could never start"
            )
        return estimate

    async def wait(self, waiting: Callable[[], Sequence[float]]) -> None:
        """Wait until the first waiting request may begin.

        Args:
            waiting: returns the estimates of the waiting requests in order, at least one.

        Raises:
            BudgetExceededError: the ceiling is reached (only with ``when_exceeded="fail"``).
            CircuitOpenError: the breaker is open (only with ``when_exceeded="fail"``).
        """
        self._outcome = None  # of an earlier request's booking
        while not self.is_open(waiting()[0]):
            if self._slots:
                await self._end.sleep(self._slots[0].begin - self._end.now())
                continue
            outcome, self._outcome = self._outcome, None
            if isinstance(outcome, Exception):
                raise outcome
            if outcome is not None:
                self.refused += 1
                error = CircuitOpenError if outcome.is_open else BudgetExceededError
                raise error(f"budget {self.budget.name!r}: {outcome.why}")
            self._answered.clear()
            self.book(waiting)
            await self._answered.wait()

    def is_open(self, estimate: float) -> bool:
        slots, now = self._slots, self._end.now()
        while slots and (slots[0].end < now or slots[0].estimate != estimate):
            # It is too late for the slot, or its request was cancelled.
            self.lost += 1
            slot = slots.popleft()
            self._end.report(self._limits, AccountReport(-slot.estimate, unused=(slot.at,), period=slot.period))
        return bool(slots) and slots[0].begin <= now + NEARLY

    def take(self) -> LedgerSlot:
        slot = self._slots.popleft()
        self.granted += 1
        self.probes += slot.probes
        return slot

    def book(self, waiting: Callable[[], Sequence[float]], *, ahead: bool = False) -> None:
        """Book slots or, with ``ahead``, keep booking until at least half of the waiting requests have slots."""
        if (self._booking is None or self._booking.done()) and self._is_short(waiting):
            # A separate task, because it must survive the request's cancellation.
            loop = asyncio.get_running_loop()
            self._booking = Context().run(loop.create_task, self._book(waiting, ahead))

    def _is_short(self, waiting: Callable[[], Sequence[float]]) -> bool:
        return len(waiting()) > 2 * len(self._slots)

    async def _book(self, waiting: Callable[[], Sequence[float]], ahead: bool) -> None:
        # Books again immediately, before other loops take the slots.
        while self._is_short(waiting) and self._outcome is None:
            try:
                booking: list[LedgerSlot] | AccountRefusal | Exception = await self._end.book(
                    self._limits, waiting()[len(self._slots) :][:_MOST]
                )
            except Exception as error:
                booking = error
            if isinstance(booking, list):
                self._slots.extend(booking)
            else:
                self._outcome = booking
            self._answered.set()
            if not ahead:
                return

    def end(self, slot: LedgerSlot, cost: float, *, succeeded: bool, stop: float | None = None) -> None:
        self.spent += cost
        counts = self._limits.breaker is not None and not slot.probes and stop is None
        units = cost - slot.estimate
        if stop is not None:
            self.stops += 1
            self._void()
        if units or counts or slot.probes or stop is not None:
            outcomes = (succeeded,) if counts else ()
            probe = succeeded if slot.probes else None
            self._end.report(self._limits, AccountReport(units, outcomes, probe, stop, period=slot.period))

    def close(self) -> None:
        if self._booking is not None:
            self._booking.cancel()
        self._void()

    def _void(self) -> None:
        while self._slots:
            slot = self._slots.pop()
            self._end.report(self._limits, AccountReport(-slot.estimate, unused=(slot.at,), period=slot.period))
