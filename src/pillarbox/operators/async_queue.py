"""What an async operator holds: requests and the watermarks between them, and the order in which they may leave.

Source of the behaviour: Flink's ``OrderedStreamElementQueue`` and ``UnorderedStreamElementQueue``. Only the mailbox
thread may touch a queue.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import Any

from pillarbox.elements import Watermark, WatermarkStatus

__all__ = ["NO_KEY", "Event", "OrderedQueue", "Request", "StreamElementQueue", "UnorderedQueue"]

Event = Watermark | WatermarkStatus
"""What stands between requests, and none may cross."""


NO_KEY = object()
"""The key of a request whose result is not kept: None may be a key."""


class Request:
    """One call of a service, for one element or a batch of them.

    The mailbox thread makes it and gets it back; in between it belongs to the event loop's thread, which writes
    ``started``, ``attempts``, ``seconds``, ``result`` and ``error``.

    Attributes:
        values: the elements.
        timestamps: their event times (epoch ms, or None), or None when none has one.
        key: what its result is kept under, or ``NO_KEY``.
        started: when the first attempt began (epoch ms); None until then.
        attempts: the number of attempts begun.
        seconds: how long it took.
        result: what the function gave.
        error: what the function raised.
        running: the asyncio task that is at it.
        outputs: what leaves in its place; None until that is settled.
        failure: why nothing leaves in its place: the error that it failed with for good, or None.
        followers: requests for the same key, which get the same result, or None.
        segment: where an unordered queue holds it.
    """

    __slots__ = (
        "attempts",
        "error",
        "failure",
        "followers",
        "key",
        "outputs",
        "result",
        "running",
        "seconds",
        "segment",
        "started",
        "timestamps",
        "values",
    )

    def __init__(self, values: list[Any], timestamps: list[int | None] | None) -> None:
        self.values = values
        self.timestamps = timestamps
        self.key: Any = NO_KEY
        self.started: int | None = None
        self.attempts = 0
        self.seconds = 0.0
        self.result: Any = None
        self.error: BaseException | None = None
        self.running: Any = None
        self.outputs: list[Any] | None = None
        self.failure: BaseException | None = None
        self.followers: list[Request] | None = None
        self.segment: _Segment | None = None


class StreamElementQueue(ABC):
    """Requests and events that have not left yet."""

    @abstractmethod
    def __len__(self) -> int:
        """Give the number of requests."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Tell whether there is neither request nor event."""

    @abstractmethod
    def put(self, request: Request) -> None:
        """Take in a request."""

    @abstractmethod
    def put_event(self, event: Event) -> None:
        """Take in an event: what came before leaves before it, what comes later leaves later."""

    @abstractmethod
    def complete(self, request: Request) -> None:
        """Note that a request of this queue has its outputs."""

    @abstractmethod
    def take_ready(self) -> Iterator[Request | Event]:
        """Take out what may leave now."""

    @abstractmethod
    def elements(self) -> Iterator[Request | Event]:
        """Give everything that is in it, in an order in which it might have come."""


class OrderedQueue(StreamElementQueue):
    """What came first leaves first (A1)."""

    def __init__(self) -> None:
        self._elements: deque[Request | Event] = deque()
        self._requests = 0

    def __len__(self) -> int:
        return self._requests

    def is_empty(self) -> bool:
        return not self._elements

    def put(self, request: Request) -> None:
        self._elements.append(request)
        self._requests += 1

    def put_event(self, event: Event) -> None:
        self._elements.append(event)

    def complete(self, request: Request) -> None:
        """Nothing to note: the request itself tells."""

    def take_ready(self) -> Iterator[Request | Event]:
        elements = self._elements
        while elements:
            first = elements[0]
            if type(first) is Request:
                if first.outputs is None:
                    return
                self._requests -= 1
            elements.popleft()
            yield first

    def elements(self) -> Iterator[Request | Event]:
        return iter(self._elements)


class _Segment:
    """The requests between two events: those at work, and those completed that wait for an event before them."""

    __slots__ = ("completed", "event", "pending")

    def __init__(self) -> None:
        # A dictionary as an ordered set.
        self.pending: dict[Request, None] = {}
        self.completed: list[Request] = []
        # What ends it; None as long as it takes requests.
        self.event: Event | None = None


class UnorderedQueue(StreamElementQueue):
    """What is completed first leaves first (A2), but nothing crosses an event (A3)."""

    def __init__(self) -> None:
        self._segments: deque[_Segment] = deque([_Segment()])
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
        self._segments.append(_Segment())

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
