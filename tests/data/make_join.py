"""Golden columnar joins: ``python -m tests.data.make_join``.

Each side has several streams, and rows with and without a partner.
"""

from __future__ import annotations

import random
import sys
from decimal import Decimal
from typing import Any

from pillarbox import StreamExecutionEnvironment, Types, WatermarkStrategy
from pillarbox._elements.records import Records
from pillarbox._rows import row_class
from pillarbox._runtime.local import LocalJob, Savepoint
from pillarbox._state.chunks.head import FORMAT
from tests.data.make_checkpoint import HERE, save

__all__ = ["EPOCHS", "PATH", "job", "run"]

PATH = HERE / f"join-format-{FORMAT}.zip"
EPOCHS = 6
NAMES = ["card", "shop", "at", "price"]
ROW = row_class(tuple(NAMES))
PAYMENT = Types.ROW_NAMED(NAMES, [Types.STRING(), Types.INT(), Types.LONG(), Types.BIG_DEC()])


def job(savepoint: Savepoint | None = None, *, parallelism: int = 2, groups: int = 128) -> LocalJob:
    env = StreamExecutionEnvironment().set_parallelism(parallelism).set_max_parallelism(groups)
    late_by = WatermarkStrategy.for_bounded_out_of_orderness(150).with_timestamp_assigner("at")
    streams = [env.from_collection([], PAYMENT).assign_timestamps_and_watermarks(late_by) for _ in range(2)]
    outputs: dict[str, Any] = {}
    for name, keys in (("inner", ["card", "shop"]), ("left", ["shop"])):
        left, right = (stream.key_by(keys) for stream in streams)
        near = left.interval_join(right).between(-100, 250)
        outputs[name] = near.columns(name, suffixes=("", "_right")).uid(name)  # type: ignore[arg-type]
    return env.local_job(savepoint=savepoint, **outputs)


def epoch(number: int, side: int) -> list[Any]:
    rng = random.Random(f"{side} {number}")
    rows = []
    for _ in range(10):
        at = number * 100 + rng.randrange(-80, 100)
        price = rng.choice([None, Decimal(rng.randrange(10**9)).scaleb(-3)])
        rows.append(ROW((rng.choice("abé"), rng.choice([*range(12), None]), at, price)))
    return rows


def run(running: LocalJob, number: int) -> dict[str, list[str]]:
    inputs = {source: [[Records(epoch(number, side))]] for side, source in enumerate(sorted(running.program.sources))}
    out = running.run_epoch(inputs, bounded=number == EPOCHS)
    return {name: sorted(map(repr, rows)) for name, rows in out.items()}


def make() -> Savepoint:
    with job() as running:
        for number in range(EPOCHS):
            run(running, number)
        return running.savepoint()


if __name__ == "__main__":
    save(make(), PATH)
    print(f"{PATH}: {PATH.stat().st_size} bytes", file=sys.stderr)
