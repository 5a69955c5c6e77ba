"""The queue of one kind of timers: ordered by timestamp, without duplicates, with cheap deletion.

Timers of one timestamp share a bucket, so a timer costs two dictionary operations and the heap holds each
timestamp once: timers that fall on the same minute, hour or window end cost no heap operation at all.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from heapq import heapify, heappop, heappush
from itertools import compress
from operator import is_not
from typing import Any

__all__ = ["TimerQueue"]


class _Missing:
    """Stands for a bucket that is not there: None may be an owner."""


_MISSING = _Missing()


class TimerQueue:
    """Owners by timestamp (T3). Only the mailbox thread may touch it."""

    __slots__ = ("_buckets", "_heap", "_size")

    def __init__(self) -> None:
        # Every timestamp that has a bucket is in the heap at least once; the heap may hold more: those whose
        # bucket is gone are passed over when they come to the top.
        self._heap: list[int] = []
        # A bucket is its only owner, or a dictionary of several: where timestamps are in milliseconds most have one,
        # and a dictionary costs 200 bytes. (No owner is a dictionary: it is hashed.)
        self._buckets: dict[int, Any] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, timestamp: int, owner: Hashable) -> None:
        """Add a timer; nothing happens when the owner has one at this timestamp already."""
        bucket = self._buckets.get(timestamp, _MISSING)
        if type(bucket) is dict:
            if owner not in bucket:
                bucket[owner] = None
                self._size += 1
        elif bucket is _MISSING:
            self._buckets[timestamp] = owner
            heappush(self._heap, timestamp)
            self._size += 1
        elif bucket is not owner and bucket != owner:
            self._buckets[timestamp] = {bucket: None, owner: None}
            self._size += 1

    def discard(self, timestamp: int, owner: Hashable) -> None:
        """Remove a timer; nothing happens when there is none."""
        bucket = self._buckets.get(timestamp, _MISSING)
        if type(bucket) is dict:
            if owner not in bucket:
                return
            del bucket[owner]
            self._size -= 1
            if bucket:
                return
        elif bucket is _MISSING or (bucket is not owner and bucket != owner):
            return
        else:
            self._size -= 1
        del self._buckets[timestamp]
        # Moved timers leave their old timestamps in the heap: sweep when most of it is such.
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._buckets):
            self._heap = list(self._buckets)
            heapify(self._heap)

    def next_timestamp(self) -> int | None:
        """Give the earliest timestamp that has a timer."""
        heap, buckets = self._heap, self._buckets
        while heap:
            if heap[0] in buckets:
                return heap[0]
            heappop(heap)
        return None

    def pop(self, timestamp: int) -> Iterable[Any]:
        """Remove and give all owners at a timestamp, in the order in which they were added."""
        bucket = self._buckets.pop(timestamp, _MISSING)
        if bucket is _MISSING:
            return ()
        owners: Collection[Any] = bucket if type(bucket) is dict else (bucket,)
        self._size -= len(owners)
        return owners

    def load(self, timestamps: list[int], owners: list[Hashable]) -> None:
        """Hold these timers, each given once, and no others: for millions at a time."""
        buckets: dict[int, Any] = dict(zip(timestamps, owners))
        if len(buckets) < len(timestamps):
            # Of owners that share a timestamp the last one got the place.
            displaced = map(is_not, map(buckets.__getitem__, timestamps), owners)
            for timestamp, owner in compress(zip(timestamps, owners), list(displaced)):
                bucket = buckets[timestamp]
                if type(bucket) is not dict:
                    bucket = buckets[timestamp] = {bucket: None}
                bucket[owner] = None
        self._buckets, self._size = buckets, len(timestamps)
        self._heap = list(buckets)
        heapify(self._heap)
