"""A request, and the events between requests."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from pillarbox._elements import Watermark, WatermarkStatus

if TYPE_CHECKING:
    from pillarbox._operators.async_io.queue import Segment

Event = Watermark | WatermarkStatus
"""A watermark or status change: no request may cross it."""


NO_KEY = object()
"""The key of a request without a cached result: None may be a key."""


class RequestState(Enum):
    """The state of a request in the mailbox thread."""

    PENDING = "pending"
    """Queued, running, or completed with an untaken result."""
    SETTLED = "settled"
    """Its output is known; later outcomes are ignored."""


class Request:
    """A call of a service, for one element or a batch.

    Belongs to the mailbox thread, but between submission and completion to the event loop's thread.

    Attributes:
        timestamps: event times (epoch ms, or None), or None if no element has one.
        key: the cache key of its result, or ``NO_KEY``.
        followers: requests for the same key, which share its result.
        outputs: the records to emit: one per element of a batch, or empty.
        failure: the error of its last attempt, or None.
        started: time of its first attempt (relative ms), in any process, or None. The loop's thread writes this and all
            later attributes.
        seconds: duration of the service's answer.
        running: its worker's asyncio task.
        given_up: whether that task was cancelled.
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
        self.followers: list[Request] | None = None
        self.state: RequestState = RequestState.PENDING
        self.outputs: Sequence[Any] = ()
        self.failure: BaseException | None = None
        self.segment: Segment | None = None
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
