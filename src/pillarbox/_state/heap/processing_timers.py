"""Processing-time timers on the heap: those that are overdue when an epoch begins wait for its records.

Only the mailbox thread may touch them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pillarbox._state.heap.timer_queue import TimerQueue
from pillarbox._state.heap.timers import HeapTimers
from pillarbox._time.internal_timer_service import VOID_NAMESPACE
from pillarbox._time.timestamp_assigner import MIN_TIMESTAMP

if TYPE_CHECKING:
    from pillarbox._state.heap.rows import RowTable


class ProcessingTimers(HeapTimers):
    """The processing-time timers of a service.

    A timer is *overdue* if its time is at most the epoch's beginning; also one that is set within the epoch. Overdue
    timers fire at the end of the epoch's records, which may delete them. A later timer fires when the clock has passed
    its time. If its key has an overdue timer by then, it waits, so that the timers of one key fire in order.
    """

    __slots__ = ("_began", "_held", "_keys", "_waiting")

    def __init__(self, name: str, table: RowTable, slot: int) -> None:
        super().__init__(name, table, slot)
        # When the epoch began (epoch ms).
        self._began = MIN_TIMESTAMP - 1
        # Overdue timers, and those that wait for them; the number of both by key; and the latter alone.
        self._waiting: TimerQueue = TimerQueue()
        self._keys: Counter[Any] = Counter()
        self._held: set[tuple[int, Any]] = set()

    def __len__(self) -> int:
        return super().__len__() + self._waiting.size

    def begin_epoch(self, now: int) -> None:
        """Let the timers up to and at ``now`` wait for :meth:`fire_overdue`."""
        self._began = now
        queue = self.queue
        while (timestamp := queue.next_timestamp()) is not None and timestamp <= now:
            for address in queue.pop(timestamp, self._in_order):
                queue.size -= 1
                self._wait(timestamp, address)

    def next_timestamp(self) -> int | None:
        """Return the earliest timestamp that has a timer."""
        return super().next_timestamp() if self._waiting.size == 0 else self._waiting.next_timestamp()

    def next_for_clock(self) -> int | None:
        """Return the earliest timestamp that has a timer which the clock is to fire."""
        return super().next_timestamp()

    def fire(self, limit: int, trigger: Callable[[int, Any], None]) -> None:
        """Fire the timers up to and at ``limit`` in timestamp order, except for overdue timers and their keys' others.

        When a timer fires, its key, and its namespace, are the current ones.
        """
        queue = self.queue
        while (timestamp := queue.next_timestamp()) is not None and timestamp <= limit:
            for address in queue.pop(timestamp, self._in_order):
                if self._keys and self._key_of(address) in self._keys:
                    if self._has(address, timestamp):
                        queue.size -= 1
                        self._wait(timestamp, address)
                        self._held.add((timestamp, address))
                elif self._forget(self._table.enter(address), timestamp):
                    queue.size -= 1
                    trigger(timestamp, self._namespace_of(address))
                if queue.overtaken:
                    break

    def has_overdue(self) -> bool:
        """Return whether timers wait for :meth:`fire_overdue`."""
        return self._waiting.size > 0

    def fire_overdue(self, trigger: Callable[[int, Any], None]) -> None:
        """Fire overdue timers in timestamp order, also those that are set meanwhile, and those that wait for them."""
        waiting = self._waiting
        while (timestamp := waiting.next_timestamp()) is not None:
            for address in waiting.pop(timestamp):
                if self._has(address, timestamp):
                    self._forget(self._table.enter(address), timestamp)
                    self._leave(timestamp, address)
                    waiting.size -= 1
                    trigger(timestamp, self._namespace_of(address))
                if waiting.overtaken:
                    break

    def claim_overdue(self) -> dict[Any, int]:
        """Claim the overdue timers, and the timers that wait for them, as :meth:`claim`."""
        return self._claimed_by(self.fire_overdue)

    def clear(self) -> None:
        """Drop all timers, the rows that they are in being dropped."""
        super().clear()
        self._waiting = TimerQueue()
        self._keys.clear()
        self._held.clear()

    def end_epoch(self) -> None:
        """Take note that the timers so far are in the log."""
        super().end_epoch()
        self._waiting.end_epoch()

    def _use_queue(self) -> None:
        self._enqueue = self._add_to_queue
        self._dequeue = self._discard_from_queue

    def _add_to_queue(self, timestamp: int, address: Any) -> None:
        if timestamp <= self._began:
            self._wait(timestamp, address)
        else:
            self.queue.add(timestamp, address)

    def _discard_from_queue(self, timestamp: int, address: Any) -> None:
        if timestamp <= self._began or (timestamp, address) in self._held:
            self._waiting.discard(timestamp, address)
            self._leave(timestamp, address)
        else:
            self.queue.discard(timestamp, address)

    def _wait(self, timestamp: int, address: Any) -> None:
        self._waiting.add(timestamp, address)
        self._keys[self._key_of(address)] += 1

    def _leave(self, timestamp: int, address: Any) -> None:
        """Take note that a timer does not wait any more."""
        self._held.discard((timestamp, address))
        key = self._key_of(address)
        self._keys[key] -= 1
        if not self._keys[key]:
            del self._keys[key]

    def _key_of(self, address: Any) -> Any:
        return address[0] if self._table.is_namespaced else address

    def _namespace_of(self, address: Any) -> Any:
        return address[1] if self._table.is_namespaced else VOID_NAMESPACE

    def _has(self, address: Any, timestamp: int) -> bool:
        """Return whether a row still has a timer: others that fire at the same time may delete it."""
        row = self._table.find(address)
        present = None if row is None else row[self.slot]
        return present == timestamp if type(present) is not set else timestamp in present
