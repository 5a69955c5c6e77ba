"""Programs with wild times (late, equal, out of order, in the far future), and with NaNs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pillarbox import KeyedProcessFunction, MapStateDescriptor
from tests.simulation.programs.program import FAR, LAST, Inputs, SimulatedProgram, keyed_events
from tests.support.programs import first, monotonous

# Programs of other modules that are run once more.
NAMES = (
    "windows",
    "late-data",
    "sessions",
    "merging-sessions",
    "late-sessions",
    "late-panes",
    "late-folded-sessions",
    "late-totals",
    "late-columns",
    "late-sessions-of-columns",
    "interval-join",
    "late-interval-join",
    "joined-windows",
    "join-of-columns",
    "late-join-of-columns",
    "join-of-columns-with-a-function",
    "deduplicated",
    "in-event-time-order",
    "late-in-event-time-order",
)
_UNORDERED = "records are late, or not, by how the input is cut"


def wild_times(inputs: Inputs, rng: random.Random) -> Inputs:
    changed: dict[str, Any] = {}
    for name, records in inputs.items():
        times = [record[1] for record in records]
        wild = []
        for record in records:
            at = record[1]
            drawn = rng.random()
            if drawn < 0.1:
                at = FAR - rng.choice([1, 2, 1_000])
            elif drawn < 0.3:
                at = max(0, rng.choice(times) + rng.choice([-1, 0, 1]))
            wild.append((record[0], at, *record[2:]))
        changed[name] = wild
    return changed


def in_the_wild(programs: Mapping[str, SimulatedProgram]) -> dict[str, SimulatedProgram]:
    def drawing(inputs: Callable[[random.Random], Inputs]) -> Callable[[random.Random], Inputs]:
        return lambda rng: wild_times(inputs(rng), rng)

    return {
        f"wild-{name}": replace(
            programs[name],
            inputs=drawing(programs[name].inputs),
            cut_free=False,
            batch_oracle=_UNORDERED if programs[name].oracle is None else None,
        )
        for name in NAMES
    }


class Numbers(KeyedProcessFunction):
    """Counts numbers, including NaNs, in a map."""

    def open(self, runtime_context):
        self.counts = runtime_context.get_map_state(MapStateDescriptor("counts"))

    def process_element(self, value, ctx):
        number = value[2]
        self.counts.put(number, (self.counts.get(number) or 0) + 1)
        if self.counts.get(number) == 3:
            self.counts.remove(number)
        yield value[0], sorted(map(repr, self.counts.items()))


def numbers(env: Any, events: Any) -> dict[str, Any]:
    keyed = events.assign_timestamps_and_watermarks(monotonous()).key_by(first)
    return {"counts": keyed.process(Numbers()), "least": keyed.min(2), "greatest": keyed.max_by(2)}


def some_nan(rng: random.Random) -> Inputs:
    pool = (math.nan, -0.0, 0.0, 1.5, 2)
    events = [(key, at, float("nan") if (n := rng.choice(pool)) != n else n) for key, at, _ in keyed_events(rng)]
    return {"events": events}


PROGRAMS: dict[str, SimulatedProgram] = {
    "numbers-and-nan": SimulatedProgram(
        numbers,
        some_nan,
        last=LAST,
        together={"events": first},
        order={"counts": first, "least": first, "greatest": first},
        batch_oracle="the undisturbed run says it",
    )
}
