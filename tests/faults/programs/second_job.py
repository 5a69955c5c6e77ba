"""Programs that ``make chaos`` runs next to ``job.py``. They emit each record once, with the square of its id.

``drain`` and ``carry`` call a service with a client timeout and retries (``async_job.py``). ``deadline`` calls it
without a client timeout, so the operator gives up on unanswered requests; a later answer must not be emitted.
``timers`` stores records until a processing-time timer fires.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import aiohttp
from pyspark.sql import DataFrame

from pillarbox import (
    AsyncDataStream,
    AsyncFunction,
    AsyncRetryStrategy,
    KeyedProcessFunction,
    ListStateDescriptor,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from tests.faults.programs import async_job
from tests.faults.programs.async_job import Squared, square_of
from tests.faults.programs.job import HEARTBEAT, Faults

__all__ = ["ASKING", "GIVEN_UP", "MODES", "WAITING", "Mode", "build"]

Mode = Literal["drain", "carry", "deadline", "timers"]
MODES: tuple[Mode, ...] = ("drain", "carry", "deadline", "timers")
ASKING: Sequence[Mode] = ("drain", "carry", "deadline")  # modes with a service
WAITING: Sequence[Mode] = ("carry", "timers")  # modes that wake up without input

GIVEN_UP = -1  # in the place of a square
LATE = -2


class Patient(AsyncFunction):
    """Has no timeout for requests. Returns a marker if the operator gives up on a record."""

    def __init__(self, service: str, faults: Faults) -> None:
        self.service = service
        self.faults = faults

    async def open(self, runtime_context: RuntimeContext) -> None:
        self.session = aiohttp.ClientSession(self.service, timeout=aiohttp.ClientTimeout(total=None))

    async def close(self) -> None:
        await self.session.close()

    async def async_invoke(self, value: Any) -> list[Any]:
        try:
            square = await square_of(value.id, self.session, self.faults)
        except asyncio.CancelledError:
            square = LATE
        return [Squared(value.id, value.key, square, os.getpid())]

    def timeout(self, value: Any) -> list[Any]:
        return [Squared(value.id, value.key, GIVEN_UP, os.getpid())]


class Later(KeyedProcessFunction):
    MILLISECONDS = 200

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def open(self, runtime_context: RuntimeContext) -> None:
        self.waiting = runtime_context.get_list_state(ListStateDescriptor("waiting"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        self.waiting.add(value.id)
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + self.MILLISECONDS)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        numbers = list(self.waiting.get())
        self.waiting.clear()
        for number in numbers:
            self.faults.pass_by("answered", number)
            yield Squared(number, ctx.get_current_key(), number**2, os.getpid())


def build(events: DataFrame, service: str, mode: Mode, faults: Faults) -> DataFrame:
    if mode == "drain" or mode == "carry":
        return async_job.build(events, service, mode, faults)
    env = (
        StreamExecutionEnvironment.get_execution_environment(events.sparkSession)
        .set_parallelism(2)
        .set_max_parallelism(2)
    )
    stream = env.from_dataframe(events).filter(lambda event: event.key != HEARTBEAT)
    if mode == "timers":
        squares = stream.key_by("key").process(Later(faults))
    else:
        again = AsyncRetryStrategy.fixed_delay(20, "100 ms")
        squares = AsyncDataStream.unordered_wait_with_retry(
            stream, Patient(service, faults), "1 second", again, capacity=10
        )
    return squares.uid("squares").to_dataframe(Squared)
