"""The expected output of the fault tests' program, computed without pillarbox."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.faults.oracles.ledger_oracle import Accounts
from tests.faults.parts.part import BEGINNING, Model, Part, rows_of
from tests.faults.programs.job import HEARTBEAT, MINUTE, OUT_OF_ORDER, REGIONS, Epoch, Row

__all__ = ["Answer", "answer"]


@dataclass
class _Region:
    n: int = 0
    by_key: dict[int, int] = field(default_factory=dict)
    timers: set[int] = field(default_factory=set)


@dataclass
class Answer:
    """The expected output of a program, and its fault points.

    Attributes:
        output: the sorted rows of each batch.
        points: fault point -> the events that reach it in each batch.
        totals: for each batch, the sum of ids in the state of each ``Ledger`` key after it.
    """

    output: dict[int, list[Row]] = field(default_factory=dict)
    points: dict[str, list[list[Any]]] = field(default_factory=dict)
    totals: list[dict[int, int]] = field(default_factory=list)


class _Program:
    def __init__(self, further: Sequence[Model]) -> None:
        self.ledger = Accounts("timer")
        self.ledger.name = "ledger"
        # Effects of event time and of the source, in this order.
        self.models: list[Model] = [self.ledger, *further]
        self.regions: dict[int, _Region] = {}
        self.watermark = BEGINNING
        self.totals: list[dict[int, int]] = []

    def epoch(self, parts: Epoch) -> tuple[list[Row], dict[str, list[Any]]]:
        ids = [event.id for part in parts for event in part]
        events = [event for part in parts for event in part if event.key != HEARTBEAT]
        for event in events:
            for model in self.models:
                model.record(event)
        for model in self.models:
            model.end_of_input()
        marks = [max(event.ts for event in part) - OUT_OF_ORDER - 1 for part in parts if part]
        advanced = bool(marks) and min(marks) > self.watermark
        if advanced:
            self.watermark = min(marks)
            for model in self.models:
                model.advance(self.watermark)
        rows, passed = self._regions(advanced=advanced)
        last = {event.key: event.id for event in events}
        points = defaultdict(list, passed)
        points |= {
            "source": ids,
            "element": [event.id for event in events],
            "changed": [event.id for event in events],
            "snapshot": [number for key, number in last.items() if key in self.ledger.accounts],
        }
        self.totals.append({key: sum(account.ids) for key, account in self.ledger.accounts.items()})
        return rows + rows_of(self.models, points), points

    def _regions(self, *, advanced: bool) -> tuple[list[Row], dict[str, list[Any]]]:
        emitted, self.ledger.emitted = self.ledger.emitted, []
        for key, timestamp, n in emitted:
            region = self.regions.setdefault(key % REGIONS, _Region())
            region.n += n
            region.by_key[key] = region.by_key.get(key, 0) + 1
            region.timers.add((timestamp // (2 * MINUTE) + 1) * 2 * MINUTE)
        rows: list[Row] = []
        fired: list[tuple[int, int]] = []
        for number, region in self.regions.items() if advanced else ():
            for timestamp in sorted(at for at in region.timers if at <= self.watermark):
                region.timers.discard(timestamp)
                fired.append((number, timestamp))
                state = {"n": region.n, "by_key": sorted(region.by_key.items())}
                rows.append(("region", number, timestamp, json.dumps(state)))
                if len(region.by_key) > 4:
                    region.by_key = {}
        return rows, {"second": [(key, timestamp) for key, timestamp, _ in emitted], "second timer": fired}


def answer(epochs: Sequence[Epoch], parts: Sequence[Part] = ()) -> Answer:
    program = _Program([part.new_model() for part in parts])
    results = [program.epoch(events) for events in epochs]
    places = {point: None for _, points in results for point, passed in points.items() if passed}
    return Answer(
        {batch: sorted(rows) for batch, (rows, _) in enumerate(results)},
        {point: [points.get(point, []) for _, points in results] for point in places},
        program.totals,
    )
