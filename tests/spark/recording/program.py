"""The program that the tests record. Its functions can be imported, like functions of a user's package."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pillarbox import (
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    Row,
    Types,
    ValueStateDescriptor,
)


class Inbox:
    """A folder of JSON files that a query reads, one file per epoch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._number = 0
        self._began = time.time()

    def put(self, *payments: tuple[str, int, int]) -> None:
        self._number += 1
        lines = [json.dumps({"card": card, "amount": amount, "at": at}) for card, amount, at in payments]
        hidden = self.folder / f".{self._number}"
        hidden.write_text("\n".join(lines))
        os.utime(hidden, (self._began + self._number,) * 2)  # Spark reads files in the order of their times
        hidden.rename(self.folder / f"{self._number:06d}.json")

    def read(self, spark: SparkSession) -> DataFrame:
        files = spark.readStream.schema("card STRING, amount LONG, at LONG").option("maxFilesPerTrigger", 1)
        return files.json(str(self.folder))


class Seen(KeyedProcessFunction):
    """Counts a card's payments. A negative amount raises an error."""

    def open(self, ctx: Any) -> None:
        self.seen = ctx.get_state(ValueStateDescriptor("seen"))

    def process_element(self, payment: Any, ctx: Any) -> Any:
        if payment.amount < 0:
            raise ValueError(f"an amount of {payment.amount}")
        self.seen.update((self.seen.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(payment.at + 90_000)
        yield payment.card, self.seen.value()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), self.seen.value()


class Totals(KeyedProcessFunction):
    def open(self, ctx: Any) -> None:
        self.total = ctx.get_state(ValueStateDescriptor("total"))

    def process_element(self, count: Any, ctx: Any) -> Any:
        self.total.update((self.total.value() or 0) + count[1])
        yield ctx.get_current_key(), self.total.value()


class SeenTwice(Seen):
    def process_element(self, payment: Any, ctx: Any) -> Any:
        list(super().process_element(payment, ctx))
        yield from super().process_element(payment, ctx)


class Limited(KeyedBroadcastProcessFunction):
    """Emits payments that do not exceed their card's newest limit, and counts all others."""

    LIMITS = MapStateDescriptor("limits", Types.STRING(), Types.LONG())

    def open(self, ctx: Any) -> None:
        self.refused = ctx.get_state(ValueStateDescriptor("refused"))

    def process_element(self, payment: Any, ctx: Any) -> Any:
        limit = ctx.get_broadcast_state(self.LIMITS).get(payment.card)
        if limit is not None and payment.amount > limit:
            self.refused.update((self.refused.value() or 0) + 1)
        else:
            yield Row(card=payment.card, amount=payment.amount, at=payment.at)

    def process_broadcast_element(self, limit: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(self.LIMITS).put(limit.card, limit.amount)


class Heartbeats(KeyedProcessFunction):
    """Emits a key some milliseconds after each of its records, by the worker's clock."""

    def open(self, ctx: Any) -> None:
        self.told = ctx.get_state(ValueStateDescriptor("told"))

    def process_element(self, beat: Any, ctx: Any) -> Any:
        now = ctx.timer_service().current_processing_time()
        self.told.update((now, self.told.value()[1] if self.told.value() else 0))
        ctx.timer_service().register_processing_time_timer(now + 5)
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        last, count = self.told.value()
        self.told.update((last, count + 1))
        yield ctx.get_current_key(), ctx.timer_service().current_processing_time()


class Rates(KeyedProcessFunction):
    def __init__(self, rates: Any) -> None:
        self.rates = rates

    def process_element(self, payment: Any, ctx: Any) -> Any:
        yield payment.card, payment.amount * self.rates.value["eur"]
