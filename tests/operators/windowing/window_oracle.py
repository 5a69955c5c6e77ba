"""The semantics of Flink windows in plain Python, without state, namespaces or addresses.

A window is an object with its elements, trigger memory and timers, and disappears at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Evict", "Kind", "When", "WindowOracle"]

FOREVER = 2**63 - 1
Span = tuple[int, ...]


@dataclass
class Kind:
    """Windows of one kind.

    Attributes:
        windows: returns an element's windows, given its time on the windows' clock and its index among the key's
            elements.
        by_event_time: whether the windows end in event time.
        merges: whether overlapping or touching windows merge.
    """

    name: str
    assigner: Any
    windows: Callable[[int, int], list[Span]]
    by_event_time: bool = True
    ends: bool = True
    merges: bool = False

    def last(self, window: Span) -> int:
        return window[1] - 1 if self.ends else FOREVER

    def __repr__(self) -> str:
        return self.name


@dataclass
class Open:
    """A non-empty window."""

    span: Span
    last: int
    elements: list[tuple[int, int]] = field(default_factory=list)
    memo: dict[str, Any] = field(default_factory=dict)
    timers: set[tuple[str, int]] = field(default_factory=set)
    fired: int = 0


@dataclass
class When:
    """A trigger, which returns "", "fire", "purge" or "fire purge"."""

    name: str
    trigger: Any
    element: Callable[[Open, int, int, WindowOracle], str]
    timer: Callable[[Open, str, int, WindowOracle], str] = lambda window, clock, time, all: ""
    merged: Callable[[Open, list[Open], WindowOracle], None] = lambda window, parts, all: None
    merges: bool = True

    def __repr__(self) -> str:
        return self.name


@dataclass
class Evict:
    name: str
    evictor: Any
    before: Callable[[list[tuple[int, int]]], list[tuple[int, int]]] = lambda elements: elements
    after: Callable[[list[tuple[int, int]]], list[tuple[int, int]]] = lambda elements: elements

    def __repr__(self) -> str:
        return self.name


class WindowOracle:
    """All windows of all keys.

    Args:
        folds: whether an incremental function folds the elements. If so, empty windows emit nothing.
    """

    def __init__(self, kind: Kind, when: When, evict: Evict | None, lateness: int, *, folds: bool) -> None:
        self.kind, self.when, self.evict, self.lateness, self.folds = kind, when, evict, lateness, folds
        self.watermark = -(2**63)
        self.clock = 0
        self.windows: dict[Any, dict[Span, Open]] = {}
        self.places: dict[Any, int] = {}
        self.late: list[int] = []
        self.out: list[Any] = []

    # -- events --

    def add(self, key: Any, value: int, time: int) -> None:
        windows = self.windows.setdefault(key, {})
        index = self.places.get(key, 0)
        self.places[key] = index + 1
        is_added = False
        for span in self.kind.windows(time if self.kind.by_event_time else self.clock, index):
            window = self._met(windows, span) if self.kind.merges else windows.get(span)
            if window is None:
                window = Open(span, self.kind.last(span))
            if self._over(window):
                windows.pop(window.span, None)
                continue
            is_added = True
            windows[window.span] = window
            window.elements.append((value, time))
            self._do(key, window, self.when.element(window, value, time, self))
            if self.kind.ends:
                window.timers.add((self._own_clock, self._end(window)))
        if not is_added and self.kind.by_event_time and time + self.lateness <= self.watermark:
            self.late.append(value)

    def set_watermark(self, watermark: int) -> None:
        self.watermark = watermark
        self._ring("event", watermark)

    def set_clock(self, clock: int) -> None:
        self.clock = clock
        self._ring("processing", clock)

    def results(self) -> list[Any]:
        out, self.out = self.out, []
        return out

    # -- how --

    @property
    def _own_clock(self) -> str:
        return "event" if self.kind.by_event_time else "processing"

    def _end(self, window: Open) -> int:
        return window.last + (self.lateness if self.kind.by_event_time else 0)

    def _over(self, window: Open) -> bool:
        return self.kind.ends and self.kind.by_event_time and self._end(window) <= self.watermark

    def _met(self, windows: dict[Span, Open], span: Span) -> Open | None:
        met = sorted(other for other in windows if other[0] <= span[1] and span[0] <= other[1])
        if not met:
            return None
        cover = min(span[0], met[0][0]), max(span[1], *(end for _, end in met))
        if met == [cover]:
            return windows[cover]
        parts = [windows.pop(other) for other in met]
        window = Open(cover, cover[1] - 1, [element for part in parts for element in part.elements])
        self.when.merged(window, parts, self)
        return window

    def _ring(self, clock: str, limit: int) -> None:
        while True:
            due = [
                (time, key, window)
                for key, windows in self.windows.items()
                for window in windows.values()
                for kind, time in window.timers
                if kind == clock and time <= limit
            ]
            if not due:
                return
            time, key, window = min(due, key=lambda timer: (timer[0], str(timer[1]), timer[2].span))
            window.timers.discard((clock, time))
            self._do(key, window, self.when.timer(window, clock, time, self))
            if self.kind.ends and clock == self._own_clock and time == self._end(window):
                del self.windows[key][window.span]

    def _do(self, key: Any, window: Open, answer: str) -> None:
        if "fire" in answer and window.elements:
            elements = window.elements if self.evict is None else self.evict.before(window.elements)
            if elements or not self.folds:
                window.fired += 1
                self.out.append((key, window.span, [value for value, _ in elements], window.fired))
            window.elements = elements if self.evict is None else self.evict.after(elements)
        if "purge" in answer:
            window.elements = []
