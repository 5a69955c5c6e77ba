"""One request, and what may stand between requests."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from pillarbox._elements import Watermark, WatermarkStatus

if TYPE_CHECKING:
    from pillarbox._operators.async_io.queue import Segment

Event = Watermark | WatermarkStatus
"""A watermark or a change between idle and active: no request may cross it."""


NO_KEY = object()
"""The key of a request whose result is not kept: None may be a key."""


class RequestState(Enum):
    """The state of a request, as the mailbox thread knows it."""

    PENDING = "pending"
    """It waits for its turn or is under way, or its result has not been taken yet."""
    SETTLED = "settled"
    """The records that leave in its place are known; any later outcome is ignored."""


class Request:
    """One call of a service, for one element or a batch of them.

    The mailbox thread makes it and gets it back; in between it belongs to the event loop's thread.

    Attributes:
        values: the elements.
        timestamps: their event times (epoch ms, or None), or None when none has one.
        key: what its result is kept under, or ``NO_KEY``.
        followers: requests for the same key, which get the same result, or None.
        state: as the mailbox thread knows it.
        outputs: what leaves in its place, once it is settled: of a batch one for each element, or none at all.
        failure: the error that it failed with for good, or None.
        segment: where an unordered queue holds it.
        started: when it was asked first (relative time, ms), here or in a process that had it before; None until then.
            This and what follows is written by the loop's thread.
        attempts: the number of attempts begun here.
        seconds: how long the service took.
        result: the function's result.
        error: the error that the function raised.
        running: the asyncio task that is at it.
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
        """Return one timestamp for each output: the timestamp of its element, for all results of the element."""
        count = len(self.outputs)
        if self.timestamps is None:
            return [None] * count
        if len(self.timestamps) == 1:
            return self.timestamps * count
        assert count in (0, len(self.timestamps)), "the outputs of a batch are as many as its elements, or none"
        return self.timestamps if count else ()
