"""The streams that chaos runs beside the ledger, and their oracle: on the local runtime, with epochs that are lost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest

from pillarbox.testing import ProgramTestHarness, row
from tests.faults.oracles.everything_oracle import LEVELS
from tests.faults.oracles.oracle import Answer, answer
from tests.faults.programs.columns_job import columns
from tests.faults.programs.job import Epoch, Row, make_events, program
from tests.faults.programs.join_job import BOUNDS, Joined, joins
from tests.faults.programs.others import all_others


@pytest.mark.parametrize(("input_seed", "parallelism"), [(1, 1), (2, 2), (3, 3)])
def test_they_are_what_plain_python_says(input_seed, parallelism):
    epochs = make_events(input_seed, epochs=8, keys=10, grain=1000 if input_seed == 2 else 1)
    right = answer(epochs, others=True)
    rows = [found for batch in right.output.values() for found in batch]
    levels = {level for level, *_ in rows}
    assert levels == LEVELS - {15, 16, 17}
    assert {place for place, found in right.points.items() if sum(map(len, found)) <= 10} == set()
    assert sum(level == 13 and state.endswith("null]") for level, _, _, state in rows) > 10  # without a partner
    assert sum(level == 23 and "the timer at" in state for level, _, _, state in rows) > 10
    fired = [place for epoch in right.points["window"] for place in epoch]
    assert len(set(fired)) < len(fired)  # some fired twice
    check_epochs(epochs, right, all_others, LEVELS, parallelism)


@pytest.mark.parametrize("how", ["left", "inner"])
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_joins_are_what_plain_python_says_whatever_their_bounds(bounds, how):
    joined = Joined(bounds, how)
    epochs = make_events(7, epochs=8, keys=5, records=60, one_sided=0.3, grain=1000)
    right = answer(epochs, others=True, joined=joined)
    rows = [found for batch in right.output.values() for found in batch]
    assert sum(level == 7 for level, *_ in rows) > 5
    alone = sum(level == 13 and state.endswith("null]") for level, _, _, state in rows)
    assert alone > 10 if how == "left" else alone == 0
    check_epochs(
        epochs, right, lambda events, faults: [*joins(events, faults, joined), *columns(events, joined)], {7, 8, 13, 14}
    )


def check_epochs(
    epochs: list[Epoch],
    right: Answer,
    further: Callable[[Any, Any], list[Any]],
    levels: Collection[int],
    parallelism: int = 2,
) -> None:
    """Run epochs, some of them twice, some from what a snapshot has; compare what comes out at these levels."""

    def of_the_levels(rows: Iterable[Row]) -> list[Row]:
        return sorted(row for row in rows if row[0] in levels)

    with ProgramTestHarness(lambda env, events: program(events, further=further), parallelism=parallelism) as harness:
        for number, parts in enumerate(epochs):
            for place, events in enumerate(parts):
                harness.push_all("events", [row(**event._asdict()) for event in events], partition=place)
            if number % 3 == 1:
                harness.restore(harness.snapshot())
            if number % 3 == 2:
                harness.fail_epoch()
            found = of_the_levels(tuple(out[:4]) for out in harness.run_epoch()["output"])
            assert found == of_the_levels(right.output[number]), number
