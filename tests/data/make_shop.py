"""A golden savepoint that changed programs start from: ``python -m tests.data.make_shop``.

The program has two sources with different event times, and three keyed operators with timers. Their states have
declared types or are pickled, and contain dataclasses, named tuples, and a class in values and in keys. Never change
the program or its classes; tests hide or replace the classes.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pillarbox import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from pillarbox._graph.description import describe_programs
from pillarbox._state.savepoint.files import write_savepoint
from pillarbox._state.savepoint.manifest import FORMAT, Sources
from pillarbox.testing import ProgramTestHarness, row
from tests.data.make_checkpoint import HERE

__all__ = ["BY_AT", "CARDS", "PATH", "READ", "Bonus", "Money", "Order", "Place", "Spent", "Visits", "payments", "shop"]

PATH = HERE / f"savepoint-shop-{FORMAT}.zip"
CARDS = 8
#: How far the sources were read, as Spark's offset log has it.
READ = {"payments": {"payments-topic": {"0": 36}}, "refunds": {"refunds-topic": {"0": 1}}}


class Money(NamedTuple):
    amount: int
    currency: str


@dataclass
class Order:
    number: int
    money: Money
    note: str = ""


@dataclass(frozen=True)
class Place:
    city: str
    shop: int


class Spent(KeyedProcessFunction):
    def open(self, runtime_context):
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))
        self.order = runtime_context.get_state(ValueStateDescriptor("order", Order))
        self.notes = runtime_context.get_list_state(ListStateDescriptor("notes"))
        self.old = runtime_context.get_map_state(MapStateDescriptor("old", str, int))
        self.home = runtime_context.get_state(ValueStateDescriptor("home"))

    def process_element(self, payment, ctx):
        n = payment.number
        self.sum.update((self.sum.value() or 0) + payment.amount)
        self.order.update(Order(n, Money(payment.amount, "EUR"), "x"))
        self.notes.add(Order(n, Money(payment.amount, "USD")))
        self.old.put("number", n)
        self.home.update(Place(payment.city, n))
        ctx.timer_service().register_event_time_timer(2_000 + n)
        yield ctx.get_current_key(), self.sum.value(), self.order.value(), list(self.notes), self.home.value()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp


class Visits(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, payment, ctx):
        self.count.update((self.count.value() or 0) + 1)
        yield ctx.get_current_key(), self.count.value()


class Bonus(KeyedProcessFunction):
    def open(self, runtime_context):
        self.largest = runtime_context.get_state(ValueStateDescriptor("largest", Types.LONG()))

    def process_element(self, payment, ctx):
        self.largest.update(max(self.largest.value() or 0, payment.amount))
        yield ctx.get_current_key(), self.largest.value()


BY_AT = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")


def place_of(payment: Any) -> Place:
    return Place(payment.city, payment.number)


def shop(env: Any, payments: Any, refunds: Any) -> dict[str, Any]:
    paid = payments.assign_timestamps_and_watermarks(BY_AT)
    every = paid.union(refunds.assign_timestamps_and_watermarks(BY_AT))
    return {
        "spent": every.key_by("card", Types.STRING()).process(Spent()).uid("spent"),
        "visits": paid.key_by(place_of).process(Visits()).uid("visits"),
        "bonus": paid.key_by("card", Types.STRING()).process(Bonus()).uid("bonus"),
    }


def payments(at: int) -> list[Any]:
    return [row(card=f"card {n}", number=n, amount=10 * n, city=f"city {n % 3}", at=at) for n in range(CARDS)]


def make(directory: Path) -> None:
    with ProgramTestHarness(shop, parallelism=2) as harness:
        harness.push_all("payments", payments(1_000))
        harness.push("refunds", row(card="card 0", number=0, amount=0, city="city 0", at=1_000))
        harness.run_epoch()
        harness.push_all("payments", payments(5_000))
        harness.run_epoch()
        write_savepoint(
            directory,
            harness.snapshot().stores,
            epoch=1,
            sources=Sources(("v1", '{"batchWatermarkMs":0}', *map(json.dumps, READ.values())), {}),
            programs=describe_programs([harness._program])["programs"],
            checkpoint="/checkpoint",
        )


if __name__ == "__main__":
    from tests.data import make_shop  # as what tests import, and not as __main__: classes are named

    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary) / "savepoint"
        make_shop.make(home)
        with zipfile.ZipFile(PATH, "x", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(home.rglob("*")):
                if path.is_file():
                    archive.write(path, path.relative_to(home))
    print(f"{PATH}: {PATH.stat().st_size} bytes", file=sys.stderr)
