"""Golden notes for changed programs: ``python -m tests.data.make_noted``.

A stream is idle, and its receivers have received this status. Columnar windows store the slide of their panes, and
columnar joins store their kind.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

from pillarbox import (
    EventTimeSessionWindows,
    KeyedProcessFunction,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    Types,
    WatermarkStrategy,
    WindowFunction,
    count_,
    sum_,
)
from pillarbox._elements.records import Records
from pillarbox._rows import row_class
from pillarbox._runtime.local import LocalJob, Savepoint
from pillarbox._state.chunks.head import FORMAT
from pillarbox._time.manual_clock import ManualProcessingTimeService
from tests.data.make_checkpoint import HERE, save

__all__ = ["EPOCHS", "KINDS", "PATH", "WINDOWS", "job", "run"]

PATH = HERE / f"noted-format-{FORMAT}.zip"
EPOCHS = 5
CLOCK = 1_700_000_000_000
NAMES = ["card", "at", "amount"]
ROW = row_class(tuple(NAMES))
PAYMENT = Types.ROW_NAMED(NAMES, [Types.STRING(), Types.LONG(), Types.LONG()])
WINDOWS: dict[str, Any] = {
    "tumbling": TumblingEventTimeWindows.of(250),
    "sliding": SlidingEventTimeWindows.of(300, 100),
    "sessions": EventTimeSessionWindows.with_gap(40),
}
KINDS = {"inner": "inner", "left": "left"}


class Pass(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


class Count(WindowFunction):
    def apply(self, key, window, inputs):
        yield key, window.start, len(list(inputs))


def job(
    savepoint: Savepoint | None = None,
    *,
    windows: Mapping[str, Any] = WINDOWS,
    kinds: Mapping[str, Any] = KINDS,
    listens: bool = False,
) -> LocalJob:
    """Return the program, which may resume from a savepoint.

    Args:
        listens: whether ``counted`` also reads the idle stream, whose idle status it has not received.
    """
    env = StreamExecutionEnvironment().set_parallelism(2).set_max_parallelism(128)
    by_at = WatermarkStrategy.for_bounded_out_of_orderness(50).with_timestamp_assigner("at")
    busy = env.from_collection([], PAYMENT).assign_timestamps_and_watermarks(by_at)
    silent = env.from_collection([], PAYMENT).assign_timestamps_and_watermarks(by_at.with_idleness("1 second"))
    passed = silent.key_by("card").process(Pass(), output_type=PAYMENT).uid("passed")
    others = busy.key_by("card").process(Pass(), output_type=PAYMENT).uid("others")
    keyed = busy.union(passed).key_by("card")
    outputs: dict[str, Any] = {
        name: keyed.window(window).aggregate(n=count_(), total=sum_("amount")).name(name).uid(name)
        for name, window in windows.items()
    }
    near = busy.key_by("card").interval_join(passed.key_by("card")).between(-500, 250)
    for name, kind in kinds.items():
        outputs[name] = near.columns(kind, suffixes=("", "_right")).name(name).uid(name)
    counted = (others.union(passed) if listens else others).key_by("card")
    outputs["counted"] = counted.window(TumblingEventTimeWindows.of(100)).apply(Count()).uid("counted")
    return env.local_job(savepoint=savepoint, clock=ManualProcessingTimeService(CLOCK), **outputs)


def epoch(number: int, side: int) -> list[Any]:
    """Return a source's rows in an epoch. The second source has no rows from the third epoch on."""
    rng = random.Random(f"{side} {number}")
    times = [number * 100 + rng.randrange(-40, 100) for _ in range(0 if side and number > 1 else 8)]
    return [ROW((rng.choice("abcé"), at, rng.randrange(1_000))) for at in times]


def run(running: LocalJob, number: int) -> dict[str, list[str]]:
    clock: Any = running._clock
    clock.set_current_time(CLOCK + 700 * number)
    inputs = {source: [[Records(epoch(number, side))]] for side, source in enumerate(sorted(running.program.sources))}
    out = running.run_epoch(inputs, bounded=number > EPOCHS)
    return {name: sorted(map(repr, rows)) for name, rows in out.items()}


def make() -> Savepoint:
    with job() as running:
        for number in range(EPOCHS):
            run(running, number)
        return running.savepoint()


if __name__ == "__main__":
    from tests.data import make_noted  # as what tests import, and not as __main__: functions are named

    save(make_noted.make(), PATH)
    print(f"{PATH}: {PATH.stat().st_size} bytes", file=sys.stderr)
