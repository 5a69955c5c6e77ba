"""What the program of ``everything_job.py`` must give, all in all, in plain Python."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from tests.faults.oracles.oracle import answer
from tests.faults.programs.everything_job import is_asked
from tests.faults.programs.job import HEARTBEAT, Epoch, Row

__all__ = ["LEVELS", "expected"]

LEVELS = frozenset(range(1, 41)) - {20, 21, 25}  # these are of ``columns_job.build``


def expected(epochs: Sequence[Epoch]) -> Counter[Row]:
    """Return all rows that come out, the last epoch being the one that ends the stream."""
    right = answer(epochs, others=True)
    rows = Counter(row for batch in right.output.values() for row in batch)
    rows.update(_held_and_counted(epochs))
    return rows


def _held_and_counted(epochs: Sequence[Epoch]) -> Iterator[Row]:
    kept: Counter[int] = Counter()
    for parts in epochs:
        fresh: Counter[int] = Counter()
        for event in (event for part in parts for event in part if event.key != HEARTBEAT):
            kept[event.key] += 1
            fresh[event.key] += 1
            yield 15, event.key, event.ts, json.dumps(event.id)
            yield 16, event.key, event.ts, json.dumps([event.id, kept[event.key], fresh[event.key]])
            if is_asked(event):
                yield 17, event.key, event.ts, json.dumps(event.id**2)
