"""The programs of faulty and healthy queries. Workers import them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pillarbox import (
    DataStream,
    DeadLetter,
    KeyedProcessFunction,
    OutputTag,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from tests.see.queries import Inbox

BAD = OutputTag[DeadLetter]("bad")
DAY = 86_400_000
#: Amounts that make a function do something unusual.
ERROR, SLOW, HANG, DIE, FAIL_ONCE = -1, 2, 3, 4, 5


class Pay(KeyedProcessFunction):
    """Counts a card's payments. Some amounts make it misbehave.

    Args:
        marks: a folder. A file with the card's name shows that it has already misbehaved. A call hangs until a file
            ``go`` exists.
    """

    def __init__(self, marks: Path, timers: int = 0, seconds: float = 1.5) -> None:
        self.marks = marks
        self.timers = timers
        self.seconds = seconds

    def open(self, ctx: Any) -> None:
        self.seen = ctx.get_state(ValueStateDescriptor("seen"))

    def process_element(self, payment: Any, ctx: Any) -> Any:
        amount, mark = payment.amount, self.marks / f"{payment.card}-{payment.amount}"
        if amount == ERROR:
            raise ValueError("an amount below 0")
        if amount == SLOW:
            time.sleep(self.seconds)
        while amount == HANG and not (self.marks / "go").exists():
            time.sleep(0.1)
        if amount in (DIE, FAIL_ONCE) and not mark.exists():
            mark.touch()
            if amount == DIE:
                os._exit(1)
            raise RuntimeError("the first attempt fails")
        for number in range(self.timers):
            ctx.timer_service().register_event_time_timer(payment.at + 1000 * DAY + number)
        self.seen.update((self.seen.value() or 0) + 1)
        yield payment.card, self.seen.value()


class Cart:
    """A mutable class, whose objects must be copied."""

    def __init__(self, card: str) -> None:
        self.card = card
        self.goods = [{"good": number} for number in range(3000)]


async def ask(payment: Any) -> tuple[str, int]:
    if payment.amount >= 100 and payment.amount % 10 == 0:
        raise ConnectionError("no route to the service")
    return payment.card, payment.amount


def payments_of(spark: SparkSession, *inboxes: Inbox, parallelism: int = 2, idle: str | None = None) -> DataStream:
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(parallelism)
    times = WatermarkStrategy.for_bounded_out_of_orderness("1 minute").with_timestamp_assigner("at")
    times = times if idle is None else times.with_idleness(idle)
    streams = [
        env.from_dataframe(inbox.read(spark)).name(inbox.folder.name).assign_timestamps_and_watermarks(times)
        for inbox in inboxes
    ]
    return streams[0] if len(streams) == 1 else streams[0].union(*streams[1:])


def counted(payments: DataStream, marks: Path, **options: Any) -> DataStream:
    return payments.key_by("card").process(Pay(marks, **options)).uid("count")


def guarded(payments: DataStream, marks: Path) -> DataStream:
    return payments.key_by("card").process(Pay(marks), on_error=BAD).uid("count")


def asked(payments: DataStream) -> DataStream:
    return payments.map_async(ask, on_failure="drop").uid("ask")


def by_minute(payments: DataStream) -> DataStream:
    pairs = payments.map(lambda payment: (payment.card, payment.amount))
    minutes = pairs.key_by(lambda pair: pair[0]).window(TumblingEventTimeWindows.of("1 minute"))
    return minutes.reduce(max).uid("minutes")


def sliding(payments: DataStream) -> DataStream:
    pairs = payments.map(lambda payment: (payment.card, payment.amount))
    hours = pairs.key_by(lambda pair: pair[0]).window(SlidingEventTimeWindows.of("1 hour", "10 seconds"))
    return hours.reduce(max).uid("hours")


def in_carts(payments: DataStream) -> DataStream:
    carts = payments.map(lambda payment: Cart(payment.card)).uid("carts")
    return carts.map(lambda cart: (cart.card, len(cart.goods))).uid("sizes")
