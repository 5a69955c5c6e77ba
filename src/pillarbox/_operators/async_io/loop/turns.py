"""The order in which the requests of an operator begin under a rate limit."""

from __future__ import annotations

import asyncio
import time

from pillarbox._operators.frame.rates import Bucket, Place, RateScope, RatesInMemory


class Turns:
    """The order in which the requests of an operator begin: each waits until all its buckets have one.

    Args:
        rate: of the subtask, or of all subtasks of its partition together, or None.
        job_rate: of all subtasks together, or None.
        uid: of the operator.
        subtask: of the task, where ``rate`` is.
        parallelism: the number of subtasks; 0 before the first shuffle.
        tasks: how many tasks run at a time before the first shuffle: each takes a place for the epoch.

    Attributes:
        waited: seconds in which the next request could not begin, as a bucket was empty. Written by the loop's thread.
    """

    def __init__(
        self,
        scope: RateScope,
        uid: str,
        subtask: int,
        parallelism: int,
        tasks: int,
        *,
        rate: float | None,
        job_rate: float | None,
    ) -> None:
        self._rates = scope.rates
        self._uid = uid
        self._share: float | None = None
        self._places = 0
        self._place: Place | None = None
        self._own: list[Bucket] = []
        if rate is not None:
            # Before a shuffle a task is that of whatever partition comes: in its worker it has a bucket to itself.
            rates = self._rates if parallelism else RatesInMemory()
            whose = f"all of partition {scope.partition}" if scope.shares_all else f"subtask {subtask}"
            self._own.append(rates.bucket(f"{uid} {whose}", rate))
        if job_rate is not None and parallelism:
            tasks = min(parallelism, scope.partitions)
            self._own.append(self._rates.bucket(f"{uid} partition {scope.partition}", job_rate / tasks))
        elif job_rate is not None:
            self._share, self._places = job_rate / tasks, tasks
        self._of_place: Bucket | None = None
        # Replaced by the mailbox thread before a request of the epoch is submitted.
        self._buckets: tuple[Bucket, ...] = tuple(self._own)
        self._lock = asyncio.Lock()
        self.waited = 0.0
        self._told = 0.0

    def begin_epoch(self) -> None:
        """Take a place for the epoch, where that is needed; called again, it has one. Of the mailbox thread."""
        if self._share is None or self._place is not None:
            return
        self._place = self._rates.take_place(self._uid, self._places)
        if self._of_place is not None:
            self._of_place.close()
        self._of_place = self._rates.bucket(f"{self._uid} place {self._place.number}", self._share)
        self._buckets = (*self._own, self._of_place)

    def end_epoch(self) -> None:
        """Release the place: no request is under way. Of the mailbox thread."""
        if self._place is not None:
            self._place.release()
            self._place = None

    def close(self) -> None:
        """Release everything: no request will begin."""
        self.end_epoch()
        for bucket in {*self._own, *self._buckets}:
            bucket.close()

    def take_waited(self) -> float:
        """Return the seconds since this was asked last in which the next request could not begin."""
        waited, self._told = self.waited - self._told, self.waited
        return waited

    async def take(self) -> None:
        """Wait until a request may begin. Of the loop's thread."""
        async with self._lock:
            for bucket in self._buckets:
                while wait := bucket.take():
                    began = time.monotonic()
                    try:
                        await asyncio.sleep(wait)
                    finally:
                        self.waited += time.monotonic() - began
