"""What the windows and joins of ``columns_job.py`` must give, in plain Python: each window is its list of events."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from tests.faults.oracles.model import BEGINNING, Model
from tests.faults.programs.columns_job import SESSION
from tests.faults.programs.job import HEARTBEAT, OUT_OF_ORDER, Epoch, Event, Row
from tests.faults.programs.join_job import JOINED, Joined, is_left
from tests.faults.programs.window_job import LATENESS, SIZE, SLIDE, TUMBLING

__all__ = ["ColumnModel", "frames_answer"]


def aggregated(level: int, key: int, start: int, end: int, events: Sequence[Event]) -> Row:
    """Return the row of a window."""
    ids = [event.id for event in events]
    latest = max(event.ts for event in events)
    last = min(event.id for event in events if event.ts == latest)
    return (level, key, start, json.dumps([end, len(ids), sum(ids), min(ids), last]))


class Windows:
    """Windows of one length, which fire once more for all late events of an epoch."""

    def __init__(self, level: int, size: int, slide: int, lateness: int = 0) -> None:
        self._level = level
        self._size = size
        self._slide = slide
        self._lateness = lateness
        self._events: defaultdict[tuple[int, int], list[Event]] = defaultdict(list)
        self._late: set[tuple[int, int]] = set()

    def record(self, event: Event, watermark: int) -> None:
        for start in range(event.ts - event.ts % self._slide, event.ts - self._size, -self._slide):
            last = start + self._size - 1
            if last + self._lateness > watermark:
                self._events[event.key, start].append(event)
                if last <= watermark:
                    self._late.add((event.key, start))

    def end_of_input(self, watermark: int) -> Iterator[Row]:
        late, self._late = self._late, set()
        return (self._row(*place) for place in late)

    def advance(self, before: int, watermark: int) -> Iterator[Row]:
        ends = self._size - 1
        return (self._row(key, start) for key, start in self._events if before < start + ends <= watermark)

    def _row(self, key: int, start: int) -> Row:
        return aggregated(self._level, key, start, start + self._size, self._events[key, start])


class Sessions:
    """Sessions without lateness. Those of an epoch are merged before it is judged which are over."""

    def __init__(self, level: int, gap: int) -> None:
        self._level = level
        self._gap = gap
        self._open: dict[int, list[tuple[int, int, list[Event]]]] = {}
        self._came: defaultdict[int, list[Event]] = defaultdict(list)

    def record(self, event: Event, watermark: int) -> None:
        self._came[event.key].append(event)

    def end_of_input(self, watermark: int) -> Iterator[Row]:
        for key, events in self._came.items():
            parts = [*self._open.get(key, ()), *((event.ts, event.ts + self._gap, [event]) for event in events)]
            merged: list[tuple[int, int, list[Event]]] = []
            for start, end, content in sorted(parts, key=lambda part: part[0]):
                if merged and start <= merged[-1][1]:
                    before = merged[-1]
                    merged[-1] = before[0], max(end, before[1]), before[2] + content
                else:
                    merged.append((start, end, content))
            self._open[key] = [session for session in merged if session[1] - 1 > watermark]
        self._came.clear()
        return iter(())

    def advance(self, before: int, watermark: int) -> Iterator[Row]:
        for key, sessions in self._open.items():
            for start, end, events in sessions:
                if end - 1 <= watermark:
                    yield aggregated(self._level, key, start, end, events)
            self._open[key] = [session for session in sessions if session[1] - 1 > watermark]


class Join:
    """A join, left outer or inner; and its pairs alone, as a function gets them."""

    def __init__(
        self,
        level: int,
        late_level: int | None = None,
        processed_level: int | None = None,
        joined: Joined = JOINED,
    ) -> None:
        self._level = level
        self._bounds = joined.bounds
        self._is_left = joined.how == "left"
        self._processed_level = processed_level
        self._late_level = late_level
        self._lefts: defaultdict[int, list[Event]] = defaultdict(list)
        self._rights: defaultdict[int, list[Event]] = defaultdict(list)
        self._alone: set[Event] = set()
        self._found: list[Row] = []

    def record(self, event: Event, watermark: int) -> None:
        if event.ts < watermark:
            if self._late_level is not None:
                self._found.append((self._late_level, event.key, event.ts, json.dumps(event.id)))
            return
        if is_left(event):
            self._lefts[event.key].append(event)
            self._alone.add(event)
            pairs = [(event, right) for right in self._rights[event.key]]
        else:
            self._rights[event.key].append(event)
            pairs = [(left, event) for left in self._lefts[event.key]]
        for left, right in pairs:
            if self._bounds[0] <= right.ts - left.ts <= self._bounds[1]:
                self._alone.discard(left)
                pair = json.dumps([left.id, right.id])
                self._found.append((self._level, event.key, left.ts, pair))
                if self._processed_level is not None:
                    self._found.append((self._processed_level, event.key, max(left.ts, right.ts), pair))

    def end_of_input(self, watermark: int) -> Iterator[Row]:
        found, self._found = [*self._found, *self._over(watermark)], []
        return iter(found)

    def advance(self, before: int, watermark: int) -> Iterator[Row]:
        return self._over(watermark)

    def _over(self, watermark: int) -> Iterator[Row]:
        """Return the rows that no partner can come for any more: with a negative bound as soon as they are there."""
        over = [event for event in self._alone if event.ts + self._bounds[1] < watermark]
        self._alone.difference_update(over)
        alone = over if self._is_left else []
        return ((self._level, event.key, event.ts, json.dumps([event.id, None])) for event in alone)


Part = Windows | Sessions | Join


class ColumnModel(Model):
    """Windows and joins of columns, by one watermark."""

    def __init__(self, parts: Sequence[Part] | None = None, joined: Joined = JOINED) -> None:
        super().__init__()
        self._parts = parts or (
            Windows(10, TUMBLING, TUMBLING, LATENESS),
            Windows(11, SIZE, SLIDE),
            Sessions(12, SESSION),
            Join(13, 14, joined=joined),
        )

    def record(self, event: Event) -> None:
        """Take a record."""
        for part in self._parts:
            part.record(event, self.watermark)

    def end_of_input(self) -> None:
        """Take note that all records of the epoch are there: only now it is judged what is late."""
        for part in self._parts:
            self.rows += part.end_of_input(self.watermark)

    def advance(self, watermark: int) -> None:
        """Let event time go on."""
        before, self.watermark = self.watermark, watermark
        for part in self._parts:
            self.rows += part.advance(before, watermark)


def watermark_of(parts: Sequence[Iterable[Event]]) -> int:
    """Return the watermark of a source's partitions: the least of those that have rows."""
    marks = [max(event.ts for event in part) - OUT_OF_ORDER - 1 for part in map(list, parts) if part]
    return min(marks, default=BEGINNING)


def frames_answer(epochs: Sequence[Epoch], joined: Joined = JOINED) -> dict[int, list[Row]]:
    """Work out what is to come out of the DataFrame functions, by batch; an outcome has no blanks in its state."""
    windows = ColumnModel([Windows(20, SIZE, SLIDE, LATENESS)])
    pairs = ColumnModel([Join(21, processed_level=25, joined=joined)])
    sides = [BEGINNING, BEGINNING]
    answer = {}
    for batch, parts in enumerate(epochs):
        for event in (event for part in parts for event in part if event.key != HEARTBEAT):
            for model in (windows, pairs):
                model.record(event)
        for model in (windows, pairs):
            model.end_of_input()
        for side in (0, 1):
            own = [[event for event in part if event.id % 2 == side or event.key == HEARTBEAT] for part in parts]
            sides[side] = max(sides[side], watermark_of(own))
        for model, watermark in ((windows, watermark_of(parts)), (pairs, min(sides))):
            if watermark > model.watermark:
                model.advance(watermark)
        rows, windows.rows, pairs.rows = windows.rows + pairs.rows, [], []
        answer[batch] = sorted((*row[:3], row[3].replace(" ", "")) for row in rows)
    return answer
