"""Keyed functions for ``make chaos`` that await something between a read and a write of state."""

from __future__ import annotations

import asyncio
from typing import Any

from pillarbox import KeyedProcessFunction, ValueStateDescriptor
from tests.faults.parts.part import Model, OutputRow, Part, mixed
from tests.faults.programs.job import Event, Faults


class Awaits(KeyedProcessFunction):
    """Folds a key's events. Concurrent or repeated events of a key would change the result."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def open(self, runtime_context: Any) -> None:
        self.folded = runtime_context.get_state(ValueStateDescriptor("folded", int, default=0))

    async def process_element(self, event: Event, ctx: Any) -> Any:
        folded = self.folded.value()
        await asyncio.sleep(event.id % 3 / 1_000)
        self.faults.pass_by("awaited", event.id)
        self.folded.update(mixed(folded, event.id))
        yield OutputRow(event.key, event.ts, self.folded.value())


class AwaitsModel(Model):
    def __init__(self) -> None:
        super().__init__()
        self._folded: dict[int, int] = {}

    def record(self, event: Event) -> None:
        self.points["awaited"].append(event.id)
        self._folded[event.key] = mixed(self._folded.get(event.key, 0), event.id)
        self.say(event.key, event.ts, self._folded[event.key])


AWAITED = Part(
    "awaited", lambda events, faults: events.key_by("key").process(Awaits(faults), timeout="1 hour"), AwaitsModel
)
