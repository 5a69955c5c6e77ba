"""Shared parts of the simulation's programs: conditions in batch mode, and random input."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pillarbox.testing._program_harness import Build
from pillarbox.testing._simulation import program
from pillarbox.testing._simulation.program import Inputs, outcome

__all__ = [
    "FAR",
    "LAST",
    "LETTERS",
    "SUBTASKS",
    "Inputs",
    "SimulatedProgram",
    "keyed_events",
    "of_events",
    "outcome",
]

FAR = 10**9

LETTERS = "abcdefgh"

LAST: Inputs = {"events": [("z", FAR, 0)]}

# Why plain Python cannot compute a program's outcome.
SUBTASKS = "its outcome depends on the number of subtasks"


@dataclass(frozen=True)
class SimulatedProgram(program.SimulatedProgram):
    """A program and the conditions of its outcome in streaming and batch mode.

    Attributes:
        batch_oracle: the oracle in batch mode, by default ``oracle``. If it is a string (a reason), results are instead
            compared with a run without faults.
        batch_view: ``view`` in batch mode.
        sorted_in_batch: whether batch mode sorts records by key. False if functions cannot have state.
        rescales: whether the outcome does not depend on the number of subtasks. False if each subtask emits something.
    """

    batch_oracle: Callable[[Inputs], Mapping[str, Any]] | str | None = None
    batch_view: Callable[[str, Sequence[Any]], Sequence[Any]] | None = None
    sorted_in_batch: bool = True
    rescales: bool = True


def keyed_events(rng: random.Random, *, most: int = 60, keys: str = LETTERS, until: int = 1500) -> list[Any]:
    count = rng.randrange(most + 1)
    times = sorted(rng.randrange(until) for _ in range(count))
    return [(rng.choice(keys), max(0, at - rng.choice([0, 0, 20, 100])), n) for n, at in enumerate(times)]


def of_events(build: Build, *, most: int = 60, **promises: Any) -> SimulatedProgram:
    return SimulatedProgram(build, lambda rng: {"events": keyed_events(rng, most=most)}, **promises)
