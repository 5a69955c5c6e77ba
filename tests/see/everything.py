"""A query with values for every metric: late records, dead letters, calls, failing requests, and user metrics."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import pillarbox
from pillarbox import (
    AsyncCache,
    DeadLetter,
    KeyedProcessFunction,
    OutputTag,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from tests.see.queries import Inbox

BAD = OutputTag[DeadLetter]("bad")


class Spent(KeyedProcessFunction):
    """Adds up a card's converted payments. Raises for a negative amount."""

    def open(self, ctx: Any) -> None:
        self.spent = ctx.get_state(ValueStateDescriptor("spent"))
        self.paid = ctx.get_metrics_group().add_group("money").counter("paid")
        self.largest = 0
        ctx.get_metrics_group().gauge("largest", lambda: self.largest)

    async def process_element(self, payment: Any, ctx: Any) -> Any:
        if payment.amount < 0:
            raise ValueError(f"an amount of {payment.amount}")
        amount = await ctx.call(convert, payment.amount)
        self.paid.inc(payment.amount)
        self.largest = max(self.largest, payment.amount)
        self.spent.update((self.spent.value() or 0) + amount)
        yield payment.card, self.spent.value()


async def convert(amount: int) -> int:
    await asyncio.sleep(0)
    return 100 * amount


async def score(spent: tuple[str, int]) -> tuple[str, int]:
    if spent[0] == "mallory":
        raise ConnectionError("no such card")
    await asyncio.sleep(10 if spent[0] == "trudy" else 0.001)
    return spent[0], len(spent[0])


def everything(spark: SparkSession, inbox: Inbox, checkpoint: Path, name: str) -> Any:
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)
    times = WatermarkStrategy.for_bounded_out_of_orderness("1 second").with_timestamp_assigner("at")
    payments = env.from_dataframe(inbox.read(spark)).name("payments").assign_timestamps_and_watermarks(times)
    ordered = payments.key_by("card").in_event_time_order().uid("ordered")
    spent = ordered.key_by("card").process(Spent(), on_error=BAD).uid("spent")
    scored = spent.map_async(
        score,
        "card STRING, score LONG",
        timeout="200 ms",
        retry=1,
        rate_limit=100,
        cache=AsyncCache(10, key=lambda pair: pair[0]),
        on_failure="drop",
    ).uid("score")
    writer = scored.to_dataframe().writeStream.format("noop").queryName(name).trigger(processingTime="500 milliseconds")
    return pillarbox.start(writer.option("checkpointLocation", str(checkpoint)))


def some_payments(second: int) -> list[tuple[str, int, int]]:
    good = [(f"card-{number % 9}", 1 + number, second + number) for number in range(40)]
    odd = [("eve", -1, second + 3), ("mallory", 5, second + 4), ("trudy", 6, second + 5)]
    return [*good, *odd, ("late", 1, second - 1000)]
