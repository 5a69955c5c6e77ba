"""The models of chaos programs have the same output as the programs on the local runtime, where epochs fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product

import pytest

from pillarbox.testing import ProgramTestHarness, row
from tests.faults.oracles.oracle import answer
from tests.faults.parts import columns, joins
from tests.faults.parts.part import BOUNDS, Joined, Part, streams_of
from tests.faults.programs.job import Epoch, make_events, program
from tests.operators_table.table import chaos_parts

PARTS = chaos_parts()
SHOWN = {(BOUNDS[0], "left"), (BOUNDS[1], "inner")}
_OTHER_BOUNDS = pytest.mark.long("the models of joins on the local runtime draw bounds of all kinds")


@pytest.mark.long("faults/test_every_operator.py compares a query on Spark with them")
@pytest.mark.parametrize(("input_seed", "parallelism"), [(1, 1), (2, 2), (3, 3)])
def test_they_are_what_plain_python_says(input_seed, parallelism):
    epochs = make_events(input_seed, epochs=8, keys=10, grain=1000 if input_seed == 2 else 1)
    right = answer(epochs, PARTS)
    rows = [result for batch in right.output.values() for result in batch]
    assert {name for name, *_ in rows} == {"ledger", "region", *(name for part in PARTS for name in part.rows)}
    assert {point for point, result in right.points.items() if sum(map(len, result)) <= 10} == set()
    assert sum(name == "column pairs" and state.endswith("null]") for name, _, _, state in rows) > 10
    assert sum(name == "strict: refused" and "the timer at" in state for name, _, _, state in rows) > 10
    assert max(Counter(row[:3] for row in rows if row[0] == "tumbling").values()) > 1  # one fired twice
    check_epochs(epochs, PARTS, parallelism)


@pytest.mark.parametrize(
    ("bounds", "how"),
    [pytest.param(*case, marks=() if case in SHOWN else _OTHER_BOUNDS) for case in product(BOUNDS, ["left", "inner"])],
    ids=str,
)
def test_joins_are_what_plain_python_says_whatever_their_bounds(bounds, how):
    joined = Joined(bounds, how)
    parts = [joins.pairs_of(joined), columns.pairs_of(joined)]
    epochs = make_events(7, epochs=8, keys=5, records=60, one_sided=0.3, grain=1000)
    rows = [result for batch in answer(epochs, parts).output.values() for result in batch]
    assert sum(name == "pairs" for name, *_ in rows) > 5
    alone = sum(name == "column pairs" and state.endswith("null]") for name, _, _, state in rows)
    assert alone > 10 if how == "left" else alone == 0
    check_epochs(epochs, parts)


def check_epochs(epochs: list[Epoch], parts: Sequence[Part], parallelism: int = 2) -> None:
    right = answer(epochs, parts)
    with ProgramTestHarness(
        lambda env, events: program(events, further=streams_of(parts)), parallelism=parallelism
    ) as harness:
        for number, events_of in enumerate(epochs):
            for index, events in enumerate(events_of):
                harness.push_all("events", [row(**event._asdict()) for event in events], partition=index)
            if number % 3 == 1:
                harness.restore(harness.snapshot())
            if number % 3 == 2:
                harness.fail_epoch(time_passes="1 second")
            outputs = harness.run_epoch(time_passes="1 second")["output"]
            assert sorted(tuple(output[:4]) for output in outputs) == right.output[number], number
