"""An async operator's queue of requests (or elements), and the watermarks between them.

Source: Flink's ``OrderedStreamElementQueue`` and ``UnorderedStreamElementQueue``. Mailbox thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

from pillarbox._elements.elements import Watermark, WatermarkStatus
from pillarbox._operators.async_io.api.request import Event, RequestState

_PENDING = RequestState.PENDING
_EVENTS = frozenset((Watermark, WatermarkStatus))


class QueueEntry(Protocol):
    """A queued request, or a queued element (record or timer) of a keyed function."""

    state: RequestState
    segment: QueueSegment | None


E = TypeVar("E", bound=QueueEntry)


class OrderedQueue(Generic[E]):
    """A queue that releases entries and events, such as watermarks, in arrival order."""

    def __init__(self) -> None:
        self._elements: deque[E | Event] = deque()
        self._entries = 0

    def __len__(self) -> int:
        return self._entries

    def is_empty(self) -> bool:
        return not self._elements

    def put(self, entry: E) -> None:
        self._elements.append(entry)
        self._entries += 1

    def put_after(self, entry: E, other: E) -> None:
        """Queue ``entry`` directly after ``other``."""
        self._elements.insert(self._elements.index(other) + 1, entry)
        self._entries += 1

    def put_settled(self, entry: E) -> None:
        self.put(entry)

    def put_event(self, event: Event) -> None:
        self._elements.append(event)

    def complete(self, entry: E) -> None: ...

    def take_ready(self) -> Iterator[E | Event]:
        elements: deque[Any] = self._elements
        while elements:
            first = elements[0]
            if type(first) not in _EVENTS:
                if first.state is _PENDING:
                    return
                self._entries -= 1
            elements.popleft()
            yield first

    def elements(self) -> Iterator[E | Event]:
        return iter(self._elements)


class QueueSegment:
    """The entries between two events: pending, or completed but held back by an earlier event."""

    __slots__ = ("completed", "event", "pending")

    def __init__(self) -> None:
        self.pending: dict[Any, None] = {}
        self.completed: list[Any] = []
        self.event: Event | None = None


class UnorderedQueue(Generic[E]):
    """A queue that releases entries in completion order, but never across an event."""

    def __init__(self) -> None:
        self._segments: deque[QueueSegment] = deque([QueueSegment()])
        self._entries = 0

    def __len__(self) -> int:
        return self._entries

    def is_empty(self) -> bool:
        return not self._entries and len(self._segments) == 1

    def put(self, entry: E) -> None:
        segment = self._segments[-1]
        segment.pending[entry] = None
        entry.segment = segment
        self._entries += 1

    def put_after(self, entry: E, other: E) -> None:
        """Queue ``entry`` in the segment of ``other``, which is pending."""
        assert other.segment is not None
        entry.segment = other.segment
        entry.segment.pending[entry] = None
        self._entries += 1

    def put_settled(self, entry: E) -> None:
        self._segments[-1].completed.append(entry)
        self._entries += 1

    def put_event(self, event: Event) -> None:
        self._segments[-1].event = event
        self._segments.append(QueueSegment())

    def complete(self, entry: E) -> None:
        segment = entry.segment
        assert segment is not None
        del segment.pending[entry]
        segment.completed.append(entry)
        entry.segment = None

    def take_ready(self) -> Iterator[E | Event]:
        while True:
            first = self._segments[0]
            while first.completed:  # the caller may complete more between two entries
                ready, first.completed = first.completed, []
                self._entries -= len(ready)
                yield from ready
            if first.pending or first.event is None:
                return
            self._segments.popleft()
            yield first.event

    def elements(self) -> Iterator[E | Event]:
        for segment in self._segments:
            yield from segment.completed
            yield from segment.pending
            if segment.event is not None:
                yield segment.event
