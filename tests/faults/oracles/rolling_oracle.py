"""What the folds of ``rolling_job.py`` must give, in plain Python."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence

from tests.faults.oracles.model import Model
from tests.faults.programs.job import HEARTBEAT, Epoch, Event
from tests.faults.programs.rolling_job import LIMIT, WITHIN, has_no_key, mixed, name_of

__all__ = ["RollingModel", "first_sums_answer"]


class RollingModel(Model):
    """The fold of each key, its latest record, and what is remembered.

    A fault's place is the id of a record that is folded into others.
    """

    def __init__(self) -> None:
        super().__init__()
        self._mixed: dict[int, int] = {}
        self._latest: dict[int, Event] = {}
        self._forget_at: dict[tuple[int, int], int] = {}

    def record(self, event: Event) -> None:
        """Take a record."""
        for part in range(event.id % 3):
            self._say(34, event, [event.id, part])
        if has_no_key(event):
            self._say(36, event, [event.id, None, f"ValueError: {event.id} has no key"])
        else:
            so_far = self._mixed.get(event.key)
            if so_far is not None:
                self.points["reduced"].append(event.id)
            self._mixed[event.key] = event.id if so_far is None else mixed(so_far, event.id)
            self._say(35, event, self._mixed[event.key])
        latest = self._latest.get(event.key)
        if latest is None or event.ts > latest.ts:
            latest = self._latest[event.key] = event
        self._say(37, latest, latest.id)
        if name_of(event) not in self._forget_at:
            self._forget_at[name_of(event)] = event.ts + WITHIN
            self._say(38, event, event.id)

    def advance(self, watermark: int) -> None:
        """Let event time go on: names are forgotten."""
        super().advance(watermark)
        self._forget_at = {name: at for name, at in self._forget_at.items() if at > watermark}

    def _say(self, level: int, event: Event, state: object) -> None:
        self.rows.append((level, event.key, event.ts, json.dumps(state)))


def first_sums_answer(epochs: Sequence[Epoch]) -> list[list[int]]:
    """Work out the first results of the bounded program, which reads the events in the order of epochs."""
    sums: defaultdict[int, int] = defaultdict(int)
    found = []
    for event in (event for parts in epochs for part in parts for event in part if event.key != HEARTBEAT):
        sums[event.key] += event.id
        found.append([event.key, sums[event.key]])
    return found[:LIMIT]
