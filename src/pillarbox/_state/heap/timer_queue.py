"""The queue of one kind of timers: ordered by timestamp, without duplicates, with cheap deletion.

Timers of one timestamp share a bucket, so a timer costs two dictionary operations and the heap holds each
timestamp once: timers that fall on the same minute, hour or window end cost no heap operation at all.

Restored timers come by the million and all at once: they are sorted when the first of them is asked for, and kept as
that *run* until their time has come. Those that are discarded before are swept out of it, so that keys whose timers
move leave nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from heapq import heapify, heappop, heappush
from itertools import compress
from operator import length_hint
from typing import Any

import numpy as np
import numpy.typing as npt

from pillarbox._time.timestamp_assigner import MIN_TIMESTAMP

_PORTION = 1024
# The run is swept when it has passed, or lost, more than this many and a share of those that are left: so a timer costs
# a few looks at most.
_SWEPT = 1024
_SHARE = 2


class _Missing:
    """Stands for a missing bucket: None may be an owner."""


_MISSING = _Missing()


class TimerQueue:
    """Owners by timestamp. Only the mailbox thread may touch it.

    Its user knows which timers there are (the keys' rows say it): none is added that is in the queue, none discarded
    that is not.

    Attributes:
        size: the number of timers. The code that takes an owner from :meth:`pop` counts it down.
        overtaken: whether a timer was added that comes before those which :meth:`pop` returned last.
    """

    __slots__ = (
        "_alone",
        "_begun",
        "_buckets",
        "_deleted",
        "_epoch",
        "_firing",
        "_head",
        "_heap",
        "_latest_alone",
        "_loaded",
        "_run",
        "_swept_next",
        "overtaken",
        "size",
    )

    def __init__(self) -> None:
        # Every timestamp that has a bucket is in the heap at least once; the heap may hold more: those whose
        # bucket is gone are passed over when they reach the top.
        self._heap: list[int] = []
        # A bucket is its only owner, or a dictionary of several: where timestamps are in milliseconds most have one,
        # and a dictionary costs 200 bytes. (No owner is a dictionary: it is hashed.)
        self._buckets: dict[int, Any] = {}
        # Loaded timers and their owners, as they came; in order, but for the first of them; and those discarded since.
        self._loaded: tuple[list[npt.NDArray[np.int64]], list[Any]] = ([], [])
        self._run: _Run = _Run(np.zeros(0, np.int64), [])
        self._head: tuple[int, Any] | None = None
        self._deleted: set[tuple[int, Any]] = set()
        # Timestamps whose owners are being taken, and those still to be: the earliest last. There are several where a
        # timer that fires adds one that comes before the rest of its own timestamp.
        self._begun: list[tuple[int, Iterator[Any]]] = []
        self._firing = MIN_TIMESTAMP
        # Owners in a bucket have the number of the epoch that added them. Timestamps of those that the running epoch
        # added as the only owner: the latest as they came, the others in a set, which is asked for seldom.
        self._epoch = 0
        self._latest_alone: list[int] = []
        self._alone: set[int] = set()
        self._swept_next = _SWEPT
        self.overtaken: bool = False
        self.size: int = 0

    def __len__(self) -> int:
        return self.size

    def add(self, timestamp: int, owner: Hashable) -> None:
        """Add a timer."""
        bucket = self._buckets.get(timestamp, _MISSING)
        if type(bucket) is dict:
            bucket[owner] = self._epoch
        elif bucket is _MISSING:
            self._buckets[timestamp] = owner
            self._latest_alone.append(timestamp)
            heappush(self._heap, timestamp)
            if timestamp < self._firing:
                self.overtaken = True
        else:
            epoch = self._epoch
            self._buckets[timestamp] = {bucket: epoch if self._is_new(timestamp) else epoch - 1, owner: epoch}
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
                self._sweep()
            return
        del self._buckets[timestamp]
        # Moved timers leave their old timestamps in the heap: sweep when most of it is such.
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._buckets):
            self._heap = list(self._buckets)
            heapify(self._heap)
            self._sweep_alone()

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

    def pop(self, timestamp: int, in_order: Callable[[list[Any]], list[Any]] | None = None) -> Iterator[Any]:
        """Return the owners at the earliest timestamp: the owners before the epoch, then its own as they were added.

        They leave the queue one by one; those that are not taken are returned by the next call.

        Args:
            in_order: returns the owners before the epoch in an order that does not depend on whether they were loaded.
        """
        if self._loaded[0]:
            self._sort()
        self._firing = timestamp
        self.overtaken = False
        if self._begun and self._begun[-1][0] == timestamp:
            return self._begun[-1][1]
        if len(self._latest_alone) > self._swept_next:
            self._sweep_alone()
        bucket = self._buckets.pop(timestamp, _MISSING)
        if type(bucket) is not dict and bucket is not _MISSING and (self._head is None or self._head[0] != timestamp):
            return iter((bucket,))  # mostly, and nothing of it can remain
        owners: list[Any] = []
        while self._head is not None and self._head[0] == timestamp:
            owners.append(self._head[1])
            self._advance()
        added: list[Any] = []
        if type(bucket) is dict:
            if bucket[next(iter(bucket))] == self._epoch:
                added = list(bucket)
            else:
                owners += [owner for owner, epoch in bucket.items() if epoch != self._epoch]
                added = [owner for owner, epoch in bucket.items() if epoch == self._epoch]
        elif bucket is not _MISSING:
            (added if owners and self._is_new(timestamp) else owners).append(bucket)
        if in_order is not None and len(owners) > 1:
            owners = in_order(owners)
        rest = iter(owners + added)
        self._begun.append((timestamp, rest))
        return rest

    def end_epoch(self) -> None:
        """Take note that what was added so far is in the log."""
        self._epoch += 1
        self._latest_alone.clear()
        self._alone.clear()

    def _is_new(self, timestamp: int) -> bool:
        """Whether the running epoch added the only owner at a timestamp."""
        if self._latest_alone:
            self._alone.update(self._latest_alone)
            self._latest_alone.clear()
        return timestamp in self._alone

    def _sweep_alone(self) -> None:
        """Free the timestamps of fired and deleted timers, because an epoch may set any number of timers."""
        self._alone.update(self._latest_alone)
        self._alone.intersection_update(self._buckets)
        self._latest_alone.clear()
        self._swept_next = max(_SWEPT, _SHARE * len(self._buckets))

    def load(self, timestamps: npt.NDArray[np.int64], owners: list[Hashable]) -> None:
        """Add restored timers to a queue to which nothing else has been done."""
        self._loaded[0].append(timestamps)
        self._loaded[1].extend(owners)
        self.size += len(owners)

    def _sort(self) -> None:
        timestamps, owners = self._loaded
        self._loaded = ([], [])
        self._run = _Run(np.concatenate(timestamps), owners)
        self._advance()

    def _advance(self) -> None:
        self._head = self._run.take()
        if self._deleted:
            self._pass_deleted()
        self._sweep()

    def _pass_deleted(self) -> None:
        while self._head in self._deleted:
            self._deleted.discard(self._head)
            self._head = self._run.take()

    def _sweep(self) -> None:
        """Free what the run has passed, and what was discarded from it, when that is much of it."""
        deleted, run = self._deleted, self._run
        if self._loaded[0]:
            if len(deleted) > _SWEPT and _SHARE * len(deleted) > len(self._loaded[1]):
                self._sort()
            return
        gone = len(deleted) + run.passed
        if gone > _SWEPT and _SHARE * gone > len(run):
            self._run = run.without(deleted)
            deleted.clear()


class _Run:
    """Timers in order, of which the first are passed."""

    __slots__ = ("_at", "_order", "_owners", "_portion", "_timestamps")

    def __init__(self, timestamps: npt.NDArray[np.int64], owners: list[Any]) -> None:
        self._timestamps = timestamps
        self._owners = owners
        # (In four bytes each.)
        self._order = np.argsort(timestamps, kind="stable").astype(np.uint32)
        self._at = 0
        # As a list, the order of millions would be as large as what it is the order of.
        self._portion: Iterator[tuple[int, Any]] = iter(())

    def __len__(self) -> int:
        return len(self._order) - self._at + length_hint(self._portion)

    @property
    def passed(self) -> int:
        """How many were taken."""
        return self._at - length_hint(self._portion)

    def take(self) -> tuple[int, Any] | None:
        """Return the next one; None: there is none."""
        found = next(self._portion, None)
        if found is None and self._at < len(self._order):
            portion = self._order[self._at : self._at + _PORTION]
            self._at += len(portion)
            owners = list(map(self._owners.__getitem__, portion.tolist()))
            self._portion = iter(list(zip(self._timestamps[portion].tolist(), owners)))
            found = next(self._portion)
        return found

    def without(self, deleted: set[tuple[int, Any]]) -> _Run:
        """Return what is left of it, but for these."""
        left = self._order[self.passed :]
        timestamps = self._timestamps[left]
        owners = list(map(self._owners.__getitem__, left.tolist()))
        if deleted:
            kept = np.fromiter((timer not in deleted for timer in zip(timestamps.tolist(), owners)), np.bool_)
            timestamps = timestamps[kept]
            owners = list(compress(owners, kept.tolist()))
        return _Run(timestamps, owners)
