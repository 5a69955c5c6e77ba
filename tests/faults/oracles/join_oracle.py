"""What the joins and rules of ``join_job.py`` must give, in plain Python."""

from __future__ import annotations

import json
from collections import defaultdict

from tests.faults.oracles.model import Model
from tests.faults.programs.job import Event
from tests.faults.programs.join_job import JOINED, Joined, is_left, is_right, is_rule, is_ruled


class JoinModel(Model):
    """All records that were not late, all rules, and what waits for its time.

    Faults' places are the ids of pairs, those of rules, and key and time of what had waited for them.
    """

    def __init__(self, joined: Joined = JOINED) -> None:
        super().__init__()
        self._bounds = joined.bounds
        self._lefts: defaultdict[int, list[Event]] = defaultdict(list)
        self._rights: defaultdict[int, list[Event]] = defaultdict(list)
        self._in_force: dict[int, int] = {}
        self._all_rules: list[Event] = []
        self._waiting: defaultdict[tuple[int, int], list[int]] = defaultdict(list)

    def record(self, event: Event) -> None:
        """Take a record, which is late or not by the watermark so far."""
        if event.ts < self.watermark:
            self.rows.append((8, event.key, event.ts, json.dumps(event.id)))
        else:
            if is_left(event):
                self._lefts[event.key].append(event)
                found = [(event, right) for right in self._rights[event.key]]
            else:
                assert is_right(event)
                self._rights[event.key].append(event)
                found = [(left, event) for left in self._lefts[event.key]]
            for left, right in found:
                if self._bounds[0] <= right.ts - left.ts <= self._bounds[1]:
                    self.points["pair"].append((left.id, right.id))
                    self.rows.append((7, event.key, max(left.ts, right.ts), json.dumps([left.id, right.id])))
        if is_ruled(event):
            self._waiting[event.key, event.ts].append(event.id)
        if is_rule(event):
            self.points["rule"].append(event.id)
            self._all_rules.append(event)
            self._in_force[event.ts] = max(event.id, self._in_force.get(event.ts, 0))
            for at in sorted(at for at in self._in_force if at <= self.watermark)[:-1]:
                del self._in_force[at]

    def advance(self, watermark: int) -> None:
        """Let event time go on: what waits is told its rules."""
        self.watermark = watermark
        for key, at in sorted(place for place in self._waiting if place[1] <= watermark):
            rule = max((since for since in self._in_force if since <= at), default=None)
            state = [
                sorted(self._waiting.pop((key, at))),
                None if rule is None else self._in_force[rule],
                sorted(each.id for each in self._all_rules if each.ts <= at),
            ]
            self.points["rule timer"].append((key, at))
            self.rows.append((9, key, at, json.dumps(state)))
