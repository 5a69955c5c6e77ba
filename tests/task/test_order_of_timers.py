"""Timers with the same time fire in the same order in resident and restored tasks."""

from __future__ import annotations

from typing import Any

import pytest

from pillarbox import (
    EventTimeSessionWindows,
    KeyedProcessFunction,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from pillarbox.testing import ProgramTestHarness


class CountUntil(KeyedProcessFunction):
    def __init__(self, *, with_state: bool) -> None:
        self.with_state = with_state

    def open(self, runtime_context):
        self.n = runtime_context.get_state(ValueStateDescriptor("n", int)) if self.with_state else None

    def process_element(self, value, ctx):
        if self.n is not None:
            self.n.update((self.n.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(9)
        return []

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key()


class All(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, len(list(elements))


def later(value: Any, other: Any) -> Any:
    return value[0], value[1] + other[1]


PROGRAMS: dict[str, Any] = {
    "process": lambda keyed: keyed.process(CountUntil(with_state=True)),
    "without state": lambda keyed: keyed.process(CountUntil(with_state=False)),
    "windows": lambda keyed: keyed.window(TumblingEventTimeWindows.of(10)).process(All()),
    "folded": lambda keyed: keyed.window(TumblingEventTimeWindows.of(10)).reduce(later),
    "sliding": lambda keyed: keyed.window(SlidingEventTimeWindows.of(20, 10)).reduce(later),
    "sessions": lambda keyed: keyed.window(EventTimeSessionWindows.with_gap(5)).process(All()),
    "folded sessions": lambda keyed: keyed.window(EventTimeSessionWindows.with_gap(5)).reduce(later),
}
KEYS = [f"k{n}" for n in range(20)]
EPOCHS = (KEYS, KEYS[10:15], KEYS[5:8][::-1], ["a", *KEYS[3:1:-1], "b"], KEYS[16:])


@pytest.mark.parametrize("program", PROGRAMS)
def test_timers_of_the_same_time_fire_in_one_order(program):
    def build(env: Any, source: Any) -> Any:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda r, _: r[1])
        keyed = source.assign_timestamps_and_watermarks(strategy).key_by(lambda record: record[0])
        return PROGRAMS[program](keyed)

    def run(restored: set[int]) -> list[Any]:
        harness = ProgramTestHarness(build)
        for epoch, keys in enumerate(EPOCHS):
            harness.push("source", *((key, 1) for key in keys))
            harness.run_epoch()
            if epoch in restored:
                harness.restore(harness.snapshot())
        harness.push("source", ("z", 100))
        harness.run_epoch()
        return harness.get_output()

    expected = run(set())
    assert len(expected) >= len(KEYS) + 2
    assert run({4}) == expected
    assert run({0, 2}) == expected
    assert run({0, 1, 2, 3, 4}) == expected
