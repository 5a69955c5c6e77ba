"""``Request``, and the events, such as watermarks, that requests must not overtake."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from pillarbox._elements.elements import Watermark, WatermarkStatus

if TYPE_CHECKING:
    from pillarbox._operators.async_io.queue import QueueSegment

Event = Watermark | WatermarkStatus
"""A watermark or status change. No request may cross it."""


NO_KEY = object()
"""The key of a request whose result is not cached. (None can be a cache key.)"""


class RequestState(Enum):
    """A request's state, as the mailbox thread sees it."""

    PENDING = "pending"
    """Queued, running, or completed without the mailbox thread having seen the result."""
    SETTLED = "settled"
    """Its output is final. Later outcomes are ignored."""


class Request:
    """A request to a service, for one element or a batch.

    From submission to completion, the event loop's thread writes ``started`` and the attributes after it, and the
    mailbox thread writes the others.

    Attributes:
        timestamps: the elements' event times (Unix time in ms), or None if no element has one.
        key: the result's cache key, or ``NO_KEY``.
        followers: later requests for the same key, and the monotonic times (ms) of their arrivals.
        outputs: the records to emit. For a batch, one per element, or empty.
        started: monotonic time (ms) of the first attempt, possibly in another process, or None before it.
        seconds: how long the service took to answer.
        given_up: whether the request's asyncio task was cancelled.
    """

    __slots__ = (
        "attempts",
        "error",
        "failure",
        "followers",
        "given_up",
        "key",
        "outputs",
        "result",
        "running",
        "seconds",
        "segment",
        "started",
        "state",
        "timestamps",
        "values",
    )

    def __init__(self, values: list[Any], timestamps: list[int | None] | None) -> None:
        self.values: list[Any] = values
        self.timestamps: list[int | None] | None = timestamps
        self.key: Any = NO_KEY
        self.followers: list[tuple[Request, int]] | None = None
        self.state: RequestState = RequestState.PENDING
        self.outputs: Sequence[Any] = ()
        self.failure: BaseException | None = None
        self.segment: QueueSegment | None = None
        self.started: int | None = None
        self.attempts: int = 0
        self.seconds: float = 0.0
        self.result: Any = None
        self.error: BaseException | None = None
        self.running: Any = None
        self.given_up: bool = False

    def output_timestamps(self) -> Sequence[int | None]:
        count = len(self.outputs)
        if self.timestamps is None:
            return [None] * count
        if len(self.timestamps) == 1:
            return self.timestamps * count
        assert count in (0, len(self.timestamps)), "the outputs of a batch are as many as its elements, or none"
        return self.timestamps if count else ()
