"""Programs that call a service."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from pillarbox import AsyncCache, AsyncRetryStrategy, KeyedProcessFunction, OutputTag, ValueStateDescriptor
from tests.simulation import oracles
from tests.simulation.programs.event_time import Echo, Pass
from tests.simulation.programs.program import FAR, SimulatedProgram, of_events
from tests.simulation.service import NEVER, Client
from tests.support.programs import first, monotonous, second

FAILED = OutputTag("failed")


class Slow(Client):
    """Answers after a delay on the simulation's clock."""

    async def __call__(self, value: Any) -> Any:
        await self.ask(value[1])
        return value[0], value[2], value[2] ** 2


class Failing(Client):
    """Answers at once. Fails at the first attempt, or always."""

    async def __call__(self, value: Any) -> Any:
        await self.ask(0)
        if value[2] % 9 == 8:
            raise ConnectionError("never")
        if self.fails(value[2], value[2] % 3):
            raise ConnectionError("not yet")
        return value[0], value[2], value[2] ** 2


class Batched(Client):
    async def __call__(self, values: list[Any]) -> Any:
        await self.ask(0)
        return [(value[0], value[2], value[2] ** 2) for value in values]


class Constant(Client):
    async def __call__(self, value: Any) -> Any:
        await self.ask(0)
        return value[2] % 4


class Counted(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)
        yield ctx.get_current_key(), self.count.value()


def requests(rng: random.Random) -> list[Any]:
    return [(rng.choice("abcd"), rng.choice([1, 5, 30, 200, 450]), n) for n in range(rng.randrange(25))]


def requests_without_answers(rng: random.Random) -> list[Any]:
    return [(key, rng.choice([takes, NEVER]), n) for key, takes, n in requests(rng)]


def carried(env, events):
    return events.key_by(first).map_async(Slow(), capacity=100, timeout=None, on_barrier="carry")


def carried_in_any_order(env, events):
    asked = events.key_by(first).map_async(Slow(), capacity=100, timeout=None, ordered=False, on_barrier="carry")
    return asked.key_by(second).reduce(max)


def carried_without_a_key(env, events):
    asked = events.rebalance().map_async(Slow(), capacity=100, timeout=None, ordered=False, on_barrier="carry")
    return asked.key_by(second).reduce(max)


def carried_until_a_timeout(env, events):
    asked = events.key_by(first).map_async(
        Slow(), capacity=100, timeout="20 seconds", ordered=False, on_barrier="carry", on_failure=FAILED
    )
    return {"answers": asked, "failed": asked.get_side_output(FAILED)}


def failures_view(name: str, values: Sequence[Any]) -> Sequence[Any]:
    return [value.value for value in values] if name == "failed" else values


def carried_with_event_time(env, events):
    asked = (
        events.assign_timestamps_and_watermarks(monotonous(2))
        .key_by(first)
        .map_async(Slow(), capacity=100, timeout=None, on_barrier="carry")
    )
    return asked.key_by(first).process(Echo())


def retry() -> Any:
    return AsyncRetryStrategy.fixed_delay(4, 1)


def drained(env, events):
    asked = events.map_async(Failing(), retry=retry(), timeout=None, on_failure=FAILED)
    return {"sums": asked.key_by(first).reduce(max), "failed": asked.get_side_output(FAILED)}


def drained_behind_a_shuffle(env, events):
    asked = (
        events.key_by(first)
        .process(Pass())
        .map_async(Failing(), retry=retry(), timeout=None, ordered=True, on_failure="drop", capacity=3)
    )
    return asked.key_by(first).process(Pass())


def drained_with_a_cache(env, events):
    cache = AsyncCache(max_size=3, key=lambda value: value[2] % 4)
    return events.map_async(Constant(), cache=cache, timeout=None).key_by(lambda value: value).process(Counted())


def asked_in_batches(env, events):
    return events.key_by(first).map_async(Batched(), batch_size=4, timeout=None, ordered=True)


_ASKING = {"events": first}

_CARRIED = (150,) * 11


PROGRAMS: dict[str, SimulatedProgram] = {
    "carried": SimulatedProgram(
        carried,
        lambda rng: {"events": requests(rng)},
        together=_ASKING,
        order={"output": first},
        tail=_CARRIED,
        cut_free=True,
        timed=True,
        batch_oracle=oracles.each_key(oracles.squares),
        sorted_in_batch=False,
    ),
    "carried-to-the-end": SimulatedProgram(
        carried,
        lambda rng: {"events": requests(rng)},
        together=_ASKING,
        order={"output": first},
        cut_free=True,
        timed=True,
        bounded=True,
        batch_oracle=oracles.each_key(oracles.squares),
        sorted_in_batch=False,
    ),
    "carried-in-any-order": SimulatedProgram(
        carried_in_any_order,
        lambda rng: {"events": requests(rng)},
        tail=_CARRIED,
        cut_free=True,
        timed=True,
        batch_oracle=oracles.each_key(oracles.squares),
    ),
    "carried-without-a-key": SimulatedProgram(
        carried_without_a_key,
        lambda rng: {"events": requests(rng)},
        tail=_CARRIED,
        cut_free=True,
        timed=True,
        batch_oracle=oracles.each_key(oracles.squares),
    ),
    "carried-until-a-timeout": SimulatedProgram(
        carried_until_a_timeout,
        lambda rng: {"events": requests_without_answers(rng)},
        tail=(150,) * 10 + (4000,) * 8,
        cut_free=True,
        timed=True,
        view=failures_view,
        batch_oracle=oracles.until_a_timeout,
    ),
    "carried-with-event-time": SimulatedProgram(
        carried_with_event_time,
        lambda rng: {"events": requests(rng)},
        last={"events": [("z", 1, FAR)]},
        tail=_CARRIED,
        cut_free=True,
        timed=True,
        batch_oracle=oracles.each_key(oracles.squares),
    ),
    "drained": of_events(
        drained,
        most=30,
        together=_ASKING,
        order={"sums": first},
        cut_free=True,
        view=failures_view,
        batch_oracle=oracles.drained,
    ),
    "drained-behind-a-shuffle": of_events(
        drained_behind_a_shuffle,
        most=30,
        together=_ASKING,
        order={"output": first},
        cut_free=True,
        batch_oracle=oracles.each_key(lambda key, group: oracles.squares(key, [v for v in group if v[2] % 9 != 8])),
    ),
    "drained-with-a-cache": of_events(
        drained_with_a_cache,
        most=30,
        cut_free=True,
        batch_oracle=oracles.each_key(
            lambda rest, group: [(rest, count) for count in range(1, len(group) + 1)], lambda value: value[2] % 4
        ),
    ),
    "asked-in-batches": of_events(
        asked_in_batches,
        most=30,
        together=_ASKING,
        order={"output": first},
        cut_free=True,
        batch_oracle=oracles.each_key(oracles.squares),
        sorted_in_batch=False,
    ),
}
