"""What the two streams of ``connected_job.py`` must give, in plain Python."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field

from tests.faults.oracles.model import Model
from tests.faults.programs.connected_job import KNOWN, SPAN, is_dropped, is_fact, is_tick
from tests.faults.programs.job import Event
from tests.faults.programs.join_job import is_left
from tests.faults.programs.window_job import SIZE, SLIDE

__all__ = ["ConnectedModel"]


@dataclass
class _Balance:
    lefts: list[Event] = field(default_factory=list)
    rights: list[Event] = field(default_factory=list)
    count: int = 0
    timers: set[int] = field(default_factory=set)


class ConnectedModel(Model):
    """The balances of all keys, what is held, all facts, and the windows of both sides.

    Faults' places are key and time of the balances' timers, and the ids of what was held.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lefts: defaultdict[int, int] = defaultdict(int)
        self._rights: defaultdict[int, list[int]] = defaultdict(list)
        self._balances: defaultdict[int, _Balance] = defaultdict(_Balance)
        self._held: list[tuple[int, Event]] = []
        self._facts: dict[int, int] = {}
        self._windows: defaultdict[tuple[int, int], list[Event]] = defaultdict(list)

    def record(self, event: Event) -> None:
        """Take a record; what is of this epoch is neither known nor let go."""
        if is_left(event) or not is_dropped(event):
            self._say(27, event, ["left" if is_left(event) else "right", event.id])
        self._take_turns(event)
        self._to_balance(event)
        if is_tick(event):
            for _, held in (each for each in self._held if each[0] < self.watermark):
                self._say(31, held, held.id)
                self.points["released"].append(held.id)
            self._held = [each for each in self._held if each[0] >= self.watermark]
        self._held.append((self.watermark, event))
        known = sorted(fact for fact, since in self._facts.items() if since < self.watermark)
        self._say(32, event, [event.id, known[-KNOWN:]])
        if is_fact(event):
            self._facts[event.id] = self.watermark
        for start in range(event.ts - event.ts % SLIDE, event.ts - SIZE, -SLIDE):
            if start + SIZE - 1 > self.watermark:
                self._windows[event.key, start].append(event)

    def _take_turns(self, event: Event) -> None:
        if is_left(event):
            self._lefts[event.key] += 1
            if self._lefts[event.key] % 2 == 0:
                self._say(28, event, [event.id, self._lefts[event.key]])
            return
        self._rights[event.key].append(event.id)
        if len(self._rights[event.key]) == 3:
            for place, number in enumerate(self._rights.pop(event.key)):
                self._say(28, event, [number, place])

    def _to_balance(self, event: Event) -> None:
        balance = self._balances[event.key]
        end = (event.ts // SPAN + 1) * SPAN
        if is_left(event):
            balance.lefts.append(event)
            balance.timers.add(end)
            return
        balance.rights.append(event)
        balance.count += 1
        balance.timers.add(end + SPAN // 2)
        if balance.count % 4 == 0:
            balance.timers.remove(end + SPAN // 2)
            balance.timers.add(end + SPAN // 2 + SPAN)
        self._say(30, event, [event.id, balance.count])

    def advance(self, watermark: int) -> None:
        """Let event time go on: timers fire, and windows end."""
        before = self.watermark
        super().advance(watermark)
        for key, balance in self._balances.items():
            for timestamp in sorted(at for at in balance.timers if at <= watermark):
                self._settle(key, balance, timestamp)
        for (key, start), events in self._windows.items():
            if before < start + SIZE - 1 <= watermark:
                sides = [sorted(event.id for event in events if is_left(event) == side) for side in (True, False)]
                self.rows.append((33, key, min(event.ts for event in events), json.dumps(sides)))

    def _settle(self, key: int, balance: _Balance, timestamp: int) -> None:
        balance.timers.remove(timestamp)
        self.points["balance timer"].append((key, timestamp))
        state = [sorted(event.id for event in side if event.ts < timestamp) for side in (balance.lefts, balance.rights)]
        self.rows.append((29, key, timestamp, json.dumps(state)))
        balance.lefts = [event for event in balance.lefts if event.ts >= timestamp]
        balance.rights = [event for event in balance.rights if event.ts >= timestamp]
        if not balance.lefts and not balance.rights:
            balance.count = 0

    def _say(self, level: int, event: Event, state: object) -> None:
        self.rows.append((level, event.key, event.ts, json.dumps(state)))
