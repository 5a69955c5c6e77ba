"""Rows of namespaces that all keys share, on the heap: windows of time, which fold, and end for all keys at once.

They are kept by namespace, and then by key. An element that an epoch folds has no row at first: it costs one look-up
and one entry of a dictionary. Its row is made when the epoch ends and the window still exists; so windows
that begin and end within an epoch never have any. Timers are those of the window, not of each row; written rows have
them, as all rows do.

Only the mailbox thread may touch any of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any

from pillarbox._state.descriptors import AggregateFunction, AggregatingStateDescriptor, ReducingStateDescriptor
from pillarbox._state.heap.key_rows import KeyRows
from pillarbox._state.heap.namespace_rows import NamespaceRows
from pillarbox._state.heap.states import folded_none
from pillarbox._state.heap.timers import HeapTimers
from pillarbox._state.heap.window_timers import WindowTimers
from pillarbox._state.keys.addresses import check_namespace, is_namespaced, namespace_address
from pillarbox._state.slots import FIRST_SLOT, NEW, Row, SlotSpec, stale_entry
from pillarbox._state.state_descriptor import StateDescriptor

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


# Is called with each key that is new in a window, and the window, before its element is folded in.
Begun = Callable[[Any, Window], None]
Fold = Callable[[Iterable[Any], Iterable[Any], Iterable[Window], "Begun | None"], None]


class SharedWindows(NamespaceRows):
    """The rows of (key, namespace), by namespace. There is one state that folds, and its timers are the namespace's.

    It is that state as well, as operators see it: elements are added by whole runs, with one look-up for each.

    Attributes:
        by_namespace: the namespaces in which any key has something.
        contents: the place of what is folded in a row; 0: there is no such state yet.
        clock: the timers that windows have: timers of event time or of processing time; None: there are none yet.
        quiet: whether there may be a timer that does not call for all keys of its window.
        fold: called with values, the key and the window of each, and what is called with each key that is new in a
            window, or None. It folds each value in. If one fails, its key is the current one; a ``ProgramError`` says
            that the function that folds returned None.
    """

    fold: Fold

    def __init__(self, keys: KeyRows) -> None:
        super().__init__(keys)
        self.by_namespace: dict[Any, Window] = {}
        self.contents: int = 0
        self.clock: WindowTimers | None = None
        self.quiet: bool = False
        # The entries of rows that went with their windows in this epoch.
        self._dropped_entries: dict[Any, int] = {}

    # -- declaring --

    def _class_of(self, kind: str, *, late: bool) -> Any:
        # A state that is asked for late belongs to the window function.
        return super()._class_of(kind, late=True) if late else self._folding

    def _folding(self, _: Any, slot: int, descriptor: StateDescriptor) -> SharedWindows:
        assert not self.contents, "windows of all keys fold one state"
        self.contents = slot
        if isinstance(descriptor, ReducingStateDescriptor):
            self.fold = partial(self._reduce, descriptor.reduce_function)
        else:
            assert isinstance(descriptor, AggregatingStateDescriptor)
            self.fold = partial(self._aggregate, descriptor.agg_function)
        return self

    def add_timers(self, name: str) -> HeapTimers:
        """Return the timers of one time domain."""
        timers = WindowTimers(name, self, self.add_slot(SlotSpec(name, "timers")))
        self.timers.append(timers)
        return timers

    # -- folding --

    def _reduce(
        self,
        reduce: Callable[[Any, Any], Any],
        values: Iterable[Any],
        keys: Iterable[Any],
        windows: Iterable[Window],
        begun: Begun | None,
    ) -> None:
        thaw = self._thaw
        key = None
        try:
            for value, key, window in zip(values, keys, windows):
                fresh = window.fresh
                folded = fresh.get(key)
                if folded is None and window.kept:
                    folded = thaw(window, key)
                if folded is not None:
                    folded = reduce(folded, value)
                    if folded is None:
                        raise folded_none(self, self.contents, key)
                else:
                    if value is None:
                        raise folded_none(self, self.contents, key, is_record=True)
                    if begun is not None:
                        begun(key, window)
                    folded = value
                fresh[key] = folded
        except BaseException:
            self._keys.key = key
            raise

    def _aggregate(
        self,
        function: AggregateFunction[Any, Any, Any],
        values: Iterable[Any],
        keys: Iterable[Any],
        windows: Iterable[Window],
        begun: Begun | None,
    ) -> None:
        thaw, create, add = self._thaw, function.create_accumulator, function.add
        key = None
        try:
            for value, key, window in zip(values, keys, windows):
                fresh = window.fresh
                folded = fresh.get(key)
                if folded is None:
                    if window.kept:
                        folded = thaw(window, key)
                    if folded is None:
                        if begun is not None:
                            begun(key, window)
                        folded = create()
                fresh[key] = folded = add(value, folded)
                if folded is None:
                    raise folded_none(self, self.contents, key)
        except BaseException:
            self._keys.key = key
            raise

    # -- windows --

    def namespaces(self) -> list[Any]:
        """Return the windows in which any key has something."""
        return list(self.by_namespace)

    def get_window(self, namespace: Any) -> Window | None:
        """Return a window, for :attr:`fold`; None: no key has anything in it."""
        return self.by_namespace.get(namespace)

    def open_window(self, namespace: Any) -> Window:
        """Return a new window, in its place. Its timers are registered with its namespace, once for all keys."""
        check_namespace(namespace, self.operator)
        window = self.by_namespace[namespace] = Window(namespace)
        return window

    def drop_window(self, namespace: Any) -> None:
        """Remove a window with all that keys have in it, and its timers."""
        window = self.by_namespace.pop(namespace, None)
        if window is None:
            return
        for row in (*window.kept.values(), *window.rows.values()):
            self._drop_entry(row)
        self.row = self.nowhere

    def _drop_entry(self, row: Row) -> None:
        """Take note that a row goes, and with it its entry in the log, if it has one."""
        if row[0] != NEW:
            self._dropped_entries[row[1]] = row[0] if row[0] >= 0 else stale_entry(row[0])

    def folded(self, namespace: Any, key: Any) -> Any:
        """Return what is folded for a key in a window; None: nothing."""
        window = self.by_namespace.get(namespace)
        if window is None:
            return None
        row = window.kept.get(key)
        return window.fresh.get(key) if row is None else row[self.contents]

    def quieten(self, namespace: Any, timestamp: int) -> None:
        """Have a restored timer of a window call for no key whose row has timers, and this timer no more."""
        if self.clock is None:
            return
        window, slot = self.by_namespace[namespace], self.clock.slot
        rows = chain(window.kept.items(), window.rows.items())  # in the latter, the rows that are to be rewritten
        keys = {key for key, row in rows if _has_others(row[slot], timestamp)}
        if keys:
            window.quiet = timestamp, keys
            self.quiet = True

    def wake(self, keys: Iterable[Any], windows: Iterable[Window]) -> None:
        """Have all timers of windows call for keys again, to which elements are being added."""
        for key, window in zip(keys, windows):
            if window.quiet is not None:
                window.quiet[1].discard(key)

    def _thaw(self, window: Window, key: Any) -> Any:
        """Mark a key's row as changed, and return what is folded in it; None: there is no unchanged row."""
        row = window.kept.pop(key, None)
        if row is None:
            return None
        row[0] = stale_entry(row[0])
        window.rows[key] = row
        window.fresh[key] = folded = row[self.contents]
        return folded

    def thaw_all(self, namespace: Any) -> None:
        """Have all rows of a window written with this epoch: its timers have changed."""
        window = self.by_namespace[namespace]
        for row in sorted(window.kept.values(), key=_MARK):
            self._thaw(window, row[1][0])

    def remove(self, namespace: Any, key: Any) -> None:
        """Remove what a key has in a window that there is."""
        window = self.by_namespace[namespace]
        row = window.kept.pop(key, None)
        if row is None:
            window.fresh.pop(key, None)
            row = window.rows.pop(key, None)
        if row is not None:
            self._drop_entry(row)

    def items(self, namespace: Any, timestamp: int | None = None) -> Iterator[tuple[Any, Any]]:
        """Return the keys of a window with what is folded for them; taking one makes its key the current one.

        Those are left out for whom the timer at ``timestamp`` does not call.

        First those that the epoch has not changed, in the order of the log, then the others in the order in which they
        came: the same in a task that was resident, and in one that has just been restored.
        """
        window, table, contents = self.by_namespace[namespace], self._keys, self.contents
        kept = sorted(window.kept.values(), key=_MARK)
        # (States of the window that the caller asks for meanwhile may move keys from one to the other.)
        fresh = zip(list(window.fresh), list(window.fresh.values()))
        table.row = table.blank
        self.row = self.nowhere
        quiet: set[Any] | tuple[()] = ()
        if window.quiet is not None and window.quiet[0] == timestamp:
            quiet, window.quiet = window.quiet[1], None
        for key, folded in chain([(row[1][0], row[contents]) for row in kept], fresh):
            if quiet and key in quiet:
                continue
            if table.slots:
                table.enter(key)
            else:
                table.key = key
            if folded is not None:
                yield key, folded

    def drop_keys(self) -> None:
        """Drop what all keys have."""
        self.by_namespace.clear()
        self._dropped_entries.clear()
        self.row = self.nowhere

    # -- rows --

    @property
    def num_keys(self) -> int:
        """The number of keys that have rows here; of very many rows, the number of the window with most of them."""
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
        key = self._keys.key
        window = self.by_namespace.get(namespace)
        if window is None:
            window = self.open_window(namespace)
        row = window.kept.get(key)
        if row is None:
            if key not in window.fresh:
                self._keys.check_owner(key)
                window.fresh[key] = None
            row = self._row_of(window, namespace, key)
        return row

    def _row_of(self, window: Window, namespace: Any, key: Any) -> Row:
        """Return the row of a key that the epoch has changed, with all that it has."""
        row = window.rows.get(key)
        if row is None:
            row = window.rows[key] = self.blank.copy()
            row[1] = namespace_address(key, namespace)
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
        found = (self.find(namespace_address(key, namespace)) for namespace in list(self.by_namespace))
        return (row for row in found if row is not None and self.holds_something(row))

    def find(self, address: Any) -> Row | None:
        """Return the row of an address; None where there is none, or it is none of a namespace."""
        if not is_namespaced(address):
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
        self._thaw(self.by_namespace[namespace], key)

    def touch(self) -> None:
        """Note that the current row, unchanged so far in this epoch, is being changed."""
        self.touch_row(self.row)

    # -- writing and restoring whole rows (the state log's side) --

    def take_changes(self, removed: dict[Any, int]) -> list[Row]:
        """Return the rows that changed in this epoch and hold something; those that hold nothing are dropped."""
        gone, self._dropped_entries = self._dropped_entries, {}
        removed.update(gone)
        changed: list[Row] = []
        contents, blank = self.contents, self.blank
        timers = {each.slot for each in self.timers}
        late = [slot for slot in range(FIRST_SLOT, len(blank)) if slot not in timers and slot != contents]
        for namespace, window in list(self.by_namespace.items()):
            fresh, rows, kept = window.fresh, window.rows, window.kept
            window.fresh, window.rows = {}, {}
            for key, folded in fresh.items():
                row = rows.get(key)
                if row is None:
                    row = blank.copy()
                    row[1] = namespace_address(key, namespace)
                elif folded is None and all(row[slot] is None for slot in late):
                    if row[0] != NEW:
                        removed[row[1]] = stale_entry(row[0])
                    continue
                self._fill(window, key, row, folded)
                # (By the key object that the row has, and not by the record's.)
                kept[row[1][0]] = row
                changed.append(row)
            if not kept:
                del self.by_namespace[namespace]
        self.row = self.nowhere
        return changed

    def count_rows(self) -> int:
        """Return how many rows of keys in windows the log has."""
        return sum(len(window.kept) for window in self.by_namespace.values())

    def _put(self, rows: Collection[Row]) -> None:
        by_namespace = self.by_namespace
        for row in rows:
            key, namespace, _ = row[1]
            window = by_namespace.get(namespace)
            if window is None:
                window = by_namespace[namespace] = Window(namespace)
            window.kept[key] = row


def _has_others(stamps: Any, timestamp: int) -> bool:
    """Tell whether a row has timers, and not this one."""
    if type(stamps) is set:
        return timestamp not in stamps
    return stamps is not None and stamps != timestamp
