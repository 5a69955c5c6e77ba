"""The streams that chaos runs beside the ledger, and their oracle: on the local runtime, with epochs that are lost."""

from __future__ import annotations

import pytest

from pillarbox.testing import ProgramTestHarness, row
from tests.faults.everything_oracle import LEVELS
from tests.faults.job import make_events, program
from tests.faults.oracle import answer
from tests.faults.others import all_others


@pytest.mark.parametrize(("input_seed", "parallelism"), [(1, 1), (2, 2), (3, 3)])
def test_they_are_what_plain_python_says(input_seed, parallelism):
    epochs = make_events(input_seed, epochs=8, keys=10)
    right = answer(epochs, others=True)
    rows = [found for batch in right.output.values() for found in batch]
    levels = {level for level, *_ in rows}
    assert levels == LEVELS - {15, 16, 17}
    assert {place for place, found in right.points.items() if sum(map(len, found)) <= 10} == set()
    assert sum(level == 13 and state.endswith("null]") for level, _, _, state in rows) > 10  # without a partner
    assert sum(level == 23 and "the timer at" in state for level, _, _, state in rows) > 10
    fired = [place for epoch in right.points["window"] for place in epoch]
    assert len(set(fired)) < len(fired)  # some fired twice
    with ProgramTestHarness(
        lambda env, events: program(events, further=all_others), parallelism=parallelism
    ) as harness:
        for number, parts in enumerate(epochs):
            for place, events in enumerate(parts):
                harness.push_all("events", [row(**event._asdict()) for event in events], partition=place)
            if number % 3 == 1:
                harness.restore(harness.snapshot())
            if number % 3 == 2:
                harness.fail_epoch()
            found = sorted(tuple(out[:4]) for out in harness.run_epoch()["output"])
            assert found == right.output[number], number
