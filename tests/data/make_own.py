"""Golden operator state, and event time after a shuffle: ``python -m tests.data.make_own``.

It includes list and union list states, broadcast state with large elements, watermark strategies with idleness whose
streams meet in a chain, and carried requests with watermarks and statuses between them.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from pillarbox import (
    CheckpointedFunction,
    KeyedBroadcastProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    ProcessFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from pillarbox._elements.records import Records
from pillarbox._runtime.local import LocalJob, Savepoint
from pillarbox._state.chunks.head import FORMAT
from pillarbox._state.log import large_collections, limits
from pillarbox._time.manual_clock import ManualProcessingTimeService
from tests.data.make_checkpoint import HERE, save

__all__ = ["EPOCHS", "PATH", "job", "run"]

PATH = HERE / f"own-format-{FORMAT}.zip"
EPOCHS = 7
CLOCK = 1_700_000_000_000
RULES = MapStateDescriptor("rules")


class Listed(MapFunction, CheckpointedFunction):
    def open(self, runtime_context):
        self.subtask = runtime_context.get_index_of_this_subtask()

    def initialize_state(self, context):
        store = context.get_operator_state_store()
        self.mine = store.get_list_state(ListStateDescriptor("mine"))
        self.every = store.get_union_list_state(ListStateDescriptor("every"))

    def map(self, number):
        self.mine.add((number, str(number)))
        if number % 3 == 0:
            self.every.add(number)
        return self.subtask, len(self.mine.get()), sum(self.every.get())


class Ruled(KeyedBroadcastProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, number, ctx):
        self.count.update((self.count.value() or 0) + 1)
        rules = ctx.get_broadcast_state(RULES).items()
        yield ctx.get_current_key(), self.count.value(), [(name, len(rule)) for name, rule in rules]

    def process_broadcast_element(self, rule, ctx):
        ctx.get_broadcast_state(RULES).put(*rule)
        return ()


class Seen(ProcessFunction):
    def process_element(self, number, ctx):
        yield number, ctx.timer_service().current_watermark()


_released = False


async def answer(seen: Any) -> Any:
    while seen[0] % 10 == 4 and not _released:
        await asyncio.sleep(0.01)
    return seen


def job(epoch: int, savepoint: Savepoint | None = None) -> LocalJob:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    numbers, rules = env.from_collection([]), env.from_collection([])
    # (Where rebalance() begins depends on the epoch's number, which begins anew with a savepoint.)
    dealt = numbers.partition_custom(lambda pair, subtasks: pair % subtasks, lambda number: number // 2)
    at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda number: number)
    passed = dealt.map(abs).uid("passed")
    parts = []
    for n, idleness in enumerate(("1 second", "1 day")):
        part = passed.filter(lambda number, n=n: number % 2 == n).uid(f"part {n}")  # type: ignore[misc]
        parts.append(part.assign_timestamps_and_watermarks(at.with_idleness(idleness)).uid(f"at {n}"))
    met = parts[0].union(parts[1]).process(Seen()).uid("seen")
    asked = parts[0].process(Seen()).uid("even").map_async(answer, timeout="1 hour", ordered=True, on_barrier="carry")
    outputs: dict[str, Any] = {
        "listed": dealt.map(Listed()).uid("listed"),
        "ruled": numbers.key_by(lambda number: number % 4)
        .connect(rules.broadcast(RULES))
        .process(Ruled())
        .uid("ruled"),
        "met": met,
        "asked": asked.uid("asked"),
    }
    return env.local_job(savepoint=savepoint, clock=ManualProcessingTimeService(time_of(epoch)), **outputs)


def time_of(epoch: int) -> int:
    return CLOCK + 600 * epoch


def run(running: LocalJob, epoch: int) -> dict[str, list[str]]:
    global _released
    _released = epoch == EPOCHS
    clock: Any = running._clock
    clock.set_current_time(time_of(epoch))
    # From the sixth epoch on there are no even numbers: their stream becomes idle, behind requests under way.
    numbers = [
        number for number in range(10 * epoch, 10 * epoch + 10) if epoch in (0, 1, 2, 3, 4, EPOCHS) or number % 2
    ]
    rules = [(f"rule {epoch % 5}", bytes(500 * (epoch % 3) + n)) for n in range(2)]
    both: dict[int, Any] = dict(zip(sorted(running.program.sources), (numbers, rules)))
    out = running.run_epoch({source: [[Records(values)]] for source, values in both.items()}, bounded=epoch == EPOCHS)
    return {name: sorted(map(repr, rows)) for name, rows in out.items()}


def make() -> Savepoint:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "CHUNK_BYTES", 400)
        patch.setattr(large_collections, "_LARGE", 60)
        with job(0) as running:
            for epoch in range(EPOCHS):
                run(running, epoch)
            return running.savepoint()


if __name__ == "__main__":
    from tests.data import make_own  # as what tests import, and not as __main__: functions are named

    save(make_own.make(), PATH)
    print(f"{PATH}: {PATH.stat().st_size} bytes", file=sys.stderr)
