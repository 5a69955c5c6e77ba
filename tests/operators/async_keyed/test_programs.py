from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from typing import Any

import pytest

from pillarbox import RuntimeExecutionMode, StreamExecutionEnvironment, WatermarkStrategy
from tests.operators.async_keyed.gates import Stateful

STREAMING, BATCH = RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH


class Numbering(Stateful):
    async def open(self, runtime_context: Any) -> None:
        super().open(runtime_context)
        self.active = self.most_active = 0
        await asyncio.sleep(0)

    async def process_element(self, value: Any, ctx: Any) -> Any:
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        number = (self.value.value() or 0) + 1
        self.value.update(number)
        await asyncio.sleep(0.001)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1000)
        self.active -= 1
        yield value[0], number, self.most_active

    async def on_timer(self, timestamp: int, ctx: Any) -> Any:
        if ctx.timer_service().current_watermark() == 2**63 - 1 and not self.map.contains("last"):
            self.map.put("last", 1)
            await asyncio.sleep(0)
            yield ctx.get_current_key(), "last", self.value.value()
            ctx.timer_service().register_event_time_timer(timestamp + 1)

    async def close(self) -> None:
        await asyncio.sleep(0)


def run(function: Any, mode: RuntimeExecutionMode, **options: Any) -> list[Any]:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_runtime_mode(mode)
    at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda event: event[1])
    events = env.from_collection([(f"k{number % 20}", number) for number in range(100)])
    stream = events.assign_timestamps_and_watermarks(at).key_by(lambda event: event[0]).process(function, **options)
    return list(stream.execute_and_collect())


@pytest.mark.parametrize("mode", [STREAMING, BATCH])
@pytest.mark.parametrize("on_barrier", ["drain", "carry"])
def test_programs_run(mode: RuntimeExecutionMode, on_barrier: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        results = run(Numbering(), mode, capacity=10, on_barrier=on_barrier)
    by_key = defaultdict(list)
    most_active = 0
    for key, what, number in results:
        by_key[key].append(what)
        if what != "last":
            most_active = max(most_active, number)
    assert by_key == {f"k{key}": [1, 2, 3, 4, 5, "last"] for key in range(20)}
    assert most_active == 10  # keys are concurrent in batch mode, too
    assert any("batch mode has no later time" in message for message in caplog.messages) is (mode is BATCH)


async def doubled(value: Any, ctx: Any) -> Any:
    await asyncio.sleep(0)
    return [value[1] * 2]


def test_a_coroutine_function_is_enough() -> None:
    assert sorted(run(doubled, STREAMING)) == [2 * number for number in range(100)]


def test_timers_that_set_timers_without_end_fail_after_the_last_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pillarbox._time.internal_timer_service._LAST", 100)

    class Endless(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> None:
            ctx.timer_service().register_event_time_timer(0)

        async def on_timer(self, timestamp: int, ctx: Any) -> None:
            ctx.timer_service().register_event_time_timer(timestamp + 1)

    with pytest.raises(
        Exception, match=r"key 'k\d+': after the end of the data, timers have set more than 2100 timers"
    ):
        run(Endless(), STREAMING)
