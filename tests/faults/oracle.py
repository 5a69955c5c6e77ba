"""What the program of the fault tests must give, worked out in plain Python without anything of pillarbox."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.faults.columns_oracle import ColumnModel
from tests.faults.job import END, HEARTBEAT, MINUTE, OUT_OF_ORDER, REGIONS, Epoch, Event, Row
from tests.faults.join_oracle import JoinModel
from tests.faults.window_oracle import WindowModel


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


@dataclass
class _Region:
    n: int = 0
    by_key: dict[int, int] = field(default_factory=dict)
    timers: set[int] = field(default_factory=set)


@dataclass
class Answer:
    """What is to come out, and where faults can be put.

    Attributes:
        output: the rows of each batch, sorted.
        timers: key and timestamp of the timers of level 1 that fire in each batch; ``second_timers`` of level 2.
        windows: key and start of the windows that fire in each batch.
        pairs: ids of both records of the pairs of each batch; ``rules`` those of rules; ``ruled`` key and time of what
            has waited for them.
        second: key and timestamp of the records that reach level 2 in each batch.
        last_of_key: ids of the records that are their key's last in a batch: what snapshots see.
    """

    output: dict[int, list[Row]] = field(default_factory=dict)
    timers: list[list[tuple[int, int]]] = field(default_factory=list)
    second: list[list[tuple[int, int]]] = field(default_factory=list)
    second_timers: list[list[tuple[int, int]]] = field(default_factory=list)
    last_of_key: list[list[int]] = field(default_factory=list)
    windows: list[list[tuple[int, int]]] = field(default_factory=list)
    pairs: list[list[tuple[int, int]]] = field(default_factory=list)
    rules: list[list[int]] = field(default_factory=list)
    ruled: list[list[tuple[int, int]]] = field(default_factory=list)


class _Model:
    def __init__(self, further: Sequence[WindowModel | JoinModel | ColumnModel]) -> None:
        self.further = further
        self.accounts: dict[int, _Account] = {}
        self.regions: dict[int, _Region] = {}
        self.watermark = -(2**63)
        self.rows: list[Row] = []
        self.emitted: list[tuple[int, int, int]] = []
        self.fired: list[tuple[int, int]] = []
        self.fired_second: list[tuple[int, int]] = []

    def emit(self, key: int, timestamp: int) -> None:
        account = self.accounts[key]
        self.rows.append((1, key, timestamp, json.dumps(account.state())))
        self.emitted.append((key, timestamp, len(account.ids)))

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
            self.emit(event.key, event.ts)

    def timer(self, key: int, timestamp: int) -> None:
        account = self.accounts[key]
        account.timers.discard(timestamp)
        self.fired.append((key, timestamp))
        self.emit(key, timestamp)
        account.minutes = {m: n for m, n in account.minutes.items() if (m + 1) * MINUTE > timestamp}
        if len(account.ids) % 2 == 0:
            account.recent = account.recent[-2:]
        if len(account.ids) % 5 == 0:
            del self.accounts[key]

    def epoch(self, parts: Epoch) -> None:
        self.rows, self.emitted, self.fired, self.fired_second = [], [], [], []
        for part in parts:
            for event in part:
                if event.key != HEARTBEAT:
                    self.record(event)
                    for model in self.further:
                        model.record(event)
        for model in self.further:
            if isinstance(model, ColumnModel):
                model.end_of_input()
        marks = [max(event.ts for event in part) - OUT_OF_ORDER - 1 for part in parts if part]
        advanced = bool(marks) and min(marks) > self.watermark
        if advanced:
            self.watermark = min(marks)
            for model in self.further:
                model.advance(self.watermark)
            for key in list(self.accounts):
                while key in self.accounts and self._due(self.accounts[key].timers):
                    self.timer(key, self._due(self.accounts[key].timers)[0])
        for key, timestamp, n in self.emitted:
            region = self.regions.setdefault(key % REGIONS, _Region())
            region.n += n
            region.by_key[key] = region.by_key.get(key, 0) + 1
            region.timers.add((timestamp // (2 * MINUTE) + 1) * 2 * MINUTE)
        if advanced:
            for number, region in self.regions.items():
                for timestamp in self._due(region.timers):
                    region.timers.discard(timestamp)
                    self.fired_second.append((number, timestamp))
                    state = {"n": region.n, "by_key": sorted(region.by_key.items())}
                    self.rows.append((2, number, timestamp, json.dumps(state)))
                    if len(region.by_key) > 4:
                        region.by_key = {}

        for model in self.further:
            self.rows += model.rows
            model.rows = []

    def _due(self, timers: set[int]) -> list[int]:
        return sorted(timestamp for timestamp in timers if timestamp <= self.watermark)


def answer(epochs: Sequence[Epoch], *, windows: bool = False, joins: bool = False, columns: bool = False) -> Answer:
    """Work out what is to come out, also of windows, of joins, and of those of columns where the program has them."""
    of_windows, of_joins = WindowModel() if windows else None, JoinModel() if joins else None
    of_columns = ColumnModel() if columns else None
    model = _Model([further for further in (of_windows, of_joins, of_columns) if further is not None])
    result = Answer()
    for batch, parts in enumerate(epochs):
        model.epoch(parts)
        result.output[batch] = sorted(model.rows)
        result.timers.append(model.fired)
        result.second.append([(key, timestamp) for key, timestamp, _ in model.emitted])
        result.second_timers.append(model.fired_second)
        if of_windows is not None:
            result.windows.append(of_windows.fired)
            of_windows.fired = []
        if of_joins is not None:
            result.pairs.append(of_joins.pairs)
            result.rules.append(of_joins.rules)
            result.ruled.append(of_joins.fired)
            of_joins.pairs, of_joins.rules, of_joins.fired = [], [], []
        last = {event.key: event.id for part in parts for event in part if event.key != HEARTBEAT}
        result.last_of_key.append([number for key, number in last.items() if key in model.accounts])
    return result


def points_of(epochs: Sequence[Epoch], right: Answer) -> dict[str, list[list[Any]]]:
    """Return where faults can be put: of each place, what passes by there in each epoch."""
    ids = [[event.id for part in parts for event in part] for parts in epochs]
    points: dict[str, list[list[Any]]] = {}
    if right.windows:
        points = {"window": [*right.windows]}
    if right.pairs:
        points |= {"pair": [*right.pairs], "rule": [*right.rules], "rule timer": [*right.ruled]}
    return {
        **points,
        "source": ids,
        "element": ids[:-1],
        "changed": ids[:-1],
        "snapshot": right.last_of_key,
        "timer": right.timers,
        "second": right.second,
        "second timer": right.second_timers,
    }
