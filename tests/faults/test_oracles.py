"""The streams that chaos runs beside the ledger, and their oracle: on the local runtime, with epochs that are lost."""

from __future__ import annotations

import pytest

from pillarbox.testing import ProgramTestHarness, row
from tests.faults.chaos_driver import all_others
from tests.faults.job import make_events, program
from tests.faults.oracle import answer


@pytest.mark.parametrize(("input_seed", "parallelism"), [(1, 1), (2, 2), (3, 3)])
def test_they_are_what_plain_python_says(input_seed, parallelism):
    epochs = make_events(input_seed, epochs=8, keys=10)
    right = answer(epochs, windows=True, joins=True, columns=True, letters=True)
    rows = [found for batch in right.output.values() for found in batch]
    levels = {level for level, *_ in rows}
    assert levels == {*range(1, 15), 18, 19, 22, 23, 24, 26}
    assert all(sum(map(len, found)) > 10 for found in (right.pairs, right.rules, right.ruled))
    assert sum(level == 13 and state.endswith("null]") for level, _, _, state in rows) > 10  # without a partner
    assert sum(level == 23 and "the timer at" in state for level, _, _, state in rows) > 10
    assert len({fired for epoch in right.windows for fired in epoch}) < sum(map(len, right.windows))  # some fired twice
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
