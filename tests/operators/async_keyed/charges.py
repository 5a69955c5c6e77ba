"""A service that charges for calls of async keyed functions, and detects wrong calls."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from typing import Any

from pillarbox import CALL_AGAIN

# Steps of a record.
STEPS = 5


class Charges:
    """The service, which outlives the functions' crashes.

    Args:
        has_journal: whether answers outlive a failed epoch.

    Attributes:
        commits: number of checkpoints so far.
        keys: idempotency keys, by their calls' arguments.
    """

    def __init__(self, seed: int, *, has_journal: bool = False) -> None:
        self._has_journal = has_journal
        self._rng = random.Random(seed)
        self.commits = 0
        self.keys: defaultdict[Any, set[str]] = defaultdict(set)
        self.faults: list[str] = []
        self._arguments: dict[str, Any] = {}
        self._payers: dict[str, Any] = {}
        # By idempotency key, the checkpoints before the first call, and before the first answer.
        self._begun: dict[str, int] = {}
        self._answered: dict[str, int] = {}

    async def charge(self, *arguments: Any, idempotency_key: str) -> Any:
        if self._arguments.setdefault(idempotency_key, arguments) != arguments:
            self.faults.append(f"one key for {arguments} and {self._arguments[idempotency_key]}")
        is_recorded = idempotency_key in (self.keys[arguments] if is_reconciled(arguments[1]) else self._payers)
        if self._has_journal and is_recorded:
            self.faults.append(f"{arguments} again, which the journal has")
        recorded = self._begun if is_reconciled(arguments[1]) else self._answered
        if recorded.get(idempotency_key, self.commits) < self.commits:
            self.faults.append(f"{arguments} again, {self.commits - recorded[idempotency_key]} checkpoints later")
        self.keys[arguments].add(idempotency_key)
        self._begun.setdefault(idempotency_key, self.commits)
        wait = self._rng.random()
        if wait < 0.7:
            await asyncio.sleep(0 if wait < 0.3 else self._rng.randrange(1, 40) / 1000)
        self._answered.setdefault(idempotency_key, self.commits)
        return arguments, idempotency_key

    async def find(self, idempotency_key: str, *arguments: Any) -> Any:
        await asyncio.sleep(0)
        return (arguments, idempotency_key) if idempotency_key in self._arguments else CALL_AGAIN

    def use(self, idempotency_key: str, payer: Any) -> None:
        if self._payers.setdefault(idempotency_key, payer) != payer:
            self.faults.append(f"one payment of {payer} and {self._payers[idempotency_key]}")

    def crash(self) -> None:
        for times in (self._begun, self._answered):
            for key in [key for key, commits in times.items() if commits == self.commits]:
                del times[key]

    def wrong_keys(self, records: Counter[Any]) -> list[str]:
        wrong = []
        for (key, x, half), keys in self.keys.items():
            calls = records[key, x] * payments(x) * sum(is_paid(x, step) and step // 2 == half for step in range(STEPS))
            if records[key, x] and len(keys) != calls:
                wrong.append(f"{len(keys)} idempotency keys for {calls} calls of {key, x}")
        return wrong


def is_reconciled(x: int) -> bool:
    return x % 3 == 0


def is_paid(x: int, step: int) -> bool:
    return (x + step) % 4 == 0


def payments(x: int) -> int:
    return 1 + x % 2
