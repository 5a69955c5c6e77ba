"""Rows of namespaces that all keys share, on the heap: windows of time, which fold, and end for all keys at once.

They are kept by namespace, and then by key. What an epoch folds is there without a row at first: one look-up and one
entry of a dictionary for an element. Its row is made when the epoch ends and the window is still there; so windows
that begin and end within an epoch never have any. Timers are those of the window, not of each row; written rows have
them, as all rows do.

Only the mailbox thread may touch any of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pillarbox._state.backend import SlotSpec
from pillarbox._state.heap.folded_windows import FOLDED_WINDOWS
from pillarbox._state.heap.rows import NEW, Row, stale_entry
from pillarbox._state.heap.spaces import HeapSpaces
from pillarbox._state.heap.timers import HeapTimers
from pillarbox._state.keys.addresses import check_namespace, is_space, space_address
from pillarbox._time.timestamps import MAX_WATERMARK, MIN_TIMESTAMP

if TYPE_CHECKING:
    from pillarbox._state.heap.backend import HeapKeyedStateBackend

__all__ = ["HeapWindows", "Window"]

_MARK = itemgetter(0)
# Windows that hold more than this in all are not searched for the number of different keys: it is asked for each epoch.
_COUNTED = 100_000


class Window:
    """What all keys have in one namespace. Each key is in one of the first two.

    Attributes:
        namespace: the namespace.
        fresh: what is folded so far, by key, where this epoch has changed it; None: nothing, there is only a row.
        kept: the rows that are unchanged: the log has them.
        rows: the rows of keys in ``fresh``, as far as there are any; what is folded gets there when the epoch ends.
        timers: the timestamps of its timers.
        quiet: those that have the timer of ``quiet[0]`` no more, which others in the window have: it does not call
            for these keys; None: there are none, as nearly always.
    """

    __slots__ = ("fresh", "kept", "namespace", "quiet", "rows", "timers")

    def __init__(self, namespace: Any) -> None:
        self.namespace: Any = namespace
        self.fresh: dict[Any, Any] = {}
        self.kept: dict[Any, Row] = {}
        self.rows: dict[Any, Row] = {}
        self.timers: set[int] = set()
        self.quiet: tuple[int, set[Any]] | None = None

    def __len__(self) -> int:
        return len(self.fresh) + len(self.kept)


class HeapWindows(HeapSpaces):
    """The rows of (key, namespace), by namespace. There is one state that folds, and its timers are the namespace's.

    Attributes:
        by_namespace: the namespaces in which any key has something.
        contents: the place of what is folded in a row; 0: there is no such state yet.
        clock: the timers that windows have: those of event time or of processing time; None: there are none yet.
        quiet: whether there may be a timer that does not call for all keys of its window.
    """

    def __init__(self, backend: HeapKeyedStateBackend) -> None:
        super().__init__(backend)
        self.by_namespace: dict[Any, Window] = {}
        self.contents: int = 0
        self.clock: _WindowTimers | None = None
        self.quiet: bool = False
        # The entries of rows that went with their windows in this epoch.
        self._gone: dict[Any, int] = {}

    # -- declaring --

    def _class_of(self, kind: str, *, late: bool) -> Any:
        # What is asked for late is of the window function.
        return super()._class_of(kind, late=True) if late else FOLDED_WINDOWS[kind]

    def create_timers(self, name: str) -> HeapTimers:
        """Return the timers of one time domain."""
        timers = _WindowTimers(name, self._backend, self.add_slot(SlotSpec(name, "timers")), self)
        self.timers.append(timers)
        return timers

    def set_key(self, key: Any) -> None:
        """Make ``key`` the current one, for errors."""
        self._backend.key = key

    # -- windows --

    def begin(self, namespace: Any) -> Window:
        """Return a new window, in its place."""
        check_namespace(namespace, self.operator)
        window = self.by_namespace[namespace] = Window(namespace)
        return window

    def end(self, namespace: Any) -> None:
        """Remove a window with all that is in it."""
        window = self.by_namespace.pop(namespace, None)
        if window is None:
            return
        gone = self._gone
        for row in window.kept.values():
            gone[row[1]] = row[0]
        for row in window.rows.values():
            if row[0] != NEW:
                gone[row[1]] = stale_entry(row[0])
        self.row = self.nowhere

    def quieten(self, namespace: Any, timestamp: int) -> None:
        """Have a timer of a window that was restored call for no key whose row has timers, and this one no more."""
        if self.clock is None:
            return
        window, slot = self.by_namespace[namespace], self.clock.slot
        rows = chain(window.kept.items(), window.rows.items())  # in the latter, those that are to be written anew
        keys = {key for key, row in rows if _has_others(row[slot], timestamp)}
        if keys:
            window.quiet = timestamp, keys
            self.quiet = True

    def wake(self, keys: Iterable[Any], windows: Iterable[Window]) -> None:
        """Have all timers of windows call for keys again, to which elements are being added."""
        for key, window in zip(keys, windows):
            if window.quiet is not None:
                window.quiet[1].discard(key)

    def take(self, window: Window, key: Any) -> Any:
        """Return what is folded for a key, which this epoch has not changed so far, and will; None: nothing."""
        row = window.kept.pop(key, None)
        if row is None:
            return None
        row[0] = stale_entry(row[0])
        window.rows[key] = row
        window.fresh[key] = folded = row[self.contents]
        return folded

    def remove(self, namespace: Any, key: Any) -> None:
        """Remove what a key has in a window."""
        window = self.by_namespace[namespace]
        row = window.kept.pop(key, None)
        if row is not None:
            self._gone[row[1]] = row[0]
            return
        window.fresh.pop(key, None)
        row = window.rows.pop(key, None)
        if row is not None and row[0] != NEW:
            self._gone[row[1]] = stale_entry(row[0])

    def take_all(self, namespace: Any) -> None:
        """Have all rows of a window written again: its timers have changed."""
        window = self.by_namespace[namespace]
        for row in sorted(window.kept.values(), key=_MARK):
            self.take(window, row[1][0])

    def each(self, namespace: Any, timestamp: int | None = None) -> Iterator[tuple[Any, Any]]:
        """Return the keys of a window with what is folded for them; taking one makes its key the current one.

        Those are left out for whom the timer at ``timestamp`` does not call.

        First those that the epoch has not changed, in the order of the log, then the others in the order in which they
        came: the same in a task that was resident, and in one that has just been restored.
        """
        window, backend, contents = self.by_namespace[namespace], self._backend, self.contents
        kept = sorted(window.kept.values(), key=_MARK)
        # (States of the window that the caller asks for meanwhile may move keys from one to the other.)
        fresh = zip(list(window.fresh), list(window.fresh.values()))
        backend.row = backend.blank
        self.row = self.nowhere
        quiet: set[Any] | tuple[()] = ()
        if window.quiet is not None and window.quiet[0] == timestamp:
            quiet, window.quiet = window.quiet[1], None
        for key, folded in chain([(row[1][0], row[contents]) for row in kept], fresh):
            if quiet and key in quiet:
                continue
            if backend.slots:
                backend.set_current_key(key)
            else:
                backend.key = key
            if folded is not None:
                yield key, folded

    def drop_keys(self) -> None:
        """Drop what all keys have."""
        self.by_namespace.clear()
        self._gone.clear()
        self.row = self.nowhere

    # -- rows --

    @property
    def num_keys(self) -> int:
        """The number of keys that have rows here; of very many rows, that of the window with most of them."""
        windows = self.by_namespace.values()
        sizes = list(map(len, windows))
        if len(sizes) < 2 or sum(sizes) > _COUNTED:
            return max(sizes, default=0)
        return len(set(self.get_keys()))

    def get_keys(self) -> Iterator[Any]:
        """Return the keys that have rows here."""
        parts = [part for window in self.by_namespace.values() for part in (window.kept, window.fresh)]
        return iter(dict.fromkeys(chain.from_iterable(parts)))

    def contents_by_key(self) -> Iterator[tuple[Any, Any]]:
        """Return all that is kept, with its keys, for a look at its size."""
        for window in self.by_namespace.values():
            yield from window.kept.items()
            yield from window.fresh.items()

    def row_in(self, namespace: Any) -> Row:
        """Return the current key's row in a namespace, made where there is none."""
        key = self._backend.key
        window = self.by_namespace.get(namespace)
        if window is None:
            window = self.begin(namespace)
        row = window.kept.get(key)
        if row is None:
            if key not in window.fresh:
                self._backend.check_owner(key)
                window.fresh[key] = None
            row = self._row_of(window, namespace, key)
        return row

    def _row_of(self, window: Window, namespace: Any, key: Any) -> Row:
        """Return the row of a key that the epoch has changed, with all that it has."""
        row = window.rows.get(key)
        if row is None:
            row = window.rows[key] = self.blank.copy()
            row[1] = space_address(key, namespace)
        self._fill(window, key, row, window.fresh[key])
        return row

    def _fill(self, window: Window, key: Any, row: Row, folded: Any) -> None:
        row[self.contents] = folded
        if self.clock is not None:
            stamps = window.timers
            if window.quiet is not None and key in window.quiet[1]:
                stamps = stamps - {window.quiet[0]}
            # Each row has a set of its own: who reads it may change it.
            row[self.clock.slot] = None if not stamps else set(stamps) if len(stamps) > 1 else next(iter(stamps))

    def namespaces_of(self, key: Any) -> list[Any]:
        """Return the namespaces in which a key has state or timers."""
        windows = self.by_namespace.items()
        return [namespace for namespace, window in windows if key in window.kept or key in window.fresh]

    def rows_of(self, key: Any) -> Iterator[Row]:
        """Return a key's rows that hold something."""
        found = (self.find(space_address(key, namespace)) for namespace in list(self.by_namespace))
        return (row for row in found if row is not None and self.holds_something(row))

    def find(self, address: Any) -> Row | None:
        """Return the row of an address; None where there is none, or it is none of a namespace."""
        if not is_space(address):
            return None
        key, namespace, _ = address
        window = self.by_namespace.get(namespace)
        if window is None:
            return None
        row = window.kept.get(key)
        return self._row_of(window, namespace, key) if row is None and key in window.fresh else row

    def every_row(self) -> Iterator[Row]:
        """Return all rows that there are."""
        for window in self.by_namespace.values():
            yield from window.kept.values()
            yield from window.rows.values()

    def touch_row(self, row: Row) -> None:
        """Note that a row, unchanged so far in this epoch, is being changed."""
        key, namespace, _ = row[1]
        self.take(self.by_namespace[namespace], key)

    # -- writing and restoring whole rows (the state log's side) --

    def take_changes(self, changed: dict[Any, Row], removed: dict[Any, int]) -> None:
        """Add the rows that changed in this epoch, and the stale entries of those that are gone, by address."""
        gone, self._gone = self._gone, {}
        removed.update(gone)
        contents, blank, lead = self.contents, self.blank, self._lead
        timers = {each.slot for each in self.timers}
        late = [slot for slot in range(lead, len(blank)) if slot not in timers and slot != contents]
        for namespace, window in list(self.by_namespace.items()):
            fresh, rows, kept = window.fresh, window.rows, window.kept
            window.fresh, window.rows = {}, {}
            for key, folded in fresh.items():
                row = rows.get(key)
                if row is None:
                    row = blank.copy()
                    row[1] = space_address(key, namespace)
                elif folded is None and all(row[slot] is None for slot in late):
                    if row[0] != NEW:
                        removed[row[1]] = stale_entry(row[0])
                    continue
                self._fill(window, key, row, folded)
                # (By the key object that the row has, and not that of a record.)
                changed[row[1]] = kept[row[1][0]] = row
            if not kept:
                del self.by_namespace[namespace]
        self.row = self.nowhere

    def count_rows(self) -> int:
        """Return how many rows of keys in windows the log has."""
        return sum(len(window.kept) for window in self.by_namespace.values())

    def load(self, addresses: list[Any], rows: list[Row]) -> None:
        """Take over rows, each once, during a cold start."""
        by_namespace = self.by_namespace
        for row in rows:
            key, namespace, _ = row[1]
            window = by_namespace.get(namespace)
            if window is None:
                window = by_namespace[namespace] = Window(namespace)
            window.kept[key] = row


class _WindowTimers(HeapTimers):
    """The timers of windows: each calls for all keys of its window together, and the caller goes through them.

    The windows of an operator follow one clock, so only one of the two time domains has timers.

    They are not restored: which ones there are follows from the windows, and who declared them registers them again.
    Whether one calls for a key, the key's row says.
    """

    __slots__ = ("_windows",)

    def __init__(self, name: str, backend: HeapKeyedStateBackend, slot: int, windows: HeapWindows) -> None:
        super().__init__(name, backend, slot)
        self._windows = windows

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

    def fire(self, limit: int, trigger: Callable[[int, Any], None]) -> None:
        """Fire the timers up to and at ``limit`` in timestamp order, also those registered meanwhile."""
        queue, by_namespace = self.queue, self._windows.by_namespace
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


def _has_others(stamps: Any, timestamp: int) -> bool:
    """Tell whether a row has timers, and not this one."""
    if type(stamps) is set:
        return timestamp not in stamps
    return stamps is not None and stamps != timestamp
