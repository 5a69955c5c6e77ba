"""A golden log of a task's clock readings: ``python -m tests.data.make_clock``."""

from __future__ import annotations

import sys
from typing import Any

from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, Types, ValueStateDescriptor
from pillarbox._elements.records import Records
from pillarbox._runtime.local import LocalJob, Savepoint
from pillarbox._state.chunks.head import FORMAT
from pillarbox._time.manual_clock import ManualProcessingTimeService
from tests.data.make_checkpoint import HERE, save

__all__ = ["CLOCK", "KEYS", "NOW", "PATH", "job", "run"]

PATH = HERE / f"clock-format-{FORMAT}.zip"
NOW = 1_700_000_000_000
KEYS = ["a", "b", "a", "c", "b", "a"]
CLOCK = ManualProcessingTimeService(NOW)


class Seen(KeyedProcessFunction):
    def open(self, ctx: Any) -> None:
        self.seen = ctx.get_state(ValueStateDescriptor("seen", Types.LONG()))

    def process_element(self, key: Any, ctx: Any) -> Any:
        CLOCK.advance(1_000)
        self.seen.update(ctx.timer_service().current_processing_time())
        ctx.timer_service().register_processing_time_timer(self.seen.value() + 2_500)
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), self.seen.value(), timestamp


def job(savepoint: Savepoint | None = None) -> LocalJob:
    env = StreamExecutionEnvironment().set_parallelism(1).set_max_parallelism(128)
    keys = env.from_collection([], Types.STRING()).key_by(lambda key: key, key_type=Types.STRING())
    seen = keys.process(Seen(), processing_time=True).uid("seen")
    return env.local_job(savepoint=savepoint, clock=CLOCK, seen=seen)


def run(running: LocalJob) -> list[str]:
    (source,) = running.program.sources
    out = running.run_epoch({source: [[Records([key])] for key in KEYS]})
    return sorted(map(repr, out["seen"]))


def make() -> Savepoint:
    CLOCK.set_current_time(NOW)
    with job() as running:
        run(running)
        return running.savepoint()


if __name__ == "__main__":
    from tests.data import make_clock  # as what tests import, and not as __main__: functions are named

    save(make_clock.make(), PATH)
    print(f"{PATH}: {PATH.stat().st_size} bytes", file=sys.stderr)
