"""What the program of ``everything_job.py`` must give, all in all, in plain Python."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from tests.faults.everything_job import GAP, is_asked
from tests.faults.job import HEARTBEAT, Epoch, Event, Row
from tests.faults.join_job import LOWER, UPPER
from tests.faults.oracle import answer
from tests.faults.window_job import TUMBLING

__all__ = ["expected"]


class ColumnModel:
    """Windows and joins by columns: late rows are dropped."""

    def __init__(self) -> None:
        self.watermark = -(2**63)
        self.rows: list[Row] = []
        self._windows: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        self._near: defaultdict[int, list[Event]] = defaultdict(list)

    def record(self, event: Event) -> None:
        """Take a record, which is late or not by the watermark so far."""
        start = event.ts - event.ts % TUMBLING
        if start + TUMBLING - 1 > self.watermark:
            self._windows[event.key, start].append(event.id)
        if event.ts >= self.watermark:
            near = self._near[event.key]
            near.append(event)
            pairs = {(event, other) for other in near} | {(other, event) for other in near}
            for left, right in pairs:
                if LOWER <= right.ts - left.ts <= UPPER:
                    self.rows.append((12, event.key, max(left.ts, right.ts), json.dumps([left.id, right.id])))

    def advance(self, watermark: int) -> None:
        """Let event time go on: windows end."""
        self.watermark = watermark
        for key, start in [place for place in self._windows if place[1] + TUMBLING - 1 <= watermark]:
            ids = self._windows.pop((key, start))
            self.rows.append((10, key, start, json.dumps([len(ids), sum(ids)])))


def expected(epochs: Sequence[Epoch]) -> Counter[Row]:
    """Return all rows that come out, the last epoch being the one that ends the stream."""
    right = answer(epochs, windows=True, joins=True, more=[ColumnModel()])
    rows = Counter(row for batch in right.output.values() for row in batch)
    rows.update(_stretches(epochs))
    rows.update(_held_and_counted(epochs))
    return rows


def _stretches(epochs: Sequence[Epoch]) -> Iterator[Row]:
    ids: defaultdict[int, list[int]] = defaultdict(list)
    for event in sorted(event for parts in epochs[:-1] for part in parts for event in part):
        ids[event.key].append(event.id)
    end = epochs[-1][0][0].id
    for key, numbers in ids.items():
        breaks = [place for place in range(1, len(numbers)) if numbers[place] > numbers[place - 1] + GAP]
        for start, stop in zip([0, *breaks], [*breaks, len(numbers)]):
            found = numbers[start:stop]
            if found[-1] + GAP <= end:
                yield 11, key, found[0], json.dumps([len(found), sum(found)])


def _held_and_counted(epochs: Sequence[Epoch]) -> Iterator[Row]:
    kept: Counter[int] = Counter()
    for parts in epochs:
        fresh: Counter[int] = Counter()
        for event in (event for part in parts for event in part if event.key != HEARTBEAT):
            kept[event.key] += 1
            fresh[event.key] += 1
            yield 13, event.key, event.ts, json.dumps(event.id)
            yield 14, event.key, event.ts, json.dumps([event.id, kept[event.key], fresh[event.key]])
            if is_asked(event):
                yield 15, event.key, event.ts, json.dumps(event.id**2)
