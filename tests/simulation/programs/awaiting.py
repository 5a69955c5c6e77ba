"""Programs with async keyed functions, whose records wait for the event loop or for simulated time."""

from __future__ import annotations

import asyncio
from typing import Any

from pillarbox import OutputTag
from tests.simulation import oracles
from tests.simulation.programs.program import LAST, SimulatedProgram, keyed_events
from tests.simulation.programs.state import modulo_5, numbers
from tests.support.programs import History, first, monotonous

BAD: OutputTag[Any] = OutputTag("bad")


class AsyncHistory(History):
    """Yields to the event loop a few times before and after each state change."""

    async def process_element(self, value: int, ctx: Any) -> Any:
        for _ in range(value % 9):
            await asyncio.sleep(0)
        results = list(super().process_element(value, ctx))
        await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))
        for result in results:
            yield result


class SlowHistory(AsyncHistory):
    async def process_element(self, value: int, ctx: Any) -> Any:
        await asyncio.sleep(value % 7 / 1000)
        async for result in super().process_element(value, ctx):
            yield result


class AsyncTimers(History):
    """Sets a timer for each record. Some timers and records fail."""

    async def process_element(self, value: Any, ctx: Any) -> Any:
        self.seen.add(value[2])
        await asyncio.sleep(0)
        ctx.timer_service().register_event_time_timer(value[1] * 1000 + value[2])
        if value[2] % 5 == 4:
            raise ValueError(f"{value[2]}")
        yield value[0], "record", tuple(self.seen)

    async def on_timer(self, timestamp: int, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        for _ in range(timestamp % 9):
            await asyncio.sleep(0)
        if timestamp % 7 == 3:
            raise ValueError(f"{timestamp}")
        yield ctx.get_current_key(), "timer", timestamp


def carried(env: Any, source: Any) -> Any:
    return source.key_by(modulo_5).process(AsyncHistory(), capacity=3, on_barrier="carry")


def drained(env: Any, source: Any) -> Any:
    return source.map(lambda x: x + 0).key_by(modulo_5).process(SlowHistory(), ordered=True)


def carried_timers(env: Any, events: Any) -> Any:
    timed = events.assign_timestamps_and_watermarks(monotonous(1)).key_by(first)
    results = timed.process(AsyncTimers(), on_barrier="carry", on_error=BAD)
    return {"results": results, "bad": results.get_side_output(BAD)}


def letters_view(name: str, values: Any) -> Any:
    return [(letter.key, letter.value, letter.timestamp) for letter in values] if name == "bad" else values


_HISTORY: dict[str, Any] = {
    "together": {"source": modulo_5},
    "order": {"output": first},
    "cut_free": True,
    "batch_oracle": oracles.each_key(oracles.history, oracles.modulo_5),
}

PROGRAMS: dict[str, SimulatedProgram] = {
    "carried-records": SimulatedProgram(
        carried,
        lambda rng: {"source": numbers(rng)},
        tail=(1,) * 40,
        rescales=False,
        sorted_in_batch=False,
        **_HISTORY,
    ),
    "awaited-records": SimulatedProgram(drained, lambda rng: {"source": numbers(rng)}, **_HISTORY),
    "carried-timers": SimulatedProgram(
        carried_timers,
        lambda rng: {"events": keyed_events(rng, most=40)},
        together={"events": first},
        last=LAST,
        cut_free=True,
        view=letters_view,
        tail=(1,) * 40,
        rescales=False,
        sorted_in_batch=False,
        batch_oracle="on_timer meets another watermark in batch mode",
    ),
}
