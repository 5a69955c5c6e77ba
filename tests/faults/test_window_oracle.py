"""The windows that chaos runs, beside their oracle: on the local runtime, epoch by epoch, with lost ones."""

from __future__ import annotations

import pytest

from pillarbox.testing import ProgramTestHarness, row
from tests.faults.job import make_events, program
from tests.faults.oracle import answer
from tests.faults.window_job import windows


@pytest.mark.parametrize(("input_seed", "parallelism"), [(1, 1), (2, 2), (3, 3)])
def test_windows_are_what_plain_python_says(input_seed, parallelism):
    epochs = make_events(input_seed, epochs=8, keys=10)
    right = answer(epochs, windows=True)
    levels = {found[0] for rows in right.output.values() for found in rows}
    assert levels == {1, 2, 3, 4, 5, 6}
    assert len({fired for epoch in right.windows for fired in epoch}) < sum(map(len, right.windows))  # some fired twice
    with ProgramTestHarness(lambda env, events: program(events, windows=windows), parallelism=parallelism) as harness:
        for number, parts in enumerate(epochs):
            for place, events in enumerate(parts):
                harness.push_all("events", [row(**event._asdict()) for event in events], partition=place)
            if number % 3 == 1:
                harness.restore(harness.snapshot())
            if number % 3 == 2:
                harness.fail_epoch()
            found = sorted(tuple(out[:4]) for out in harness.run_epoch()["output"])
            assert found == right.output[number], number
