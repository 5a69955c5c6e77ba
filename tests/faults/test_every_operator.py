"""One program with all operators runs on Spark, while workers are killed and the query is stopped and restarted.

``tests/operators_table`` contains the operators and their expected output.
"""

from __future__ import annotations

import random

import pytest

from tests.faults.conftest import MakeRun, tasks
from tests.faults.programs.job import write_events
from tests.faults.test_workers import anywhere
from tests.operators_table.table import chaos_parts

pytestmark = [pytest.mark.fault, pytest.mark.slow("all operators in one query, which starts twice")]
KILLS = 3


def test_workers_are_killed_and_the_query_is_started_again(make_run: MakeRun, seed: int) -> None:
    parts, rng = chaos_parts(), random.Random(seed)
    run = make_run(seed + 5, parts=parts, epochs=3, written=2, keys=6)
    rows = [row for batch in run.right.output.values() for row in batch]
    assert {name for name, *_ in rows} >= {name for part in parts for name in part.rows}, (
        "each operator emits something"
    )
    run.plan(anywhere(rng, run.right, ["kill"], rng.sample(sorted(run.right.points), KILLS)))
    run.to_the_end()
    write_events(run.epochs[2:], run.home / "in", first=2)
    query = run.to_the_end()
    run.check()
    assert "loaded" in {task.state_sync for task in tasks(query)}
