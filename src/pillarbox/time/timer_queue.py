"""The queue of one kind of timers: ordered by timestamp, without duplicates, with cheap deletion.

Timers of one timestamp share a bucket, so a timer costs two dictionary operations and the heap holds each
timestamp once: timers that fall on the same minute, hour or window end cost no heap operation at all.

Restored timers come by the million and all at once: they are sorted, and kept as that *run* until their time has come.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

__all__ = ["TimerQueue"]

_PORTION = 1024


class _Missing:
    """Stands for a bucket that is not there: None may be an owner."""


_MISSING = _Missing()


class TimerQueue:
    """Owners by timestamp (T3). Only the mailbox thread may touch it.

    Who uses it knows which timers there are (the keys' rows say it), and adds none that is in the queue.
    """

    __slots__ = ("_buckets", "_deleted", "_head", "_heap", "_loaded", "_run", "_size")

    def __init__(self) -> None:
        # Every timestamp that has a bucket is in the heap at least once; the heap may hold more: those whose
        # bucket is gone are passed over when they come to the top.
        self._heap: list[int] = []
        # A bucket is its only owner, or a dictionary of several: where timestamps are in milliseconds most have one,
        # and a dictionary costs 200 bytes. (No owner is a dictionary: it is hashed.)
        self._buckets: dict[int, Any] = {}
        # Loaded timers and their owners; in order, but for the first of them; and those discarded since.
        self._loaded: tuple[list[int], list[Any]] = ([], [])
        self._run: Iterator[tuple[int, Any]] = iter(())
        self._head: tuple[int, Any] | None = None
        self._deleted: set[tuple[int, Any]] = set()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, timestamp: int, owner: Hashable) -> None:
        """Add a timer."""
        bucket = self._buckets.get(timestamp, _MISSING)
        if type(bucket) is dict:
            bucket[owner] = None
        elif bucket is _MISSING:
            self._buckets[timestamp] = owner
            heappush(self._heap, timestamp)
        else:
            self._buckets[timestamp] = {bucket: None, owner: None}
        self._size += 1

    def discard(self, timestamp: int, owner: Hashable) -> None:
        """Remove a timer; nothing happens when it was popped already."""
        bucket = self._buckets.get(timestamp, _MISSING)
        if type(bucket) is dict and owner in bucket:
            del bucket[owner]
            self._size -= 1
            if bucket:
                return
        elif bucket is owner or bucket == owner:
            self._size -= 1
        else:
            # What is not in a bucket is in the run, unless the run is past that time.
            if self._head is not None and timestamp >= self._head[0]:
                self._deleted.add((timestamp, owner))
                self._size -= 1
                self._pass_deleted()
            return
        del self._buckets[timestamp]
        # Moved timers leave their old timestamps in the heap: sweep when most of it is such.
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._buckets):
            self._heap = list(self._buckets)
            heapify(self._heap)

    def next_timestamp(self) -> int | None:
        """Give the earliest timestamp that has a timer."""
        heap, buckets, head = self._heap, self._buckets, self._head
        while heap:
            timestamp = heap[0]
            if timestamp in buckets:
                return timestamp if head is None or timestamp < head[0] else head[0]
            heappop(heap)
        return None if head is None else head[0]

    def pop(self, timestamp: int) -> Iterable[Any]:
        """Remove and give all owners at the earliest timestamp: loaded ones, then others as they were added."""
        bucket = self._buckets.pop(timestamp, _MISSING)
        owners: list[Any] = []
        while self._head is not None and self._head[0] == timestamp:
            owners.append(self._head[1])
            self._advance()
        if type(bucket) is dict:
            owners.extend(bucket)
        elif bucket is not _MISSING:
            owners.append(bucket)
        self._size -= len(owners)
        return owners

    def load(self, timestamps: list[int], owners: list[Hashable]) -> None:
        """Add restored timers to a queue that had no others; :meth:`sort` ends it."""
        self._loaded[0].extend(timestamps)
        self._loaded[1].extend(owners)
        self._size += len(timestamps)

    def sort(self) -> None:
        """Put the loaded timers in order, before anything else is done with the queue."""
        self._run = _in_order(*self._loaded)
        self._loaded = ([], [])
        self._advance()

    def _advance(self) -> None:
        self._head = next(self._run, None)
        if self._deleted:
            self._pass_deleted()

    def _pass_deleted(self) -> None:
        while self._head in self._deleted:
            self._deleted.discard(self._head)
            self._head = next(self._run, None)


def _in_order(timestamps: list[int], owners: list[Any]) -> Iterator[tuple[int, Any]]:
    order = np.argsort(np.asarray(timestamps))
    # In portions: as a list, the order of millions would be as large as what it is the order of.
    for start in range(0, len(order), _PORTION):
        portion = order[start : start + _PORTION].tolist()
        yield from zip(map(timestamps.__getitem__, portion), map(owners.__getitem__, portion))
