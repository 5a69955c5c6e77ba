# SPDX-License-Identifier: Apache-2.0
"""The windows that ``windows.py`` compares, the rows, and the expected output.

Rows have a key, a time (milliseconds) and an amount. A micro-batch has five minutes of event time. Its rows are in
order except for two seconds of disorder, in two files, each with half of the keys. Times are multiples of 7 ms, so no
two rows are exactly a session's gap apart, a case that engines treat differently. A micro-batch ends six seconds after
a full minute: with a watermark five seconds behind, exactly the windows up to that minute have ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import functions as F

from benchmarks.harness.rows import EPOCH, FOR_EVER, HOUR, MINUTE, Columns, Ints, MicroBatches, draw, summary
from pillarbox import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows

SPAN = 5 * MINUTE
DELAY = 5_000
DISORDER = 2_000
GRID = 7


@dataclass(frozen=True)
class Work:
    """Windows of a keyed stream, and its number of keys.

    Attributes:
        size: size in milliseconds; for sessions, the gap.
        slide: slide in milliseconds, or 0 for windows that do not slide.
        full_warm_up: whether a full micro-batch is needed to be warm. Where the small ones take a minute it is not.
    """

    title: str
    keys: int
    size: int
    slide: int = 0
    session: bool = False
    full_warm_up: bool = True

    def spec(self) -> dict[str, Any]:
        """Return the windows in the form that the peers' scripts expect."""
        return {name: value for name, value in asdict(self).items() if name in ("size", "slide", "session")}

    def windows(self, keys: int) -> Windows:
        """Return a model that computes the expected windows."""
        return Sessions(self.size) if self.session else Panes(self.size, self.slide or self.size, keys)

    def assigner(self) -> Any:
        """Return pillarbox's window assigner."""
        if self.session:
            return EventTimeSessionWindows.with_gap(self.size)
        if self.slide:
            return SlidingEventTimeWindows.of(self.size, self.slide)
        return TumblingEventTimeWindows.of(self.size)

    def spark_window(self) -> Any:
        """Return Spark's window over the column ``time``."""
        if self.session:
            return F.session_window("time", f"{self.size} milliseconds")
        slide = f"{self.slide} milliseconds" if self.slide else None
        return F.window("time", f"{self.size} milliseconds", slide)


WORKS = {
    "tumbling": Work("a minute", 100_000, MINUTE),
    "tumbling-10k": Work("a minute", 10_000, MINUTE),
    "sliding": Work("an hour that slides by a minute", 10_000, HOUR, MINUTE, full_warm_up=False),
    "sessions": Work("sessions with a gap of 30 seconds", 100_000, 30_000, session=True),
}


class Windows(ABC):
    """The windows of all rows so far."""

    @abstractmethod
    def add(self, key: Ints, ts: Ints, amount: Ints) -> None:
        """Add the rows of a micro-batch."""

    @abstractmethod
    def due(self, time: int) -> Columns:
        """Remove the windows that end at ``time`` or earlier. Returns their keys, starts, counts and sums."""


class Panes(Windows):
    """Windows of a fixed size, composed of panes as long as the slide."""

    def __init__(self, size: int, slide: int, keys: int) -> None:
        self._slide = slide
        self._panes_of_one = size // slide
        self._keys = keys
        self._panes: dict[int, tuple[Ints, Ints]] = {}
        self._next: int | None = None

    def add(self, key: Ints, ts: Ints, amount: Ints) -> None:
        pane = ts // self._slide
        for number in np.unique(pane).tolist():
            in_pane = pane == number
            n = np.bincount(key[in_pane], minlength=self._keys)
            total = np.bincount(key[in_pane], amount[in_pane], self._keys).astype(np.int64)
            if number in self._panes:
                n, total = n + self._panes[number][0], total + self._panes[number][1]
            self._panes[number] = n, total
        if self._next is None:
            self._next = min(self._panes) - self._panes_of_one + 1

    def due(self, time: int) -> Columns:
        emitted = [np.empty((4, 0), np.int64)]
        while self._next is not None and self._panes and self._next <= max(self._panes):
            if (self._next + self._panes_of_one) * self._slide > time:
                break
            inside = [self._panes[i] for i in range(self._next, self._next + self._panes_of_one) if i in self._panes]
            if inside:
                n, total = (np.sum(numbers, axis=0) for numbers in zip(*inside))
                key = np.flatnonzero(n)
                emitted.append(np.stack([key, np.full(len(key), self._next * self._slide), n[key], total[key]]))
            self._panes.pop(self._next, None)
            self._next += 1
        return list(np.concatenate(emitted, axis=1))


class Sessions(Windows):
    """Sessions of each key, which end a gap after their last row."""

    def __init__(self, gap: int) -> None:
        self._gap = gap
        self._rows = np.empty((3, 0), np.int64)

    def add(self, key: Ints, ts: Ints, amount: Ints) -> None:
        self._rows = np.append(self._rows, np.stack([key, ts, amount]), axis=1)

    def due(self, time: int) -> Columns:
        self._rows, (key, first, _, n, total) = end_sessions(self._rows, self._gap, time)
        return [key, first, n, total]


def end_sessions(rows: Ints, gap: int, time: int, *, at_once: bool = False) -> tuple[Ints, list[Ints]]:
    """Find the sessions whose last row is at least ``gap`` before ``time``.

    Args:
        rows: keys, times, amounts.
        at_once: whether a session also ends at the first row of its key's next session.

    Returns:
        the rows of the other sessions, and the found sessions' keys, first times, last times, counts and sums.
    """
    rows = rows[:, np.lexsort((rows[1], rows[0]))]
    key, ts, amount = rows
    first = np.append(True, (key[1:] != key[:-1]) | (ts[1:] - ts[:-1] >= gap))[: len(key)]
    starts = np.flatnonzero(first)
    ends = np.append(starts[1:], len(key))
    over = ts[ends - 1] + gap <= time
    if at_once:
        over[:-1] |= key[starts[1:]] == key[starts[:-1]]
    sums = np.append(0, amount.cumsum())
    columns = (key[starts], ts[starts], ts[ends - 1], ends - starts, sums[ends] - sums[starts])
    return rows[:, ~np.repeat(over, ends - starts)], [column[over] for column in columns]


# -- rows --


class WindowBatches(MicroBatches):
    """Micro-batches of keys, times and amounts, and their windows."""

    def __init__(self, work: Work, rows: int, small: int, keys: int, directory: Path) -> None:
        super().__init__(rows, small, keys, directory)
        self.work = work

    def columns(self, number: int, stream: int = 0) -> dict[str, Ints]:
        rows = self.rows_of(number)
        begin = EPOCH + number * SPAN + DELAY + 1_000
        key, ts, random = draw([7, number], rows, self.keys, begin, SPAN, disorder=DISORDER, grid=GRID)
        return {"key": key, "ts": ts, "amount": random.integers(1, 1_000, rows)}

    def results(self, *, late: bool) -> Iterator[Columns]:
        windows = self.work.windows(self.keys)
        number = before = 0
        while True:
            rows = self.columns(number)
            windows.add(**rows)
            after = int(rows["ts"].max()) - DELAY
            yield windows.due(before if late else after)
            number, before = number + 1, after

    def of_job(self, number: int) -> Columns:
        return self.all_until(number, number)

    def all_until(self, number: int, first: int = 0) -> Columns:
        """Return all windows of the rows in some micro-batches."""
        windows = self.work.windows(self.keys)
        for batch in range(first, number + 1):
            windows.add(**self.columns(batch))
        return windows.due(FOR_EVER)

    def emitted_until(self, number: int) -> list[int]:
        """Return the number of windows emitted up to a micro-batch, and the sum of their totals.

        Pathway emits sessions from their first row on, not at their end.
        """
        if self.work.session:
            return summary(self.all_until(number))[:2]
        until = [self.expected(i, "ours")[:2] for i in range(number + 1)]
        return [sum(values) for values in zip(*until)]
