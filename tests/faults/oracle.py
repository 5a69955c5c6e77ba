"""What the program of the fault tests must give, worked out in plain Python without anything of pillarbox."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.faults.columns_oracle import ColumnModel
from tests.faults.job import HEARTBEAT, MINUTE, OUT_OF_ORDER, REGIONS, Epoch, Row
from tests.faults.join_oracle import JoinModel
from tests.faults.ledger_oracle import Accounts
from tests.faults.letters_oracle import LettersModel
from tests.faults.window_oracle import WindowModel


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
        refused: ids of the records that become dead letters under their key in each batch.
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
    refused: list[list[int]] = field(default_factory=list)


class _Model:
    def __init__(self, further: Sequence[WindowModel | JoinModel | ColumnModel | LettersModel]) -> None:
        self.ledger = Accounts(1)
        # What event time and the source bring, in this order.
        self.models = [self.ledger, *further]
        self.regions: dict[int, _Region] = {}
        self.watermark = -(2**63)
        self.rows: list[Row] = []
        self.fired_second: list[tuple[int, int]] = []

    def epoch(self, parts: Epoch) -> None:
        self.rows, self.fired_second = [], []
        self.ledger.emitted, self.ledger.fired = [], []
        for part in parts:
            for event in part:
                if event.key != HEARTBEAT:
                    for model in self.models:
                        model.record(event)
        for model in self.models:
            if isinstance(model, ColumnModel):
                model.end_of_input()
        marks = [max(event.ts for event in part) - OUT_OF_ORDER - 1 for part in parts if part]
        advanced = bool(marks) and min(marks) > self.watermark
        if advanced:
            self.watermark = min(marks)
            for model in self.models:
                model.advance(self.watermark)
        for key, timestamp, n in self.ledger.emitted:
            region = self.regions.setdefault(key % REGIONS, _Region())
            region.n += n
            region.by_key[key] = region.by_key.get(key, 0) + 1
            region.timers.add((timestamp // (2 * MINUTE) + 1) * 2 * MINUTE)
        if advanced:
            for number, region in self.regions.items():
                for timestamp in sorted(at for at in region.timers if at <= self.watermark):
                    region.timers.discard(timestamp)
                    self.fired_second.append((number, timestamp))
                    state = {"n": region.n, "by_key": sorted(region.by_key.items())}
                    self.rows.append((2, number, timestamp, json.dumps(state)))
                    if len(region.by_key) > 4:
                        region.by_key = {}
        for model in self.models:
            self.rows += model.rows
            model.rows = []


def answer(
    epochs: Sequence[Epoch],
    *,
    windows: bool = False,
    joins: bool = False,
    columns: bool = False,
    letters: bool = False,
) -> Answer:
    """Work out what is to come out, also of what the program has beside its own."""
    of_windows, of_joins = WindowModel() if windows else None, JoinModel() if joins else None
    of_columns, of_letters = ColumnModel() if columns else None, LettersModel() if letters else None
    further = (of_windows, of_joins, of_columns, of_letters)
    model = _Model([each for each in further if each is not None])
    result = Answer()
    for batch, parts in enumerate(epochs):
        model.epoch(parts)
        result.output[batch] = sorted(model.rows)
        result.timers.append(model.ledger.fired)
        result.second.append([(key, timestamp) for key, timestamp, _ in model.ledger.emitted])
        result.second_timers.append(model.fired_second)
        if of_windows is not None:
            result.windows.append(of_windows.fired)
            of_windows.fired = []
        if of_joins is not None:
            result.pairs.append(of_joins.pairs)
            result.rules.append(of_joins.rules)
            result.ruled.append(of_joins.fired)
            of_joins.pairs, of_joins.rules, of_joins.fired = [], [], []
        if of_letters is not None:
            result.refused.append(of_letters.refused)
            of_letters.refused = []
        last = {event.key: event.id for part in parts for event in part if event.key != HEARTBEAT}
        result.last_of_key.append([number for key, number in last.items() if key in model.ledger.accounts])
    return result


def points_of(epochs: Sequence[Epoch], right: Answer) -> dict[str, list[list[Any]]]:
    """Return where faults can be put: of each place, what passes by there in each epoch."""
    ids = [[event.id for part in parts for event in part] for parts in epochs]
    points: dict[str, list[list[Any]]] = {}
    if right.windows:
        points = {"window": [*right.windows]}
    if right.pairs:
        points |= {"pair": [*right.pairs], "rule": [*right.rules], "rule timer": [*right.ruled]}
    if right.refused:
        points |= {"letter": [*right.refused]}
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
