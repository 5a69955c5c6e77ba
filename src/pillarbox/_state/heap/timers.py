"""The timers of keys and of namespaces, which are part of their rows: written, restored and dropped with them.

A queue for each time domain of a timer service is an index over the rows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pillarbox._errors import CheckpointMismatchError, ProgramError, shorten
from pillarbox._state.heap.timer_queue import TimerQueue
from pillarbox._state.keys.addresses import format_address
from pillarbox._state.slots import NEW, Row, stale_entry
from pillarbox._time.internal_timer_service import VOID_NAMESPACE
from pillarbox._time.timestamp_assigner import EXPECTED, MAX_WATERMARK, MIN_TIMESTAMP, to_timestamp

if TYPE_CHECKING:
    from pillarbox._state.heap.rows import RowTable

# Fewer entries than this are compared faster by Python than by numpy.
_FEW = 64


class HeapTimers:
    """One time domain of a timer service: the queue, and the slot of the rows that it indexes.

    A row's slot holds None, one timestamp, or a set of them: most keys have one timer, and a set costs 200 bytes.
    """

    __slots__ = ("_claimed", "_dequeue", "_enqueue", "_table", "name", "queue", "slot")

    def __init__(self, name: str, table: RowTable, slot: int) -> None:
        self.name: str = name
        self._table = table
        self.queue: TimerQueue = TimerQueue()
        self.slot: int = slot
        # Timers that :meth:`claim` has taken out of the queue.
        self._claimed: set[tuple[int, Any]] = set()
        # A call less on the hottest path: timers are added and removed by methods of their queue.
        self._enqueue: Callable[[int, Any], None]
        self._dequeue: Callable[[int, Any], None]
        self._use_queue()

    def __len__(self) -> int:
        return self.queue.size + len(self._claimed)

    def next_timestamp(self) -> int | None:
        """Return the earliest timestamp that has a timer."""
        return self.queue.next_timestamp()

    def first_of_key(self) -> int | None:
        """Return the current key's earliest timer without a namespace."""
        present = self._table.row[self.slot]
        first: int | None = min(present) if type(present) is set else present
        return first

    def of_key(self) -> list[int]:
        """Return the current key's timers without a namespace, in order."""
        return sorted(_stamps_in(self._table.row[self.slot]))

    def due(self, limit: int) -> list[tuple[int, Any]]:
        """Return timestamp and key of the timers up to and at ``limit``, in timestamp order.

        They stay in their rows, and the caller deletes each; the queue does not return them again.
        """
        timers: list[tuple[int, Any]] = []
        while (timestamp := self.queue.next_timestamp()) is not None and timestamp <= limit:
            for key in self.queue.pop(timestamp, self._in_order):
                row = self._table.find(key)
                if row is not None and timestamp in _stamps_in(row[self.slot]):
                    timers.append((timestamp, key))
        return timers

    def register(self, timestamp: int, namespace: Any = VOID_NAMESPACE) -> None:
        """Add a timer of the current key, or of the current key in a namespace, unless it has it.

        Raises:
            ProgramError: the timestamp is not an int of 64 bits: in the queue and in the checkpoint it would do harm
                long after the record that brought it; or the namespace is no plain value.
        """
        if type(timestamp) is not int or not MIN_TIMESTAMP <= timestamp <= MAX_WATERMARK:
            timestamp = self._checked(timestamp)
        table = self._table
        row = table.row if namespace is VOID_NAMESPACE else table.row_in(namespace)
        present = row[self.slot]
        if present is None:
            row[self.slot] = timestamp
        elif type(present) is set and timestamp not in present:
            present.add(timestamp)
        elif not self._add(row, timestamp):
            return
        if row[0] >= 0:
            table.touch_row(row)
        self._enqueue(timestamp, row[1])

    def delete(self, timestamp: int, namespace: Any = VOID_NAMESPACE) -> None:
        """Remove a timer of the current key, or of the current key in a namespace, if it has it.

        Raises:
            ProgramError: the timestamp is not an int of 64 bits, or the namespace no plain value.
        """
        if type(timestamp) is not int or not MIN_TIMESTAMP <= timestamp <= MAX_WATERMARK:
            timestamp = self._checked(timestamp)
        row = self._table.row if namespace is VOID_NAMESPACE else self._table.row_in(namespace)
        if self._forget(row, timestamp):
            self._dequeue(timestamp, row[1])

    def fire(self, limit: int, trigger: Callable[[int, Any], None]) -> None:
        """Fire the timers up to and at ``limit`` in timestamp order, also those registered meanwhile.

        When a timer fires, its key, and its namespace, are the current ones.
        """
        queue, enter, namespaced = self.queue, self._table.enter, self._table.is_namespaced
        while (timestamp := queue.next_timestamp()) is not None and timestamp <= limit:
            # One by one: a timer that is registered meanwhile for an earlier time comes before the rest.
            for address in queue.pop(timestamp, self._in_order):
                # A timer that was called before, at the same timestamp, may have deleted this one.
                if self._forget(enter(address), timestamp):
                    queue.size -= 1
                    trigger(timestamp, address[1] if namespaced else VOID_NAMESPACE)
                if queue.overtaken:
                    break

    # -- claims: each key fires its due timers at its own turn --

    def claim(self, limit: int) -> dict[Any, int]:
        """Take the timers up to and at ``limit`` out of the queue; return each key's last one, in timestamp order.

        The timers stay in their rows: a key may still delete them before :meth:`take_due`. The last key is current.
        """
        return self._claimed_by(partial(self.fire, limit))

    def _claimed_by(self, fire: Callable[[Callable[[int, Any], None]], None]) -> dict[Any, int]:
        """Claim the timers that ``fire`` fires."""
        table, keys = self._table, dict[Any, int]()

        def claim(timestamp: int, namespace: Any) -> None:
            self._add(table.row, timestamp)
            self._claimed.add((timestamp, table.current_key))
            keys[table.current_key] = timestamp

        self._dequeue = self._discard
        fire(claim)
        return keys

    def _discard(self, timestamp: int, key: Any) -> None:
        """Discard a timer, claimed or not."""
        if (timestamp, key) in self._claimed:
            self._claimed.discard((timestamp, key))
        else:
            self._discard_from_queue(timestamp, key)

    def _discard_from_queue(self, timestamp: int, key: Any) -> None:
        self.queue.discard(timestamp, key)

    def take_due(self, row: Row, limit: int) -> int | None:
        """Remove the earliest timer up to and at ``limit`` from a row; return its timestamp, or None."""
        timestamp: int | None = min(_stamps_in(row[self.slot]), default=None)
        if timestamp is None or timestamp > limit:
            return None
        self.take_away(row, timestamp)
        return timestamp

    def _checked(self, timestamp: Any) -> int:
        """Return a timestamp that is not a plain int as one, or refuse it."""
        try:
            return to_timestamp(timestamp, self._table.zone)
        except TypeError:
            hint = EXPECTED
        except ValueError as error:
            hint = str(error)
        if timestamp is None:
            hint += (
                "; ctx.timestamp() is None where records have no timestamp: put assign_timestamps_and_watermarks(...)"
                " before, or use processing time"
            )
        domain = "a processing-time" if self.name.endswith("/processing") else "an event-time"
        raise ProgramError(
            f"operator {self._table.operator!r}, key {shorten(self._table.current_key)}: {domain} timer cannot be set"
            f" or deleted at {shorten(timestamp)} ({type(timestamp).__name__}): {hint}"
        )

    def _in_order(self, owners: list[Any]) -> list[Any]:
        """Return owners of timers of one time in the order of the log, those that it does not have as they came.

        So a task that was restored fires them in the same order as one that was resident.
        """
        # Of a row that is being changed, the entry with its older value: where the log has it.
        found = [NEW if row is None else row[0] for row in map(self._table.find, owners)]
        if len(found) < _FEW:  # mostly: timers to the millisecond
            places = [mark if mark >= 0 else stale_entry(mark) for mark in found]
            places = [place if place >= 0 else MAX_WATERMARK for place in places]
            if places == sorted(places):
                return owners
            return [owners[index] for index in sorted(range(len(owners)), key=places.__getitem__)]
        marks = np.array(found)
        entries = np.where(marks < 0, stale_entry(marks), marks)
        entries[entries < 0] = np.iinfo(np.int64).max
        if (entries[1:] >= entries[:-1]).all():
            return owners
        return list(map(owners.__getitem__, np.argsort(entries, kind="stable").tolist()))

    # -- undoing --

    def row_for(self, namespace: Any) -> Row:
        """Return the row that has the current key's timers in a namespace."""
        return self._table.row if namespace is VOID_NAMESPACE else self._table.row_in(namespace)

    def put_back(self, row: Row, timestamp: int) -> None:
        """Add a timer to a row that has changed."""
        self._add(row, timestamp)
        self._enqueue(timestamp, row[1])

    def take_away(self, row: Row, timestamp: int) -> None:
        """Remove a timer from a row that has changed."""
        self._forget(row, timestamp)
        self._dequeue(timestamp, row[1])

    def clear(self) -> None:
        """Drop all timers, the rows that they are in being dropped."""
        self.queue = TimerQueue()
        self._claimed.clear()
        self._use_queue()

    def _use_queue(self) -> None:
        self._enqueue = self.queue.add
        self._dequeue = self.queue.discard

    def end_epoch(self) -> None:
        """Take note that the timers so far are in the log."""
        self.queue.end_epoch()

    # -- slots --

    def _add(self, row: Row, timestamp: int) -> bool:
        """Add a timestamp to a row, unless the row has it already; tell whether it was added."""
        slot = self.slot
        present = row[slot]
        if present is None:
            row[slot] = timestamp
        elif type(present) is set:
            if timestamp in present:
                return False
            present.add(timestamp)
        elif present == timestamp:
            return False
        else:
            row[slot] = {present, timestamp}
        return True

    def _forget(self, row: Row, timestamp: int) -> bool:
        """Take a timestamp out of a row; tell whether the row had it."""
        slot = self.slot
        present = row[slot]
        if present is None:
            return False
        if type(present) is set:
            if timestamp not in present:
                return False
            present.discard(timestamp)
            if len(present) == 1:
                row[slot] = present.pop()
        elif present == timestamp:
            row[slot] = None
        else:
            return False
        if row[0] >= 0:
            self._table.touch_row(row)
        return True

    # -- restoring --

    def load(self, addresses: list[Any], rows: list[Row]) -> None:
        """Index the timers of restored rows."""
        slot = self.slot
        # Mostly each row has one timer, or none has any, and there are millions of them at a cold start.
        stamps: list[Any] = [stamp for row in rows if (stamp := row[slot]) is not None]
        if not stamps:
            return
        owners: list[Any] = addresses
        if len(stamps) < len(rows):
            owners = [address for address, row in zip(addresses, rows) if row[slot] is not None]
        timestamps = _packed(stamps)
        if timestamps is None:
            owners, stamps = self._unpacked(addresses, rows)
            timestamps = np.array(stamps, np.int64)
        self.queue.load(timestamps, owners)

    def _unpacked(self, addresses: list[Any], rows: list[Row]) -> tuple[list[Any], list[int]]:
        """Return owners and timestamps of the timers in restored rows.

        Raises:
            CheckpointMismatchError: a row has something else where a timer should be.
        """
        owners: list[Any] = []
        timestamps: list[int] = []
        for address, row in zip(addresses, rows):
            for timestamp in _stamps_in(row[self.slot]):
                if type(timestamp) is not int or not MIN_TIMESTAMP <= timestamp <= MAX_WATERMARK:
                    raise CheckpointMismatchError(
                        f"operator {self._table.operator!r}: the checkpoint holds a timer of key"
                        f" {format_address(address)} at {shorten(timestamp)} ({type(timestamp).__name__}), which is no"
                        " 64-bit integer: it is damaged; start from an older copy of it, or from a new one"
                    )
                timestamps.append(timestamp)
                owners.append(address)
        return owners, timestamps


def _packed(stamps: list[Any]) -> npt.NDArray[np.int64] | None:
    """Return timestamps as an array; None: one of them is no timestamp, or a set of them."""
    try:
        # (Half the time that numpy takes for that.)
        packed = np.frombuffer(struct.pack(f"{len(stamps)}q", *stamps), np.int64)
    except (struct.error, TypeError):
        return None
    # It takes booleans and numbers of numpy, too.
    return packed if list(map(type, stamps)).count(int) == len(stamps) else None


def _stamps_in(present: Any) -> Iterable[Any]:
    """Return the timestamps in a slot."""
    if present is None:
        return ()
    return present if type(present) is set else (present,)
