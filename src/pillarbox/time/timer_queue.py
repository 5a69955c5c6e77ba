"""The queue of one kind of timers: ordered by timestamp, without duplicates, with cheap deletion.

Timers of one timestamp share a bucket, so a timer costs two dictionary operations and the heap holds each
timestamp once: timers that fall on the same minute, hour or window end cost no heap operation at all.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from heapq import heapify, heappop, heappush

__all__ = ["TimerQueue"]


class TimerQueue:
    """Owners by timestamp (T3). Only the mailbox thread may touch it."""

    __slots__ = ("_buckets", "_heap", "_size")

    def __init__(self) -> None:
        # Every timestamp that has a bucket is in the heap at least once; the heap may hold more: those whose
        # bucket is gone are passed over when they come to the top.
        self._heap: list[int] = []
        self._buckets: dict[int, dict[Hashable, None]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, timestamp: int, owner: Hashable) -> None:
        """Add a timer; nothing happens when the owner has one at this timestamp already."""
        bucket = self._buckets.get(timestamp)
        if bucket is None:
            self._buckets[timestamp] = {owner: None}
            heappush(self._heap, timestamp)
            self._size += 1
        elif owner not in bucket:
            bucket[owner] = None
            self._size += 1

    def discard(self, timestamp: int, owner: Hashable) -> None:
        """Remove a timer; nothing happens when there is none."""
        bucket = self._buckets.get(timestamp)
        if bucket is None or owner not in bucket:
            return
        del bucket[owner]
        self._size -= 1
        if not bucket:
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

    def pop(self, timestamp: int) -> Iterable[Hashable]:
        """Remove and give all owners at a timestamp, in the order in which they were added."""
        bucket = self._buckets.pop(timestamp, None)
        if bucket is None:
            return ()
        self._size -= len(bucket)
        return bucket

    def clear(self) -> None:
        """Remove all timers."""
        self._heap.clear()
        self._buckets.clear()
        self._size = 0
