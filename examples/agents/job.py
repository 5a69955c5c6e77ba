"""An agent for each customer. It remembers the chat, asks a model, looks up orders, and summarizes ended chats."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from pyspark.sql import DataFrame

from examples.agents.model import SUMMARIZE, Messages
from pillarbox import (
    AsyncRetryStrategy,
    Budget,
    DataStream,
    DeadLetter,
    KeyedProcessFunction,
    ListStateDescriptor,
    OutputTag,
    Row,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)

GAP = 600_000  # a chat is over after ten minutes of silence (ms)
REQUESTS = 100  # a second, of the whole job
MODEL = Budget(
    "model",
    requests=f"{REQUESTS} per second",
    unit_cost=lambda result: result["tokens"],
    estimate=200,
    ceiling=(10_000_000, "1 day"),  # tokens
)
BAD = OutputTag[DeadLetter]("bad")
SCHEMA = "number LONG, at TIMESTAMP, customer STRING, text STRING"
COLUMNS = "customer STRING, number LONG, kind STRING, text STRING"
Line = tuple[str, int, str, str]


def is_temporary(error: BaseException) -> bool:
    """Return whether a repeated request may succeed, because the model is overloaded or down."""
    return not isinstance(error, aiohttp.ClientResponseError) or error.status in (429, 503)


PATIENT = AsyncRetryStrategy.exponential_backoff(12, "100 ms", "2 seconds", exception_predicate=is_temporary)


class Agent(KeyedProcessFunction[Row, Any, Line]):
    """Answers each line of a customer's chat, and summarizes the chat when it has ended.

    Args:
        url: the address of the model.
        budget: the model's budget.
    """

    def __init__(self, url: str, budget: Budget) -> None:
        self.url = url
        self.budget = budget

    async def open(self, runtime_context: Any) -> None:
        self.client = aiohttp.ClientSession(self.url)
        self.memory = runtime_context.get_list_state(
            ListStateDescriptor("memory", Types.TUPLE([Types.STRING(), Types.STRING()]))
        )
        self.over = runtime_context.get_state(ValueStateDescriptor("over", Types.LONG()))

    async def close(self) -> None:
        await self.client.close()

    async def ask(self, customer: str, messages: Messages, idempotency_key: str) -> dict[str, Any]:
        """Ask the model. pillarbox passes the same idempotency key if the line is processed again."""
        body = {"customer": customer, "messages": messages}
        async with self.client.post("/chat", json=body, headers={"Idempotency-Key": idempotency_key}) as response:
            response.raise_for_status()
            result: dict[str, Any] = await response.json()
            return result

    async def look_up(self, order: int) -> str:
        """Request an order's state."""
        async with self.client.get(f"/orders/{order}") as response:
            response.raise_for_status()
            return json.dumps(await response.json())

    async def process_element(self, line: Row, ctx: Any) -> AsyncIterator[Line]:
        over, timers = self.over.value(), ctx.timer_service()
        if over is not None:
            timers.delete_event_time_timer(over)
            if ctx.timestamp() >= over:  # this line begins the next chat, and event time has not reached that end
                yield await self.sum_up(line.customer, ctx)
        end = max(over or 0, ctx.timestamp() + GAP)
        self.over.update(end)
        timers.register_event_time_timer(end)
        self.memory.add(("customer", line.text))
        while True:
            answer = await ctx.call(self.ask, line.customer, list(self.memory.get()), budget=self.budget, retry=PATIENT)
            self.memory.add(("agent", answer["text"]))
            if answer["order"] is None:
                break
            self.memory.add(("order", await ctx.call(self.look_up, answer["order"], retry=PATIENT)))
        yield line.customer, line.number, "answer", answer["text"]

    async def on_timer(self, timestamp: int, ctx: Any) -> AsyncIterator[Line]:
        yield await self.sum_up(ctx.get_current_key(), ctx)
        self.over.clear()

    async def sum_up(self, customer: str, ctx: Any) -> Line:
        """Ask for a summary of the chat, and delete the chat from state."""
        messages = [*self.memory.get(), ("user", SUMMARIZE)]
        answer = await ctx.call(self.ask, customer, messages, budget=self.budget, retry=PATIENT)
        self.memory.clear()
        return customer, -1, "summary", answer["text"]


def answers(
    env: StreamExecutionEnvironment, lines: DataFrame, url: str, budget: Budget = MODEL
) -> tuple[DataStream[Line], DataStream[tuple[Any, ...]]]:
    """Return the agents' answers and summaries, and the lines that the model refuses."""
    times = WatermarkStrategy.for_bounded_out_of_orderness("1 minute").with_timestamp_assigner("at")
    by_customer = env.from_dataframe(lines, "chats").assign_timestamps_and_watermarks(times).key_by("customer")
    agents = by_customer.process(
        Agent(url, budget),
        COLUMNS,
        capacity=100,
        timeout="1 minute",
        on_barrier="carry",
        on_error=BAD,
        budgets=[budget],
    ).uid("agents")
    return agents, agents.get_side_output(BAD).map(as_refusal)


def as_refusal(letter: DeadLetter) -> tuple[str, int | None, str]:
    """Return a dead letter's customer, line number and error. The line number of a summary is None."""
    return letter.key, None if letter.value is None else letter.value.number, letter.error
