"""Golden columnar windows: ``python -m tests.data.make_columns``.

They include open windows of each kind, several streams of some panes, and all of pillarbox's own aggregates.
"""

from __future__ import annotations

import random
import sys
from decimal import Decimal
from typing import Any

from pillarbox import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    Types,
    WatermarkStrategy,
    approx_count_distinct_,
    avg_,
    count_,
    first_,
    last_,
    max_,
    min_,
    sum_,
)
from pillarbox._elements.records import Records
from pillarbox._rows import row_class
from pillarbox._runtime.local import LocalJob, Savepoint
from pillarbox._state.chunks.head import FORMAT
from tests.data.make_checkpoint import HERE, save

__all__ = ["EPOCHS", "PATH", "job", "run"]

PATH = HERE / f"columns-format-{FORMAT}.zip"
EPOCHS = 6
NAMES = ["card", "shop", "at", "amount", "price", "rate"]
ROW = row_class(tuple(NAMES))
PAYMENT = Types.ROW_NAMED(
    NAMES, [Types.STRING(), Types.INT(), Types.LONG(), Types.LONG(), Types.BIG_DEC(), Types.DOUBLE()]
)
WINDOWS = {
    "tumbling": TumblingEventTimeWindows.of(500, 100),
    "sliding": SlidingEventTimeWindows.of(600, 200),
    "sessions": EventTimeSessionWindows.with_gap(40),
}


def job(savepoint: Savepoint | None = None, *, parallelism: int = 2, groups: int = 128) -> LocalJob:
    env = StreamExecutionEnvironment().set_parallelism(parallelism).set_max_parallelism(groups)
    late_by = WatermarkStrategy.for_bounded_out_of_orderness(150).with_timestamp_assigner("at")
    keyed = env.from_collection([], PAYMENT).assign_timestamps_and_watermarks(late_by).key_by("card", "shop")
    outputs: dict[str, Any] = {
        name: keyed.window(window)
        .allowed_lateness(100)
        .aggregate(
            n=count_(),
            amounts=count_("amount"),
            total=sum_("amount"),
            price=sum_("price"),
            mean=avg_("price"),
            rate=avg_("rate"),
            least=min_("rate"),
            most=max_("card"),
            first=first_("amount"),
            last=last_("price"),
            different=approx_count_distinct_("at"),
            cards=approx_count_distinct_("card"),
        )
        .uid(name)
        for name, window in WINDOWS.items()
    }
    return env.local_job(savepoint=savepoint, **outputs)


def epoch(number: int) -> list[Any]:
    rng = random.Random(number)
    rows = []
    for _ in range(20):
        at = number * 100 + rng.randrange(-80, 100)
        amount = rng.choice([None, rng.randrange(-(10**12), 10**12)])
        price = rng.choice([None, Decimal(rng.randrange(10**9)).scaleb(-3)])
        rate = rng.choice([None, float("nan"), rng.randrange(100) / 4])
        rows.append(ROW((rng.choice("abcdefé"), rng.choice([1, None]), at, amount, price, rate)))
    return rows


def run(running: LocalJob, number: int) -> dict[str, list[str]]:
    (source,) = running.program.sources
    out = running.run_epoch({source: [[Records(epoch(number))]]}, bounded=number == EPOCHS)
    return {name: sorted(map(repr, rows)) for name, rows in out.items()}


def make() -> Savepoint:
    with job() as running:
        for number in range(EPOCHS):
            run(running, number)
        return running.savepoint()


if __name__ == "__main__":
    save(make(), PATH)
    print(f"{PATH}: {PATH.stat().st_size} bytes", file=sys.stderr)
