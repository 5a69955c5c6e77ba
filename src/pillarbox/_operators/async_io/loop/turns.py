"""Rate limits and budgets of an event loop."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any

from pillarbox._operators.async_io.api.retry import retry_after_millis
from pillarbox._operators.budgets.account import LATE, STOP
from pillarbox._operators.budgets.budget import Budget
from pillarbox._operators.budgets.gate import BUDGET_COUNTERS, BudgetGate
from pillarbox._operators.budgets.ledger import LedgerConnection, LedgerScope, LedgerSlot, LocalLedger

_LINE = 500


class Turns:
    """Makes each request of an event loop wait until all its budgets allow it. Loop thread only."""

    def __init__(self, own: Budget | None, shared: Sequence[Budget], scope: LedgerScope, uid: str, tasks: int) -> None:
        self._gates: list[BudgetGate] = []
        self._ends: list[LedgerConnection] = []
        if own is not None:
            end = self._open(LocalLedger(scope.clock))
            self._gates.append(BudgetGate(own, own.limits, end))
        if shared:
            end = self._open(scope.ledger or LocalLedger(scope.clock))
            for budget in shared:
                limits = budget.limits.of_operator(uid)
                self._gates.append(BudgetGate(budget, limits if scope.ledger else limits.shared_by(max(1, tasks)), end))
        self._first = 0
        self._lock = asyncio.Lock()
        # Estimates of the waiting requests, in order. Each has a number per gate.
        self._line: dict[object, list[float]] = {}
        # Number of waiting requests by owner.
        self._owners: Counter[object] = Counter()
        self.waited = 0.0
        self._told = 0.0
        self._counts: dict[str, float] = {}

    def _open(self, ledger: Any) -> LedgerConnection:
        end: LedgerConnection = ledger.open()
        self._ends.append(end)
        return end

    async def take(self, argument: Any, owner: object = None) -> list[LedgerSlot]:
        """Wait until a request may begin, and return its slots. Raises if a budget refuses the request."""
        request = object()
        estimates = self._line[request] = [gate.estimate_of(argument) for gate in self._gates]
        self._owners[owner] += 1
        try:
            async with self._lock:
                # A slot may expire while the request waits for another gate.
                while not all(map(BudgetGate.is_open, self._gates, estimates)):
                    await self._wait()
                slots = [gate.take() for gate in self._gates]
        finally:
            del self._line[request]
            self._owners[owner] -= 1
            if not self._owners[owner]:
                del self._owners[owner]
        if self._line:
            self._gates[self._first].book(partial(self._waiting, self._first), ahead=True)
        return slots

    async def _wait(self) -> None:
        began = time.monotonic()
        try:
            for index in sorted(range(len(self._gates)), key=lambda index: index != self._first):
                at = self._ends[0].now()
                await self._gates[index].wait(partial(self._waiting, index))
                if self._ends[0].now() - at > LATE:
                    self._first = index
        finally:
            self.waited += time.monotonic() - began

    def has_request_of(self, owner: object) -> bool:
        return owner in self._owners

    def _waiting(self, index: int) -> Sequence[float]:
        return [estimates[index] for estimates in islice(self._line.values(), _LINE)]

    def succeeded(self, slots: Sequence[LedgerSlot], result: Any) -> None:
        for gate, slot in zip(self._gates, slots):
            gate.end(slot, gate.budget.cost_of(result, slot.estimate), succeeded=True)

    def failed(self, slots: Sequence[LedgerSlot], error: BaseException) -> None:
        """Charge a failed request's estimate. An error with 429 or ``Retry-After`` is free, and pauses the budgets."""
        stop = retry_after_millis(error) / 1000 or (STOP if _is_429(error) else None)
        for gate, slot in zip(self._gates, slots):
            gate.end(slot, slot.estimate if stop is None else 0, succeeded=False, stop=stop)

    def answered(self, slots: Sequence[LedgerSlot]) -> None:
        """Charge the estimate of a request that the service answered with an error."""
        for gate, slot in zip(self._gates, slots):
            gate.end(slot, slot.estimate, succeeded=True)

    def take_waited(self) -> float:
        waited, self._told = self.waited - self._told, self.waited
        return waited

    def take_counts(self) -> dict[str, int]:
        counts = {}
        for gate in self._gates:
            for what in BUDGET_COUNTERS:
                name, now = f"budget.{gate.budget.name}.{what}", getattr(gate, what)
                counts[name] = round(now - self._counts.get(name, 0))
                self._counts[name] = self._counts.get(name, 0) + counts[name]
        return counts

    def close(self) -> None:
        for gate in self._gates:
            gate.close()
        for end in self._ends:
            end.close()


def _is_429(error: BaseException) -> bool:
    holders = (error, getattr(error, "response", None))
    return any(getattr(holder, name, None) == 429 for holder in holders for name in ("status", "status_code", "code"))
