"""States with a time-to-live on the heap: the time of each state's last access has a slot of its own.

The *stamp* of a value is an int (epoch ms), of a list a list, of a map a dictionary. So the state
itself is stored as it is without a time-to-live, which may come, change and go. Older values have no stamp; the
cleaner gives it one. Source of the behaviour: Flink's ``TtlValueState``, ``TtlListState`` and so on.

Only the mailbox thread may touch them.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from itertools import compress
from typing import Any

from pillarbox._state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from pillarbox._state.heap.key_rows import KeyRows
from pillarbox._state.heap.states import (
    HeapAggregatingState,
    HeapFoldingState,
    HeapListState,
    HeapMapState,
    HeapReducingState,
    HeapState,
    HeapValueState,
)
from pillarbox._state.keys.map_keys import map_key, with_map_keys
from pillarbox._state.slots import Row
from pillarbox._state.state_descriptor import StateDescriptor
from pillarbox._state.ttl import StateTtlConfig

_EMPTY: dict[Any, Any] = {}


class TtlState(HeapState):
    """A state with a time-to-live, and where its stamps are.

    Attributes:
        ttl: the time-to-live.
    """

    def __init__(self, rows: KeyRows, slot: int, descriptor: StateDescriptor, stamps: int) -> None:
        super().__init__(rows, slot, descriptor)
        assert descriptor.ttl_config is not None
        self._rows = rows
        self._stamps = stamps
        self.ttl: StateTtlConfig = descriptor.ttl_config
        self._limit = self.ttl.millis
        self._on_read = self.ttl.update_type is StateTtlConfig.UpdateType.OnReadAndWrite
        visibility = StateTtlConfig.StateVisibility
        self._returns_expired = self.ttl.state_visibility is visibility.ReturnExpiredIfNotCleanedUp

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots that hold it: of its content, and of its stamps."""
        return (self._slot, self._stamps)

    def clear(self) -> None:
        row = self._rows.row
        if row[self._slot] is not None:
            row[self._stamps] = None
            super().clear()

    def size(self, row: Row) -> int:
        """Return the number of elements in a row."""
        elements = row[self._slot]
        return 0 if elements is None else len(elements)

    def clean(self, row: Row) -> bool:
        """Clear what has expired in a row, and stamp what has no stamp; return whether it was changed."""
        raise NotImplementedError

    def stamp_missing(self, row: Row) -> bool:
        """Stamp what has no stamp in a row; return whether there was any."""
        raise NotImplementedError

    def _touch(self, row: Row) -> None:
        if row[0] >= 0:
            self._rows.touch()


class _TimedAsOne(TtlState):
    """One whose content has one stamp."""

    def _read(self) -> Any:
        """Return the content, so far as it may be read; clear what has expired, and take note of the access."""
        rows, stamps = self._rows, self._stamps
        row = rows.row
        content = row[self._slot]
        if content is None:
            return None
        now, stamp = rows.now, row[stamps]
        if stamp is not None and now - stamp >= self._limit:
            row[self._slot] = row[stamps] = None
            self._touch(row)
            return content if self._returns_expired else None
        if self._on_read and stamp != now:
            row[stamps] = now
            self._touch(row)
        return content

    def _forget_expired(self) -> None:
        """Before something is folded into the content: what has expired is no part of it."""
        row = self._rows.row
        stamp = row[self._stamps]
        if stamp is not None and self._rows.now - stamp >= self._limit and not self._returns_expired:
            self.clear()

    def size(self, row: Row) -> int:
        return 0

    def clean(self, row: Row) -> bool:
        if row[self._slot] is None:
            return False
        stamp = row[self._stamps]
        if stamp is None:
            return self.stamp_missing(row)
        if self._rows.now - stamp < self._limit:
            return False
        row[self._slot] = row[self._stamps] = None
        return True

    def stamp_missing(self, row: Row) -> bool:
        if row[self._slot] is None or row[self._stamps] is not None:
            return False
        row[self._stamps] = self._rows.now
        return True

    def is_readable(self, row: Row) -> bool:
        stamp = row[self._stamps]
        over = stamp is not None and self._rows.now - stamp >= self._limit
        return row[self._slot] is not None and (self._returns_expired or not over)


class _TtlValueState(_TimedAsOne, HeapValueState):
    def __init__(self, rows: Any, slot: int, descriptor: ValueStateDescriptor, stamps: int) -> None:
        super().__init__(rows, slot, descriptor, stamps)
        self._descriptor = descriptor

    def value(self) -> Any:
        found = self._read()
        return self._descriptor.make_default() if found is None else found

    def update(self, value: Any) -> None:
        super().update(value)
        self._rows.row[self._stamps] = None if value is None else self._rows.now


class _TtlFoldingState(_TimedAsOne, HeapFoldingState):
    def fold(self, value: Any) -> bool:
        self._forget_expired()
        first = super().fold(value)
        self._rows.row[self._stamps] = self._rows.now
        return first


class _TtlReducingState(_TtlFoldingState, HeapReducingState):
    def get(self) -> Any:
        return self._read()


class _TtlAggregatingState(_TtlFoldingState, HeapAggregatingState):
    def get(self) -> Any:
        accumulator = self._read()
        return None if accumulator is None else self._function.get_result(accumulator)


class _TtlListState(TtlState, HeapListState):
    def get(self) -> tuple[Any, ...]:
        rows, slot = self._rows, self._slot
        row = rows.row
        elements = row[slot]
        if elements is None:
            return ()
        stamps: list[int] | None = row[self._stamps]
        alive = elements
        if stamps is not None:
            newest_expired = rows.now - self._limit
            if min(stamps) <= newest_expired:
                alive = [element for element, stamp in zip(elements, stamps) if stamp > newest_expired]
        if not alive:
            row[slot] = row[self._stamps] = None
            self._touch(row)
        elif self._on_read and (stamps is None or min(stamps) != rows.now or len(alive) != len(elements)):
            row[slot], row[self._stamps] = alive, [rows.now] * len(alive)
            self._touch(row)
        return tuple(elements if self._returns_expired else alive)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def add(self, value: Any) -> None:
        super().add(value)
        self._stamp_added()

    def add_all(self, values: Iterable[Any]) -> None:
        super().add_all(values)
        self._stamp_added()

    def update(self, values: Iterable[Any]) -> None:
        super().update(values)
        self._rows.row[self._stamps] = None
        self._stamp_added()

    def _stamp_added(self) -> None:
        """Stamp the elements after the stamped ones; where none has a stamp, all of them."""
        row = self._rows.row
        elements, stamps = row[self._slot], row[self._stamps]
        if stamps is None:
            if elements is not None:
                row[self._stamps] = [self._rows.now] * len(elements)
        elif len(elements) == len(stamps) + 1:
            stamps.append(self._rows.now)
        else:
            stamps.extend([self._rows.now] * (len(elements) - len(stamps)))

    def clean(self, row: Row) -> bool:
        elements, stamps = row[self._slot], row[self._stamps]
        if elements is None:
            return False
        if stamps is None:
            return self.stamp_missing(row)
        newest_expired = self._rows.now - self._limit
        if min(stamps) > newest_expired:
            return False
        alive = [stamp > newest_expired for stamp in stamps]
        row[self._slot] = list(compress(elements, alive)) or None
        row[self._stamps] = list(compress(stamps, alive)) or None
        return True

    def stamp_missing(self, row: Row) -> bool:
        if row[self._slot] is None or row[self._stamps] is not None:
            return False
        row[self._stamps] = [self._rows.now] * len(row[self._slot])
        return True

    def is_readable(self, row: Row) -> bool:
        stamps = row[self._stamps]
        if row[self._slot] is None or self._returns_expired or stamps is None:
            return row[self._slot] is not None
        return bool(max(stamps) > self._rows.now - self._limit)


class _TtlMapState(TtlState, HeapMapState):
    def _find(self, key: Any) -> dict[Any, Any]:
        """Return a map in which an entry is, if it may be read; remove what has expired, and note the access."""
        rows = self._rows
        row = rows.row
        entries = row[self._slot]
        if entries is None or key not in entries:
            return _EMPTY
        if self.has_expired(key):
            value = entries[key]
            self.remove(key)
            return {key: value} if self._returns_expired else _EMPTY
        stamps = row[self._stamps]
        if self._on_read and (stamps is None or stamps.get(key) != rows.now):
            self._stamp(row, (key,))
            self._touch(row)
        return entries  # type: ignore[no-any-return]

    def has_expired(self, key: Any) -> bool:
        """Return whether an entry has expired: whoever asks for it removes it."""
        stamps = self._rows.row[self._stamps]
        stamp = None if stamps is None else stamps.get(key)
        return stamp is not None and self._rows.now - stamp >= self._limit

    def expired(self) -> list[Any]:
        """Return the keys that have expired: whoever asks for all entries removes them."""
        return self._expired(self._rows.row)

    def stamped_by_looks(self) -> Iterable[Any]:
        """Return the keys that are stamped when somebody asks for all entries, and some others perhaps."""
        return self._rows.row[self._slot] or () if self._on_read else ()

    def _stamp(self, row: Row, keys: Iterable[Any]) -> None:
        stamps = row[self._stamps]
        if stamps is None:
            stamps = row[self._stamps] = {}
        now = self._rows.now
        for key in keys:
            if stamps.get(key) != now:
                stamps[key] = now

    def _readable(self) -> Mapping[Any, Any]:
        """Return the entries that may be read; remove those that have expired, and note the access to the others."""
        row = self._rows.row
        entries = row[self._slot]
        if entries is None:
            return _EMPTY
        expired = self._expired(row)
        shown = dict(entries) if expired and self._returns_expired else None
        if expired:
            self._remove(row, expired)
            self._touch(row)
        alive = row[self._slot] or _EMPTY
        if self._on_read and alive:
            self._stamp(row, alive)
            self._touch(row)
        return alive if shown is None else shown

    def _expired(self, row: Row) -> list[Any]:
        stamps = row[self._stamps]
        newest_expired = self._rows.now - self._limit
        return [] if stamps is None else [key for key, stamp in stamps.items() if stamp <= newest_expired]

    def _remove(self, row: Row, keys: Iterable[Any]) -> None:
        entries, stamps = row[self._slot], row[self._stamps]
        for key in keys:
            del entries[key]
            if stamps is not None and key in stamps:  # (its pop would not be noticed where it is large)
                del stamps[key]
        if not entries:
            row[self._slot] = None
        if not stamps:
            row[self._stamps] = None

    def get(self, key: Any) -> Any:
        key = map_key(key)
        return self._find(key).get(key)

    def contains(self, key: Any) -> bool:
        key = map_key(key)
        return key in self._find(key)

    def __getitem__(self, key: Any) -> Any:
        key = map_key(key)
        return self._find(key)[key]

    def put(self, key: Any, value: Any) -> None:
        key = map_key(key)
        super().put(key, value)
        self._stamp(self._rows.row, (key,))

    def put_all(self, mapping: Mapping[Any, Any]) -> None:
        added = with_map_keys(mapping)
        super().put_all(added)
        if added:
            self._stamp(self._rows.row, added)

    def remove(self, key: Any) -> None:
        key = map_key(key)
        row = self._rows.row
        entries = row[self._slot]
        if entries is not None and key in entries:
            self._remove(row, (key,))
            self._touch(row)

    def items(self) -> ItemsView[Any, Any]:
        return self._readable().items()

    def keys(self) -> KeysView[Any]:
        return self._readable().keys()

    def values(self) -> ValuesView[Any]:
        return self._readable().values()

    def is_empty(self) -> bool:
        return not self.is_readable(self._rows.row)

    def clean(self, row: Row) -> bool:
        if row[self._slot] is None:
            return False
        expired = self._expired(row)
        if expired:
            self._remove(row, expired)
        return self.stamp_missing(row) or len(expired) > 0

    def stamp_missing(self, row: Row) -> bool:
        entries, stamps = row[self._slot], row[self._stamps]
        if entries is None or (stamps is not None and len(entries) == len(stamps)):
            return False
        self._stamp(row, [key for key in entries if stamps is None or key not in stamps])
        return True

    def is_readable(self, row: Row) -> bool:
        entries, stamps = row[self._slot], row[self._stamps]
        if not entries or self._returns_expired or stamps is None or len(stamps) < len(entries):
            return bool(entries)
        newest_expired = self._rows.now - self._limit
        return any(stamp > newest_expired for stamp in stamps.values())


# By kind; and the kind of the slot of stamps.
TTL_STATES: dict[str, tuple[Any, str]] = {
    ValueStateDescriptor.kind: (_TtlValueState, ValueStateDescriptor.kind),
    ListStateDescriptor.kind: (_TtlListState, ListStateDescriptor.kind),
    MapStateDescriptor.kind: (_TtlMapState, MapStateDescriptor.kind),
    ReducingStateDescriptor.kind: (_TtlReducingState, ValueStateDescriptor.kind),
    AggregatingStateDescriptor.kind: (_TtlAggregatingState, ValueStateDescriptor.kind),
}
