"""What windows of all keys fold, as operators see it: elements are added by whole runs, with one look-up for each.

Only the mailbox thread may touch any of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pillarbox._state.descriptors import AggregatingStateDescriptor, ReducingStateDescriptor
from pillarbox._state.heap.states import folded_none

if TYPE_CHECKING:
    from pillarbox._state.heap.shared_windows import HeapWindows, Window

__all__ = ["FOLDED_WINDOWS"]

# Is called with each key that is new in a window.
Begun = Callable[[Any, "Window"], None]


class _FoldedWindows:
    """What windows fold: one state of all keys and namespaces. Others know of it what :class:`FoldedWindows` says."""

    __slots__ = ("_slot", "_windows")

    def __init__(self, windows: HeapWindows, slot: int, descriptor: Any) -> None:
        assert not windows.contents, "windows of all keys fold one state"
        windows.contents = slot
        self._windows = windows
        self._slot = slot

    def namespaces(self) -> list[Any]:
        return list(self._windows.by_namespace)

    def find(self, namespace: Any) -> Window | None:
        return self._windows.by_namespace.get(namespace)

    def begin(self, namespace: Any) -> Window:
        return self._windows.begin(namespace)

    def end(self, namespace: Any) -> None:
        self._windows.end(namespace)

    def each(self, namespace: Any, timestamp: int | None = None) -> Iterator[tuple[Any, Any]]:
        return self._windows.each(namespace, timestamp)

    def folded(self, namespace: Any, key: Any) -> Any:
        window = self._windows.by_namespace.get(namespace)
        if window is None:
            return None
        row = window.kept.get(key)
        return window.fresh.get(key) if row is None else row[self._slot]

    def remove(self, namespace: Any, key: Any) -> None:
        self._windows.remove(namespace, key)

    def rewrite(self, namespace: Any) -> None:
        self._windows.take_all(namespace)

    def quieten(self, namespace: Any, timestamp: int) -> None:
        self._windows.quieten(namespace, timestamp)

    @property
    def quiet(self) -> bool:
        return self._windows.quiet

    def wake(self, keys: Iterable[Any], windows: Iterable[Window]) -> None:
        self._windows.wake(keys, windows)

    def _failed(self, key: Any) -> None:
        """Take note of whose element it was that failed."""
        self._windows.set_key(key)


class _ReducedWindows(_FoldedWindows):
    __slots__ = ("_reduce",)

    def __init__(self, windows: HeapWindows, slot: int, descriptor: ReducingStateDescriptor) -> None:
        super().__init__(windows, slot, descriptor)
        self._reduce = descriptor.reduce_function

    def fold(self, values: Iterable[Any], keys: Iterable[Any], windows: Iterable[Window], begun: Begun | None) -> None:
        take, reduce = self._windows.take, self._reduce
        key = None
        try:
            for value, key, window in zip(values, keys, windows):
                fresh = window.fresh
                folded = fresh.get(key)
                if folded is None and window.kept:
                    folded = take(window, key)
                if folded is not None:
                    folded = reduce(folded, value)
                else:
                    if begun is not None:
                        begun(key, window)
                    folded = value
                if folded is None:
                    raise folded_none(self._windows, self._slot, key)
                fresh[key] = folded
        except BaseException:
            self._failed(key)
            raise


class _AggregatedWindows(_FoldedWindows):
    __slots__ = ("_function",)

    def __init__(self, windows: HeapWindows, slot: int, descriptor: AggregatingStateDescriptor) -> None:
        super().__init__(windows, slot, descriptor)
        self._function = descriptor.agg_function

    def fold(self, values: Iterable[Any], keys: Iterable[Any], windows: Iterable[Window], begun: Begun | None) -> None:
        take, create, add = self._windows.take, self._function.create_accumulator, self._function.add
        key = None
        try:
            for value, key, window in zip(values, keys, windows):
                fresh = window.fresh
                folded = fresh.get(key)
                if folded is None:
                    if window.kept:
                        folded = take(window, key)
                    if folded is None:
                        if begun is not None:
                            begun(key, window)
                        folded = create()
                fresh[key] = folded = add(value, folded)
                if folded is None:
                    raise folded_none(self._windows, self._slot, key)
        except BaseException:
            self._failed(key)
            raise


FOLDED_WINDOWS: dict[str, Any] = {
    ReducingStateDescriptor.kind: _ReducedWindows,
    AggregatingStateDescriptor.kind: _AggregatedWindows,
}
