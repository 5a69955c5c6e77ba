"""Golden notes of the program settings that state depends on: ``python -m tests.data.make_dependence``."""

from __future__ import annotations

import sys
from typing import Any

from pillarbox import StreamExecutionEnvironment, Types, WatermarkStrategy
from pillarbox._elements.records import Records
from pillarbox._rows import row_class
from pillarbox._runtime.local import LocalJob, Savepoint
from pillarbox._state.chunks.head import FORMAT
from pillarbox._time.manual_clock import ManualProcessingTimeService
from tests.data.make_checkpoint import HERE, save

__all__ = ["PATH", "RECORDS", "job", "run"]

PATH = HERE / f"dependence-format-{FORMAT}.zip"
NAMES = ["card", "at", "amount", "fee"]
ROW = row_class(tuple(NAMES))
PAYMENT = Types.ROW_NAMED(NAMES, [Types.STRING(), Types.LONG(), Types.LONG(), Types.LONG()])
RECORDS = [(f"card {number % 3}", 10 * number, number, 1) for number in range(8)]


def pair(left: Any, right: Any, ctx: Any) -> Any:
    yield left.amount, right.amount


def small(payment: Any) -> bool:
    return bool(payment.amount < 4)


def large(payment: Any) -> bool:
    return not small(payment)


def job(savepoint: Savepoint | None = None, *, size: int = 3, field: str = "amount", swaps: bool = False) -> LocalJob:
    env = StreamExecutionEnvironment().set_parallelism(2).set_max_parallelism(128)
    at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    payments = env.from_collection([], PAYMENT).assign_timestamps_and_watermarks(at)
    smalls, larges = payments.filter(small).uid("small"), payments.filter(large).uid("large")
    if swaps:
        smalls, larges = larges, smalls
    near = smalls.key_by("card").interval_join(larges.key_by("card")).between(-1_000, 1_000)
    outputs = {
        "counted": payments.key_by("card").count_window(size).sum("amount").uid("counted"),
        "folded": payments.key_by("card").sum(field).uid("folded"),
        "joined": near.process(pair).uid("joined"),
    }
    return env.local_job(savepoint=savepoint, clock=ManualProcessingTimeService(1_700_000_000_000), **outputs)


def run(running: LocalJob, records: list[Any], *, bounded: bool = False) -> dict[str, list[str]]:
    (source,) = running.program.sources
    out = running.run_epoch({source: [[Records([ROW(record) for record in records])]]}, bounded=bounded)
    return {name: sorted(map(repr, rows)) for name, rows in out.items()}


def make() -> Savepoint:
    with job() as running:
        run(running, RECORDS[:4])
        return running.savepoint()


if __name__ == "__main__":
    from tests.data import make_dependence  # as what tests import, and not as __main__: functions are named

    save(make_dependence.make(), PATH)
    print(f"{PATH}: {PATH.stat().st_size} bytes", file=sys.stderr)
