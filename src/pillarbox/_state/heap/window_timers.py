"""Timers of windows that all keys share: each calls for all keys of its window together.

Only the mailbox thread may touch them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pillarbox._state.heap.timers import HeapTimers
from pillarbox._state.slots import Row
from pillarbox._time.timestamp_assigner import MAX_WATERMARK, MIN_TIMESTAMP

if TYPE_CHECKING:
    from pillarbox._state.heap.shared_windows import SharedWindows


class WindowTimers(HeapTimers):
    """The timers of windows: each calls for all keys of its window together, and the caller goes through them.

    The windows of an operator follow one clock, so only one of the two time domains has timers.

    They are not restored: which ones there are follows from the windows, and who declared them registers them again.
    Whether one calls for a key, the key's row says.
    """

    __slots__ = ("_began", "_due", "_windows")

    def __init__(self, name: str, windows: SharedWindows, slot: int) -> None:
        super().__init__(name, windows, slot)
        self._windows = windows
        # When the epoch began, and what time the clock has passed since.
        self._began = self._due = MIN_TIMESTAMP - 1

    def __len__(self) -> int:
        if self is not self._windows.clock:
            return 0
        windows = self._windows.by_namespace.values()
        quiet = sum(len(window.quiet[1]) for window in windows if window.quiet is not None)
        return sum(len(window) * len(window.timers) for window in windows) - quiet

    def register(self, timestamp: int, namespace: Any = None) -> None:
        """Add a timer of a window, unless it has it.

        Raises:
            ProgramError: the timestamp is not an int of 64 bits.
        """
        if type(timestamp) is not int or not MIN_TIMESTAMP <= timestamp <= MAX_WATERMARK:
            timestamp = self._checked(timestamp)
        self._windows.clock = self
        stamps = self._windows.by_namespace[namespace].timers
        if timestamp not in stamps:
            stamps.add(timestamp)
            self.queue.add(timestamp, namespace)

    def delete(self, timestamp: int, namespace: Any = None) -> None:
        """Refuse: they go with their window."""
        raise AssertionError("timers of windows of all keys are not deleted")

    def begin_epoch(self, now: int) -> None:
        """Let the timers up to and at ``now`` wait for the end of the epoch's records, and later ones for them."""
        self._began = self._due = now

    def next_for_clock(self) -> int | None:
        """Return the earliest timestamp that has a timer, unless this is overdue."""
        first = self.next_timestamp()
        return None if first is None or first <= self._began else first

    def has_overdue(self) -> bool:
        """Return whether timers wait."""
        return self.next_timestamp() is not None and self.next_for_clock() is None

    def fire_overdue(self, trigger: Callable[[int, Any], None]) -> None:
        """Fire the timers that waited."""
        self._began = MIN_TIMESTAMP - 1
        self.fire(self._due, trigger)

    def fire(self, limit: int, trigger: Callable[[int, Any], None]) -> None:
        """Fire the timers up to and at ``limit`` in timestamp order, also those registered meanwhile."""
        queue, by_namespace = self.queue, self._windows.by_namespace
        first = queue.next_timestamp()
        if first is not None and first <= self._began:
            self._due = max(self._due, limit)
            return
        while (timestamp := queue.next_timestamp()) is not None and timestamp <= limit:
            for namespace in queue.pop(timestamp):
                queue.size -= 1
                window = by_namespace.get(namespace)
                if window is not None and timestamp in window.timers:
                    window.timers.discard(timestamp)
                    trigger(timestamp, namespace)
                if queue.overtaken:
                    break

    def load(self, addresses: list[Any], rows: list[Row]) -> None:
        """Index nothing: see above."""
