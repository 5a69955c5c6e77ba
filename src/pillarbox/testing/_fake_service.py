"""``FakeService``, a scripted service for tests of async functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

from pillarbox._errors import ProgramError, check_count, is_count, shorten
from pillarbox._time.duration import DurationLike, to_millis

# Copies of a function share its service within the test's process.
_services: WeakValueDictionary[str, FakeService] = WeakValueDictionary()


class TooManyRequestsError(Exception):
    """Raised when a :class:`FakeService` refuses a request.

    Attributes:
        status: the HTTP status, 429.
        retry_after: seconds until the service accepts requests again.
    """

    status = 429

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"too many requests: retry after {retry_after:g} s")
        self.retry_after = retry_after

    def __reduce__(self) -> Any:
        return type(self), (self.retry_after,)


@dataclass
class FakeRequest:
    """A request that a :class:`FakeService` received.

    Attributes:
        time: arrival time, in seconds of the event loop's clock.
        outcome: "in flight", "answered", "repeated" (got the stored answer for its idempotency key), "refused", "lost"
            (the service acted, but its answer was lost), "crashed", "cancelled" or "failed" (``answer`` raised).
    """

    args: tuple[Any, ...]
    idempotency_key: str | None
    time: float
    outcome: str = "in flight"


class FakeService:
    """A service with scripted faults.

    Instances are async callables: pass one to ``map_async`` or ``ctx.call``, or ``await service(*args,
    idempotency_key=...)`` instead of calling the client. In a keyed function's harness, latency and outages use the
    harness's clock. The methods plan faults for ``times`` requests, after the next ``after`` requests.

    Args:
        answer: a function that receives a request's arguments, acts on the request, and returns the answer.
        latency: time between a request and its answer.
        keeps_keys: whether the service acts only once per idempotency key, and answers later requests with the stored
            answer.

    Attributes:
        requests: all requests, in order of arrival.
        acted: the arguments of each request that the service acted on.

    >>> from pillarbox import KeyedProcessFunction
    >>> from pillarbox.testing import FakeService, harness_for
    >>> class Charge(KeyedProcessFunction):
    ...     def __init__(self, bank):
    ...         self.bank = bank
    ...     async def process_element(self, card, ctx):
    ...         yield await ctx.call(self.bank, card, retry=3)
    >>> bank = FakeService(lambda card: f"receipt of {card}", latency="50 ms")
    >>> bank.lose_answers(1)
    >>> with harness_for(Charge(bank), key_by=lambda card: card) as harness:
    ...     harness.push("ann")
    ...     harness.advance_processing_time(1_000)
    ...     harness.get_output(), bank.acted, [request.outcome for request in bank.requests]
    (['receipt of ann'], [('ann',)], ['lost', 'repeated'])
    """

    def __init__(self, answer: Callable[..., Any], *, latency: DurationLike = 0, keeps_keys: bool = True) -> None:
        if not callable(answer):
            raise ProgramError(f"FakeService(): answer= must be a function, not {shorten(answer)}")
        self._answer = answer
        self._latency = to_millis(latency, "FakeService(): latency=") / 1000
        self._keeps_keys = keeps_keys
        self.requests: list[FakeRequest] = []
        self.acted: list[tuple[Any, ...]] = []
        # By request number: the fault, and its seconds.
        self._troubles: dict[int, tuple[str, float]] = {}
        self._crashes = 0
        self._down_until = 0.0
        # By idempotency key: arguments and answer.
        self._answers: dict[str, tuple[tuple[Any, ...], Any]] = {}
        self._id = uuid4().hex
        _services[self._id] = self

    def refuse(self, times: int = 1, *, after: int = 0, retry_after: float = 1.0) -> None:
        """Refuse requests with :class:`TooManyRequestsError`. Clients may try again after ``retry_after`` seconds."""
        self._plan("refused", times, after, retry_after)

    def lose_answers(self, times: int = 1, *, after: int = 0) -> None:
        """Act on requests, but raise ``ConnectionResetError`` instead of answering."""
        self._plan("lost", times, after)

    def receive_twice(self, times: int = 1, *, after: int = 0) -> None:
        """Receive requests twice, as if a proxy had repeated them. The client gets the second answer."""
        self._plan("twice", times, after)

    def hang(self, times: int = 1, *, after: int = 0) -> None:
        """Receive requests, but neither act on them nor answer."""
        self._plan("hung", times, after)

    def crash(self, outage: DurationLike = "1 second", *, after: int = 0) -> None:
        """Crash when a request arrives, without acting on that request or on requests in flight.

        All these requests raise ``ConnectionResetError``. Requests during ``outage``, measured on the event loop's
        clock, raise ``ConnectionRefusedError``.
        """
        seconds = to_millis(outage, "FakeService.crash(): outage=") / 1000
        self._plan("crashed", 1, after, seconds)

    def _plan(self, trouble: str, times: int, after: int, seconds: float = 0.0) -> None:
        check_count(times, "FakeService: times=")
        if not is_count(after, 0):
            raise ProgramError(f"FakeService: after= must be a whole number of at least 0, not {shorten(after)}")
        first = len(self.requests) + after + 1
        numbers = range(first, first + times)
        planned = next((number for number in numbers if number in self._troubles), None)
        if planned is not None:
            raise ProgramError(
                f"FakeService: request {planned} will already be {self._troubles[planned][0]!r}, so it cannot be"
                f" {trouble!r}: pass another after="
            )
        self._troubles.update(dict.fromkeys(numbers, (trouble, seconds)))

    async def __call__(self, *args: Any, idempotency_key: str | None = None) -> Any:
        request = FakeRequest(args, idempotency_key, asyncio.get_running_loop().time())
        self.requests.append(request)
        trouble, seconds = self._troubles.get(len(self.requests), (None, 0.0))
        if trouble == "crashed":
            self._crashes += 1
            self._down_until = request.time + seconds
            request.outcome = "crashed"
            raise ConnectionResetError("the service crashed")
        if request.time < self._down_until:
            request.outcome = "crashed"
            raise ConnectionRefusedError("the service is down")
        if trouble == "refused":
            request.outcome = "refused"
            raise TooManyRequestsError(seconds)
        crashes = self._crashes
        try:
            if trouble == "hung":
                await asyncio.get_running_loop().create_future()
            await asyncio.sleep(self._latency)
        except asyncio.CancelledError:
            request.outcome = "cancelled"
            raise
        if crashes != self._crashes:
            request.outcome = "crashed"
            raise ConnectionResetError("the service crashed")
        if trouble == "twice":
            self._act(request)
        answer = self._act(request)
        if trouble == "lost":
            request.outcome = "lost"
            raise ConnectionResetError("the service's response was lost")
        return answer

    def _act(self, request: FakeRequest) -> Any:
        key = request.idempotency_key if self._keeps_keys else None
        if key in self._answers:
            assert key is not None
            args, answer = self._answers[key]
            if args != request.args:
                request.outcome = "failed"
                raise ValueError(
                    f"the idempotency key {key!r} belongs to a request with the arguments {shorten(args)}, not"
                    f" {shorten(request.args)}"
                )
            request.outcome = "repeated"
            return answer
        self.acted.append(request.args)
        request.outcome = "failed"
        answer = self._answer(*request.args)
        request.outcome = "answered"
        if key is not None:
            self._answers[key] = request.args, answer
        return answer

    def __reduce__(self) -> Any:
        return _service_of, (self._id,)


def _service_of(service_id: str) -> FakeService:
    service = _services.get(service_id)
    if service is None:
        raise ProgramError("a FakeService works only in its test's process, not in Spark's Python workers")
    return service
