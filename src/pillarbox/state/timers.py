"""The timers of keys, which are part of their rows: so they are written, restored and dropped with them.

A queue for each time domain of a timer service is an index over the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable
from itertools import compress
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from pillarbox.errors import ProgramError, shorten
from pillarbox.state.timer_queue import TimerQueue
from pillarbox.time.internal_timer_service import VOID_NAMESPACE
from pillarbox.time.timestamps import MAX_WATERMARK, MIN_TIMESTAMP, to_millisecond

if TYPE_CHECKING:
    from pillarbox.state.heap_backend import HeapKeyedStateBackend

__all__ = ["HeapTimers"]

_NONE = type(None)
_log = logging.getLogger("pillarbox")


class HeapTimers:
    """One time domain of a timer service: the queue, and the slot of the keys' rows that it indexes.

    A row's slot holds None, one *stamp*, or a set of stamps: most keys have one timer, and a set costs 200 bytes.
    A stamp is the timestamp, or ``(timestamp, namespace)`` in a service with namespaces.
    """

    __slots__ = ("_dropped", "_keys", "_name", "_namespaced", "queue", "slot")

    def __init__(self, name: str, keys: HeapKeyedStateBackend, slot: int, *, namespaced: bool) -> None:
        self._name = name
        self._keys = keys
        self._namespaced = namespaced
        # How many restored timers were no timers, and the key of the first.
        self._dropped: tuple[int, Any] = (0, None)
        self.queue = TimerQueue()
        self.slot = slot

    def __len__(self) -> int:
        return self.queue.size

    def next_timestamp(self) -> int | None:
        """Return the earliest timestamp that has a timer."""
        return self.queue.next_timestamp()

    def register(self, timestamp: int, namespace: Any = VOID_NAMESPACE) -> None:
        """Add a timer of the current key, unless it has it.

        Raises:
            ProgramError: the timestamp is not an int of 64 bits: in the queue and in the checkpoint it would do harm
                long after the record that brought it.
        """
        if type(timestamp) is not int or not MIN_TIMESTAMP <= timestamp <= MAX_WATERMARK:
            timestamp = self._checked(timestamp)
        keys = self._keys
        row = keys.row
        slot = self.slot
        stamp: Any = (timestamp, namespace) if self._namespaced else timestamp
        present = row[slot]
        if present is None:
            row[slot] = stamp
        elif type(present) is set:
            if stamp in present:
                return
            present.add(stamp)
        elif present == stamp:
            return
        else:
            row[slot] = {present, stamp}
        if row[0] >= 0:
            keys.touch()
        self.queue.add(timestamp, (keys.key, namespace) if self._namespaced else keys.key)

    def delete(self, timestamp: int, namespace: Any = VOID_NAMESPACE) -> None:
        """Remove a timer of the current key, if it has it.

        Raises:
            ProgramError: the timestamp is not an int of 64 bits.
        """
        if type(timestamp) is not int or not MIN_TIMESTAMP <= timestamp <= MAX_WATERMARK:
            timestamp = self._checked(timestamp)
        if self._forget(timestamp, namespace):
            key = self._keys.key
            self.queue.discard(timestamp, (key, namespace) if self._namespaced else key)

    def fire(self, limit: int, trigger: Callable[[int, Any], None]) -> None:
        """Fire the timers up to and at ``limit`` in timestamp order, also those registered meanwhile."""
        queue = self.queue
        keys = self._keys
        while (timestamp := queue.next_timestamp()) is not None and timestamp <= limit:
            # One by one: a timer that is registered meanwhile for an earlier time comes before the rest.
            for owner in queue.pop(timestamp):
                key: Any = owner
                namespace: Any = VOID_NAMESPACE
                if self._namespaced:
                    key, namespace = key
                keys.set_current_key(key)
                # A timer that was called before, at the same timestamp, may have deleted this one.
                if self._forget(timestamp, namespace):
                    queue.size -= 1
                    trigger(timestamp, namespace)
                if queue.overtaken:
                    break

    def _checked(self, timestamp: Any) -> int:
        """Return a timestamp that is not a plain int as one, or refuse it."""
        try:
            return to_millisecond(timestamp)
        except ValueError as error:
            hint = str(error)
        if timestamp is None:
            hint += (
                "; ctx.timestamp() is None where records have no timestamp: put assign_timestamps_and_watermarks(...)"
                " before, or use processing time"
            )
        domain = "a processing-time" if self._name.endswith("/processing") else "an event-time"
        raise ProgramError(
            f"operator {self._keys.operator!r}, key {shorten(self._keys.key)}: {domain} timer cannot be set or deleted"
            f" at {shorten(timestamp)} ({type(timestamp).__name__}): {hint}"
        )

    def _forget(self, timestamp: int, namespace: Any) -> bool:
        row = self._keys.row
        slot = self.slot
        stamp: Any = (timestamp, namespace) if self._namespaced else timestamp
        present = row[slot]
        if present is None:
            return False
        if type(present) is set:
            if stamp not in present:
                return False
            present.discard(stamp)
            if len(present) == 1:
                row[slot] = present.pop()
        elif present == stamp:
            row[slot] = None
        else:
            return False
        if row[0] >= 0:
            self._keys.touch()
        return True

    def _take_out(self, stamp: Any) -> None:
        """Take out of the current row what is no timer."""
        # By identity: NaN equals nothing, not even itself; and arrays do not compare to a bool.
        row = self._keys.row
        slot = self.slot
        present = row[slot]
        rest = {other for other in present if other is not stamp} if type(present) is set else set()
        row[slot] = rest if len(rest) > 1 else rest.pop() if rest else None
        if row[0] >= 0:
            self._keys.touch()

    def load(self, keys: list[Any], rows: list[list[Any]]) -> None:
        """Index the timers of restored rows; :meth:`end_loading` ends it."""
        owners: list[Any] = keys
        stamps: list[Any] = list(map(itemgetter(self.slot), rows))
        # Mostly each key has one timer, or none has any, and there are millions of them at a cold start.
        kinds = set(map(type, stamps))
        if kinds == {_NONE}:
            return
        if _NONE in kinds:
            present = [stamp is not None for stamp in stamps]
            owners, stamps = list(compress(owners, present)), list(compress(stamps, present))
        if not kinds <= {int, _NONE}:
            owners, stamps = self._unpacked(owners, stamps)
        try:
            timestamps = np.array(stamps, np.int64)
        except OverflowError:
            owners, stamps = self._unpacked(keys, [row[self.slot] for row in rows])
            timestamps = np.array(stamps, np.int64)
        self.queue.load(timestamps, owners)

    def _unpacked(self, keys: list[Any], slots: list[Any]) -> tuple[list[Any], list[int]]:
        """Return owners and timestamps of the timers in restored rows, and take out of the rows what is none.

        Checkpoints of versions that did not check timers may hold any object in the place of a timestamp.
        """
        owners: list[Any] = []
        timestamps: list[int] = []
        for key, present in zip(keys, slots):
            for stamp in list(present) if type(present) is set else () if present is None else (present,):
                timestamp, owner = (stamp[0], (key, stamp[1])) if self._namespaced else (stamp, key)
                if type(timestamp) is int and MIN_TIMESTAMP <= timestamp <= MAX_WATERMARK:
                    timestamps.append(timestamp)
                    owners.append(owner)
                else:
                    self._keys.set_current_key(key)
                    self._take_out(stamp)
                    count, first = self._dropped
                    self._dropped = (count + 1, first if count else key)
        return owners, timestamps

    def end_loading(self) -> None:
        """Have the restored timers ready, and tell of those that were none."""
        self.queue.sort()
        count, key = self._dropped
        if count:
            self._dropped = (0, None)
            _log.warning(
                "operator %r: the checkpoint holds %d timers whose timestamps are no 64-bit integers, the first of them"
                " of key %s; they could never fire, and are dropped",
                self._keys.operator,
                count,
                shorten(key),
            )

    def replace(self, key: Any, old: Any, new: Any) -> None:
        """Take note that a key's slot was overwritten from outside."""
        for timestamp, owner in self._entries(key, old):
            self.queue.discard(timestamp, owner)
        for timestamp, owner in self._entries(key, new):
            self.queue.add(timestamp, owner)

    def _entries(self, key: Any, present: Any) -> Iterable[tuple[int, Hashable]]:
        if present is None:
            return
        for stamp in present if type(present) is set else (present,):
            if self._namespaced:
                yield stamp[0], (key, stamp[1])
            else:
                yield stamp, key
