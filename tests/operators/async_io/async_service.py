"""A service whose requests wait for the test's answers."""

from __future__ import annotations

import asyncio
from typing import Any

from pillarbox import AsyncFunction
from pillarbox._elements.records import Records
from pillarbox._operators.async_io.operator import AsyncWaitOperator


class Service(AsyncFunction):
    def __init__(self) -> None:
        self.waiting: dict[Any, asyncio.Future[Any]] = {}
        self.begun: list[Any] = []
        self.cancelled: list[Any] = []

    async def async_invoke(self, value: Any) -> list[Any]:
        self.begun.append(value)
        self.waiting[value] = answer = asyncio.get_running_loop().create_future()
        try:
            results: list[Any] = await answer
            return results
        except asyncio.CancelledError:
            self.cancelled.append(value)
            raise
        finally:
            if self.waiting.get(value) is answer:
                del self.waiting[value]

    def timeout(self, value: Any) -> list[Any]:
        return [("late", value)]


class Log:
    """An output that records everything, in order."""

    def __init__(self) -> None:
        self.elements: list[Any] = []

    def process_records(self, records: Records) -> None:
        stamps = records.timestamps or [None] * len(records)
        self.elements += [("record", value, stamp) for value, stamp in zip(records.values, stamps)]

    def process_watermark(self, timestamp: int) -> None:
        self.elements.append(("watermark", timestamp))

    def process_status(self, idle: bool) -> None:
        self.elements.append(("idle", idle))


def settle(harness: Any) -> None:
    async def turns() -> None:
        for _ in range(6):
            await asyncio.sleep(0)

    operator: AsyncWaitOperator = harness.operator
    for _ in range(2):  # mails may begin requests
        operator.in_flight.host.thread.call(turns)
        harness._settle()


def answer(harness: Any, value: Any, result: Any) -> None:
    service, thread = harness.operator.function, harness.operator.in_flight.host.thread

    def done() -> None:
        future = service.waiting[value]
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)

    thread.call(done)
    settle(harness)
