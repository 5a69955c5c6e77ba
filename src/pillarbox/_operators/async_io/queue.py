"""The queue of an async operator: requests, the watermarks between them, and the order in which they leave.

Source of the behaviour: Flink's ``OrderedStreamElementQueue`` and ``UnorderedStreamElementQueue``. Mailbox thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from pillarbox._operators.async_io.api.request import Event, Request, RequestState

_PENDING = RequestState.PENDING


class OrderedQueue:
    """Requests and events that have not left: first in, first out (A1)."""

    def __init__(self) -> None:
        self._elements: deque[Request | Event] = deque()
        self._requests = 0

    def __len__(self) -> int:
        return self._requests

    def is_empty(self) -> bool:
        """Return whether there is neither request nor event."""
        return not self._elements

    def put(self, request: Request) -> None:
        self._elements.append(request)
        self._requests += 1

    def put_event(self, event: Event) -> None:
        """Add an event: earlier requests leave before it, later ones after it."""
        self._elements.append(event)

    def complete(self, request: Request) -> None:
        """Mark a request of this queue as settled; here its own state is enough."""

    def take_ready(self) -> Iterator[Request | Event]:
        """Remove and return the elements that may leave."""
        elements = self._elements
        while elements:
            first = elements[0]
            if type(first) is Request:
                if first.state is _PENDING:
                    return
                self._requests -= 1
            elements.popleft()
            yield first

    def elements(self) -> Iterator[Request | Event]:
        """Return all elements, in a possible order of arrival."""
        return iter(self._elements)


class Segment:
    """The requests between two events: pending ones, and completed ones that wait for an event before them."""

    __slots__ = ("completed", "event", "pending")

    def __init__(self) -> None:
        # A dictionary as an ordered set.
        self.pending: dict[Request, None] = {}
        self.completed: list[Request] = []
        # The event at its end, or None while it still takes requests.
        self.event: Event | None = None


class UnorderedQueue:
    """First completed, first out (A2), but nothing crosses an event (A3)."""

    def __init__(self) -> None:
        self._segments: deque[Segment] = deque([Segment()])
        self._requests = 0

    def __len__(self) -> int:
        return self._requests

    def is_empty(self) -> bool:
        return not self._requests and len(self._segments) == 1

    def put(self, request: Request) -> None:
        segment = self._segments[-1]
        segment.pending[request] = None
        request.segment = segment
        self._requests += 1

    def put_event(self, event: Event) -> None:
        self._segments[-1].event = event
        self._segments.append(Segment())

    def complete(self, request: Request) -> None:
        segment = request.segment
        assert segment is not None
        del segment.pending[request]
        segment.completed.append(request)
        request.segment = None

    def take_ready(self) -> Iterator[Request | Event]:
        while True:
            first = self._segments[0]
            if first.completed:
                ready, first.completed = first.completed, []
                self._requests -= len(ready)
                yield from ready
            if first.pending or first.event is None:
                return
            self._segments.popleft()
            yield first.event

    def elements(self) -> Iterator[Request | Event]:
        for segment in self._segments:
            yield from segment.completed
            yield from segment.pending
            if segment.event is not None:
                yield segment.event
