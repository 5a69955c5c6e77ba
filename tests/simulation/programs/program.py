"""What programs of the simulation share: letters, and how their input is drawn."""

from __future__ import annotations

import random
from typing import Any

from pillarbox.testing._simulation.program import Inputs, SimulatedProgram, outcome

__all__ = ["FAR", "LETTERS", "Inputs", "SimulatedProgram", "keyed_events", "outcome"]

FAR = 10**9

LETTERS = "abcdefgh"


def keyed_events(rng: random.Random, *, most: int = 60, keys: str = LETTERS, until: int = 1500) -> list[Any]:
    """Return events (key, time, number) about in order; no two have the same number."""
    count = rng.randrange(most + 1)
    times = sorted(rng.randrange(until) for _ in range(count))
    return [(rng.choice(keys), max(0, at - rng.choice([0, 0, 20, 100])), n) for n, at in enumerate(times)]
