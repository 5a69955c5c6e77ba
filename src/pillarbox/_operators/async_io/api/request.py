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
    """Queued, running, or its result is not taken yet."""
    SETTLED = "settled"
    """Its output is known; any later outcome is ignored."""


class Request:
    """One call of a service, for one element or a batch.

    The mailbox thread makes it and gets it back; in between it belongs to the event loop's thread.

    Attributes:
        values: the elements.
        timestamps: their event times (epoch ms, or None), or None if no element has one.
        key: the cache key of its result, or ``NO_KEY``.
        followers: requests for the same key, which get the same result, or None.
        state: its state in the mailbox thread.
        outputs: the records to emit, once settled: one per element of a batch, or empty.
        failure: the error of its last attempt, or None.
        segment: its segment in an unordered queue.
        started: time of its first attempt (relative time, ms), here or in an earlier process, or None. This and all
            later attributes are written by the loop's thread.
        attempts: the number of attempts in this process.
        seconds: duration of the service's answer.
        result: the function's result.
        error: the function's exception.
        running: its asyncio task.
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
        """Return one timestamp per output: its element's."""
        count = len(self.outputs)
        if self.timestamps is None:
            return [None] * count
        if len(self.timestamps) == 1:
            return self.timestamps * count
        assert count in (0, len(self.timestamps)), "the outputs of a batch are as many as its elements, or none"
        return self.timestamps if count else ()
