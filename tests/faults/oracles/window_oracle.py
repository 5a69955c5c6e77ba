"""What the windows of ``window_job.py`` must give, in plain Python: each window is its list of ids."""

from __future__ import annotations

import json
from collections import defaultdict

from tests.faults.oracles.model import Model
from tests.faults.programs.job import Event
from tests.faults.programs.window_job import GAP, LATENESS, SESSION_LATENESS, SIZE, SLIDE, TUMBLING


class WindowModel(Model):
    """All windows of all keys; a fault's place is key and start of those that fire."""

    def __init__(self) -> None:
        super().__init__()
        self._tumbling: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        self._totals: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        self._sliding: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        self._sessions: defaultdict[int, list[tuple[int, int, list[int]]]] = defaultdict(list)

    def record(self, event: Event) -> None:
        """Take a record, which is late or not by the watermark so far."""
        start = event.ts - event.ts % TUMBLING
        if start + TUMBLING - 1 + LATENESS <= self.watermark:
            self.rows.append((6, event.key, event.ts, json.dumps(event.id)))
        else:
            ids = self._tumbling[event.key, start]
            ids.append(event.id)
            if start + TUMBLING - 1 <= self.watermark:
                self._say(3, event.key, start, start + TUMBLING, ids)
            else:
                self._totals[event.key, start].append(event.id)
        for start in range(event.ts - event.ts % SLIDE, event.ts - SIZE, -SLIDE):
            if start + SIZE - 1 > self.watermark:
                self._sliding[event.key, start].append(event.id)
        self._to_session(event)

    def _to_session(self, event: Event) -> None:
        ids: list[int] = []
        start, end = event.ts, event.ts + GAP
        apart = []
        for session in self._sessions[event.key]:
            if session[0] <= end and session[1] >= start:
                start, end, ids = min(start, session[0]), max(end, session[1]), [*ids, *session[2]]
            else:
                apart.append(session)
        if end - 1 + SESSION_LATENESS <= self.watermark:
            return
        ids.append(event.id)
        self._sessions[event.key] = [*apart, (start, end, ids)]
        if end - 1 <= self.watermark:
            self._say(5, event.key, start, end, [len(ids), sum(ids)])

    def advance(self, watermark: int) -> None:
        """Let event time go on: windows end, and go when their lateness is over."""
        before, self.watermark = self.watermark, watermark

        def ends(end: int) -> bool:
            return before < end - 1 <= watermark

        for (key, start), ids in self._tumbling.items():
            if ends(start + TUMBLING):
                self._say(3, key, start, start + TUMBLING, ids)
        for (key, start), ids in self._totals.items():
            if ends(start + TUMBLING):
                self._say(26, key, start, start + TUMBLING, [len(ids), sum(ids)])
        for (key, start), ids in self._sliding.items():
            if ends(start + SIZE):
                self._say(4, key, start, start + SIZE, [len(ids), sum(ids)])
        for key, sessions in self._sessions.items():
            for start, end, ids in sessions:
                if ends(end):
                    self._say(5, key, start, end, [len(ids), sum(ids)])
            self._sessions[key] = [one for one in sessions if one[1] - 1 + SESSION_LATENESS > watermark]

    def _say(self, level: int, key: int, start: int, end: int, contents: list[int]) -> None:
        self.points["window"].append((key, start))
        self.rows.append((level, key, start, json.dumps([end, *contents])))
