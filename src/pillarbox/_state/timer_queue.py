"""The queue of one kind of timers: ordered by timestamp, without duplicates, with cheap deletion.

Timers of one timestamp share a bucket, so a timer costs two dictionary operations and the heap holds each
timestamp once: timers that fall on the same minute, hour or window end cost no heap operation at all.

Restored timers come by the million and all at once: they are sorted when the first of them is asked for, and kept as
that *run* until their time has come.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from operator import length_hint
from typing import Any

import numpy as np
import numpy.typing as npt

from pillarbox._time.timestamps import MIN_TIMESTAMP

__all__ = ["TimerQueue"]

_PORTION = 1024


class _Missing:
    """Stands for a bucket that is not there: None may be an owner."""


_MISSING = _Missing()


class TimerQueue:
    """Owners by timestamp (T3). Only the mailbox thread may touch it.

    Its user knows which timers there are (the keys' rows say it): none is added that is in the queue, none discarded
    that is not.

    Attributes:
        size: the number of timers. The code that takes an owner from :meth:`pop` counts it down.
        overtaken: whether a timer was added that comes before those which :meth:`pop` returned last.
    """

    __slots__ = ("_begun", "_buckets", "_deleted", "_firing", "_head", "_heap", "_loaded", "_run", "overtaken", "size")

    def __init__(self) -> None:
        # Every timestamp that has a bucket is in the heap at least once; the heap may hold more: those whose
        # bucket is gone are passed over when they come to the top.
        self._heap: list[int] = []
        # A bucket is its only owner, or a dictionary of several: where timestamps are in milliseconds most have one,
        # and a dictionary costs 200 bytes. (No owner is a dictionary: it is hashed.)
        self._buckets: dict[int, Any] = {}
        # Loaded timers and their owners, as they came; in order, but for the first of them; and those discarded since.
        self._loaded: tuple[list[npt.NDArray[np.int64]], list[Any]] = ([], [])
        self._run: Iterator[tuple[int, Any]] = iter(())
        self._head: tuple[int, Any] | None = None
        self._deleted: set[tuple[int, Any]] = set()
        # Timestamps whose owners are being taken, and those still to be: the earliest last. There are several where a
        # timer that fires adds one that comes before the rest of its own timestamp.
        self._begun: list[tuple[int, Iterator[Any]]] = []
        self._firing = MIN_TIMESTAMP
        self.overtaken: bool = False
        self.size: int = 0

    def __len__(self) -> int:
        return self.size

    def add(self, timestamp: int, owner: Hashable) -> None:
        """Add a timer."""
        bucket = self._buckets.get(timestamp, _MISSING)
        if type(bucket) is dict:
            bucket[owner] = None
        elif bucket is _MISSING:
            self._buckets[timestamp] = owner
            heappush(self._heap, timestamp)
            if timestamp < self._firing:
                self.overtaken = True
        else:
            self._buckets[timestamp] = {bucket: None, owner: None}
        self.size += 1

    def discard(self, timestamp: int, owner: Hashable) -> None:
        """Remove a timer. One whose timestamp is being worked off is still given: its row says that it is gone."""
        self.size -= 1
        bucket = self._buckets.get(timestamp, _MISSING)
        if type(bucket) is dict and owner in bucket:
            del bucket[owner]
            if bucket:
                return
        elif bucket is not owner and bucket != owner:
            # Timers that are not in a bucket are in the run, unless the run is past that time.
            if self._loaded[0] or (self._head is not None and timestamp >= self._head[0]):
                self._deleted.add((timestamp, owner))
                self._pass_deleted()
            return
        del self._buckets[timestamp]
        # Moved timers leave their old timestamps in the heap: sweep when most of it is such.
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._buckets):
            self._heap = list(self._buckets)
            heapify(self._heap)

    def next_timestamp(self) -> int | None:
        """Return the earliest timestamp that has a timer."""
        if self._loaded[0]:
            self._sort()
        heap, buckets, head, begun = self._heap, self._buckets, self._head, self._begun
        earliest = None if head is None else head[0]
        while begun:
            timestamp, owners = begun[-1]
            if length_hint(owners):
                earliest = timestamp  # what is loaded comes later
                break
            begun.pop()
        while heap:
            timestamp = heap[0]
            if timestamp in buckets:
                return timestamp if earliest is None or timestamp < earliest else earliest
            heappop(heap)
        return earliest

    def pop(self, timestamp: int) -> Iterator[Any]:
        """Return the owners at the earliest timestamp: loaded ones, then others as they were added.

        They leave the queue one by one; those that are not taken are returned by the next call.
        """
        if self._loaded[0]:
            self._sort()
        self._firing = timestamp
        self.overtaken = False
        if self._begun and self._begun[-1][0] == timestamp:
            return self._begun[-1][1]
        bucket = self._buckets.pop(timestamp, _MISSING)
        owners: list[Any] = []
        while self._head is not None and self._head[0] == timestamp:
            owners.append(self._head[1])
            self._advance()
        if type(bucket) is dict:
            owners.extend(bucket)
        elif bucket is not _MISSING:
            owners.append(bucket)
        rest = iter(owners)
        self._begun.append((timestamp, rest))
        return rest

    def load(self, timestamps: npt.NDArray[np.int64], owners: list[Hashable]) -> None:
        """Add restored timers to a queue to which nothing else has been done."""
        self._loaded[0].append(timestamps)
        self._loaded[1].extend(owners)
        self.size += len(owners)

    def _sort(self) -> None:
        timestamps, owners = self._loaded
        self._loaded = ([], [])
        self._run = _in_order(np.concatenate(timestamps), owners)
        self._advance()

    def _advance(self) -> None:
        self._head = next(self._run, None)
        if self._deleted:
            self._pass_deleted()

    def _pass_deleted(self) -> None:
        while self._head in self._deleted:
            self._deleted.discard(self._head)
            self._head = next(self._run, None)


def _in_order(timestamps: npt.NDArray[np.int64], owners: list[Any]) -> Iterator[tuple[int, Any]]:
    order = np.argsort(timestamps)
    # In portions: as a list, the order of millions would be as large as what it is the order of.
    for start in range(0, len(order), _PORTION):
        portion = order[start : start + _PORTION]
        yield from zip(timestamps[portion].tolist(), map(owners.__getitem__, portion.tolist()))
