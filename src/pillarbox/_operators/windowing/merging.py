"""Which windows of a key are one by now, and where their state lies (Flink's ``MergingWindowSet``).

State is not moved when a window grows: it stays under the window that was first, and the set knows that window of each
one that is alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pillarbox._operators.windowing.api.assigner import MergeCallback, MergingWindowAssigner
from pillarbox._operators.windowing.api.session_windows import merges_what_meets
from pillarbox._operators.windowing.api.windows import TimeWindow
from pillarbox._state.descriptors import MapState, MapStateDescriptor

# Is told of a merge: the window that came of it, the windows that are one with it, the window under which its state
# lies, and those whose state has to be merged into that.
OnMerge = Callable[[Any, list[Any], Any, list[Any]], None]


def merging_windows(assigner: MergingWindowAssigner) -> MapStateDescriptor[Any, Any]:
    """Return the state of a :class:`MergingWindowSet`."""
    window = tuple[int, int] if assigner.window_type is TimeWindow else None
    return MapStateDescriptor("merging-windows", window, window)


class _Merges(MergeCallback):
    """Notes what an assigner says."""

    def __init__(self) -> None:
        self.merges: list[tuple[Any, list[Any]]] = []

    def merge(self, to_be_merged: Iterable[Any], merge_result: Any, /) -> None:
        self.merges.append((merge_result, list(to_be_merged)))


class MergingWindowSet:
    """The windows of the current key.

    Args:
        state: for each window that is alive the one under which its state lies, both as plain tuples.
    """

    def __init__(self, assigner: MergingWindowAssigner, state: MapState[Any, Any]) -> None:
        self._assigner = assigner
        self._state = state
        self._merges_what_meets = merges_what_meets(assigner)

    def state_window(self, window: Any) -> Any:
        """Return the window under which the state of ``window`` lies; None if the set does not know the window."""
        namespace = self._state.get(tuple(window))
        return None if namespace is None else self._assigner.window_type(*namespace)

    def is_place(self, window: Any) -> bool:
        """Return whether the state of some window lies under ``window``."""
        return tuple(window) in self._state.values()

    def retire(self, window: Any) -> None:
        """Forget a window that is over."""
        self._state.remove(tuple(window))

    def _near(self, window: Any) -> list[Any]:
        """Return the windows, as plain tuples, that may become one with another one: of sessions, those that it meets.

        And those that they meet: a former program's windows may have merged by another rule.
        """
        near: list[Any] = list(self._state)
        if not self._merges_what_meets or not near:
            return near
        known, cover = near, None
        start, end = window
        while cover != (start, end):
            cover = start, end
            near = [each for each in known if each[0] <= end and each[1] >= start]
            start = min([start, *(each[0] for each in near)])
            end = max([end, *(each[1] for each in near)])
        return near

    def add(self, window: Any, on_merge: OnMerge) -> Any:
        """Add a window, merged with those that it meets.

        Returns:
            the window that it is part of now.
        """
        state, make = self._state, self._assigner.window_type
        if state.contains(tuple(window)):
            return window
        known = [make(*namespace) for namespace in self._near(window)]
        if not known:
            state.put(tuple(window), tuple(window))
            return window
        told = _Merges()
        self._assigner.merge_windows([*known, window], told)
        result = window
        for merged, parts in told.merges:
            others = [part for part in parts if part != window]
            if len(others) < len(parts):
                result = merged
            if not others:
                continue
            # The state of the first window stays where it is, and the state of the others is merged into it.
            places: list[Any] = [state.get(tuple(other)) for other in others]
            for other in others:
                state.remove(tuple(other))
            state.put(tuple(merged), places[0])
            # A window that is within an existing one changes nothing.
            if others != [merged]:
                on_merge(merged, others, make(*places[0]), [make(*place) for place in places[1:]])
        if result == window and not state.contains(tuple(window)):
            state.put(tuple(window), tuple(window))
        return result
