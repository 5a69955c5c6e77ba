"""Python workers fail. Spark repeats the task, and the failed attempt has no effect."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.faults.conftest import MakeRun
from tests.faults.oracles.oracle import Answer
from tests.faults.programs.job import Fault

pytestmark = pytest.mark.fault


def anywhere(
    rng: random.Random, right: Answer, actions: Sequence[str], places: Sequence[str] | None = None
) -> list[Fault]:
    faults = []
    every = list(right.points if places is None else places)
    for point in every:
        by_epoch = right.points[point]
        epochs = [number for number, result in enumerate(by_epoch) if result and (number or point != every[-1])]
        epoch = rng.choice(epochs)
        faults.append(Fault(point, rng.choice(by_epoch[epoch]), rng.choice(actions)))
    return faults


@pytest.mark.long("test_every_operator.py kills workers, and test_restarts.py has a task that fails four times")
def test_a_task_fails_three_times(make_run: MakeRun, seed: int) -> None:
    rng = random.Random(seed)
    run = make_run(seed + 2, epochs=3)
    last = run.epochs[-2][0][-1].id
    actions = [rng.choice(["kill", "raise"]) for _ in range(2)]
    of_the_second = run.right.points["snapshot"][1]
    run.plan([Fault("changed", last, actions[0], 3), Fault("snapshot", of_the_second[-1], actions[1], 3)])
    run.to_the_end()
    run.check()
