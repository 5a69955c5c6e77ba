"""The program that is recorded: its functions are importable, as those of a user's package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pillarbox import KeyedProcessFunction, ValueStateDescriptor


class Inbox:
    """A folder of JSON files that a query reads, one file an epoch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        self._number = 0

    def put(self, *payments: tuple[str, int, int]) -> None:
        """Add a file of payments: card, amount, time (epoch ms)."""
        self._number += 1
        lines = [json.dumps({"card": card, "amount": amount, "at": at}) for card, amount, at in payments]
        hidden = self._folder / f".{self._number}"
        hidden.write_text("\n".join(lines))
        hidden.rename(self._folder / f"{self._number:06d}.json")

    def read(self, spark: SparkSession) -> DataFrame:
        """The stream of it."""
        files = spark.readStream.schema("card STRING, amount LONG, at LONG").option("maxFilesPerTrigger", 1)
        return files.json(str(self._folder))


class Seen(KeyedProcessFunction):
    """Counts the payments of a card. An amount below 0 is an error."""

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
    """Adds counts up."""

    def open(self, ctx: Any) -> None:
        self.total = ctx.get_state(ValueStateDescriptor("total"))

    def process_element(self, count: Any, ctx: Any) -> Any:
        self.total.update((self.total.value() or 0) + count[1])
        yield ctx.get_current_key(), self.total.value()
