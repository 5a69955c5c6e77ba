"""The expected output of ``Ledger`` in ``job.py``, computed by a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.faults.parts.part import Model
from tests.faults.programs.job import END, MINUTE, Event

__all__ = ["Accounts"]


@dataclass
class _Account:
    ids: list[int] = field(default_factory=list)
    recent: list[int] = field(default_factory=list)
    minutes: dict[int, int] = field(default_factory=dict)
    timers: set[int] = field(default_factory=set)

    def state(self) -> dict[str, Any]:
        return {
            "n": len(self.ids),
            "recent": self.recent,
            "minutes": sorted(self.minutes.items()),
            "total": sum(self.ids),
            "mean": sum(self.ids) / len(self.ids),
        }


class Accounts(Model):
    """A model of the states of all keys in ``Ledger``.

    Args:
        point: name of the fault point of timers.

    Attributes:
        emitted: each row's key, timestamp, and number of records so far with this key.
    """

    def __init__(self, point: str) -> None:
        super().__init__()
        self._place = point
        self.accounts: dict[int, _Account] = {}
        self.emitted: list[tuple[int, int, int]] = []

    def record(self, event: Event) -> None:
        account = self.accounts.setdefault(event.key, _Account())
        account.ids.append(event.id)
        account.recent.append(event.id)
        minute = event.ts // MINUTE
        account.minutes[minute] = account.minutes.get(minute, 0) + 1
        account.timers |= {(minute + 1) * MINUTE, END}
        if len(account.ids) % 4 == 0:
            account.timers.discard((minute + 1) * MINUTE)
            account.timers.add((minute + 3) * MINUTE)
        if len(account.ids) % 3 == 0:
            self._emit(event.key, event.ts)

    def advance(self, watermark: int) -> None:
        super().advance(watermark)
        for key in list(self.accounts):
            while key in self.accounts and (due := [at for at in self.accounts[key].timers if at <= watermark]):
                timestamp = min(due)
                self.accounts[key].timers.discard(timestamp)
                self.points[self._place].append((key, timestamp))
                self.timer(key, timestamp)

    def timer(self, key: int, timestamp: int) -> None:
        account = self.accounts[key]
        self._emit(key, timestamp)
        account.minutes = {m: n for m, n in account.minutes.items() if (m + 1) * MINUTE > timestamp}
        if len(account.ids) % 2 == 0:
            account.recent = account.recent[-2:]
        if len(account.ids) % 5 == 0:
            del self.accounts[key]

    def _emit(self, key: int, timestamp: int) -> None:
        account = self.accounts[key]
        self.say(key, timestamp, account.state())
        self.emitted.append((key, timestamp, len(account.ids)))
