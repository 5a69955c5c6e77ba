"""A key's merging windows (such as sessions), as in Flink's ``MergingWindowSet``.

When windows merge, their state is stored in the namespace of one of them, the *state window*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pillarbox._operators.windowing.api.assigner import MergeCallback, MergingWindowAssigner
from pillarbox._operators.windowing.api.session_windows import merges_overlapping
from pillarbox._operators.windowing.api.windows import TimeWindow
from pillarbox._state.descriptors import MapState, MapStateDescriptor

# Arguments: the merged window, its parts, its state window, and the state windows to merge into it.
OnMerge = Callable[[Any, list[Any], Any, list[Any]], None]


def merging_windows(assigner: MergingWindowAssigner) -> MapStateDescriptor[Any, Any]:
    window = tuple[int, int] if assigner.window_type is TimeWindow else None
    return MapStateDescriptor("merging-windows", window, window)


class _MergeRecorder(MergeCallback):
    def __init__(self) -> None:
        self.merges: list[tuple[Any, list[Any]]] = []

    def merge(self, to_be_merged: Iterable[Any], merge_result: Any, /) -> None:
        self.merges.append((merge_result, list(to_be_merged)))


class MergingWindowSet:
    """The current key's windows."""

    def __init__(self, assigner: MergingWindowAssigner, state: MapState[Any, Any]) -> None:
        self._assigner = assigner
        self._state = state
        self._merges_overlapping = merges_overlapping(assigner)

    def state_window(self, window: Any) -> Any:
        namespace = self._state.get(tuple(window))
        return None if namespace is None else self._assigner.window_type(*namespace)

    def is_state_window(self, window: Any) -> bool:
        return tuple(window) in self._state.values()

    def retire(self, window: Any) -> None:
        self._state.remove(tuple(window))

    def _near(self, window: Any) -> list[Any]:
        """Return the windows that may merge with ``window``, as plain tuples.

        Sessions merge if they overlap, directly or through other windows.
        """
        near: list[Any] = list(self._state)
        if not self._merges_overlapping or not near:
            return near
        windows, cover = near, None
        start, end = window
        while cover != (start, end):
            cover = start, end
            near = [other for other in windows if other[0] <= end and other[1] >= start]
            start = min([start, *(other[0] for other in near)])
            end = max([end, *(other[1] for other in near)])
        return near

    def add(self, window: Any, on_merge: OnMerge) -> Any:
        state, make = self._state, self._assigner.window_type
        if state.contains(tuple(window)):
            return window
        near = [make(*namespace) for namespace in self._near(window)]
        if not near:
            state.put(tuple(window), tuple(window))
            return window
        recorder = _MergeRecorder()
        self._assigner.merge_windows([*near, window], recorder)
        result = window
        for merged, parts in recorder.merges:
            others = [part for part in parts if part != window]
            if len(others) < len(parts):
                result = merged
            if not others:
                continue
            state_windows: list[Any] = [state.get(tuple(other)) for other in others]
            for other in others:
                state.remove(tuple(other))
            state.put(tuple(merged), state_windows[0])
            if others != [merged]:
                on_merge(merged, others, make(*state_windows[0]), [make(*other) for other in state_windows[1:]])
        if result == window and not state.contains(tuple(window)):
            state.put(tuple(window), tuple(window))
        return result
