"""Runs simulated programs under schedules that seeds determine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox.testing._simulation.cluster import FAULTS, ClusterStepLog
from pillarbox.testing._simulation.run import SimulatedPrograms, SimulatedRun, SimulatedRunMismatch
from pillarbox.testing._simulation.turns import Turns
from tests.simulation import service
from tests.simulation.every_program import PROGRAMS

__all__ = ["SimulatedRunMismatch", "command", "run_of", "simulate"]


class TurnsWithService(Turns):
    """A simulated event loop that also advances the service."""

    def __init__(self, clock: ManualProcessingTimeService, rng: random.Random | None) -> None:
        super().__init__(clock, rng)
        service.begin(0)

    def answer(self, now: int) -> bool:
        return service.answer(now)

    def times_of_answers(self) -> Iterator[int]:
        return service.times_of_answers()


@cache
def compiled(name: str) -> SimulatedPrograms:
    return SimulatedPrograms(PROGRAMS[name])


def run_of(name: str, seed: int) -> SimulatedRun:
    program = PROGRAMS[name]
    # A subtask's event time and idleness depend on the parallelism.
    rescales = program.cut_free and not program.timed and not program.event_time and program.rescales
    faults = [kind for kind in FAULTS if rescales or kind != "rescale"]
    return SimulatedRun(compiled(name), f"{name} {seed}", faults=faults, turns=TurnsWithService)


def simulate(name: str, seed: int) -> ClusterStepLog:
    """Run a program under a seed's schedule.

    Raises:
        SimulatedRunMismatch: the outcome differs from the run without faults, or from plain Python.
    """
    run = run_of(name, seed)
    run.verify()
    return run.steps


def command(name: str, seed: int) -> str:
    return f"make simulate PROGRAM={name} SEED={seed}"
